"""Standard output and error that no encoding, reader or width of a terminal can end."""

import codecs
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import SettingError

NARROWEST = 40  # columns, below which a table has a letter a line
# as wide as it is, where a space follows that may be left out
ASCII = {"±": "+-", "…": "...", "–": "-"}


class Output(io.FileIO):
    """A file that goes on without a reader, as in `fedjax-adapt run | head -1`.

    So it does on a disk that is full; `failed` says then why what was written is lost.
    """

    failed: str | None = None

    def write(self, data, /) -> int | None:
        """As any file's; what can no longer be written is lost."""
        try:
            return super().write(data)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failed = error.strerror
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes


@contextmanager
def steady_output() -> Iterator[Callable[[], str | None]]:
    """Within it what is printed ends nothing, whoever reads it and in which encoding.

    What the encoding lacks is ASCII, and a table at least 40 columns wide. Yields a
    function that says why standard output could not be written; None: it was.
    """
    before, columns = (sys.stdout, sys.stderr), os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) < NARROWEST:
        os.environ["COLUMNS"] = str(NARROWEST)
    sys.stdout, sys.stderr = map(_steady, before)
    out = sys.stdout

    def failure() -> str | None:
        raw = getattr(getattr(out, "buffer", None), "raw", None)
        if not isinstance(raw, Output):
            return None
        out.flush()
        return raw.failed

    try:
        yield failure
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before
        if columns:
            os.environ["COLUMNS"] = columns


def print_json(found: dict[str, Any]) -> None:
    """Prints one JSON object on standard output, for another program.

    A number that is not finite is null, since JSON has no other word for it.
    """
    print(json.dumps(_finite(found), indent=2, allow_nan=False), flush=True)


def _finite(found: Any) -> Any:
    if isinstance(found, dict):
        return {name: _finite(value) for name, value in found.items()}
    if isinstance(found, list | tuple):
        return [*map(_finite, found)]
    return None if isinstance(found, float) and not math.isfinite(found) else found


@contextmanager
def unfinished_as_json(folder: Path, wanted: bool) -> Iterator[None]:
    """Within it what has begun and does not come to its end is said to be so as JSON."""
    try:
        yield
    except BaseException as error:
        if wanted and not isinstance(error, SettingError):  # else nothing has begun
            why = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
            said = {} if why == "interrupted" else {"error": str(error)}
            print_json({"status": why, "folder": str(folder)} | said)
        raise


def _steady(stream):
    """The same file; the stream itself where it is none of the system's, or closed."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream  # a notebook's has the number of a file that nobody sees
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (OSError, ValueError):
        return stream
    codecs.register_error(__name__, _as_ascii)
    return io.TextIOWrapper(
        io.BufferedWriter(Output(descriptor, "w", closefd=False)),
        encoding=stream.encoding,
        errors=__name__,
        line_buffering=stream.line_buffering,
    )


def _as_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """What is written for a character that an encoding lacks, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character, end = error.object[error.start], error.start + 1
    if "\udc80" <= character <= "\udcff":  # of a path, a byte that is no text
        return bytes([ord(character) - 0xDC00]), end
    written = ASCII.get(character) or ascii(character)[1:-1]
    if character in ASCII:
        spare = end + len(written) - 1
        while end < spare and error.object[end : end + 1] == " ":
            end += 1
    return written, end
