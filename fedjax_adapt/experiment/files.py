"""Files that are written whole or not at all, and checksums by which damage is noticed.

One process at a time has the lock of a folder, and notices if the folder goes.

`files.sha256` lies in the folder of a run, of its checkpoints, of a group and of a sweep.
It has a line for each file of that folder that is read again, as `sha256sum -c` takes it;
in a sweep the lists of the trials and groups that are done are among these files. At its
end are two comments: whose list it is, which the list of checkpoints has from that
of their run, and the checksum of the lines above. A part of a table is written first and
listed after, and one that is replaced or deleted is struck out first: a kill leaves at
most a part that is not listed, which is none. A text is listed just before it has its
name: a kill leaves at most a line too much.
"""

import errno
import fcntl
import functools
import hashlib
import itertools
import os
import stat
import uuid
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ..errors import RunError, SettingError, first_line

LOCK = ".lock"
SUMS = "files.sha256"
WHOLE = "whole.toml"  # of a sweep in shards; gone when they are merged
# what an earlier version, which listed nothing, has left: texts and tables
BEFORE = ("*.toml", "*.json", "*.parquet", "*/part-*.parquet")


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Holds a folder that is there for this process; the lock dies with the process."""
    place, path = folder.absolute(), folder / LOCK
    try:
        file = open(path, "a", encoding="utf-8")
    except OSError as error:
        raise SettingError(
            f"{path} cannot be written ({error.strerror}); delete it if no run goes on "
            "there, or give another folder."
        ) from None
    with file:
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


_held: dict[Path, os.stat_result] = {}  # folders that this process holds, their locks


def held(path: Path) -> Path | None:
    """The folder that this process holds and `path` lies in, if there is one."""
    path = path.absolute()
    return next((folder for folder in _held if path.is_relative_to(folder)), None)


def check_held(path: Path) -> None:
    """Raises RunError if `path` lies in a folder that was held and is elsewhere now.

    Whoever makes folders asks here first, or a part of one that was moved or deleted would
    be made anew.
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


def make(folder: Path) -> None:
    """Makes a folder to write in; raises as `check_held`."""
    check_held(folder)
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; it becomes `path` when the block ends well.

    Raises:
      OSError: it cannot be written; the error names `path`.
      RunError: see `check_held`.
    """
    check_held(path)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:  # as a full disk gives it, it names no file
        if error.errno is None:
            raise OSError(f"{path} cannot be written: {error}") from None
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        temporary.unlink(missing_ok=True)


def is_left_over(path: Path, names: Iterable[str]) -> bool:
    """Whether a path is what a kill leaves of files that should have one of the names."""
    return any(path.match(f".{name}.*tmp") for name in names)


def aside(path: Path) -> Path:
    """A name that is free, for what is set aside."""
    first = path.with_name(f"{path.name}.unreadable")
    later = (first.with_name(f"{first.name}-{i}") for i in itertools.count(2))
    return next(p for p in itertools.chain([first], later) if not os.path.lexists(p))


@contextmanager
def listing(folder: Path, path: Path) -> Iterator[Path]:
    """As `replacing(path)`, and lists `path` among the files of `folder`."""
    strike(folder, [path])
    with replacing(path) as temporary:
        yield temporary
    enter(folder, {path: path})


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_listed(path: Path, text: str) -> None:
    """Writes a file whole or not at all, and lists it among those of its folder."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
        enter(path.parent, {path: temporary})


def opened(path: Path) -> BinaryIO:
    """A file of a folder, to read.

    Raises:
      OSError: it is missing, may not be read, or is a pipe, a device or a link to nothing,
        none of which is ever waited for.
    """
    at_once = lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
    try:
        file = open(path, "rb", opener=at_once)
    except FileNotFoundError:
        if not path.is_symlink():
            raise
        raise OSError(errno.EINVAL, "a link to nothing", str(path)) from None
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "no regular file", str(path))


def read_text(path: Path) -> str:
    """The text of a file of a folder; raises as `opened`, and UnicodeDecodeError."""
    with opened(path) as file:
        return file.read().decode("utf-8")


class Listed(dict[str, str]):
    """The checksum of each file of a folder, by its path there, and whose list it is."""

    of: str = ""


