"""Flags, which follow from the choices made, and what is wrong with them in one sentence.

The flags are made from the settings of `config`, so that an algorithm's options are flags
the day it is added. tyro prints their help.
"""

import contextlib
import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any

from rich.console import Console

from .. import check
from ..errors import SettingError
from ..experiment.config import choices_in, is_setting, kind_options
from ..experiment.objects import KINDS
from ..experiment.options import Option, find, suggestion
from ..experiment.reading import read_settings
from ..experiment.schema import settings_that_are
from ..experiment.spelling import ambiguous, flat_name, shortest, spellings, twice
from ..experiment.toml import convert, wanted
from . import EXAMPLES, examples_of


def optional(kind: Any, about: str) -> Option:
    """A flag that is none unless it is given."""
    return Option(kind | None, None, about)


def switch(about: str) -> Option:
    """A flag without a value."""
    return Option(bool, False, about)


# without a --no- of their own
SWITCHES = ("resume", "controls", "overwrite", "dry_run", "json", "quiet", "yes")
OUTPUT = {  # of commands that train
    "dry_run": switch(
        "say what would be run, load the data, but train and write nothing"
    ),
    "json": switch(
        "one JSON object on standard output: folder, status and figures; all else goes to "
        "standard error"
    ),
    "quiet": switch(
        "print nothing but warnings and errors, which go to standard error"
    ),
}


@dataclass(kw_only=True)
class Request:
    """What a command line asks for; a command that takes more has a class of its own."""

    resume: bool = False
    dry_run: bool = False
    json: bool = False  # standard output is for one JSON object
    quiet: bool = False  # nothing is for a person

    def console(self, width: int | None = None) -> Console:
        """Where a command prints for a person: not on standard output with --json."""
        return Console(stderr=self.json, quiet=self.quiet, width=width)


def file_settings(words: Mapping[str, list[str]]) -> dict[str, Any]:
    """The settings of the file of --config; none without it."""
    if not words.get("config"):
        return {}
    return read_settings(check.expanded("--config ", words["config"][0]))


def chosen(
    words: Mapping[str, list[str]], settings: dict[str, Any]
) -> tuple[dict[str, str], str | None]:
    """What flags and settings choose, and what to say of the file's options that go.

    Options of a choice that a flag replaces are taken from the settings. Of those that are
    written as their defaults, as a run writes them, nothing is said.
    """
    given = {kind: words[kind][0] for kind in KINDS if words.get(kind)}
    for kind, name in given.items():
        find(kind, name)
    gone = []
    for kind, name in choices_in(settings).items():
        if given.get(kind, name) == name:
            continue
        lost = [
            f"{flat_name(full)}={value}"
            for full, option in group_of(kind, name).items()
            if (value := settings.pop(full, option.default)) != option.default
        ]
        if lost:
            gone.append(f"{', '.join(lost)} of {kind}={name}")
    says = f"the file's {' and '.join(gone)} is left out: a flag chooses another."
    return choices_in({**settings, **given}), says if gone else None


def read_command(
    arguments: Sequence[str],
    command: str,
    groups: Mapping[str, Mapping[str, Option]],
    description: str,
    kind: str | None = None,
) -> tuple[list[str], dict[str, Any]]:
    """The words before the first flag, which are paths, and the values of all flags.

    A `kind` of path is asked for before the flags are read; see `check_paths`. Raises like
    `read_flags`.
    """
    flags = (i for i, word in enumerate(arguments) if word.startswith("-"))
    count = next(flags, len(arguments))
    paths, given = list(arguments[:count]), arguments[count:]
    if "" in paths:
        raise SettingError(
            f"{command}: a path before the flags is empty; write that of a file or a "
            "folder."
        )
    if kind is not None and not {"-h", "--help"} & {*arguments}:
        check_paths(paths, command, kind)
    return paths, read_flags(given, command, groups, {}, description)


