"""The lock of a run folder: one process has it, and notices if the folder goes."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import RunError, SettingError

LOCK = ".lock"


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Holds the folder for this process; the lock dies with the process.

    Args:
      folder: one that is there.
      wait: until no other process holds it.

    Raises:
      ValueError: another process holds it, and this one does not wait.
    """
    place = folder.absolute()
    with _opened(folder / LOCK) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise SettingError(
                f"folder={folder} is in use by another process; wait for it, or give "
                "another folder."
            ) from None
        _held[place] = os.fstat(file.fileno())
        try:
            yield
        finally:
            del _held[place]


def _opened(path: Path) -> IO[str]:
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({error.strerror}); delete it if no run goes on "
            "there, or give another folder."
        ) from None


_held: dict[Path, os.stat_result] = {}  # folders that this process holds, their locks


def held(path: Path) -> Path | None:
    """The folder that this process holds and `path` lies in, if there is one."""
    path = path.absolute()
    return next((folder for folder in _held if path.is_relative_to(folder)), None)


def check_held(path: Path) -> None:
    """Raises RunError if `path` lies in a folder that was held and is elsewhere now.

    Whoever makes folders to write in asks here first, or a part of one that was moved or
    deleted would be made anew.
    """
    folder = held(path)
    if folder is None:
        return
    try:
        same = os.path.samestat(_held[folder], os.stat(folder / LOCK))
    except OSError:
        same = False
    if not same:
        raise RunError(
            f"{folder}, or the {LOCK} in it, was moved or deleted while its run went on, "
            "so nothing more is written; put it back and go on with --resume, or begin "
            "again in another folder."
        )
