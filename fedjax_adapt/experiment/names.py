"""Which names are a user's own, which are taken, and what stands behind those that are.

Each option of an own function is prefixed with its kind where its name is taken by
anything of ours, so that none of our names changes with what is registered.
"""

import functools
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import fields
from tokenize import TokenError
from typing import Any

from ..errors import SettingError
from . import objects, scripts
from .options import KINDS, OBJECT, REGISTERED


def check_apart(choices: Mapping[str, str]) -> None:
    """Raises ValueError if two choices have an option of one name, as own ones may."""
    from .schema import kind_options

    owners: dict[str, str] = {}
    for kind, name in choices.items():
        for flat, _ in kind_options(kind, name).values():
            if flat in owners:
                raise SettingError(
                    f"{flat} is an option of {owners[flat]} and of {kind} {name}; give the "
                    "argument of one of them another name."
                )
            owners[flat] = f"{kind} {name}"


@functools.cache
def reserved() -> frozenset[str]:
    """Names that no option of an own function may have: flags, columns, figures."""
    from .flags import ABOUT_THE_RUN
    from .preview import PICTURE
    from .rows import COLUMNS
    from .summary import Summary
    from .together import OPTIONS

    figures = {field.name for field in fields(Summary)}
    return frozenset({*ABOUT_THE_RUN, *PICTURE, *OPTIONS, *COLUMNS, *figures})


def origins(configs: Iterable[Any]) -> dict[str, str]:
    """Where what is not ours comes from: "KIND=NAME" -> how to tell it from another.

    Of a file it is the SHA-256 of all of it, of a registered function that of its source,
    of an object its description.
    """
    found: dict[str, str] = {}
    for config in configs:
        for kind in KINDS:
            name = getattr(config, kind)
            base = str(config.algorithm_options.get("base") or "").partition("(")[0]
            for own in (name, base) if kind == "algorithm" else (name,):
                if f"{kind}={own}" not in found and is_own(kind, own):
                    found[f"{kind}={own}"] = _origin(kind, own)
    return found


def is_own(kind: str, name: str) -> bool:
    """Whether a choice is a user's own."""
    return scripts.is_file(name) or name in REGISTERED[kind] or name == OBJECT


def _origin(kind: str, name: str) -> str:
    if name == OBJECT:
        return objects.described(kind)
    if scripts.is_file(name):
        return f"SHA-256 {scripts.sha256_of(kind, name)}"
    try:
        source = inspect.getsource(REGISTERED[kind][name])
    except (OSError, TypeError, SyntaxError, TokenError):  # written at a prompt
        return "source unknown"
    return f"SHA-256 {scripts.digest(source.encode())}"
