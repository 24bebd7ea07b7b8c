"""The rendezvous of the processes of a run, before `jax.distributed.initialize`.

JAX does not compare what the processes were given. With different numbers of processes
some wait for ever, and so do all but process 0 where another program has the port. So
process 0 first listens at the address itself, and each other process sends it its number.
When all have connected, or two of them disagree, process 0 answers all of them and leaves
the port to JAX.
"""

import os
import re
import socket
import time
from contextlib import ExitStack, suppress
from typing import NoReturn

from ..errors import SettingError
from .process_flags import ProcessGroup

GREETING = b"process 0 of fedjax-adapt\n"  # no other program sends this
WORD = 10  # seconds for a connected process to send its number
PAUSE = 0.2  # seconds between two attempts to connect


def wait_for_all(group: ProcessGroup) -> None:
    """Returns when all processes have come and mean the same number of group.

    Raises:
      ValueError: the port cannot be listened to, another program has it, processes do not
        come in time, or they differ in their number or share an id.
    """
    until = time.monotonic() + group.initialization_timeout
    if group.process_id == 0:
        _receive(group, until)
    else:
        _call(group, until)


def timeout_message(group: ProcessGroup) -> str:
    """What a process says that has waited for the others in vain."""
    return (
        f"the other processes have not come to {group.coordinator_address} within "
        f"{group.initialization_timeout} seconds; begin all of group, with the same "
        "num_processes."
    )


def _receive(group: ProcessGroup, until: float) -> None:
    """Process 0: receives from all others, then answers them at once."""
    ids, wrong = {0}, None
    with _listening(group.coordinator_address) as door, ExitStack() as callers:
        answered = []
        while wrong is None and len(ids) != group.num_processes:
            door.settimeout(max(until - time.monotonic(), PAUSE))
            try:
                caller = callers.enter_context(door.accept()[0])
            except TimeoutError:
                wrong = timeout_message(group)
                break
            said = _who(caller)
            if said is not None:  # else another program has looked at this port
                answered.append(caller)
                wrong = _difference(group, ids, *said)
                ids.add(said[0])
        for caller in answered:
            with suppress(OSError):  # it has ended meanwhile
                caller.sendall(f"{wrong or ''}\n".encode())
    if wrong is not None:
        raise SettingError(wrong)


def _difference(group: ProcessGroup, ids: set[int], own: int, count: int) -> str | None:
    """What is wrong with process `own` of `count`, where `ids` have come; None: nothing."""
    if count != group.num_processes:
        return (
            f"process {own} has num_processes={count} but process 0 num_processes="
            f"{group.num_processes}; give all the same command but for --process-id."
        )
    if own in ids:
        return f"process_id={own} was given to two processes; give each its own."
    return None


def _call(group: ProcessGroup, until: float) -> None:
    """Any other process: sends its number and waits for the answer."""
    line = _connected(group, until)
    with line, line.makefile("rb") as words:
        try:
            if words.readline(len(GREETING)) != GREETING:
                _refuse_stranger(group)
            line.sendall(
                f"process {group.process_id} of {group.num_processes}\n".encode()
            )
        except OSError:
            _refuse_stranger(group)
        line.settimeout(max(until - time.monotonic(), WORD))
        try:
            answer = words.readline().decode()
        except TimeoutError:
            raise SettingError(timeout_message(group)) from None
        except OSError:
            answer = ""
    if not answer:
        raise SettingError(
            "process 0 ended before the run began; read what it said and begin all again."
        )
    if answer != "\n":
        raise SettingError(answer.strip())


def _connected(group: ProcessGroup, until: float) -> socket.socket:
    """A connection to the address, as soon as a process listens there."""
    host, _, port = group.coordinator_address.rpartition(":")
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
    raise SettingError(timeout_message(group))


def _who(caller: socket.socket) -> tuple[int, int] | None:
    """(process_id, num_processes) of a caller; None: it is no process of a run."""
    caller.settimeout(WORD)
    try:
        caller.sendall(GREETING)
        with caller.makefile("rb") as words:
            said = re.fullmatch(rb"process (\d+) of (\d+)\n", words.readline(100))
    except OSError:
        return None
    return said and (int(said[1]), int(said[2]))


def _refuse_stranger(group: ProcessGroup) -> NoReturn:
    raise SettingError(
        f"coordinator_address={group.coordinator_address} is the port of another program; "
        "give another one in every process."
    ) from None


def _listening(address: str) -> socket.socket:
    """A socket at the port where JAX listens later: it would crash if it could not."""
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
