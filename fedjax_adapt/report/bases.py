"""The base of each line of a table: the line that it differs from."""

from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from ..errors import SettingError
from ..experiment.records import runs_in
from ..experiment.store import ACCURACY
from .groups import Group
from .plots import method_of
from .seeds import FOLLOWS, Line, first_of, same_partitions, settings_but

# for each line of a table the place of the line that it differs from; None: of none
Bases = list[int | None]


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
      SettingError: `base` names none of the runs, or several lines of a group of which none
        or several have the settings of another line.
    """
    if base is None:
        best = lambda x: 0 if x.ranked and not with_several_lines(x) else None
        return [[best(group)] * len(group.lines) for group in found]
    paths, bases = {path.resolve() for path in runs_in(base)}, []
    for group in found:
        here, none = _meant(group, base, paths), [None] * len(group.lines)
        bases.append(_base_of_each(group.lines, here, base) if group.ranked else none)
    if all(place is None for of in bases for place in of):
        ranked = [run for group in found if group.ranked for run in group.runs]
        names = dict.fromkeys(method_of(*run) for run in ranked)
        known = f"write one of {', '.join(names)}, or" if names else "write"
        if any(group.ranked and _meant(group, base, paths) for group in given):
            raise SettingError(
                f"base={base} is a run that --best leaves out; {known} the folder of a run "
                "that it shows, or leave out --best."
            )
        raise SettingError(
            f"base={base} is not a ranked run of those that are compared; "
            f"{known} the folder "
            "of a run that did not train on its test set."
        )
    return bases


def _meant(group: Group, base: str, paths: set[Path]) -> list[int]:
    """The places of the lines that `base` names, by the nearest sense that names any.

    Args:
      group: of the lines.
      base: a method, an algorithm or a folder.
      paths: of the runs in that folder.
    """
    in_folders = lambda run: Path(run[1]["folder"]).resolve() in paths
    has_method = lambda run: method_of(*run) == base
    has_algorithm = lambda run: run[0]["algorithm"] == base
    here: list[int] = []
    for means in (in_folders, has_method, has_algorithm):
        here = here or [
            i for i, x in enumerate(group.lines) if any(map(means, x.values()))
        ]
    return here


def with_several_lines(group: Group) -> list[str]:
    """The methods with several lines of test accuracy."""
    names = [method_of(first_of(line)[0], None) for line in group.lines]
    tested = group.accuracy == ACCURACY
    return [x for x in dict.fromkeys(names) if tested and names.count(x) > 1]


def _base_of_each(lines: Sequence[Line], here: Sequence[int], base: str) -> Bases:
    """For each line the place of its base: the line meant, or that with its settings.

    Args:
      lines: of a table.
      here: the places of those that `base` means.
      base: as it was given.
    """
    if len(here) < 2:
        return [here[0] if here else None] * len(lines)
    found: Bases = []
    for row, line in enumerate(lines):
        alike = [place for place in here if _is_alike(line, lines[place])]
        alike = [row] if row in here else alike
        if len(alike) > 1:
            raise SettingError(
                f"base={base} means {len(alike)} lines with the settings of "
                f"{folder_of(line)}; write the folder of a run of the one that is meant, "
                f"as in --base {quote(folder_of(lines[alike[0]]))}."
            )
        found.append(alike[0] if alike else None)
    if all(place in (None, row) for row, place in enumerate(found)):
        raise SettingError(
            f"base={base} means {len(here)} lines of a table, and no other line has the "
            "settings of one of them; write the folder of a run of the one that is meant, "
            f"as in --base {quote(folder_of(lines[here[0]]))}."
        )
    return found


def _is_alike(one: Line, other: Line) -> bool:
    """Whether two lines have all settings in common but for the method and its own."""
    of = lambda line: settings_but(first_of(line)[0], FOLLOWS).items()
    shared = lambda line: {
        n: v for n, v in of(line) if n.partition(".")[0] != "algorithm"
    }
    return shared(one) == shared(other) and same_partitions(one, other)


def folder_of(line: Line) -> str:
    """The folder of the first run of a line."""
    return first_of(line)[1]["folder"]


def on_bases(
    lines: Sequence[Line],
    methods: Sequence[str],
    bases: Bases,
    called: str | None,
) -> list[str]:
    """What the lines of a table differ from, and which of them have no difference."""
    place, *others = {place for place in bases if place is not None}
    if others:
        pairs = [
            f"{row + 1} to {place + 1}"
            for row, place in enumerate(bases)
            if place not in (None, row)
        ]
        base = f"the line of {called} with the same settings ({', '.join(pairs)})"
    else:
        base = f"{methods[place]} of {folder_of(lines[place])}"
    said = [
        f"to base: difference to {base}, in points of accuracy, over the seeds of both, ± "
        "half the 95 % interval by Student's t; none: the interval covers 0"
    ]
    without = [str(row + 1) for row, place in enumerate(bases) if place is None]
    if without:
        said.append(
            f"no difference of {', '.join(without)}: no line of {called} has the same "
            "settings"
        )
    return said
