"""Settings as users write them, in a file or a grid, checked before anything runs."""

from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import SettingError
from . import spelling, toml
from .algorithm import build_algorithm
from .build import build_plan
from .config import all_options, from_settings
from .objects import KINDS
from .options import find, suggestion
from .toml import checked


def read_settings(path: Path) -> dict[str, Any]:
    """The settings a TOML file gives, checked.

    Raises:
      SettingError: no TOML, an unknown key or a value of the wrong type; the sentence
        names the file and the line.
    """
    settings = toml.read(path)
    if "grid" in settings or isinstance(settings.get("run"), Mapping):
        raise SettingError(
            f"{path} is a sweep, no run; write fedjax-adapt sweep {quote(str(path))}."
        )

    def at(key: str) -> str:
        written = {*settings, *spelling.flattened(settings)}
        given = not written.isdisjoint(spelling.other_spellings(key))
        return f"{path}, line {toml.line_of(path, key)}" if given else str(path)

    return check_settings(settings, at)


def check_settings(
    settings: Mapping[str, Any],
    at: Callable[[str], str],
    remedy: str = "leave it out here",
) -> dict[str, Any]:
    """The settings, of the types they should have.

    `at` says where a setting is written, or where it could be, with which errors begin, and
    `remedy` what to do about an option of another choice.
    """
    try:
        settings = spelling.canonical(settings)
    except SettingError as error:
        raise SettingError(f"{at(error.setting or '')}: {error}") from None
    choices = spelling.choices_in(settings)
    for kind in KINDS:
        try:
            find(kind, checked(f"{kind}={choices[kind]!r}", str, choices[kind]))
        except SettingError as error:
            raise SettingError(f"{at(kind)}: {error}") from None
    known = all_options(choices)
    short = spelling.shortest(known)
    for key, value in settings.items():
        if key not in known:
            sentence = _misplaced(key, known, choices) or (
                f"{spelling.flat_name(key)} is unknown; "
                f"{suggestion(key, spelling.writable(known), remedy=remedy)}"
            )
            raise SettingError(f"{at(key)}: {sentence}")
        sentence = f"{short[key]}={value!r}"
        try:  # where a setting stands takes long to find
            settings[key] = checked(sentence, known[key].annotation, value)
        except SettingError as error:
            raise SettingError(f"{at(key)}: {error}") from None
    try:
        config = from_settings(settings)
        build_plan(config)
        build_algorithm(config)
    except SettingError as error:  # out of range
        raise SettingError(f"{at(error.setting or '')}: {error}") from None
    return settings


def _misplaced(
    key: str, known: Mapping[str, Any], choices: Mapping[str, str]
) -> str | None:
    """What to say of a setting in the table of a kind that it is not of; None: nothing."""
    kind, dot, option = key.partition(".")
    if not dot:
        return None
    begins = f"{option} is not an option of {kind} {choices.get(kind, '')}".rstrip()
    if option in known:
        return f"{begins} but a setting of the run; write it above the tables."
    for other, name in choices.items():
        if f"{other}.{option}" in known:
            return f"{begins} but of {other} {name}; write it below [{other}]."
    return None
