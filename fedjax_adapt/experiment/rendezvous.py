"""The flags about the processes of a run, and their rendezvous.

It comes before `jax.distributed.initialize`, which does not compare what the processes were
given. With different numbers of processes some wait for ever, and so do all but process 0
where another program has the port. So process 0 first listens at the address itself, and
each other process sends it its number. When all have connected, or two of them disagree,
process 0 answers all of them and leaves the port to JAX.
"""

import os
import re
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, Literal, NamedTuple, NoReturn

from .. import check
from ..errors import SettingError
from .options import Option

AUTO = "auto"
LAST_PORT = 2**16 - 1
DAY = 24 * 3600
OPTIONS = {  # by the names of the arguments of jax.distributed.initialize
    "coordinator_address": Option(
        str | None,
        None,
        "HOST:PORT of process 0, to make one run together with processes on other "
        "machines; auto: as Slurm, Open MPI or Kubernetes says",
    ),
    "num_processes": Option(int | None, None, "how many processes make the run"),
    "process_id": Option(
        int | None, None, "which of them this is, from 0; process 0 writes and prints"
    ),
    "initialization_timeout": Option(
        int, 300, "seconds that each of them waits for the others to come"
    ),
}


class ProcessGroup(NamedTuple):
    """Which of how many processes this is, and where the first can be found."""

    coordinator_address: str
    num_processes: int | None  # None: as the cluster says
    process_id: int | None
    initialization_timeout: int = 300  # seconds

    def share(self, devices: int | Literal["auto"]) -> int | Literal["auto"]:
        """How many of so many devices each process should have; ValueError: none."""
        if devices == "auto" or self.num_processes is None:
            return "auto"
        if devices < self.num_processes:
            raise SettingError(
                f"devices={devices} are too few for num_processes={self.num_processes}, "
                f"which share them; write devices={self.num_processes} or more, or auto."
            )
        return -(-devices // self.num_processes)


def process_group_of(values: Mapping[str, Any]) -> ProcessGroup | None:
    """What the flags of a run say about other processes; None: there are none.

    Raises:
      ValueError: a flag is missing, or not as it must be.
    """
    address, count, process_id, timeout = (values[name] for name in OPTIONS)
    check.at_least("initialization_timeout", timeout, 1, most=DAY)
    if address == AUTO:
        if (count, process_id) != (None, None):
            raise SettingError(
                "coordinator_address=auto finds out num_processes and process_id by "
                "itself; leave them out."
            )
        return ProcessGroup(AUTO, None, None, timeout)
    missing = [name for name in OPTIONS if values[name] is None]
    if all(values[name] == option.default for name, option in OPTIONS.items()):
        return None
    if missing:
        flags = " and ".join("--" + name.replace("_", "-") for name in missing)
        raise SettingError(
            "processes that make a run together need --coordinator-address HOST:PORT, "
            f"--num-processes and --process-id each; write {flags} as well."
        )
    found = re.fullmatch(r"(.+):(\d+)", address)
    if found is None or not 1 <= int(found[2]) <= LAST_PORT:
        raise SettingError(
            f"coordinator_address={address} names no port from 1 to {LAST_PORT}; write "
            "HOST:PORT of process 0, such as 10.0.0.1:1234."
        )
    if count < 1:
        raise SettingError(f"num_processes={count} must be an integer >= 1.")
    if not 0 <= process_id < count:
        last = f"to {count - 1}" if count > 1 else "alone"
        raise SettingError(
            f"process_id={process_id} but the processes of num_processes={count} are "
            f"numbered 0 {last}; give each its own."
        )
    return ProcessGroup(address, count, process_id, timeout)


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


def _difference(
    group: ProcessGroup, ids: set[int], process_id: int, count: int
) -> str | None:
    """What is wrong with `process_id` of `count`, where `ids` have come; None: nothing."""
    if count != group.num_processes:
        return (
            f"process {process_id} has num_processes={count} but process 0 num_processes="
            f"{group.num_processes}; give all the same command but for --process-id."
        )
    if process_id in ids:
        return f"process_id={process_id} was given to two processes; give each its own."
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
