"""Flags, which follow from the choices made, and what is wrong with them in one sentence.

tyro turns a dataclass into flags; here the dataclass is made from the settings of
`config`, so that an algorithm's options are flags the day it is added. What tyro
refuses is said again in one sentence.
"""

import contextlib
import io
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
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


NAMES = {types.NoneType: ("none",), bool: ("true", "false")}  # of values of some types
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


def shown_flags(request: Request) -> str:
    """What the command that goes on has of these flags."""
    return " --json" * request.json + " --quiet" * request.quiet


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
    program = f"fedjax-adapt {command}"
    return paths, read_flags(given, groups, {}, program, description)


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
    groups: Mapping[str, Mapping[str, Option]],
    settings: Mapping[str, Any],
    program: str,
    description: str,
    choices: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """All values, by full names, by tyro; `settings` are defaults that a file gives.

    A flag is shown by its short name, or by the full one where that means several.

    Raises:
      SettingError: one sentence on the first mistake.
      SystemExit: --help was asked for and has been printed.
    """
    import tyro

    words_of(arguments)  # or it is refused
    errors = io.StringIO()
    names = [name for group in groups.values() for name in group]
    shown = shortest(names)
    options = {shown[n]: o for group in groups.values() for n, o in group.items()}
    arguments = _as_shown(arguments, names, choices or {})
    try:
        with contextlib.redirect_stderr(errors):
            parsed = tyro.cli(
                _arguments_class(groups, settings, shown),
                prog=program,
                description=description,
                args=list(_with_names(arguments, options)),
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        command = program.rpartition(" ")[2]
        if not stop.code:
            print(examples_of(command), end="")
            raise
        said = explain(arguments, options, errors.getvalue(), command)
        raise SettingError(said) from None
    values = [value for g in vars(parsed).values() for value in vars(g).values()]
    given = dict(zip(names, values, strict=True))
    if given.get("quiet") and given.get("dry_run") and not given.get("json"):
        raise SettingError(
            "--dry-run says what would be run, and --quiet nothing; leave one of them out."
        )
    return given


def _as_shown(
    arguments: Sequence[str], names: Sequence[str], choices: Mapping[str, str]
) -> list[str]:
    """The words, each flag as it is shown, however it is written."""
    means, shown, found = spellings(names), shortest(names), []
    written: dict[str, str] = {}
    for word in arguments:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        negated = "no_" * (name not in means and name.startswith("no_"))
        full = means.get(name.removeprefix(negated), ())
        if not word.startswith("--") or not full:
            found.append(word)
            continue
        if len(full) > 1:
            raise ambiguous(name.replace("_", "-"), full, choices, "--")
        if written.setdefault(full[0], name) != name:
            raise twice(_flag_of(written[full[0]]), _flag_of(name), full[0])
        kind, dot, rest = shown[full[0]].rpartition(".")
        found.append(_flag_of(f"{kind}{dot}{negated}{rest}") + equals + value)
    return found


def _with_names(
    arguments: Sequence[str], options: Mapping[str, Option]
) -> Iterator[str]:
    """The words, none, true and false as tyro reads them where they are no choice."""
    option = None
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].partition("=")[0].replace("-", "_")
            option = options.get(name)
        kinds = typing.get_args(option.annotation) if option else ()
        for kind in set(kinds) & set(NAMES):
            named = rf"(^|=)({'|'.join(NAMES[kind])})$"
            word = re.sub(named, lambda found: found[1] + found[2].title(), word)
        yield word


def _flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def group_of(kind: str, name: str) -> dict[str, Option]:
    """The options of one choice by their full names."""
    return {f"{kind}.{option}": o for option, o in kind_options(kind, name).items()}


def _arguments_class(
    groups: Mapping[str, Mapping[str, Option]],
    settings: Mapping[str, Any],
    shown: Mapping[str, str],
) -> type:
    """A dataclass of dataclasses: one group of flags each."""
    members = []
    for title, options in groups.items():
        title = re.sub(r"\W", "_", title)
        flags = [_flag(n, option, settings, shown[n]) for n, option in options.items()]
        group = make_dataclass(title, flags, namespace={"__doc__": ""})
        members.append((title, group, field(default_factory=group)))
    return make_dataclass("Flags", members, namespace={"__doc__": ""})


def _flag(name: str, option: Option, settings: Mapping[str, Any], shown: str) -> tuple:
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
    if name in ("resume", "controls", "overwrite", "dry_run", "json", "quiet", "yes"):
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


def explain(
    arguments: Sequence[str],
    options: Mapping[str, Option],
    said: str = "",
    command: str = "run",
) -> str:
    """One sentence on the first mistake among the arguments; failing that, tyro's."""
    flags = list(map(_flag_of, options))
    short = [token for token in arguments if re.match(r"-[^-\d.]", token)]
    for token in [*arguments[:1], *short]:
        if not token.startswith("--"):
            meant = check.closest(token.lstrip("-").replace("-", "_"), options)
            if meant is not None:
                return f"{token} is not a flag; did you mean {_flag_of(meant)}?"
            return (
                f"{token} is not a flag; flags begin with --; fedjax-adapt "
                f"{command} --help "
                "shows them."
            )
    for name, words in words_of(arguments).items():
        flag = _flag_of(name)
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


def _whose(name: str, flags: Sequence[str], command: str) -> str:
    """The end of a sentence about a flag that a command does not have."""
    if command in ("run", "partition") or not is_setting(name):
        return f"is not a flag of this {command}; {suggestion(f'--{name}', flags, command)}"
    if command == "sweep":
        fixed = (*settings_that_are("incidental"), "match")  # what no grid may vary
        vary = "" if name in fixed else ", or a list of values below [grid]"
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
