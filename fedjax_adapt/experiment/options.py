"""What can be chosen by name, and the options each choice takes, from its signature.

An algorithm, model, partition or data set is a function; its arguments that have plain
types (numbers, strings, lists of them) and a default are its options. So a new one
brings along its command-line flags, its TOML keys and its line in `fedjax-adapt list`.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import docstring_parser

from .. import check
from ..core import Algorithm
from ..errors import SettingError
from . import objects, user_functions
from .objects import FROM_RUN, KINDS, OBJECT, REGISTERED, built_in, registry
from .toml import plain


class Option(NamedTuple):
    """A setting: its type, its default and what it is for."""

    annotation: Any
    default: Any
    help: str = ""


def find(kind: str, name: str) -> Callable:
    """The function called `name`, or that of a file, "FILE.py:FUNCTION".

    Data sets may also be "tfds:NAME" or "FILE.npz".
    """
    if user_functions.is_file(name):
        return user_functions.from_file(kind, name)
    if name == OBJECT:
        return objects.function_of(kind)
    if kind == "dataset" and name.startswith("tfds:"):
        from ..data.tfds import tfds

        return tfds
    if kind == "dataset" and name.endswith(".npz"):
        from ..data.npz import npz

        return npz
    known = registry(kind)
    if name not in known:
        if name.endswith(".py"):
            raise SettingError(
                f"{kind}={name!r} names no function; write {name}:FUNCTION.",
                setting=kind,
            )
        patterns = ["tfds:NAME", "FILE.npz"] if kind == "dataset" else []
        known = check.nearest(name, [*known, *patterns, "FILE.py:FUNCTION"])
        raise SettingError(f"{kind}={name!r} is unknown; {known}", setting=kind)
    return known[name]


def summary(documented: Any) -> str:
    """The first line a function or a module says of itself."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def catalogue() -> dict[str, dict[str, str]]:
    """What can be chosen, with one line each: title -> name -> line."""
    modules = {name: inspect.getmodule(f) for name, f in built_in("algorithm").items()}
    files = list(modules.values())  # which may have several algorithms
    several = [file for file in files if files.count(file) > 1]
    algorithms = {
        name: summary(f if modules[name] in several else modules[name])
        for name, f in built_in("algorithm").items()
    }
    lines = lambda functions: {name: summary(f) for name, f in functions.items()}
    return {
        "algorithms": {**algorithms, **lines(REGISTERED["algorithm"])},
        "data sets": {
            **lines(registry("dataset")),
            "tfds:NAME": summary(find("dataset", "tfds:")),
            "FILE.npz": summary(find("dataset", ".npz")),
        },
        "partitions": lines(registry("partition")),
        "models": lines(registry("model")),
    }


@functools.lru_cache(1000)  # a sweep asks for every trial
def options_of(kind: str, function: Callable) -> Mapping[str, Option]:
    """The options of a function by name."""
    hints = typing.get_type_hints(function)
    helps = argument_help(inspect.getdoc(function) or "")
    options = {}
    for name, parameter in inspect.signature(function).parameters.items():
        annotation = plain(hints.get(name))
        if name in FROM_RUN.get(kind, ()) or annotation is None:
            continue
        if parameter.default is not parameter.empty:
            about = helps.get(name, "")
            if Algorithm in typing.get_args(hints[name]):
                about = f"{about.removesuffix('.')}; write feddyn, or feddyn(alpha=0.1)"
            options[name] = Option(annotation, parameter.default, about)
    return options


def argument_help(doc: str) -> dict[str, str]:
    """What a docstring says of each argument, in a line."""
    found = docstring_parser.parse(doc, docstring_parser.DocstringStyle.GOOGLE).params
    return {some.arg_name: " ".join((some.description or "").split()) for some in found}


def suggestion(
    name: str,
    known: Iterable[str],
    command: str = "run",
    remedy: str = "leave it out here",
) -> str:
    """The end of a sentence about an unknown setting: whose it is, or the nearest."""
    plainly = lambda name: name.lstrip("-").replace("-", "_").lower()
    known, given, owners = list(known), plainly(name), []
    kind_given, _, short = given.rpartition(".")
    for same in known:
        if plainly(same) == given:  # but for the dashes
            return f"did you mean {same}?"
    for kind in [kind_given] if kind_given in KINDS else KINDS:
        takes = lambda f, kind=kind: short in options_of(kind, f)
        choices = [choice for choice, f in registry(kind).items() if takes(f)]
        if choices:
            owners.append(f"{kind} {', '.join(choices)}")
    if owners:
        return f"it is an option of {' and of '.join(owners)}; {remedy}."
    parts = {plainly(name).rpartition(".")[2]: name for name in reversed(known)}
    close = check.closest(short, parts)
    if close is not None:
        return f"did you mean {parts[close]}?"
    of_kind = [n.partition(".")[2] for n in known if n.startswith(f"{kind_given}.")]
    if of_kind:
        return f"write one of {', '.join(of_kind)}."
    return f"fedjax-adapt {command} --help shows what there is."
