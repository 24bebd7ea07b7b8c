"""What a command asks of its process: messages, signals, devices, progress, caches."""

import errno
import os
import re
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import RunError, SettingError
from ..interrupts import finishing, handling


def report_error(error: BaseException) -> int | None:
    """The exit code for an error, whose message it prints; None for a bug."""
    match error:
        case SettingError():
            return fail(as_written(str(error)), 2)
        case RunError():
            return fail(" ".join([str(error), *getattr(error, "__notes__", ())]), 1)
        case KeyboardInterrupt():
            return stopped("interrupted.")
        case Exception() if type(error).__name__ in NANS and _ends_at_nan():
            return fail(
                "a number is NaN or infinite, where JAX_DEBUG_NANS or JAX_DEBUG_INFS ends "
                "a run; unset it, and the run says in which round it diverged, if it did.",
                1,
            )
        case RuntimeError() if _is_exhausted(error):
            return fail(
                "the device has no memory left, though the run was expected to fit; write "
                "fewer lanes, a smaller batch_size, a smaller model or, in a sweep, fewer "
                "side by side.",
                1,
            )
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = "" if error.filename is None else f" for {error.filename}"
            again = "make room, and write the same with --resume if it is a run"
            return fail(f"no space is left{where}; {again}.", 1)
        case OSError() if error.errno == errno.ENAMETOOLONG:
            return fail(f"{error.filename} is too long a name; write another.", 2)
        case OSError() if error.filename and error.strerror:
            return fail(f"{error.filename} cannot be used ({error.strerror}).", 1)
        case OSError():  # a disk that is read-only, a folder that has gone
            return fail(f"{error}.", 1)
    return None


def as_written(sentence: str) -> str:
    """Python's None, True and False as flags and files have them, but for calls."""
    values = r"\w\([^()]*\)|(?<==)(None|True|False)\b|(?<=\bor )None\b"
    as_flag = lambda found: found[0] if "(" in found[0] else found[0].lower()
    return re.sub(values, as_flag, sentence)


def _ends_at_nan() -> bool:
    import jax

    return jax.config.jax_debug_nans or jax.config.jax_debug_infs


def _is_exhausted(error: RuntimeError) -> bool:
    from ..engine.memory import is_exhausted  # which imports JAX

    return is_exhausted(error)


def note(sentence: str | None) -> None:
    """Prints what a user should know, and goes on; None: nothing."""
    if sentence is not None:
        fail(sentence, 0)


NANS = ("FloatingPointError", "InternalFloatingPointError")  # as JAX raises them
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def fail(sentence: str, code: int) -> int:
    """Prints a sentence on stderr; returns the exit code it was given."""
    # of what a user wrote, which a terminal would obey
    sentence = CONTROL.sub(lambda found: ascii(found[0])[1:-1], sentence)
    print(f"fedjax-adapt: {sentence}", file=sys.stderr, flush=True)
    return code


SIGNALLED = (130, 143)  # exit codes after Ctrl-C and SIGTERM
_terminated = threading.Event()  # by SIGTERM


def stopped(sentence: str) -> int:
    """Prints what a signal has ended; returns 130 after Ctrl-C, 143 after SIGTERM."""
    return fail(sentence, SIGNALLED[_terminated.is_set()])


@contextmanager
def ending() -> Iterator[None]:
    """SIGTERM is what Ctrl-C is, but once: `timeout` and some schedulers send it twice."""

    def on_signal(number, frame):
        if _terminated.is_set():
            return
        _terminated.set()
        interrupt = signal.getsignal(signal.SIGINT)
        if not callable(interrupt):  # ignored, as in the background of a script
            raise KeyboardInterrupt
        interrupt(number, frame)

    handled = False
    try:
        with handling(signal.SIGTERM, on_signal) as handled:
            yield
    finally:
        if handled:  # else it may be the main thread's
            _terminated.clear()


def say(console, line: str) -> None:
    """Prints a line as it is, as long as it may be."""
    console.print(line, highlight=False, soft_wrap=True, markup=False)


MANY = 64  # devices on one machine


@contextmanager
def importing() -> Iterator[None]:
    """Ctrl-C leaves at once: an exception inside a native import crashes Python."""
    leave = lambda *_: os._exit(stopped("interrupted; nothing is written."))
    with handling(signal.SIGINT, leave):
        yield


