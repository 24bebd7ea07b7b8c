"""How a benchmark that reads a user's files ends: a mistake is one sentence."""

import sys
from collections.abc import Callable

from fedjax_adapt.cli.process import report_error


def begin(main: Callable[[], int | None]) -> None:
    """Runs `main`; of a wrong argument or file it says what the command line says."""
    try:
        code = main()
    except Exception as error:
        code = report_error(error)
        if code is None:
            raise  # a bug, which a sentence would hide
    sys.exit(code)
