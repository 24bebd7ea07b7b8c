"""How the processes of a run meet, before JAX joins them.

JAX takes each at its word. With unlike numbers of processes they wait for somebody who
never comes, and where another program has the port all but process 0 wait for it. So
process 0 listens at the address first; each of the others says who it is; and when all
have come, or two of them disagree, all are told. Then process 0 leaves the port to JAX.
"""

import os
import re
import socket
import time
from contextlib import ExitStack, suppress
from typing import NoReturn

from ..errors import SettingError
from .together import Together

GREETING = b"process 0 of fedjax-adapt\n"  # what no other program says
WORD = 10  # seconds for whoever is connected to say who it is
PAUSE = 0.2  # seconds until somebody calls again


def meet(them: Together) -> None:
    """Returns when all processes have come and mean the same number of them.

    Raises:
      ValueError: nobody can listen at the address, another program does, processes do not
        come in time, or they differ in their number or share an id.
    """
    until = time.monotonic() + them.initialization_timeout
    if them.process_id == 0:
        _receive(them, until)
    else:
        _call(them, until)


def late(them: Together) -> str:
    """The sentence for those who have waited in vain."""
    return (
        f"the other processes have not come to {them.coordinator_address} within "
        f"{them.initialization_timeout} seconds; begin all of them, with the same "
        "num_processes."
    )


def _receive(them: Together, until: float) -> None:
    """Process 0: hears all others, then answers them at once."""
    ids, wrong = {0}, None
    with _listening(them.coordinator_address) as door, ExitStack() as callers:
        answered = []
        while wrong is None and len(ids) != them.num_processes:
            door.settimeout(max(until - time.monotonic(), PAUSE))
            try:
                caller = callers.enter_context(door.accept()[0])
            except TimeoutError:
                wrong = late(them)
                break
            said = _who(caller)
            if said is not None:  # else another program has looked at this port
                answered.append(caller)
                wrong = _difference(them, ids, *said)
                ids.add(said[0])
        for caller in answered:
            with suppress(OSError):  # it has ended meanwhile
                caller.sendall(f"{wrong or ''}\n".encode())
    if wrong is not None:
        raise SettingError(wrong)


def _difference(them: Together, ids: set[int], own: int, count: int) -> str | None:
    """What is wrong with process `own` of `count`, where `ids` have come; None: nothing."""
    if count != them.num_processes:
        return (
            f"process {own} has num_processes={count} but process 0 num_processes="
            f"{them.num_processes}; give all the same command but for --process-id."
        )
    if own in ids:
        return f"process_id={own} was given to two processes; give each its own."
    return None


def _call(them: Together, until: float) -> None:
    """Any other process: says who it is, and waits for the answer."""
    line = _connected(them, until)
    with line, line.makefile("rb") as words:
        try:
            if words.readline(len(GREETING)) != GREETING:
                _refuse_stranger(them)
            line.sendall(
                f"process {them.process_id} of {them.num_processes}\n".encode()
            )
        except OSError:
            _refuse_stranger(them)
        line.settimeout(max(until - time.monotonic(), WORD))
        try:
            answer = words.readline().decode()
        except TimeoutError:
            raise SettingError(late(them)) from None
        except OSError:
            answer = ""
    if not answer:
        raise SettingError(
            "process 0 ended before the run began; read what it said and begin all again."
        )
    if answer != "\n":
        raise SettingError(answer.strip())


def _connected(them: Together, until: float) -> socket.socket:
    """A line to whoever listens at the address, which may be later than now."""
    host, _, port = them.coordinator_address.rpartition(":")
    there = host.strip("[]"), int(port)
    while (left := until - time.monotonic()) > 0:
        try:
            line = socket.create_connection(there, min(WORD, left))
        except OSError:
            time.sleep(PAUSE)
            continue
        # a caller of this machine can be given the very port that it calls
        if line.getsockname() != line.getpeername():
            return line
        line.close()
    raise SettingError(late(them))


def _who(caller: socket.socket) -> tuple[int, int] | None:
    """(process_id, num_processes) of who calls; None: it is no process of a run."""
    caller.settimeout(WORD)
    try:
        caller.sendall(GREETING)
        with caller.makefile("rb") as words:
            said = re.fullmatch(rb"process (\d+) of (\d+)\n", words.readline(100))
    except OSError:
        return None
    return said and (int(said[1]), int(said[2]))


def _refuse_stranger(them: Together) -> NoReturn:
    raise SettingError(
        f"coordinator_address={them.coordinator_address} is the port of another program; "
        "give another one in every process."
    ) from None


def _listening(address: str) -> socket.socket:
    """A socket at the port where JAX, which would crash if it could not, listens later."""
    bound = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", address)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        port = int(bound.rpartition(":")[2])
        return socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except (OSError, ValueError) as error:
        raise SettingError(
            f"coordinator_address={address} cannot be listened to ({error}); give another "
            "port in every process."
        ) from None
