"""Runs beside each other, those that do not compare apart.

Runs rank by test accuracy among those that were tested on as many examples of the same
data set. A run that trained on its test set has no test accuracy: it stands below all
others, in a table of its own, without a rank.
"""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

from ..experiment.store import TRAINED, figures_of, read_run
from .plots import method_of
from .tables import percent

if TYPE_CHECKING:
    from rich.table import Table


class Group(NamedTuple):
    """Runs that compare, the best first; or that do not, as they were given."""

    title: str
    ranked: bool
    runs: list[tuple[dict[str, Any], dict[str, Any]]]  # (config, summary) of each


def groups(folders: Sequence[str | Path]) -> list[Group]:
    """The runs by what they were tested on; those that trained on it come last.

    Raises:
      ValueError: a folder holds no run, or one that is not finished.
    """
    found: dict[tuple, list] = {}
    for folder in folders:
        record = read_run(folder)
        if record.summary is None:
            raise ValueError(
                f"{folder} holds a run that is not finished; resume it first."
            )
        data = record.summary["data"]
        key = (TRAINED in record.summary, data["name"], data["test"])
        found.setdefault(key, []).append((record.config, record.summary))
    result = []
    for (trained, name, count), runs in sorted(found.items(), key=lambda kv: kv[0][0]):
        title = f"{name}, test accuracy on {count} examples"
        if trained:
            title = (
                f"{name}, {TRAINED.replace('_', ' ')} of {count} examples\n"
                "(public=published: no test accuracy, compares with no table above)"
            )
        else:
            runs = sorted(runs, key=lambda run: -figures_of(run[1])["accuracy"])
        result.append(Group(title, not trained, runs))
    return result


def comparison_tables(folders: Sequence[str | Path]) -> "list[Table]":
    """A table for each of the `groups`, with what each run was given; raises like them."""
    from rich.table import Table

    tables = []
    for group in groups(folders):
        accuracy = "test accuracy" if group.ranked else "training accuracy"
        title_style = "bold" if group.ranked else "red"
        table = Table(
            title=group.title, title_style=title_style, caption_justify="left"
        )
        table.add_column("rank" if group.ranked else "", justify="right")
        table.add_column("method", overflow="fold")
        for name in (accuracy, "best", "rounds", "MiB", "kappa", "rho"):
            table.add_column(name, justify="right")
        notes = []
        for row, (config, summary) in enumerate(group.runs):
            name = str(row + 1) if group.ranked else ascii_lowercase[row % 26]
            table.add_row(name, method_of(config, summary), *_cells(summary))
            given = ", ".join(summary.get("auxiliary", ())) or "nothing"
            seed = summary["seeds"]["seed"]
            notes.append(
                f"{name}: {summary['folder']}, seed {seed}; also given: {given}"
            )
        table.caption = "\n".join(notes)
        tables.append(table)
    return tables


def _cells(summary: dict[str, Any]) -> list[str]:
    found = figures_of(summary)
    moved = sum(summary.get(f"bytes_{way}", 0) for way in ("down", "up"))
    return [
        percent(found["accuracy"]),
        percent(found["best_accuracy"]),
        str(summary["rounds"]),
        *map(_number, (moved / 2**20, found.get("kappa"), found.get("rho"))),
    ]


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
