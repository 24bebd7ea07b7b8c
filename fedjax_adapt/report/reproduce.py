"""Published and measured figures of an item: tables and a CSV file."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..experiment.records import Record, read_run
from ..experiment.store import ACCURACY, COSTS, figures_of, read_summary
from .seeds import Sample, at_target, difference_text, sample, speed_ups

CLASSES = "class_accuracy"  # by label
# what stands before a column in a figure or in what is drawn, see `measured` and panels.py
CLIENTS, CHANGES = "clients.", "changes."
SHARES = (  # shown in %
    *("accuracy", "accuracy_all", "accuracy_sel", "best_accuracy", "last_mean"),
    *("last_std", "area_under_curve", "client_accuracy", "personal_accuracy", CLASSES),
)

# the runs of rows and methods: the folder of each by its seed; None: it diverged
Runs = Mapping[tuple[str, str], Mapping[int, Path | None]]


@dataclass(frozen=True)
class Measured(Sample):
    """A figure of a cell, in the paper's units: shares in %."""

    row: str
    method: str
    figure: str
    published: float | str | None

    @property
    def difference(self) -> float | None:
        """Of the mean to the published figure; None where there is one of them only."""
        if self.mean is None or not isinstance(self.published, int | float):
            return None
        return self.mean - self.published


def measured(
    figures: Sequence[str],
    published: Mapping[str, Mapping[str, Mapping[str, float | str]]],
    runs: Runs,
    base_of: Callable[[str], str | None] = lambda method: None,
) -> list[Measured]:
    """Every figure of every row and method, but for those published of other rows alone.

    Args:
      figures: by the names of a summary, as in rounds_to.0.97; or simulated_seconds_to.0.97
        and the like, a column of the metrics in that round; speed_up.0.97, the rounds of
        the base by those of this method, seed by seed; traffic_mib, of both ways;
        clients.A.3, the median of client 3's column A over its rounds; changes.loss, the
        median distance from (0, 0) of what `changes` finds. With models.all. before it a
        figure is of that model in place of the server's.
      published: by row, method and figure.
      runs: that are over.
      base_of: the method that a method's speed-up is over; None: it has none.
    """
    found = []
    everywhere = {n for row in published.values() for of in row.values() for n in of}
    for (row, method), folders in runs.items():
        here = {name for of in published.get(row, {}).values() for name in of}
        base = base_of(method)
        for name in figures:
            rounds = name.replace("speed_up.", "rounds_to.")
            if here and name in everywhere - here:
                continue  # the paper has it of other rows
            if rounds == name:
                values = list(_values(folders, name).values())
            elif base is not None and (row, base) in runs:
                ours, bases = _values(folders, rounds), _values(runs[row, base], rounds)
                values = speed_ups(ours, bases)
            else:
                continue  # nothing to be faster than
            figure = sample(values)
            paper = published.get(row, {}).get(method, {}).get(name)
            if paper is None and not _has_model(folders, name):
                continue  # a model that this method does not have
            found.append(
                Measured(figure.values, figure.lacking, row, method, name, paper)
            )
    return found


def _has_model(folders: Mapping[int, Path | None], name: str) -> bool:
    """Whether a run has tested the model that a figure is of: the server's, or another."""
    if not name.startswith("models."):
        return True
    model = name.split(".")[1]
    tested = [figures_of(read_summary(path) or {}) for path in folders.values() if path]
    return any(model in figures.get("models", {}) for figures in tested)


def _values(folders: Mapping[int, Path | None], name: str) -> dict[int, float | None]:
    """A figure of each run by its seed; None: it diverged, or has none."""
    return {seed: path and _value(path, name) for seed, path in folders.items()}


def _value(path: Path, name: str) -> float | None:
    """A figure of a run: of its summary, or the last of that column of its metrics."""
    column, _, target = name.partition("_to.")
    if target and column in COSTS:
        return at_target(read_run(path), float(target))[column]
    if name.startswith(CHANGES):
        found = changes(read_run(path), name.removeprefix(CHANGES))
        return float(np.median(np.hypot(*found.T))) if len(found) else None
    if name.startswith(CLIENTS):
        column, client = name.removeprefix(CLIENTS).rsplit(".", 1)
        values = by_client(read_run(path), column).get(int(client))
        return None if values is None else float(np.median(values))
    found = of_summary(read_summary(path) or {}, name)
    if found is not None or "." in name:
        return found
    metrics = read_run(path).metrics
    return float(metrics[name][-1].as_py()) if name in metrics.column_names else None