def check_paths(paths: Sequence[str], command: str, kind: str) -> None:
    """Raises SettingError unless there is one path of a kind, or any of "folders"."""
    if len(paths) == 1 or (paths and kind == "folders"):
        return
    wanted = "those of finished runs" if kind == "folders" else "one"
    raise SettingError(
        f"{command} got {len(paths)} {kind.removesuffix('s')}s before its flags; give "
        f"{wanted}, as in {EXAMPLES[command][0]}."
    )


def read_flags(
    arguments: Sequence[str],
    command: str,
    groups: Mapping[str, Mapping[str, Option]],
    settings: Mapping[str, Any],
    description: str,
    choices: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All values, by full names; `settings` are defaults that a file gives.

    Raises:
      SettingError: one sentence on the first mistake.
      SystemExit: --help was asked for and has been printed.
    """
    if {"-h", "--help"} & {*arguments}:
        _print_help(command, groups, settings, description)
        print(examples_of(command), end="")
        raise SystemExit(0)
    options = {name: o for group in groups.values() for name, o in group.items()}
    shown, means, written = shortest(options), spellings(options), {}
    flags = list(map(_flag_of, shown.values()))
    _check_words(arguments, shown.values(), command)
    values = {n: settings.get(n, option.default) for n, option in options.items()}
    for name, words in words_of(arguments).items():
        flag = _flag_of(name)
        # --no-x or, as help shows it where several choices have x, --algorithm.no-x
        positive = name if name in means else re.sub(r"(^|\.)no_", r"\1", name)
        full, *others = means.get(positive) or [positive]
        if others:
            raise ambiguous(flag[2:], [full, *others], choices or {}, "--")
        option, negated = options.get(full), positive != name
        if option is None or (negated and not _has_twin(full, option)):
            raise SettingError(
                f"{flag} {_whose(shown.get(full, full), flags, command)}"
            )
        if full in written:
            raise twice(written[full], flag, full)
        written[full] = flag
        value = _value(flag, option.annotation, words)
        values[full] = False if negated else value
    if values.get("quiet") and values.get("dry_run") and not values.get("json"):
        raise SettingError(
            "--dry-run says what would be run, and --quiet nothing; leave one of them out."
        )
    return values


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def group_of(kind: str, name: str) -> dict[str, Option]:
    """The options of one choice by their full names."""
    return {f"{kind}.{option}": o for option, o in kind_options(kind, name).items()}


def _has_twin(name: str, option: Option) -> bool:
    """Whether a flag has another that says no, --no-NAME."""
    return option.annotation is bool and name not in SWITCHES


def _print_help(
    command: str,
    groups: Mapping[str, Mapping[str, Option]],
    settings: Mapping[str, Any],
    description: str,
) -> None:
    """Prints the flags by tyro: of a dataclass of dataclasses, one group of flags each.

    A flag is shown by its short name, or by the full one where that means several.
    """
    import tyro

    shown = shortest(name for options in groups.values() for name in options)
    members = []
    for title, options in groups.items():
        title = re.sub(r"\W", "_", title)
        flags = [_field(n, option, settings, shown[n]) for n, option in options.items()]
        group = make_dataclass(title, flags, namespace={"__doc__": ""})
        members.append((title, group, field(default_factory=group)))
    with contextlib.suppress(SystemExit):
        tyro.cli(
            make_dataclass("Flags", members, namespace={"__doc__": ""}),
            prog=f"fedjax-adapt {command}",
            description=description,
            args=["--help"],
            config=(tyro.conf.OmitArgPrefixes,),
        )


def _field(
    name: str, option: Option, settings: Mapping[str, Any], shown: str
) -> tuple[str, Any, Any]:
    """The field of a dataclass that tyro shows as a flag."""
    import tyro

    default = settings.get(name, option.default)
    about = tyro.conf.arg(
        name=shown if "." in shown else None,
        help=option.help.removesuffix("."),
        # of no values tyro shows nothing
        help_behavior_hint="(default: none given)" if default == () else None,
        metavar="NAME" if name in KINDS else None,
    )
    annotation = Annotated[option.annotation, about]
    if option.annotation is bool and not _has_twin(name, option):
        annotation = tyro.conf.FlagCreatePairsOff[annotation]
    field_name = name.replace(".", "__") if "." in shown else shown
    return field_name, annotation, field(default=default)


def without_name(arguments: Sequence[str]) -> list[str]:
    """The arguments, `--algorithm.name` written as `--algorithm`; so for all kinds."""
    named = re.compile(rf"--({'|'.join(KINDS)})\.name(?==|$)")
    return [named.sub(r"--\1", argument) for argument in arguments]


def words_of(arguments: Sequence[str]) -> dict[str, list[str]]:
    """The words after each flag, before anything is known of their types."""
    words, name = {}, None
    for token in arguments:
        if token.startswith("--"):
            name, equals, word = token[2:].partition("=")
            name = name.replace("-", "_")
            if name in words:
                raise SettingError(f"{_flag_of(name)} is given twice; write it once.")
            words[name] = [word] if equals else []
        elif name is not None:
            words[name].append(token)
        if name is not None and "" in words[name]:
            flag = _flag_of(name)
            raise SettingError(
                f"{flag} '' is empty; write a value, or leave {flag} out."
            )
    return words


def _check_words(arguments: Sequence[str], names: Iterable[str], command: str) -> None:
    """Raises SettingError at a word that should be a flag, and is not written as one."""
    short = [
        word
        for word in arguments
        if re.match(r"(?i:-(?!inf$|infinity$|nan$)[^-\d.])", word)
    ]
    for word in [*arguments[:1], *short]:
        if word.startswith("--"):
            continue
        meant = check.closest(word.lstrip("-").replace("-", "_"), names)
        if meant is not None:
            said = f"did you mean {_flag_of(meant)}?"
        else:
            said = f"flags begin with --; fedjax-adapt {command} --help shows them."
        raise SettingError(f"{word} is not a flag; {said}")


def _whose(name: str, flags: Sequence[str], command: str) -> str:
    """The end of a sentence about a flag that a command does not have."""
    # options of a partition or a data set are flags there, of the one that is chosen
    kinds = ("algorithm", "model") if command == "partition" else KINDS
    of_runs = is_setting(name, kinds) or (command, name) == ("partition", "resume")
    if command == "run" or not of_runs:
        return f"is not a flag of this {command}; {suggestion(f'--{name}', flags, command)}"
    if command == "partition":
        return (
            "says how a run trains, and fedjax-adapt partition trains nothing; leave it "
            "out."
        )
    if command == "sweep":
        fixed = (*settings_that_are("incidental"), "match")  # what no grid may vary
        vary = "" if name in fixed else ", or a list of values below [grid]"
        return f"is a setting of runs; write {name} below [run] of SWEEP.toml{vary}."
    return f"is a setting of runs, not of {command}; leave it out."


def _value(flag: str, annotation: Any, words: list[str]) -> Any:
    """What the words after a flag say; SettingError where that is not of its type."""
    wish = f"write {wanted(annotation)}"
    if annotation is bool and words:
        wish = f"it takes no value, so leave {words[0]!r} out"
    elif annotation is bool:
        return True
    else:
        lists = [list(map(_parse_word, words)), words]
        single = [values[0] for values in lists if len(words) == 1]
        for form in [*single, *lists]:
            with contextlib.suppress(TypeError):
                return convert(annotation, form)
        types = (annotation, *typing.get_args(annotation))
        many = any(typing.get_origin(one) is tuple for one in types)
        if not many and len(words) != 1:
            wish = f"it {'takes one' if words else 'needs a'} value; {wish}"
    raise SettingError(f"{' '.join([flag, *words])}: {wish}.")


def _parse_word(word: str) -> Any:
    """The truth or number that a word is; else the word."""
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(word)
    return word
