"""Runs beside each other, those that do not compare apart.

Runs rank by test accuracy among those that were tested on as many examples of the same
data set. A run that trained on its test set has no test accuracy: it stands below all
others, in a table of its own, without a rank.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..experiment.store import TRAINED, figures_of, read_run
from .tables import percent

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("rank", "method", "accuracy", "best", "rounds", "MiB", "kappa", "rho", "run")


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
    """A table for each of the `groups`; raises like them."""
    from rich.table import Table

    tables = []
    for group in groups(folders):
        table = Table(title=group.title, title_style="bold" if group.ranked else "red")
        for name in COLUMNS:
            if name != "rank" or group.ranked:
                column = {"accuracy": "test accuracy" if group.ranked else "training"}
                left = name in ("method", "run")
                table.add_column(
                    column.get(name, name), justify="left" if left else "right"
                )
        for rank, (config, summary) in enumerate(group.runs, 1):
            ranked = [str(rank)] if group.ranked else []
            table.add_row(*ranked, *_cells(config, summary))
        tables.append(table)
    return tables


def method_of(config: dict[str, Any], summary: dict[str, Any]) -> str:
    """The algorithm of a run, what it stands on and what it was given beside."""
    base = config.get("base")
    name = config["algorithm"] if base is None else f"{config['algorithm']} on {base}"
    return "\n".join([name, *(f"+ {given}" for given in summary.get("auxiliary", ()))])


def _cells(config: dict[str, Any], summary: dict[str, Any]) -> list[str]:
    found = figures_of(summary)
    moved = sum(summary.get(f"bytes_{way}", 0) for way in ("down", "up"))
    shown = lambda value: "-" if value is None else f"{value:.4g}"
    return [
        method_of(config, summary),
        percent(found["accuracy"]),
        percent(found["best_accuracy"]),
        str(summary["rounds"]),
        f"{moved / 2**20:,.4g}",
        shown(found.get("kappa")),
        shown(found.get("rho")),
        f"{summary['folder']}\nseed {summary['seeds']['seed']}",
    ]
