"""What is wrong with a command line, in one sentence."""

import contextlib
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from .. import check
from ..errors import SettingError
from .config import is_setting
from .objects import KINDS
from .options import Option, suggestion
from .schema import settings_that_are
from .toml import convert, wanted


def without_name(arguments: Sequence[str]) -> list[str]:
    """The arguments, `--algorithm.name` written as `--algorithm`; so for all kinds."""
    named = re.compile(rf"--({'|'.join(KINDS)})\.name(?==|$)")
    return [named.sub(r"--\1", argument) for argument in arguments]


def words_of(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The words after each flag, before anything is known of their types.

    Raises:
      ValueError: one of them is empty, as "$UNSET" is in a shell.
    """
    words, name = {}, None
    for token in arguments:
        if token.startswith("--"):
            name, equals, word = token[2:].partition("=")
            name = name.replace("-", "_")
            words[name] = [word] if equals else []
        elif name is not None:
            words[name].append(token)
        if name is not None and "" in words[name]:
            flag = "--" + name.replace("_", "-")
            raise SettingError(
                f"{flag} '' is empty; write a value, or leave {flag} out."
            )
    return words


def paths_and_flags(
    arguments: Sequence[str], command: str
) -> tuple[list[str], list[str]]:
    """The words before the first flag, which are paths, and those from it on.

    Raises:
      ValueError: a path is empty.
    """
    flags = (i for i, word in enumerate(arguments) if word.startswith("-"))
    count = next(flags, len(arguments))
    paths = list(arguments[:count])
    if "" in paths:
        raise SettingError(
            f"{command}: a path before the flags is empty; write that of a file or a "
            "folder."
        )
    return paths, list(arguments[count:])


def explain(
    arguments: Sequence[str],
    options: Mapping[str, Option],
    said: str = "",
    command: str = "run",
) -> str:
    """One sentence on the first mistake among the arguments; failing that, tyro's."""
    flags = [f"--{name.replace('_', '-')}" for name in options]
    short = [token for token in arguments if re.match(r"-[^-\d.]", token)]
    for token in [*arguments[:1], *short]:
        if not token.startswith("--"):
            meant = check.closest(token.lstrip("-").replace("-", "_"), options)
            return f"{token} is no flag; {_flags_begin(meant, command)}"
    for name, words in words_of(arguments).items():
        flag = "--" + name.replace("_", "-")
        positive = name.removeprefix("no_")
        if positive in options and options[positive].annotation is bool:
            name = positive
        if name not in options:
            return f"{flag} {_whose(positive, flags, command)}"
        problem = _problem(options[name].annotation, words)
        if problem:
            return f"{' '.join([flag, *words])}: {problem}."
    rest = " ".join(said.translate(dict.fromkeys(map(ord, "╭╮╰╯│─"))).split())
    return rest or "the command line cannot be read; see --help."


def _flags_begin(meant: str | None, command: str) -> str:
    """The end of a sentence about a word that is no flag, though one may be meant."""
    if meant is None:
        return f"flags begin with --; fedjax-adapt {command} --help shows them."
    return f"did you mean --{meant.replace('_', '-')}?"


def _whose(name: str, flags: Sequence[str], command: str) -> str:
    """The end of a sentence about a flag that a command does not have."""
    if command in ("run", "partition") or not is_setting(name):
        return (
            f"is no flag of this {command}; {suggestion(f'--{name}', flags, command)}"
        )
    if command == "sweep":
        fixed = name in (
            *settings_that_are("incidental"),
            "match",
        )  # what no grid may vary
        vary = "" if fixed else ", or a list of values below [grid]"
        return f"is a setting of runs; write {name} below [run] of SWEEP.toml{vary}."
    return f"is a setting of runs, not of {command}; leave it out."


def _problem(annotation: Any, values: list[str]) -> str | None:
    """What is wrong with the values of a flag, or None."""
    wish = wanted(annotation)
    if annotation is bool:
        return f"it takes no value, so leave {values[0]!r} out" if values else None
    many = typing.get_origin(annotation) is tuple
    if not values and not many:
        return f"it needs a value; write {wish}"
    if len(values) > 1 and not many:
        return f"it takes one value; write {wish}"
    try:
        parsed = [_parse_word(value) for value in values]
        if bool in typing.get_args(annotation):
            truth = {"true": True, "false": False}
            parsed = [truth.get(str(word).lower(), word) for word in parsed]
        convert(annotation, parsed if many else parsed[0])
    except TypeError:
        return f"write {wish}"
    return None


def _parse_word(word: str) -> Any:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(word)
    return word
