"""A sweep as tables: what was tried, and what came of it, the best first.

Trials that differ in the seed alone are one line, the mean over seeds and its standard
deviation. As in compare.py, only what was tested on as many examples of the same data set
stands in one table, and training accuracy in a table of its own, without a rank. What
methods were given besides their clients' training is said below.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..experiment.records import read_swept
from ..experiment.store import (
    ACCURACIES,
    ACCURACY,
    NOTHING,
    accuracy_shown_as,
    shown_accuracy,
)
from .compare import share_text
from .controls import CONTROLS, WEIGHTLESS
from .groups import Tested
from .seeds import Sample, sample
from .tables import Name

if TYPE_CHECKING:
    from rich.table import Table

SEED = "seed"


class Line(NamedTuple):
    """Trials that differ in the seed alone."""

    point: dict[str, Any]  # the other settings that vary
    figures: list[dict[str, float]]  # of the trials that did not diverge
    diverged: list[int]  # the numbers of those that did
    methods: set[str]
    given: str | None  # besides the clients' own training; None: not recorded
    stopped: list[int]  # the numbers of those that a callback stopped

    def over(self, name: str) -> Sample:
        """A figure of the trials."""
        return sample(figures[name] for figures in self.figures)


class Part(NamedTuple):
    """Lines that compare, the best first; or that do not, as they were tried."""

    title: str
    accuracy: str  # what it is called
    ranked: bool
    lines: list[Line]


FIGURES = {"last": "last_mean", "best": "best_accuracy"}  # besides the accuracy


def parts(folder: str | Path) -> list[Part]:
    """The trials of a sweep by what they were tested on: the test set first.

    Raises:
      SettingError: the folder holds no results of a sweep.
    """
    found = read_swept(folder)
    names = [name for name in found.settings if name != SEED]
    rows = found.results.to_pylist()
    sorted_rows: dict[tuple, dict[tuple, Line]] = {}
    for row in rows:
        named = accuracy_shown_as(row["accuracy_name"])
        place = ACCURACIES.index(named)
        part = (place, row["dataset"], row["test_examples"])
        lines = sorted_rows.setdefault(part, {})
        point = {name: row[name] for name in names}
        given = row.get("also_given")  # which an earlier version did not write
        at = tuple(map(str, point.values()))
        line = lines.setdefault(at, Line(point, [], [], set(), given, []))
        line.methods.add(row["method"])
        if row.get("stopped_round") is not None:
            line.stopped.append(row["trial"])
        if row["diverged_round"] is not None:
            line.diverged.append(row["trial"])
        else:
            before = "" if named == ACCURACY else f"{named}."
            figures = {name: row[before + column] for name, column in FIGURES.items()}
            line.figures.append({ACCURACY: row[named]} | figures)
    result = []
    for (place, dataset, count), lines in sorted(sorted_rows.items()):
        listed = list(lines.values())
        of = dataset if "algorithm" in names else f"{_methods(listed)} on {dataset}"
        tested = Tested(ACCURACIES[place], of, count, "own", None)
        if tested.ranked:
            listed.sort(key=_accuracy, reverse=True)
        accuracy = shown_accuracy(tested.accuracy)
        result.append(Part(tested.title(), accuracy, tested.ranked, listed))
    return result


def _accuracy(line: Line) -> float:
    """That of a line, below all others where every trial diverged."""
    mean = line.over(ACCURACY).mean
    return -1.0 if mean is None else mean


def _methods(lines: Sequence[Line]) -> str:
    """The algorithm, which no column says; with its options where all have the same."""
    methods = {method for line in lines for method in line.methods}
    if len(methods) == 1:
        return methods.pop()
    return ", ".join(sorted({_algorithm(method) for method in methods}))


def _algorithm(method: str) -> str:
    return method.partition("(")[0].partition(" ")[0]


def sweep_tables(folder: str | Path, width: int | None = None) -> "list[Table]":
    """A table for each of the `parts`; raises like them.

    Args:
      folder: of the sweep.
      width: characters of a line. A table that is wider has all settings in one column,
        and no column for the best accuracy. None: there is no end of a line.
    """
    tables = []
    for part in parts(folder):
        table = _table(part, list(part.lines[0].point), tuple(FIGURES))
        if width is not None and natural_width(table) > width:
            table = _table(part, None, ("last",))
        tables.append(table)
    return tables


def natural_width(table: "Table") -> int:
    """Characters of the longest line of a table, in which nothing is wrapped."""
    from rich.console import Console
    from rich.measure import Measurement

    endless = Console(width=10_000)
    return Measurement.get(endless, endless.options, table).maximum


def _table(part: Part, names: list[str] | None, figures: tuple[str, ...]) -> "Table":
    """A part as a table; names: of settings with a column each, or None: one for all."""
    from rich.table import Table

    style = "bold" if part.ranked else "red"
    table = Table(title=part.title, title_style=style, caption_justify="left")
    if part.ranked:
        table.add_column("rank", justify="right", no_wrap=True)
    point = lambda line: {n: "-" if v is None else v for n, v in line.point.items()}
    shown = list(map(point, part.lines))
    if names is None:
        names = ["settings"]
        said = lambda point: "\n".join(f"{name}={v}" for name, v in point.items())
        shown = [{"settings": said(point)} for point in shown]
    settings = [{name: Name(str(v)) for name, v in line.items()} for line in shown]
    for name in names:
        table.add_column(name, min_width=max(line[name].longest for line in settings))
    accuracy = part.accuracy if part.ranked else "training accuracy"
    for name in (accuracy, *figures, "n"):
        table.add_column(name, justify="right", no_wrap=True)
    for rank, line in enumerate(part.lines, 1):
        text = lambda name, line=line: share_text(line.over(name))
        cells = [text(n) if line.figures else "diverged" for n in (ACCURACY, *figures)]
        place = [str(rank)] if part.ranked else []
        table.add_row(
            *place, *settings[rank - 1].values(), *cells, str(len(line.figures))
        )
    table.caption = _caption(part)
    return table


def _caption(part: Part) -> str:
    said = ["after the last round; last: mean of the last 50 evaluations, or of all"]
    if any(len(line.figures) > 1 for line in part.lines):
        said.append("± standard deviation over the n seeds")
    gone = sorted(trial for line in part.lines for trial in line.diverged)
    if gone:
        said.append(f"diverged, and left out: trial {', '.join(map(str, gone))}")
    ended = sorted(trial for line in part.lines for trial in line.stopped)
    if ended:
        trials = ", ".join(map(str, ended))
        said.append(f"stopped before the last round by a callback: trial {trials}")
    return "\n".join(said + _given(part))


def _given(part: Part) -> list[str]:
    """What methods were also given, and which controls would show what that is worth."""
    holders: dict[str, list[str]] = {}
    for number, line in enumerate(part.lines, 1):
        holders.setdefault(line.given or "not recorded", []).append(str(number))
    if [*holders] == [NOTHING]:
        return []
    place = "rank" if part.ranked else "line"
    said = [
        f"{place} {', '.join(numbers)}: also given: {given}"
        for given, numbers in holders.items()
    ]
    if len(holders) == 1:
        said = [f"also given: {[*holders][0]}"]
    lacks = _lacking(part)
    if lacks:
        unknown = "what public data alone are worth is not known"
        said.append(f"without {', '.join(lacks)} here {unknown}")
    return said


def _lacking(part: Part) -> list[str]:
    """The controls of methods on public data that have no line of their own."""
    shown = {method: line for line in part.lines for method in line.methods}
    weightless = lambda method: re.search(r"\bweight=0(\.0)?\b", method) is not None
    here = {_algorithm(method) for method in shown}
    users = {
        _algorithm(method)
        for method, line in shown.items()
        if "public" in (line.given or "") and not weightless(method)
    }.difference(CONTROLS)
    wanted = [name for name in CONTROLS[1:] if name not in here] if users else []
    if "fnr" in users and not any(map(weightless, shown)):
        wanted.insert(0, WEIGHTLESS)
    return wanted
