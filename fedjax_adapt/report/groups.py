"""Which runs compare, by what they were tested on, and which settings are the best.

Best is the mean validation accuracy; test accuracy chooses nothing. Where runs with the
chosen settings were tested, these are shown in place of the validated ones. What is to be
learned is never chosen: of each data set, partition, model and number of rounds a method
has settings of its own.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import SettingError
from ..experiment.config import differing, is_chosen
from ..experiment.records import read_finished, runs_in
from ..experiment.store import (
    ACCURACIES,
    ACCURACY,
    TRAINED,
    VALIDATED,
    accuracy_in,
    shown_accuracy,
)
from .seeds import (
    FOLLOWS,
    Line,
    Run,
    by_seed,
    first_of,
    over_seeds,
    same_partitions,
    settings_but,
)
from .tables import percent, together


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
    times = Counter(paths)
    for folder, path in zip(runs, paths, strict=True):
        if times[path] > 1:
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