def take_devices(devices: int | str) -> None:
    """Makes so many of the cores devices of JAX; "auto": all.

    More devices than cores are slow, but go on with a run of a larger machine. Far too
    many, each of which takes memory, are refused by who asks JAX for them.
    """
    from ..engine.mesh import cores_as_devices, num_cores

    # where JAX has begun already, "auto" takes the devices there are
    with suppress(SettingError):
        most = max(num_cores(), MANY)
        cores_as_devices(None if devices == "auto" else min(devices, most))


def import_rest() -> None:
    """What runs and checkpoints need, while Ctrl-C may still leave; see `importing`."""
    import orbax.checkpoint  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    from ..experiment.sweeps import sweep  # noqa: F401
    from ..report import tables  # noqa: F401


def _as_sentence(message, category, *place) -> str:
    """A warning to the user as errors look; one to programmers says where it is from."""
    if category is UserWarning:
        return f"fedjax-adapt: {message}\n"
    return _with_place(message, category, *place)


_with_place = warnings.formatwarning


def prepare_jax() -> None:
    """Keeps compiled programs for the next run, and XLA's own log to itself."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import logging

    import jax

    from ..experiment.tuning import cache_folder

    # a cache that cannot be written costs time, nothing else
    warnings.filterwarnings("ignore", message=".*persistent compilation cache.*")
    warnings.formatwarning = _as_sentence
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    chosen = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if chosen is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "xla"))
        # the small ones, too: a run has dozens besides its rounds
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@contextmanager
def reporting(console, warning: str | None = None) -> Iterator[Callable]:
    """A function that shows progress and its warnings, and where Ctrl-C takes effect.

    From the first round on freed memory is kept: what loading and compiling took has been
    given back by then. A `warning` is printed then, on standard error by a console
    that is quiet. Before it Ctrl-C waits for nothing.
    """
    from ..engine.xla import keep_memory
    from ..report.progress import live

    on_console = lambda text: say(console, f"warning: {text}")
    warn = note if console.quiet else on_console
    with live(console) as show, finishing() as stop_if_asked:
        before = [] if warning is None else [warning]  # the first round

        def report(progress):
            if progress.note is not None:
                say(console, progress.note)
            if progress.doing is not None:
                show(progress)
                return
            keep_memory()
            now = [] if progress.warning is None else [progress.warning]
            for text in (*before, *now):
                warn(text)
            before.clear()
            show(progress)
            stop_if_asked()

        yield report


def nothing_to_resume(folder: Path, resume: bool, begins: str) -> str | None:
    """What to say where --resume finds nothing saved in a folder; None: nothing."""
    from ..experiment.checkpoint import rounds
    from ..experiment.store import CHECKPOINTS, SWEEP

    if not resume or (folder / SWEEP).exists() or rounds(folder / CHECKPOINTS):
        return None
    return f"nothing to resume in {folder}: {begins}."


def nothing_left(folder: Path, what: str) -> str:
    """What to say where --resume finds all of it done: a run, a sweep or a shard."""
    return f"{folder} holds this {what}, finished; nothing is left to run."


def again(command: str, arguments: Sequence[str]) -> str:
    """The command that goes on with what these arguments began."""
    resume = [] if "--resume" in arguments else ["--resume"]
    return shlex.join(["fedjax-adapt", command, *arguments, *resume])


def interrupted_trials(folder: Path, again: str) -> int:
    """The exit code of trials that a signal ended; prints the command that goes on."""
    if not folder.exists():
        return interrupted(folder, "")
    return stopped(
        f"interrupted, {folder} has what is finished; write {again} to go on."
    )


def interrupted(folder: Path, again: str) -> int:
    """Says how far a run has come, and the command `again` that goes on."""
    from ..experiment.checkpoint import rounds
    from ..experiment.store import CHECKPOINTS

    if not folder.exists():
        said = f"interrupted before the first round; nothing is written to {folder}."
        return stopped(said)
    saved = rounds(folder / CHECKPOINTS)
    upto = f"saved up to round {saved[-1]}" if saved else "no round is saved yet"
    goal = "to go on" if saved else "to begin again"
    return stopped(f"interrupted, {upto} in {folder}; write {again} {goal}.")