def listed(folder: Path) -> Listed | None:
    """The list of a folder; None: it has none. SettingError if it is damaged."""
    path = folder / SUMS
    try:
        text = read_text(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError:
        text = ""
    head, _, end = text.rpartition("# ")
    lines, _, whose = head.rpartition("# ")
    if end != _of_text(head) + "\n":
        raise SettingError(
            f"{path} is damaged; put it back as it was, or delete every {SUMS} of the run, "
            "after which damage to its files is not noticed."
        )
    pairs = (line.partition("  ") for line in lines.splitlines())
    found = Listed((name, checksum) for checksum, _, name in pairs)
    found.of = whose.rstrip()
    return found


def enter(
    folder: Path,
    contents: Mapping[Path, Path],
    instead_of: Iterable[Path] = (),
    before: Iterable[str] = BEFORE,
) -> None:
    """Lists files of a folder.

    Args:
      folder: that has the list.
      contents: for each file below it, where to read what it has, or will have.
      instead_of: files, or folders of them, that are struck out at the same time.
      before: patterns of the files that are listed too where there is no list yet.
    """
    known = listed(folder)
    if known is None:
        known = _of_before(folder, before)
    left = _without(folder, known, instead_of)
    left |= {_name(folder, path): checksum(at) for path, at in contents.items()}
    _write(folder, left, known.of)


def begin(folder: Path, of: str | None = None) -> str:
    """Whose list a folder has; one without a list gets it, of what is there.

    It will be `of` that, or as the list next above it, or its own.
    """
    known = listed(folder)
    if known is None:
        known = _of_before(folder, BEFORE, of)
        _write(folder, known, known.of)
    return known.of


def strike(folder: Path, paths: Iterable[Path]) -> None:
    """Takes files, or folders of them, from the list of a folder."""
    known = listed(folder)
    if known is None:
        return
    left = _without(folder, known, paths)
    if len(left) < len(known):
        _write(folder, left, known.of)


def check_own(path: Path) -> None:
    """Raises SettingError unless a file is as its folder lists it, if that has a list."""
    known = listed(path.parent)
    if known is not None and path.name not in known:
        raise SettingError(
            f"{path} is not in {path.parent / SUMS}, so it is of another run; put back "
            "what was there, or start again in another folder."
        )
    check(path.parent, path, known)


def check(folder: Path, path: Path, known: dict[str, str] | None = None) -> None:
    """Raises SettingError if a listed file is not what was written; others may be.

    `known` is `listed(folder)`, where many files of the folder are checked.
    """
    if damage := damaged(folder, path, known):
        raise SettingError(
            f"{damage}; put it back as it was, or start again in another folder."
        )


def check_all(folder: Path) -> None:
    """Raises SettingError unless every file that a folder lists is as it was written.

    So must be what those lists name that are in it.
    """
    known = listed(folder) or {}
    # an earlier version left the file of merged shards in the list
    for path in (folder / name for name in known if name != WHOLE):
        check(folder, path, known)
        if path.name == SUMS:
            check_all(path.parent)


def enter_lists(folder: Path, below: Iterable[Path]) -> None:
    """Lists the lists of folders in which nothing is written from now on, in a sweep's."""
    known, new = listed(folder) or {}, {}
    for path in below:
        sums = path / SUMS
        if _name(folder, sums) in known:
            check(folder, sums, known)
        elif not path.is_dir():
            raise SettingError(
                f"{path} is missing; put it back as it was, or start again in another "
                "folder."
            )
        else:
            begin(path)
            new[sums] = sums
    if new:
        enter(folder, new)


def damaged(folder: Path, path: Path, known: dict[str, str] | None = None) -> str:
    """What is wrong with a listed file, in words; "" if it is as it was written.

    Args and raises as `check`.
    """
    known, name = known or listed(folder) or {}, _name(folder, path)
    while name in known:
        try:
            if checksum(path) == known[name]:
                return ""
        except FileNotFoundError:
            pass
        except OSError as error:
            raise unreadable(path, error) from None
        now = listed(folder) or {}
        if now.get(name) == known[name]:
            what = "is not as it was written" if path.exists() else "is missing"
            return f"{path} {what} ({folder / SUMS} has its checksum)"
        known = now  # replaced meanwhile
    return ""


@functools.cache
def warn_once(text: str) -> None:
    """Warns, unless it has done so before with the same words."""
    warnings.warn(text, stacklevel=3)


def unlisted(folder: Path) -> str:
    """What to say of a folder without a list."""
    return (
        f"{folder} has no {SUMS}, as earlier versions left theirs; damage to the files "
        "that are there is not noticed."
    )


def unreadable(path: Path, error: OSError) -> SettingError:
    """The error of a file that the system does not let us read."""
    reason = error.strerror or first_line(error)
    return SettingError(f"{path} cannot be read ({reason}); put it back as it was.")


def _of_before(folder: Path, patterns: Iterable[str], of: str | None = None) -> Listed:
    """The list of a folder that has none, of what is there."""
    there = (path for pattern in patterns for path in folder.glob(pattern))
    found = Listed((_name(folder, at), checksum(at)) for at in there if at.is_file())
    run = listed(folder.absolute().parent)
    found.of = of or (uuid.uuid4().hex if run is None else run.of)
    return found


def _without(
    folder: Path, known: dict[str, str], paths: Iterable[Path]
) -> dict[str, str]:
    gone = {_name(folder, path) for path in paths}
    below = tuple(f"{name}/" for name in gone)
    return {
        name: checksum
        for name, checksum in known.items()
        if name not in gone and not name.startswith(below)
    }


def _name(folder: Path, path: Path) -> str:
    # `absolute` keeps "..", and of a trial in "../runs" only one of the two has it
    below = Path(os.path.abspath(path)).relative_to(os.path.abspath(folder))
    return below.as_posix()


def checksum(path: Path) -> str:
    """The SHA-256 checksum of a file; raises as `opened`."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _write(folder: Path, known: dict[str, str], of: str) -> None:
    lines = "".join(f"{known[name]}  {name}\n" for name in sorted(known)) + f"# {of}\n"
    write_text(folder / SUMS, f"{lines}# {_of_text(lines)}\n")
