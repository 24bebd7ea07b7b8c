"""A sweep as tables: what was tried, and what came of it, the best first.

Trials that differ in the seed alone are one line, the mean over seeds and its standard
deviation. As in compare.py, only what was tested on as many examples of the same data set
stands in one table, and training accuracy in a table of its own, without a rank.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..experiment.store import ACCURACY, COLUMNS, TRAINED, read_swept
from .tables import percent

if TYPE_CHECKING:
    from rich.table import Table

SEED = "seed"


class Line(NamedTuple):
    """Trials that differ in the seed alone."""

    point: dict[str, Any]  # the other settings that vary
    figures: list[dict[str, float]]  # of the trials that did not diverge
    diverged: list[int]  # the numbers of those that did

    def mean(self, name: str) -> float:
        """Of a figure, over the trials; NaN if all diverged."""
        return float(np.mean([f[name] for f in self.figures] or [np.nan]))

    def deviation(self, name: str) -> float | None:
        """The standard deviation of a sample; None for less than two."""
        values = [f[name] for f in self.figures]
        return float(np.std(values, ddof=1)) if len(values) > 1 else None


class Part(NamedTuple):
    """Lines that compare, the best first; or that do not, as they were tried."""

    title: str
    ranked: bool
    lines: list[Line]


FIGURES = {"last": "last_mean", "best": "best_accuracy"}  # beside the accuracy


def parts(folder: str | Path) -> list[Part]:
    """The trials of a sweep by what they were tested on; training accuracy comes last.

    Raises:
      ValueError: the folder holds no results of a sweep.
    """
    found = read_swept(folder)
    grids = found.sweep["grid"]
    grids = [grids] if isinstance(grids, dict) else grids
    names = dict.fromkeys(n for grid in grids for n in grid if n != SEED)
    rows = found.results.to_pylist()
    sorted_rows: dict[tuple, dict[tuple, Line]] = {}
    for row in rows:
        trained = row["accuracy_name"] == TRAINED.replace("_", " ")
        lines = sorted_rows.setdefault(
            (trained, row["dataset"], row["test_examples"]), {}
        )
        point = {name: row[COLUMNS.get(name, name)] for name in names}
        line = lines.setdefault(tuple(map(str, point.values())), Line(point, [], []))
        if row["diverged_round"] is not None:
            line.diverged.append(row["trial"])
        else:
            line.figures.append(_figures(row, trained))
    result = []
    for (trained, dataset, count), lines in sorted(sorted_rows.items()):
        title = f"{dataset}, test accuracy on {count} examples"
        if trained:
            title = (
                f"{dataset}, {TRAINED.replace('_', ' ')} of {count} examples\n"
                "(public=published: no test accuracy, compares with no table above)"
            )
        listed = list(lines.values())
        if not trained:
            listed.sort(key=lambda line: -np.nan_to_num(line.mean(ACCURACY), nan=-1))
        result.append(Part(title, not trained, listed))
    return result


def sweep_tables(folder: str | Path) -> "list[Table]":
    """A table for each of the `parts`; raises like them."""
    from rich.markup import escape
    from rich.table import Table

    tables = []
    for part in parts(folder):
        style = "bold" if part.ranked else "red"
        table = Table(title=part.title, title_style=style, caption_justify="left")
        if part.ranked:
            table.add_column("rank", justify="right")
        for name in part.lines[0].point:
            table.add_column(name, overflow="fold")
        accuracy = "test accuracy" if part.ranked else "training accuracy"
        for name in (accuracy, *FIGURES, "n"):
            table.add_column(name, justify="right", no_wrap=True)
        for rank, line in enumerate(part.lines, 1):
            settings = [
                "-" if v is None else escape(str(v)) for v in line.point.values()
            ]
            cells = [_cell(line, name) for name in (ACCURACY, *FIGURES)]
            place = [str(rank)] if part.ranked else []
            table.add_row(*place, *settings, *cells, str(len(line.figures)))
        table.caption = _caption(part)
        tables.append(table)
    return tables


def _figures(row: dict[str, Any], trained: bool) -> dict[str, float]:
    if trained:
        own = {name: row[f"{TRAINED}.{column}"] for name, column in FIGURES.items()}
        return {ACCURACY: row[TRAINED]} | own
    return {ACCURACY: row[ACCURACY]} | {n: row[column] for n, column in FIGURES.items()}


def _cell(line: Line, name: str) -> str:
    if not line.figures:
        return "diverged"
    deviation = line.deviation(name)
    text = percent(line.mean(name))
    return text if deviation is None else f"{text} ± {100 * deviation:.2f}"


def _caption(part: Part) -> str:
    said = ["after the last round; last: mean of the last 50 evaluations, or of all"]
    if any(len(line.figures) > 1 for line in part.lines):
        said.append("± standard deviation over the n seeds")
    gone = sorted(trial for line in part.lines for trial in line.diverged)
    if gone:
        said.append(f"diverged, and left out: trial {', '.join(map(str, gone))}")
    return "\n".join(said)
