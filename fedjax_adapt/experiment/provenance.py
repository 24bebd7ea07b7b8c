"""Which choices are a user's own, and what stands behind them."""

import inspect
from collections.abc import Iterable
from tokenize import TokenError
from typing import Any

from . import objects, scripts
from .kinds import KINDS, OBJECT, REGISTERED


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
