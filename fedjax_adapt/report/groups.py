"""Which runs compare: by what they were tested on, with which base and which controls.

Best is the mean validation accuracy; test accuracy chooses nothing. Where runs with the
chosen settings were tested, these are shown in place of the validated ones. What is to be
learned is never chosen: of each data set, partition, model and number of rounds a method
has settings of its own. A base is what the lines of a table differ from; controls are what
public data are worth without the method's own idea.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from ..errors import SettingError
from ..experiment.config import differing, is_chosen, setting_of, unlearned
from ..experiment.records import read_finished, runs_in
from ..experiment.store import (
    ACCURACIES,
    ACCURACY,
    TRAINED,
    VALIDATED,
    accuracy_in,
    shown_accuracy,
)
from .plots import method_of
from .seeds import (
    FOLLOWS,
    PUBLIC,
    Line,
    Run,
    by_seed,
    first_of,
    over_seeds,
    same_partitions,
    settings_but,
)
from .tables import percent, shown_setting, together


class Tested(NamedTuple):
    """What an accuracy was measured on; runs in which it is the same compare."""

    accuracy: str  # what it is called
    name: str  # of the data set
    examples: int
    labels: str
    taken: tuple[int, int] | None  # split_test: public examples, and the seed that drew

    @property
    def ranked(self) -> bool:
        """Whether it says which run is better: not of one that trained on the examples."""
        return self.accuracy != TRAINED

    def title(self) -> str:
        """Of the table of these runs."""
        kind = f"{shown_accuracy(self.accuracy)} {'on' if self.ranked else 'of'}"
        title = f"{self.name}, {kind} {self.examples} examples"
        if self.labels != "own":
            title += f", labels={self.labels}"
        if not self.ranked:
            title += (
                "\n(public=published: no test accuracy, compares with no table above)"
            )
        if self.taken is not None:
            public, seed = self.taken
            title += (
                f"\n(public=split_test: left of the test set by {public} public examples "
                f"drawn with partition_seed={seed})"
            )
        return title


class Group(NamedTuple):
    """Lines that compare, the best first; or that do not, as they were given."""

    title: str
    accuracy: str  # what it is called among numbers
    ranked: bool
    lines: list[Line]
    why: Mapping[int, str] = {}  # what was chosen by, of some lines

    @property
    def runs(self) -> list[Run]:
        """Of all lines, in their order."""
        return [run for line in self.lines for run in line.values()]


def groups(folders: Sequence[str | Path]) -> list[Group]:
    """The runs by what they were tested on: the test set first, what was trained on last.

    Args:
      folders: of runs, or of sweeps or their groups, of which all trials are meant that
        did not diverge.

    Raises:
      SettingError: a folder holds no run and no sweep, or a run that is not finished.
    """
    found: dict[Tested, list[Run]] = {}
    runs = [run for folder in folders for run in runs_in(folder)]
    paths = [run.resolve() for run in runs]
    for folder, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise SettingError(f"{folder} is given more than once; give each run once.")
        record, summary = read_finished(folder)
        tested = _tested(record.config, summary)
        summary |= {"folder": str(folder)}  # it may have been moved
        found.setdefault(tested, []).append((record.config, summary))
    result = []
    place = lambda item: ACCURACIES.index(item[0].accuracy)
    for tested, runs in sorted(found.items(), key=place):
        lines = by_seed(runs)
        if tested.ranked:
            lines.sort(key=_mean, reverse=True)
        result.append(Group(tested.title(), tested.accuracy, tested.ranked, lines))
    return result


def _tested(config: dict[str, Any], summary: dict[str, Any]) -> Tested:
    data, taken = summary["data"], None
    public = summary.get("public", {})  # a run of an earlier version had none
    if public.get("protocol") == "split_test":
        taken = (public["examples"], summary["seeds"]["partition_seed"])
    labels = config.get("labels", "own")
    return Tested(accuracy_in(summary), data["name"], data["test"], labels, taken)


def _mean(line: Line) -> float:
    return over_seeds(line, "accuracy").mean or 0.0


class _Measured(NamedTuple):
    """A line, and what its accuracy is called."""

    accuracy: str
    line: Line

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides what it learns, but for seeds and what it is measured on."""
        return settings_but(first_of(self.line)[0], FOLLOWS, "evaluate_on")


