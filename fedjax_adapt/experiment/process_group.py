"""Several processes as one run: they connect, agree on the run, and end together."""

import os
import re
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from zlib import crc32

import jax
import numpy as np

from ..data import Source
from ..engine import processes
from ..errors import SettingError
from . import lost_process
from .config import Config, to_settings
from .loop import Stopped
from .rendezvous import AUTO, ProcessGroup, timeout_message, wait_for_all
from .rows import Diverged

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
        if group.process_id:
            _check_host(address)
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
        reason = str(error).partition("\n")[0].rstrip(".")
        raise SettingError(
            f"coordinator_address={address} leads to no other process ({reason}); write "
            "HOST:PORT of process 0, and num_processes and process_id."
        ) from None
    finally:
        alarm.cancel()
        for end, handler in zip(ends, before, strict=True):
            signal.signal(end, handler)
    _keep_output()


def _give_up(sentence: str) -> None:
    print(f"fedjax-adapt: {sentence}", file=sys.stderr, flush=True)
    os._exit(2)


def _check_host(address: str) -> None:
    """Raises ValueError if the name of the host is unknown: JAX would wait for it."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        raise SettingError(
            f"coordinator_address={address} names a host that is not known "
            f"({error.strerror}); write HOST:PORT of process 0."
        ) from None


def _keep_output() -> None:
    """Shuts standard output to gloo, which prints every connection.

    It stays open to Python, in the first process.
    """
    sys.stdout.flush()
    own, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    output = own if processes.is_first() else nowhere
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
    """Raises ValueError, in every process, unless all have these settings and data."""
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
