"""What one run finds out about this machine and keeps for others, in a file of JSON."""

import contextlib
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

TIMED = ("engine", "models")  # the folders of this package whose code is timed


def read(file: Path) -> dict[str, Any]:
    """What is known; nothing where the file is missing or damaged."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def add(file: Path, found: dict[str, Any]) -> None:
    """Adds to what is known. A file that cannot be written costs time, nothing else.

    It appears whole or not at all. Of two processes that add at once one may go unheard:
    what it found is found again.
    """
    own = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(json.dumps(read(file) | found, indent=1), encoding="utf-8")
        os.replace(own, file)
    except OSError:
        with contextlib.suppress(OSError):
            own.unlink()


@functools.cache
def code() -> str:
    """The hash of the code that was timed, on which times depend."""
    package = Path(__file__).parents[1]
    files = [file for name in TIMED for file in (package / name).rglob("*.py")]
    content = b"".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(content).hexdigest()[:12]
