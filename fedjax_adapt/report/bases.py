"""What the lines of a table are compared with: their bases, and the controls they lack.

Controls are what public data are worth without the method's own idea.
"""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import SettingError
from ..experiment.config import setting_of, unlearned
from ..experiment.records import runs_in
from ..experiment.store import ACCURACY
from .groups import Group
from .plots import FOLLOWS, method_of
from .seeds import PUBLIC, Line, Run, first_of, same_partitions, settings_but
from .tables import shown_setting

Bases = list[Line | None]  # of each line of a table; None: it has no difference
WEIGHTLESS = "fnr(weight=0)"  # for FNR-FL alone: others have no such part to switch off
CONTROLS = (WEIGHTLESS, "fedavg_pubft", "public_only")
# of a control: as much as its method's
WORK = ("algorithm.fraction", "algorithm.epochs")
PENALTY = ("weight", "variant", "delta_set", "upload")  # of fnr, which no control has
# of whose public training folders of earlier versions did not say all
BEFORE = {"algorithm.batch_size": "none", "algorithm.batch_loss": "mean"}


def bases_of(
    found: Sequence[Group], base: str | None, given: Sequence[Group]
) -> list[Bases]:
    """What each line of each group differs from: the best, or what `base` names.

    Where a method has several lines the best by test accuracy would be chosen by it.

    Args:
      found: the groups that are shown.
      base: as in `sheets`.
      given: all groups, also what `--best` leaves out.

    Raises:
      ValueError: `base` names none of the runs, or several lines of a group of which none
        or several have the settings of another line.
    """
    if base is None:
        best = lambda x: x.lines[0] if x.ranked and not with_several_lines(x) else None
        return [[best(group)] * len(group.lines) for group in found]
    paths, bases = {path.resolve() for path in runs_in(base)}, []
    for group in found:
        here, none = _meant(group, base, paths), [None] * len(group.lines)
        bases.append(_base_of_each(group.lines, here, base) if group.ranked else none)
    if not any(line for of in bases for line in of):
        ranked = [run for group in found if group.ranked for run in group.runs]
        names = dict.fromkeys(method_of(*run) for run in ranked)
        known = f"write one of {', '.join(names)}, or" if names else "write"
        if any(group.ranked and _meant(group, base, paths) for group in given):
            raise SettingError(
                f"base={base} is a run that --best leaves out; {known} the folder of a run "
                "that it shows, or leave out --best."
            )
        raise SettingError(
            f"base={base} is no ranked run of those that are compared; {known} the folder "
            "of a run that did not train on its test set."
        )
    return bases


def _meant(group: Group, base: str, paths: set[Path]) -> list[Line]:
    """The lines of a group that `base` names, by the nearest sense that names any.

    Args:
      group: of the lines.
      base: a method, an algorithm or a folder.
      paths: of the runs in that folder.
    """
    in_folders = lambda run: Path(run[1]["folder"]).resolve() in paths
    has_method = lambda run: method_of(*run) == base
    has_algorithm = lambda run: run[0]["algorithm"] == base
    here: list[Line] = []
    for means in (in_folders, has_method, has_algorithm):
        here = here or [x for x in group.lines if any(map(means, x.values()))]
    return here


def with_several_lines(group: Group) -> list[str]:
    """The methods with several lines of test accuracy."""
    names = [method_of(first_of(line)[0], None) for line in group.lines]
    tested = group.accuracy == ACCURACY
    return [x for x in dict.fromkeys(names) if tested and names.count(x) > 1]


def _base_of_each(lines: Sequence[Line], here: Sequence[Line], base: str) -> Bases:
    """The one line that `base` means, or of several that with the settings of a line."""
    if len(here) < 2:
        return [here[0] if here else None] * len(lines)
    found: Bases = []
    for line in lines:
        is_base = any(line is one for one in here)
        alike = [line] if is_base else [one for one in here if _is_alike(line, one)]
        if len(alike) > 1:
            raise SettingError(
                f"base={base} means {len(alike)} lines with the settings of "
                f"{folder_of(line)}; write the folder of a run of the one that is meant, "
                f"as in --base {quote(folder_of(alike[0]))}."
            )
        found.append(alike[0] if alike else None)
    if all(of is None or of is line for line, of in zip(lines, found, strict=True)):
        raise SettingError(
            f"base={base} means {len(here)} lines of a table, and no other line has the "
            "settings of one of them; write the folder of a run of the one that is meant, "
            f"as in --base {quote(folder_of(here[0]))}."
        )
    return found


