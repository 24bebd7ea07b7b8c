"""What can be chosen by name, and the options each choice takes, from its signature.

An algorithm, model, partition or data set is a function; its arguments that have plain
types (numbers, strings, lists of them) and a default are its options. So a new one
brings along its command-line flags, its TOML keys and its line in `fedjax-adapt list`.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    from ..data import SOURCES

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
            **{name: spec.summary for name, spec in SOURCES.items()},
            **lines(REGISTERED["dataset"]),
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


Check = Callable[[str, Any], None]  # (name, value); raises SettingError


class Setting(NamedTuple):
    """What a setting of `Config` is for, as metadata of its field.

    Attributes:
      help: what it means, as `--help` says it.
      group: the heading in `--help` that it stands below.
      check: refuses values out of range.
      needs: "NAME, what that is": another setting without which this one means nothing.
      incidental: changes no number of a run beyond rounding, so it is no part of its
        hash; a run resumes with another.
      untimed: changes neither a shape nor how long a round takes, so lanes and
        convolutions that were timed with another value are kept.
      splits: decides who holds which examples, so `fedjax-adapt partition` has it.
      matched: the same in a run and in the one that `match` names, as which it takes as
        many local steps.
    """

    help: str
    group: str
    check: Check | None = None
    needs: str = ""
    incidental: bool = False
    untimed: bool = False
    splits: bool = False
    matched: bool = False


def at_least(low: int, none: str | None = None) -> Check:
    """A check for integers from `low` on; `none` says what None means."""
    return lambda name, value: check.at_least(name, value, low, none=none)


def between(low: float, high: float, closed: str = "both") -> Check:
    """A check for numbers in a range, or for several of them."""

    def in_range(name: str, value: Any) -> None:
        for one in value if isinstance(value, Iterable) else (value,):
            check.between(name, one, low, high, closed)

    return in_range


def check_seed(name: str, value: int | None) -> None:
    """Raises SettingError unless `value` is a seed, or None."""
    check.between(name, value or 0, 0, 2**32 - 1)


def check_path(name: str, value: object) -> None:
    """Raises SettingError if a path is empty, which would be the working folder."""
    if value == "":
        raise SettingError(
            f"{name}='' is empty; write the path of a folder, or leave {name} out.",
            setting=name,
        )


def check_later_steps(name: str, value: Sequence[int]) -> None:
    """Raises SettingError unless `value` is pairs of rounds, in order, and steps."""
    said, before = f"{name}={tuple(value)}", 0
    if len(value) % 2:
        raise SettingError(
            f"{said} says no local steps after round {value[-1]}; write pairs of a round "
            "and local steps, as in 20 1.",
            setting=name,
        )
    for done, steps in zip(value[::2], value[1::2], strict=True):
        wrong = ""
        if done < 1:
            wrong = (
                f"begins after round {done}; write a round from 1 on, since num_steps says "
                "the local steps before it."
            )
        elif done <= before:
            wrong = (
                f"has round {done} after round {before}; write each round once, in their "
                "order."
            )
        elif not 1 <= steps <= check.MOST:
            wrong = (
                f"has {steps} local steps after round {done}; write an integer from 1 to "
                f"{check.MOST}."
            )
        if wrong:
            raise SettingError(f"{said} {wrong}", setting=name)
        before = done


def check_ways(name: str, value: str) -> None:
    """Raises SettingError unless `value` names ways to compute convolutions."""
    if value in ("auto", "rule"):
        return
    from ..models.ways import WAYS  # and flax, which takes its time

    if "," not in value:
        check.one_of(name, value, ("auto", "rule", *WAYS))
        return
    for way in value.removesuffix(",").split(","):
        check.one_of(name, way.strip(), WAYS)