def best_groups(found: Sequence[Group]) -> list[Group]:
    """The groups with the lines to show alone, of which there may be none.

    Raises:
      SettingError: a method has several settings, and validation accuracy of none.
    """
    shown: list[tuple[Line, str]] = []  # and what its settings were chosen by
    lines = [_Measured(group.accuracy, line) for group in found for line in group.lines]
    for of_method in _by_method(lines):
        settings: dict[str, list[_Measured]] = {}
        for one in of_method:
            settings.setdefault(json.dumps(one.settings), []).append(one)
        validated = [one for one in of_method if one.accuracy == VALIDATED]
        config, summary = first_of(of_method[0].line)
        if len(settings) > 1 and not validated:
            raise SettingError(
                f"best=true cannot choose among {len(settings)} settings of "
                f"{config['algorithm']}, of {summary['folder']} and others: they have no "
                "validation accuracy, and none is chosen by test; train them with "
                "--evaluate-on validation as well, or leave out --best."
            )
        why = ""
        if len(settings) > 1:
            # of equals the first
            best = max(validated, key=lambda one: _mean(one.line))
            why = _why(best, settings)
            of_method, validated = settings[json.dumps(best.settings)], [best]
        tested = [one for one in of_method if one.accuracy == ACCURACY]
        shown += [(one.line, why) for one in tested or validated or of_method]
    kept = []
    for group in found:
        chosen = [
            (one, why) for line in group.lines for one, why in shown if one is line
        ]
        if chosen:
            reasons = {i: why for i, (_, why) in enumerate(chosen) if why}
            kept.append(group._replace(lines=[line for line, _ in chosen], why=reasons))
    return kept


def _why(best: _Measured, settings: Mapping[str, Sequence[_Measured]]) -> str:
    """What settings were chosen by, and the runs that have no validation accuracy."""
    lacks = lambda some: all(one.accuracy != VALIDATED for one in some)
    without = [some for some in settings.values() if lacks(some)]
    tried, said = len(settings) - len(without), []
    if tried > 1:
        said.append(
            f"the best of {tried} settings by mean validation accuracy, "
            f"{percent(_mean(best.line))}{_chosen(best, settings.values())}"
        )
    if without:
        runs = [[run for one in some for run in one.line.values()] for some in without]
        folders = [together([summary["folder"] for _, summary in x]) for x in runs]
        said.append(f"left out for want of validation accuracy: {', '.join(folders)}")
    return "; ".join(said)


def _chosen(best: _Measured, settings: Iterable[Sequence[_Measured]]) -> str:
    """Its settings that others do not have, but for the method's, which are in its name."""
    config = lambda one: first_of(one.line)[0]
    others = [config(some[0]) for some in settings]
    differences = differing([config(best), *others])[0]
    differences.pop("evaluate_on", None)
    return "".join(f", {name}={value}" for name, value in differences.items())


def _by_method(lines: Sequence[_Measured]) -> list[list[_Measured]]:
    """The lines of each method that learn the same, by settings of their own."""
    found: list[list[_Measured]] = []
    task = lambda one: {n: v for n, v in one.settings.items() if not is_chosen(n)}
    for one in lines:
        for other in found:
            alike = task(one) == task(other[0])
            if alike and same_partitions(one.line, other[0].line):
                other.append(one)
                break
        else:
            found.append([one])
    return found


# for each line of a table the place of the line that it differs from; None: of none
Bases = list[int | None]
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
            f"base={base} is no ranked run of those that are compared; {known} the folder "
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
    """The place of the one line that `base` means, or of several that with the settings.

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
    kind, _, option = name.partition(".")
    if name == "algorithm.base":
        return control != "public_only"  # whose clients do not train on any base
    if option and kind == "algorithm":
        if method["algorithm"] == "fnr":
            return option not in PENALTY
        return name in WORK and name in method
    return name not in ("algorithm", "seed", "public", "public_examples", *unlearned())
