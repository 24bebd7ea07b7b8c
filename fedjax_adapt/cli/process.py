"""What a command asks of its process: signals, devices, where programs are kept."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from .messages import fail

MANY = 64  # devices on one machine


@contextmanager
def importing() -> Iterator[None]:
    """Ctrl-C leaves at once: an exception inside a native import crashes Python."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where signals cannot be handled
        return
    leave = lambda *_: os._exit(fail("interrupted; nothing is written.", 130))
    before = signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def finishing() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the rounds under way; a second one does not.

    Yields a function to call between rounds, which raises KeyboardInterrupt when it was
    asked for. Until it has been called once there is nothing to wait for. One that is
    raised at once may be lost, as Python loses what is raised in a finalizer or while
    memory is tidied up: then it is raised again between rounds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None  # where signals cannot be handled
        return
    begun, asked = threading.Event(), threading.Event()

    def stop_if_asked():
        begun.set()
        if asked.is_set():
            raise KeyboardInterrupt

    def on_signal(*_):
        at_once = asked.is_set() or not begun.is_set()
        asked.set()
        if at_once:
            raise KeyboardInterrupt

    def on_lost(raised: "sys.UnraisableHookArgs") -> None:
        if not isinstance(raised.exc_value, KeyboardInterrupt):
            tell(raised)

    before, tell = signal.signal(signal.SIGINT, on_signal), sys.unraisablehook
    sys.unraisablehook = on_lost
    try:
        yield stop_if_asked
    finally:
        signal.signal(signal.SIGINT, before)
        if sys.unraisablehook is on_lost:  # else somebody has built on it
            sys.unraisablehook = tell


def take_devices(devices: int | str) -> None:
    """Makes so many of the cores devices of JAX; "auto": all.

    More devices than cores are slow, but go on with a run of a larger machine. Far too
    many, each of which takes memory, are refused by who asks JAX for them.
    """
    from ..engine.mesh import cores_as_devices, num_cores

    # where JAX has begun already, "auto" takes the devices there are
    with suppress(ValueError):
        most = max(num_cores(), MANY)
        cores_as_devices(None if devices == "auto" else min(devices, most))


def import_rest() -> None:
    """What runs and checkpoints need, while Ctrl-C may still leave; see `importing`."""
    import orbax.checkpoint  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from ..experiment.sweeps import sweep  # noqa: F401
    from ..report import tables  # noqa: F401


def prepare_jax() -> None:
    """Keeps compiled programs for the next run, and XLA's own log to itself."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import warnings

    import jax

    from ..experiment.folder import cache_home

    # a cache that cannot be written costs time, nothing else
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_home() / "xla"))
        # the small ones, too: a run has dozens besides its rounds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
