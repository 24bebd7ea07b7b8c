"""Messages on stderr, and the exit codes that go with them."""

import errno
import os
import re
import sys

from ..errors import RunError, SettingError


def report_error(error: BaseException) -> int | None:
    """The exit code for an error, whose message it prints; None for a bug."""
    match error:
        case SettingError():
            return fail(as_written(str(error)), 2)
        case RunError():
            return fail(str(error), 1)
        case KeyboardInterrupt():
            return fail("interrupted.", 130)
        case BrokenPipeError():  # the reader of a pipe has left, as in `list | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        case RuntimeError() if _is_exhausted(error):
            return fail(
                "the device has no memory left, though the run was expected to fit; write "
                "fewer lanes, a smaller batch_size, a smaller model or, in a sweep, fewer "
                "side by side.",
                1,
            )
        case OSError() if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = "" if error.filename is None else f" for {error.filename}"
            again = "make room, and go on with --resume if it is a run"
            return fail(f"no space is left{where}; {again}.", 1)
        case OSError():  # a disk that is read-only, a folder that has gone
            return fail(f"{error}.", 1)
    return None


def as_written(sentence: str) -> str:
    """Python's None, True and False as flags and files have them."""
    values = r"(?<==)(None|True|False)\b|(?<=\bor )None\b"
    return re.sub(values, lambda word: word[0].lower(), sentence)


def _is_exhausted(error: RuntimeError) -> bool:
    from ..engine.memory import is_exhausted  # which imports JAX

    return is_exhausted(error)


def note(sentence: str | None) -> None:
    """Prints what a user should know, and goes on; None: nothing."""
    if sentence is not None:
        fail(sentence, 0)


def fail(sentence: str, code: int) -> int:
    """Prints a sentence on stderr; returns the exit code it was given."""
    print(f"fedjax-adapt: {sentence}", file=sys.stderr, flush=True)
    return code
