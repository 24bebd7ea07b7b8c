"""Several processes as one run: their flags, how they meet and agree, and their end.

They meet before `jax.distributed.initialize`, which does not compare what the processes
were given. With different numbers of processes some wait for ever, and so do all but
process 0 where another program has the port. So process 0 first listens at the address
itself, and each other process sends it its number. When all have connected, or two of them
disagree, process 0 answers all of them and leaves the port to JAX.
"""

import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Literal, NamedTuple, NoReturn
from zlib import crc32

import jax
import numpy as np

from .. import check
from ..data import Source
from ..engine import processes
from ..errors import SettingError, first_line
from . import lost_process
from .config import Config, to_settings
from .loop import Stopped
from .options import Option
from .rows import Diverged

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
        """How many of so many devices each process should have; SettingError: none."""
        if devices == "auto" or self.num_processes is None:
            return "auto"
        if devices < self.num_processes:
            raise SettingError(
                f"devices={devices} are too few for num_processes={self.num_processes}, "
                f"which share them; write devices={self.num_processes} or more, or auto."
            )
        return -(-devices // self.num_processes)


def process_group_of(values: Mapping[str, Any]) -> ProcessGroup | None:
    """What the flags of a run say about other processes; None: there are none."""
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
      SettingError: the host is not known, the port cannot be listened to, another program
        has it, processes do not come in time, or they differ in their number or share an
        id.
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
    try:
        socket.getaddrinfo(*there)
    except OSError as error:
        raise SettingError(
            f"coordinator_address={group.coordinator_address} names a host that is not "
            f"known ({error.strerror}); write HOST:PORT of process 0."
        ) from None
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


RAISED_BY_ALL = (processes.Refused, Diverged, Stopped)  # what all raise at once
# in what gloo, NCCL and JAX's own service say when a process no longer answers
LOST = re.compile("Gloo|NCCL|peer|coordination service|UNAVAILABLE|DEADLINE_EXCEEDED")


@contextmanager
def process_group(
    group: ProcessGroup, report_error: Callable[[BaseException], int | None]
) -> Iterator[bool]:
    """The block runs in all processes of the group.

    What all raise at once (`RAISED_BY_ALL`) is raised when they have disconnected. A
    process that fails alone ends here and now, and the others with it: Python's own way
    out would wait for them, and they for this one. Yields whether this process is the
    first.

    Args:
      group: the other processes, which are waited for as long as they say.
      report_error: prints what an error means and returns the exit code; None: it is a bug.
    """
    with lost_process.filtered_stderr():
        try:
            _join(group)
            yield processes.is_first()
        except RAISED_BY_ALL as error:
            jax.distributed.shutdown()
            cause = error.__cause__
            raise error if cause is None else cause from None
        except BaseException as error:
            _end(error, report_error)
        else:
            jax.distributed.shutdown()


def _join(group: ProcessGroup) -> None:
    # it would keep SIGTERM from ending a process, and nothing here asks it
    jax.config.update("jax_enable_preemption_service", False)
    address = group.coordinator_address
    if address != AUTO:
        wait_for_all(group)
    alarm = threading.Timer(
        group.initialization_timeout, _give_up, [timeout_message(group)]
    )
    alarm.daemon = True
    alarm.start()
    # waiting is not Python's, which could not act on Ctrl-C or SIGTERM meanwhile
    ends = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(end, signal.SIG_DFL) for end in ends]
    known: dict[str, Any] = {} if address == AUTO else group._asdict()
    # a little longer, for JAX gives up by aborting
    known["initialization_timeout"] = group.initialization_timeout + 60
    try:
        jax.distributed.initialize(**known)
    except (RuntimeError, ValueError) as error:
        raise SettingError(
            f"coordinator_address={address} leads to no other process "
            f"({first_line(error)}); write HOST:PORT of process 0, and num_processes and "
            "process_id."
        ) from None
    finally:
        alarm.cancel()
        for end, handler in zip(ends, before, strict=True):
            signal.signal(end, handler)
    _keep_output()


def _give_up(sentence: str) -> None:
    print(f"fedjax-adapt: {sentence}", file=sys.stderr, flush=True)
    os._exit(2)


def _keep_output() -> None:
    """Shuts standard output to gloo, which prints every connection.

    It stays open to Python, in the first process.
    """
    sys.stdout.flush()
    original, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    output = original if processes.is_first() else nowhere
    encoding, errors = sys.stdout.encoding, sys.stdout.errors
    sys.stdout = open(output, "w", buffering=1, encoding=encoding, errors=errors)


def _end(
    error: BaseException, report_error: Callable[[BaseException], int | None]
) -> NoReturn:
    code = None
    try:
        code = report_error(error)
        if code is None and LOST.search(str(error)):
            lost_process.report_loss()
        elif code is None:
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:  # whatever cannot be printed: the others wait for this process to end
        os._exit(1 if code is None else code)


def check_same_run(config: Config, source: Source) -> None:
    """Raises SettingError, in every process, unless all have these settings and data."""
    if not processes.several():
        return
    settings = to_settings(config)
    del settings["folder"], settings["data_dir"]  # where things lie on each machine
    of = lambda array: f"{crc32(np.ascontiguousarray(array).data):08x}"
    settings |= {
        f"checksum of {name}": of(getattr(source, name))
        for name in ("x_train", "y_train", "x_test", "y_test")
    }
    processes.check_same({name: str(value) for name, value in settings.items()})
