"""TOML files, and the types of the plain values that stand in them."""

import contextlib
import errno
import json
import math
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from .. import check
from ..core import Algorithm
from ..errors import SettingError
from . import files

MARK = "\ufeff"  # before a text, by some editors; TOML has no place for it
TWICE = (
    "; write each name once, and that of a choice with options in its table, as in "
    'name = "fedprox" below [algorithm]'
)
# which their folders list
OF_RUNS = ("config.toml", "sweep.toml", "group.toml", files.WHOLE, "tune.toml")


def read(path: Path, called: str = "config") -> dict[str, Any]:
    """The keys and values of a TOML file, which the user knows as `called`.

    Raises:
      SettingError: the file is missing, unreadable, not TOML, or of a run and damaged; the
        sentence names it.
    """
    of_run = path.name in OF_RUNS and os.path.lexists(path)
    if of_run:
        files.check_own(path)
    try:
        text = files.read_text(path) if of_run else _text_of(path)
        return tomllib.loads(text.removeprefix(MARK))
    except UnicodeDecodeError:
        raise SettingError(
            f"{path} is not valid TOML: it is not UTF-8 text; save it as UTF-8."
        ) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or too much
        twice = "Cannot overwrite a value" in str(error)
        raise SettingError(
            f"{path} is not valid TOML: {error}{TWICE if twice else ''}."
        ) from None
    except OSError as error:
        if of_run:
            raise files.unreadable(path, error) from None
        raise SettingError(
            f"{called}={path} cannot be read ({error.strerror}); "
            "give the path of a TOML file."
        ) from None


def _text_of(path: Path) -> str:
    """The text of a file or a pipe; OSError for a device, which may never end."""
    mode = path.stat().st_mode
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "a device", str(path))
    text = path.read_text(encoding="utf-8")
    if stat.S_ISFIFO(mode):
        _piped[path] = text
    return text


_piped: dict[Path, str] = {}  # what came of pipes, which are read once


def lines_of(path: Path) -> list[str]:
    """The lines of a file, or of a pipe that `read` has read."""
    text = _piped[path] if path in _piped else path.read_text(encoding="utf-8")
    return text.removeprefix(MARK).splitlines()


def line_of(path: Path, key: str, after: int = 0) -> int:
    """The number of the line that sets `key` (or opens the table `key`), from 1.

    The first below line `after`, and 1 if there is none. The key is a full name: also
    what is written in the table of its kind, below [run] or [grid], or, where that is
    nowhere, with an underscore or without the kind.
    """
    kind, _, option = key.rpartition(".")
    for spelling in (key, f"{key}.name", f"{kind}_{option}", option):
        table: list[str] = []
        for number, line in enumerate(lines_of(path), 1):
            opened = re.match(r"\s*\[+([^\[\]=]+)\]", line)
            found = _path(opened[1] if opened else line.partition("=")[0])
            if opened:
                table = found[1:] if found[0] in ("run", "grid") else found
            place = ".".join(found if opened else [*table, *found])
            sets = opened is not None or "=" in line
            if number > after and sets and (place + ".").startswith(spelling + "."):
                return number
    return 1


def _path(text: str) -> list[str]:
    return [part.strip().strip("\"'") for part in text.split(".")]


def dumps(values: Mapping[str, Any], above: str = "") -> str:
    """`values` as TOML, one line each; None is left out, but "none" in a sequence.

    Args:
      values: strings, booleans, numbers and flat sequences of them; and tables of such
        values, or lists of tables, which are written last.
      above: the tables that `values` stand in, each with its dot.
    """
    lines, tables = [], ""
    for key, value in values.items():
        name = above + _key(key)
        if isinstance(value, Mapping):
            tables += f"\n[{name}]\n{dumps(value, name + '.')}"
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            for table in value:
                tables += f"\n[[{name}]]\n{dumps(table, name + '.')}"
        elif value is not None:
            lines.append(f"{_key(key)} = {spelled(value)}\n")
    return ("".join(lines) + tables).lstrip("\n")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else spelled(key)


def spelled(value: Any) -> str:
    """A value as TOML writes it; TypeError for what has no place in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # the shortest text that reads back as the same number
    if isinstance(value, str | Path):
        # JSON's string but for DEL, which TOML wants escaped
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", r"\u007F")
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(spelled, value)) + "]"
    if value is None:
        return '"none"'  # as `convert` reads it: TOML has no word of its own
    raise TypeError(f"{value!r} has no place in a TOML file")


PLAIN = (bool, int, float, str)


def plain(annotation: Any) -> Any:
    """The part of a type that a person can write down; None if there is none.

    An algorithm is written down by its name.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is Algorithm:
        return str
    if annotation in PLAIN or origin is Literal:
        return annotation
    if origin in (tuple, list) or annotation in (tuple, list):
        inner = plain(arguments[0]) if arguments else None
        return None if inner is None else tuple[inner, ...]
    if origin in (typing.Union, types.UnionType):
        members = [m for m in arguments if m is type(None) or plain(m) is not None]
        if all(m is type(None) for m in members):
            return None
        return typing.Union[tuple(plain(m) or m for m in members)]  # noqa: UP007
    return None


def python_values(value: Any) -> Any:
    """Python's numbers and lists in place of NumPy's or JAX's, of ranges and tuples."""
    if isinstance(value, Mapping):  # of one kind
        return {name: python_values(item) for name, item in value.items()}
    if isinstance(value, list | tuple | range):
        return [python_values(item) for item in value]
    if check.is_tracer(value) or not hasattr(value, "tolist"):
        return value
    return value.tolist()


def convert(annotation: Any, value: Any) -> Any:
    """`value` as the plain type `annotation` asks for.

    An integer passes for a float, a list for a tuple, "none" for None; where a number or
    a text may stand, "0.5" is the number. A number of NumPy or JAX is one of Python.
    """
    value = python_values(value)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal and (type(value), value) in [(type(a), a) for a in arguments]:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(convert(arguments[0], item) for item in value)
    if origin in (typing.Union, types.UnionType):
        if type(None) in arguments and value in (None, "none", "None"):
            return None
        if {float, str} <= set(arguments) and isinstance(value, str):
            with contextlib.suppress(ValueError):
                return float(value)  # a number in quotes
        for member in arguments:
            try:
                return convert(member, value)
            except TypeError:
                continue
    if annotation is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if annotation in PLAIN and type(value) is annotation:
        return value
    raise TypeError(f"{value!r} is not {wanted(annotation)}")


def wanted(annotation: Any) -> str:
    """What to write for a plain type: "an integer", "one of 'I', 'II'"."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    words = {bool: "true or false", int: "an integer", float: "a number", str: "a text"}
    if annotation in words:
        return words[annotation]
    if annotation is type(None):
        return "none"
    if origin is Literal:
        choices = ", ".join(map(repr, arguments))
        return choices if len(arguments) == 1 else f"one of {choices}"
    if origin is tuple and typing.get_origin(arguments[0]) is Literal:
        return wanted(arguments[0]).replace("one of", "some of")
    if origin is tuple:
        return wanted(arguments[0]).removeprefix("an ").removeprefix("a ") + "s"
    return " or ".join(map(wanted, arguments))


def checked(sentence: str, annotation: Any, value: Any) -> Any:
    """`convert`, with a SettingError that begins with `sentence`."""
    try:
        return convert(annotation, value)
    except TypeError:
        raise SettingError(f"{sentence}; write {wanted(annotation)}.") from None
