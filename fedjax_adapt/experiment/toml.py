"""Flat TOML files: reading with line numbers, and the few lines that write them."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import SettingError


def read(path: Path, called: str = "config") -> dict[str, Any]:
    """The keys and values of a TOML file, which the user knows as `called`.

    Raises:
      ValueError: the file is missing, unreadable or not TOML; the sentence names it.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise SettingError(
            f"{path} is not valid TOML: it is not UTF-8 text; save it as UTF-8."
        ) from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or too much
        raise SettingError(f"{path} is not valid TOML: {error}.") from None
    except OSError as error:
        raise SettingError(
            f"{called}={path} cannot be read ({error.strerror}); "
            "give the path of a TOML file."
        ) from None


def line_of(path: Path, key: str, after: int = 0) -> int:
    """The number of the line that sets `key` (or opens the table `key`), from 1.

    The first below line `after`, and 1 if there is none.
    """
    name = rf"(?:{re.escape(key)}|\"{re.escape(key)}\"|'{re.escape(key)}')"
    pattern = re.compile(rf"^\s*(?:{name}\s*[.=]|\[+\s*{name}\s*[.\]])")
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(
        (n for n, line in enumerate(lines, 1) if n > after and pattern.match(line)), 1
    )


def dumps(values: Mapping[str, Any], comments: Mapping[str, str] | None = None) -> str:
    """`values` as TOML, one line each; None has no spelling in TOML and is left out.

    Args:
      values: strings, booleans, numbers and flat sequences of them.
      comments: for a key, the line of comment that goes above it.
    """
    comments = comments or {}
    lines = []
    for key, value in values.items():
        if key in comments:
            lines += ["", f"# {comments[key]}"]
        if value is not None:
            lines.append(f"{_key(key)} = {spelled(value)}")
    return "\n".join(lines).lstrip("\n") + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else spelled(key)


def spelled(value: Any) -> str:
    """A value as TOML writes it; TypeError for what has no place in a flat file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # the shortest text that reads back as the same number
    if isinstance(value, str | Path):
        return '"' + "".join(map(_escaped, str(value))) + '"'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(spelled, value)) + "]"
    raise TypeError(f"{value!r} has no place in a flat TOML file")


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if ord(character) < 0x20 or ord(character) == 0x7F:
        return f"\\u{ord(character):04X}"
    return character
