"""Standard error of a process that trains together with others, less what C++ says there.

JAX ends a process that has lost another one by `abort`, after lines of its own and of
gRPC. A process cannot say anything better while it aborts, so this file runs as one of its
own: what C++ writes comes in here, and goes on to standard error up to a line about a lost
process. One sentence takes the place of it and of all that follows.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SENTENCE = (
    "fedjax-adapt: another process of this run has ended or no longer answers; begin all "
    "again, with --resume.\n"
)
# an error or a fatal one of C++ about JAX's service, or what `report_loss` writes
LOSS = re.compile(
    rb"^[EF]\d{4} .*(coordination.service|JAX distributed service)|LOST\0"
)


def filter_lines() -> None:
    """Reads standard input to its end and writes it to standard error, up to a loss."""
    lost = False
    for line in sys.stdin.buffer:
        if not lost:
            lost = LOSS.search(line) is not None
            sys.stderr.buffer.write(SENTENCE.encode() if lost else line)
            sys.stderr.buffer.flush()


@contextmanager
def filtered_stderr() -> Iterator[None]:
    """Within it what C++ writes to standard error passes through `filter_lines`.

    What Python prints on `sys.stderr` does not.
    """
    before = sys.stderr
    if before is None:  # closed, as by 2>&-; its number may be another file's
        yield
        return
    before.flush()
    original = os.dup(2)
    # in a session of its own, for Ctrl-C would end it too
    reader = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=original,
        start_new_session=True,
    )
    assert reader.stdin is not None
    os.dup2(reader.stdin.fileno(), 2)
    reader.stdin.close()
    encoding, errors = before.encoding, before.errors
    sys.stderr = open(original, "w", buffering=1, encoding=encoding, errors=errors)
    try:
        yield
    finally:
        ours, sys.stderr = sys.stderr, before
        os.dup2(original, 2)  # the reader comes to the end of what it reads, and ends
        ours.flush()
        # unless a program that was begun meanwhile still writes there
        with suppress(subprocess.TimeoutExpired):
            reader.wait(timeout=1)


def report_loss() -> None:
    """Says that another process is lost, once, whatever C++ says of it as well."""
    if sys.stderr is not None:  # else nobody reads, and 2 may be another file
        with suppress(OSError):
            os.write(2, b"LOST\0\n")


if __name__ == "__main__":
    filter_lines()