def of_summary(summary: Mapping[str, Any], name: str) -> float | None:
    """A figure by its name, as in client_accuracy.std, rounds_to.0.97 or class_accuracy.6,
    of label 6; shares in %.
    """
    if name == "traffic_mib" and "bytes_up" in summary:
        return (summary["bytes_up"] + summary["bytes_down"]) / 2**20
    first, _, rest = name.partition(".")
    value: Any = summary.get(first, figures_of(summary).get(first))
    last = first
    while rest and isinstance(value, Mapping):
        if rest in value:  # a target has a dot of its own
            last, value, rest = rest, value[rest], ""
        else:
            last, _, rest = rest.partition(".")
            value = value.get(last)
    if rest.isdigit() and isinstance(value, list):  # of each label
        value = dict(enumerate(value)).get(int(rest))
    if not isinstance(value, int | float):
        return None
    return 100.0 * value if {first, last} & set(SHARES) else float(value)


def changes(record: Record, column: str) -> np.ndarray:
    """The changes of a column, each with the change before it, [n, 2], the earlier first.

    Of a column of metrics they are from test to test; of clients.COLUMN from one round of
    a client to its next. There are none if the run has no such column. Shares are in %.
    """
    if column.startswith(CLIENTS):
        series = by_client(record, column.removeprefix(CLIENTS)).values()
    else:
        values = column_of(record, column)
        series = [] if values is None else [values]
    steps = [np.diff(values) for values in series]
    return np.concatenate(
        [np.stack([x[:-1], x[1:]], 1) for x in steps if len(x)] + [np.zeros((0, 2))]
    )


def column_of(record: Record, name: str) -> np.ndarray | None:
    """A column of the metrics, shares in %; None: the run has none."""
    at = record.accuracy if name == ACCURACY else name
    if at not in record.metrics.column_names:
        return None
    return (100 if name in SHARES else 1) * record.metrics[at].to_numpy()


def by_client(record: Record, column: str) -> dict[int, np.ndarray]:
    """A column of the clients, client by client, in the order of their rounds."""
    if column not in record.clients.column_names:
        return {}
    clients, values = (record.clients[n].to_numpy() for n in ("client", column))
    share = 100 if column in SHARES else 1
    return {int(k): share * values[clients == k] for k in np.unique(clients)}


HEAD = ("figure", "method", "published", "measured", "difference", "n")


def tables(found: Sequence[Measured]) -> dict[str, list[tuple[str, ...]]]:
    """For each row of the item the lines of its table, as `HEAD` names the columns."""
    made: dict[str, list[tuple[str, ...]]] = {}
    for row in dict.fromkeys(cell.row for cell in found):
        here = [cell for cell in found if cell.row == row]
        made[row] = [
            (with_unit(cell.figure), cell.method, *_texts(cell), str(cell.seeds))
            for figure in dict.fromkeys(cell.figure for cell in here)
            for cell in here
            if cell.figure == figure
        ]
    return made


def with_unit(figure: str) -> str:
    """A figure's name with its unit, where it has one."""
    return f"{figure} (%)" if {*figure.split(".")} & {*SHARES} else figure


def _texts(cell: Measured) -> tuple[str, str, str]:
    """Published, measured and the difference, as they are shown.

    What is published is not rounded, but a share has two digits.
    """
    paper = "" if cell.published is None else cell.published
    share = with_unit(cell.figure) != cell.figure
    percent = lambda value: f"{value:.2f}"
    digits = percent if share else cell.digits
    as_printed = percent if share else lambda value: f"{value:.10g}"
    published = paper if isinstance(paper, str) else as_printed(paper)
    text = cell.text(digits)
    if cell.difference is None:
        return published, text, ""
    return published, text, difference_text(cell.difference, cell.interval, digits)


def in_words(cell: Measured) -> str:
    """A figure in a few words: measured, published in brackets, and how many seeds."""
    paper, text, _ = _texts(cell)
    return text + (f" ({paper})" if paper else "")


def markdown(title: str, found: Sequence[Measured], notes: Sequence[str]) -> str:
    """The tables of an item as Markdown, and below them what they rest on."""
    lines = [f"# {title}", ""]
    for row, table in tables(found).items():
        lines += [f"## {row}", ""]
        lines += [f"| {' | '.join(line)} |" for line in (HEAD, *table)]
        lines.insert(len(lines) - len(table), "|---" * len(HEAD) + "|")
        lines.append("")
    lines += [f"- {note}" for note in notes]
    return "\n".join(lines) + "\n"


def as_csv(found: Sequence[Measured]) -> str:
    """A line for each figure of a cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ["row", "method", "figure", "published", "mean", "std", "half_interval_95"]
        + ["difference", "seeds", "seeds_without", "values"]
    )
    for cell in found:
        numbers = (cell.mean, cell.std, cell.interval, cell.difference)
        place = (cell.row, cell.method, with_unit(cell.figure), cell.published)
        values = " ".join(map(repr, cell.values))
        writer.writerow([*place, *numbers, cell.seeds, cell.lacking, values])
    return text.getvalue()
