"""The flags of `fedjax-adapt run`, which follow from the choices made.

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
from dataclasses import field, make_dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from ..errors import SettingError
from .config import choices_in, common_options, kind_options
from .flag_errors import explain, without_name, words_of
from .objects import KINDS
from .options import Option, find
from .reading import read_settings
from .rendezvous import OPTIONS, ProcessGroup, process_group_of
from .schema import settings
from .spelling import ambiguous, flat_name, shortest, spellings, twice

PROGRAM = "fedjax-adapt run"
DESCRIPTION = """\
Trains a federation and leaves a run folder behind.

The last groups are the options of the chosen algorithm, model, partition and data set:
fedjax-adapt run --algorithm NAME --help shows those of another."""
NAMES = {types.NoneType: ("none",), bool: ("true", "false")}  # of values of some types
ABOUT_THE_RUN = {
    "config": Option(str | None, None, "a TOML file of settings; flags win over it"),
    "resume": Option(bool, False, "go on with the half-finished run in the folder"),
    "controls": Option(
        bool,
        False,
        "after a run of fnr its controls, fnr(weight=0), fedavg_pubft and public_only, in "
        "folders next to it, and a table of all; those that are finished stay as they are",
    ),
}


class Request(NamedTuple):
    """What a command line asks for."""

    settings: dict[str, Any]  # by full names; see `config`
    resume: bool
    controls: bool = False
    processes: ProcessGroup | None = None  # with which processes
    note: str | None = None  # what of the file does not count


def parse(arguments: Sequence[str]) -> Request:
    """Reads the arguments of `fedjax-adapt run`.

    Flags win over the file of --config. With --resume and --folder, and no --config,
    the file is the one in the folder: that alone goes on with a run.

    Raises:
      ValueError: one sentence on the first mistake.
      SystemExit: --help was asked for and has been printed.
    """
    arguments = without_name(arguments)
    words = words_of(arguments)
    settings = _settings_file(words)
    note = left_out(words, settings)
    choices = chosen(words, settings)
    groups = _groups(choices)
    values = read_flags(arguments, groups, settings, PROGRAM, DESCRIPTION, choices)
    resume, controls = values.pop("resume"), values.pop("controls")
    others = process_group_of({name: values.pop(name) for name in OPTIONS})
    if others and controls:
        raise SettingError(
            "controls are run by one process; leave --controls out, or the flags about "
            "other processes."
        )
    del values["config"]
    return Request(values, resume, controls, others, note)


def left_out(words: Mapping[str, list[str]], settings: Mapping[str, Any]) -> str | None:
    """What to say of options in a file whose owner a flag replaces; None: nothing.

    Those that are written as their defaults, as a run writes them, are not missed.
    """
    gone = []
    for kind, name in choices_in(settings).items():
        given = words.get(kind) or [name]
        if given[0] == name:
            continue
        lost = [
            f"{flat_name(full)}={settings[full]}"
            for full, option in group_of(kind, name).items()
            if full in settings and settings[full] != option.default
        ]
        if lost:
            gone.append(f"{', '.join(lost)} of {kind}={name}")
    if not gone:
        return None
    return f"the file's {' and '.join(gone)} is left out: a flag chooses another."


def chosen(words: Mapping[str, list[str]], settings: dict[str, Any]) -> dict[str, str]:
    """What flags and settings choose; takes from the settings the options of others."""
    given = {kind: words[kind][0] for kind in KINDS if words.get(kind)}
    for kind, name in given.items():
        find(kind, name)
    for kind, name in choices_in(settings).items():
        if given.get(kind, name) != name:  # the file's options are another's
            for full in group_of(kind, name):
                settings.pop(full, None)
    return choices_in({**settings, **given})


def _settings_file(words: Mapping[str, list[str]]) -> dict[str, Any]:
    """The settings of --config, or of the run to resume."""
    if words.get("config"):
        return read_settings(Path(words["config"][0]).expanduser())
    if "resume" in words and words.get("folder"):
        path = Path(words["folder"][0]).expanduser() / "config.toml"
        if path.is_file():
            return read_settings(path)
        if set(words) <= {"resume", "folder", "controls", *OPTIONS}:
            raise SettingError(
                f"--folder {words['folder'][0]} holds no run to resume; write the folder "
                "of one, or the settings of a new run."
            )
    return {}


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
      ValueError: one sentence on the first mistake.
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
        if not stop.code:
            raise
        command = program.rpartition(" ")[2]
        said = explain(arguments, options, errors.getvalue(), command)
        raise SettingError(said) from None
    values = [value for g in vars(parsed).values() for value in vars(g).values()]
    return dict(zip(names, values, strict=True))


def _as_shown(
    arguments: Sequence[str], names: Sequence[str], choices: Mapping[str, str]
) -> list[str]:
    """The words, each flag as it is shown, however it is written.

    Raises:
      ValueError: a short name means several options, or one is written in two ways.
    """
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
        spelled = name.removeprefix(negated)
        if written.setdefault(full[0], spelled) != spelled:
            ways = (f"--{n.replace('_', '-')}" for n in (written[full[0]], spelled))
            raise twice(*ways, full[0])
        kind, dot, own = shown[full[0]].rpartition(".")
        flag = f"--{kind}{dot}{negated}{own}".replace("_", "-")
        found.append(flag + equals + value)
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


def _groups(choices: Mapping[str, str]) -> dict[str, dict[str, Option]]:
    """The flags of a run: title -> name -> option."""
    groups: dict[str, dict[str, Option]] = {}
    for name, option in common_options().items():
        groups.setdefault(settings()[name].group, {})[name] = option
    groups["record"].update(ABOUT_THE_RUN)
    groups["several processes"] = OPTIONS
    for kind, name in choices.items():
        flags = group_of(kind, name)
        if flags:
            groups[f"{kind} {name}" if name in groups else name] = flags
    return groups


def group_of(kind: str, name: str) -> dict[str, Option]:
    """The options of one choice by their full names."""
    return {f"{kind}.{own}": o for own, o in kind_options(kind, name).items()}


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

    about = tyro.conf.arg(
        name=shown if "." in shown else None,
        help=option.help.removesuffix("."),
        metavar="NAME" if name in KINDS else None,
    )
    annotation = Annotated[option.annotation, about]
    if name in ("resume", "controls", "overwrite"):
        annotation = tyro.conf.FlagCreatePairsOff[annotation]
    default = settings.get(name, option.default)
    field_name = name.replace(".", "__") if "." in shown else shown
    return field_name, annotation, field(default=default)
