"""Values that a person can write down: numbers, texts, lists of them, and their types."""

import contextlib
import math
import types
import typing
from typing import Any, Literal

from ..core import Algorithm
from ..errors import SettingError

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


def convert(annotation: Any, value: Any) -> Any:
    """`value` as the plain type `annotation` asks for.

    An integer passes for a float, a list for a tuple, "none" for None; where a number or
    a text may stand, "0.5" is the number.

    Raises:
      TypeError: it is of another type.
    """
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal and value in arguments:
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
    """`convert`, with a ValueError that begins with `sentence`."""
    try:
        return convert(annotation, value)
    except TypeError:
        raise SettingError(f"{sentence}; write {wanted(annotation)}.") from None