def _is_alike(one: Line, other: Line) -> bool:
    """Whether two lines have all settings in common but for the method and its own."""
    of = lambda line: settings_but(first_of(line)[0], FOLLOWS).items()
    own = lambda line: {n: v for n, v in of(line) if n.partition(".")[0] != "algorithm"}
    return own(one) == own(other) and same_partitions(one, other)


def folder_of(line: Line) -> str:
    """The folder of the first run of a line."""
    return first_of(line)[1]["folder"]


def on_bases(
    lines: Sequence[Line],
    methods: Sequence[str],
    places: Sequence[int | None],
    called: str | None,
) -> list[str]:
    """What the lines of a table differ from, and which of them have no difference."""
    several = len({place for place in places if place is not None}) > 1
    if several:
        pairs = [
            f"{row + 1} to {place + 1}"
            for row, place in enumerate(places)
            if place is not None and place != row
        ]
        base = f"the line of {called} with the same settings ({', '.join(pairs)})"
    else:
        place = next(place for place in places if place is not None)
        base = f"{methods[place]} of {folder_of(lines[place])}"
    said = [
        f"to base: difference to {base}, in points of accuracy, over the seeds of both, ± "
        "half the 95 % interval by Student's t; none: the interval covers 0"
    ]
    without = [str(row + 1) for row, place in enumerate(places) if place is None]
    if without:
        said.append(
            f"no difference of {', '.join(without)}: no line of {called} has the same "
            "settings"
        )
    return said


def lacking(runs: Sequence[Run]) -> list[str]:
    """A sentence for each set of controls that methods among the runs stand without.

    A control has all settings of the run it is for, but for the seed and the method's own,
    and the public set. Of one that has others a further sentence names them.
    """
    users = [run for run in runs if run[1].get("public", {}).get("used")]
    controls = [run for run in users if _control(run)]
    # names are kept in order, once
    without: dict[tuple[str, ...], dict[str, None]] = {}
    others: dict[tuple[str, str], dict[str, None]] = {}
    for run in users:
        if _control(run) is not None:
            continue
        lacks = []
        for name in CONTROLS if run[0]["algorithm"] == "fnr" else CONTROLS[1:]:
            named = [other for other in controls if _control(other) == name]
            apart = [_apart(other, run) for other in named]
            if "" not in apart:
                lacks.append(name)
                for other, differs in zip(named, apart, strict=True):
                    which = f"{other[1]['folder']}, {name},", differs
                    others.setdefault(which, {})[run[1]["folder"]] = None
        without.setdefault(tuple(lacks), {})[method_of(*run)] = None
    return [
        f"{', '.join(methods)} {'stands' if len(methods) == 1 else 'stand'} here without "
        f"{'its' if len(methods) == 1 else 'their'} controls {', '.join(lacks)}: what "
        "public data alone are worth is not known."
        for lacks, methods in without.items()
        if lacks
    ] + [
        f"{which} is no control of {', '.join(folders)}: it has {differs}."
        for (which, differs), folders in others.items()
    ]


def _control(run: Run) -> str | None:
    """Which control a run is, if it is one."""
    config = run[0]
    if config["algorithm"] == "fnr":
        return WEIGHTLESS if config.get("algorithm.weight") == 0 else None
    return config["algorithm"] if config["algorithm"] in CONTROLS else None


def _apart(control: Run, method: Run) -> str:
    """The settings that a control does not have of this method, in words; "" if none."""
    (theirs, of_theirs), (ours, of_ours) = control, method
    pairs = {
        f"public {what}": (of_theirs["public"][what], of_ours["public"][what])
        for what in PUBLIC
    }
    pairs |= {
        name: (setting_of(BEFORE | theirs, name), setting_of(BEFORE | ours, name))
        for name in dict.fromkeys([*theirs, *ours, *BEFORE])
        if _is_shared(name, theirs["algorithm"], ours)
    }
    return ", ".join(
        f"{name}={shown_setting(one)}, not {shown_setting(other)}"
        for name, (one, other) in pairs.items()
        if one != other
    )


def _is_shared(name: str, control: str, method: dict[str, Any]) -> bool:
    """Whether a control has this setting as its method has it."""
    kind, _, own = name.partition(".")
    if name == "algorithm.base":
        return control != "public_only"  # whose clients do not train on any base
    if own and kind == "algorithm":
        if method["algorithm"] == "fnr":
            return own not in PENALTY
        return name in WORK and name in method
    return name not in ("algorithm", "seed", "public", "public_examples", *unlearned())
