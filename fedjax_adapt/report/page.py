"""One page of finished runs: settings, curves, figures, clients, and how to run them again.

What a run does not record is left out, and a line says what records it.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..experiment.store import (
    CONFIG,
    PARTITION,
    Record,
    differing,
    figures_of,
    read_table,
    setting_of,
)
from . import html
from .clients import contributions
from .compare import Sheet, sheets
from .plots import AGAINST, drawable, shown_accuracy
from .tables import CLIENTS, percent, summary_rows

AXES = {**AGAINST, "seconds": "measured time of training (s)"}
COUNTED = "there is nothing to count, or an earlier version made the run"
MOST_COLUMNS = 1000  # of the rounds in a map; where there are more they share columns


class Run(NamedTuple):
    """A finished run of the page."""

    name: str  # its path below the folder that all have in common
    record: Record
    summary: dict[str, Any]

    def has(self, axis: str) -> bool:
        """Whether it counted what is on this axis."""
        rows = self.record.metrics
        return axis in rows.column_names and bool(rows[axis].to_numpy().any())


def report_page(folders: Sequence[str | Path]) -> str:
    """The page as HTML, which needs no other file.

    Args:
      folders: of runs, or of sweeps, of which all trials are meant that did not diverge.

    Raises:
      ValueError: a folder holds no run and no sweep, or one that is not finished, or one
        without an evaluation.
    """
    found = sheets(folders)
    paths = [path for x in found for line in x.numbers for path in line["folders"]]
    of = dict(zip(paths, _runs(paths), strict=True))
    runs = list(of.values())
    rows = {run.name: summary_rows(run.summary) for run in runs}
    environments = {run.name: _environment(run.summary) for run in runs}
    return html.document(
        f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs",
        html.section("Settings", _side_by_side("setting", _settings(runs))),
        html.section(
            "Results",
            html.switch("Curves against", {n: AXES[n] for n in AXES if _any(runs, n)}),
            *(_results(sheet, of) for sheet in found),
            _not_counted(runs),
            _side_by_side("figure", rows, apart=True),
        ),
        html.section("Accuracy by class and by client", *_shares(runs)),
        html.section("Local steps of each client", *_steps(runs)),
        html.section("Labels of each client", *_partitions(runs)),
        html.section("Contributions of clients", *_contributions(runs)),
        html.section("Environment", _side_by_side("environment", environments)),
        html.section("Run again", *map(_again, runs)),
    )


def _runs(paths: Sequence[str]) -> list[Run]:
    whole = [os.path.abspath(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    found = []
    for path, name in zip(paths, whole, strict=True):
        record = drawable(path, "round")
        assert record.summary is not None  # or `sheets` had refused it
        found.append(Run(os.path.relpath(name, common), record, record.summary))
    return found


def _any(runs: Sequence[Run], axis: str) -> bool:
    return any(run.has(axis) for run in runs)


def _not_counted(runs: Sequence[Run]) -> str:
    """A sentence for each axis on which not all runs have a curve."""
    how = {"simulated_seconds": "step_seconds turns the clock on"}
    return "".join(
        _lacking(label, [r for r in runs if r.has(n)], runs, how.get(n, COUNTED))
        for n, label in AXES.items()
    )


def _lacking(what: str, having: Sequence[Run], runs: Sequence[Run], how: str) -> str:
    """A sentence on the runs that do not record what others do, or could."""
    without = [run.name for run in runs if run not in having]
    whose = f" by {', '.join(without)}" if len(without) < len(runs) else ""
    return html.notes([f"{what}: not recorded{whose}; {how}."] if without else [])


def _side_by_side(
    what: str, columns: Mapping[str, Mapping[str, str]], apart: bool = False
) -> str:
    """A table with a column for each run; rows in which all agree have one of their own.

    Args:
      what: is in a row.
      columns: the rows of each run.
      apart: rows in which all agree stay with the others.
    """
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = {name: [own.get(name, "-") for own in columns.values()] for name in names}
    alike = {n for n, own in rows.items() if len({*own}) == 1 < len(columns)}
    alike = set() if apart else alike
    differ = [[name, *own] for name, own in rows.items() if name not in alike]
    shared = [[name, own[0]] for name, own in rows.items() if name in alike]
    shown = html.table(f"By run: {what}", [what, *columns], differ) if differ else ""
    if shared:
        inside = html.table(f"Of all runs: {what}", [what, "all runs"], shared)
        shown += html.details(f"The same in all runs ({len(shared)})", inside)
    return shown


def _said(value: Any) -> str:
    """A value as flags and files have it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _settings(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    names = dict.fromkeys(name for run in runs for name in run.record.config)
    return {
        run.name: {
            name: _said(setting_of(run.record.config, name))
            for name in names  # options of other algorithms are not the run's
            if name in run.record.config or "." not in name
        }
        for run in runs
    }


def _results(sheet: Sheet, of: Mapping[str, Run]) -> str:
    """Curves of runs that compare, their numbers, and their table as `compare` has it."""
    lines = [[of[path] for path in numbers["folders"]] for numbers in sheet.numbers]
    runs = [run for line in lines for run in line]
    accuracy = shown_accuracy(runs[0].record)
    loss = "test loss" if sheet.ranked else "loss on the public set"
    panels = []
    for axis, label in AXES.items():
        own = [
            (i, run) for i, line in enumerate(lines) for run in line if run.has(axis)
        ]
        drawings = [
            html.drawn_curves(
                f"{y}, {label}",
                label,
                f"{y}{unit}",
                [html.Curve(i, *_curve(run, axis, column)) for i, run in own],
            )
            for y, unit, column in ((accuracy, " (%)", "accuracy"), (loss, "", "loss"))
        ]
        panels.append(html.figures(drawings, axis) if own else "")
    settings = differing([line[0].record.config for line in lines])
    named = [
        ", ".join(
            [f"{cells[0]}: {cells[1]}", *(f"{n}={_said(v)}" for n, v in own.items())]
        )
        for cells, own in zip(sheet.cells, settings, strict=True)
    ]
    return (
        f"<h3>{html.text(sheet.title)}</h3>{html.keys(named)}{''.join(panels)}"
        + "".join(map(_numbers, runs))
        + html.table(sheet.title, sheet.head, sheet.cells)
        + html.notes(sheet.notes)
    )


def _curve(run: Run, axis: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    rows = run.record.metrics
    if column == "loss":
        return rows[axis].to_numpy(), rows["loss"].to_numpy()
    return rows[axis].to_numpy(), 100 * rows[run.record.accuracy].to_numpy()


def _numbers(run: Run) -> str:
    """The curves of a run as a table."""
    rows, accuracy = run.record.metrics, run.record.accuracy
    axes = [axis for axis in AXES if run.has(axis)]
    number = lambda v: f"{v:,}" if isinstance(v, int) else f"{v:.4g}"
    shown = [
        [*(number(row[a]) for a in axes), percent(row[accuracy]), f"{row['loss']:.4f}"]
        for row in rows.select([*axes, accuracy, "loss"]).to_pylist()
    ]
    head = [*(AXES[axis] for axis in axes), shown_accuracy(run.record), "loss"]
    return html.details(f"{run.name}: numbers", html.table(run.name, head, shown))


def _shares(runs: Sequence[Run]) -> list[str]:
    """The last accuracies on each class, and how they differ between clients."""
    by_class = {
        run.name: figures_of(run.summary).get("class_accuracy") or [] for run in runs
    }
    most = max(map(len, by_class.values()))
    cell = lambda v: "-" if v is None else html.Shaded(percent(v), v)
    rows = [
        [name, *map(cell, [*own, *[None] * (most - len(own))])]
        for name, own in by_class.items()
        if own
    ]
    kinds = ("mean", "std", "min", "worst_tenth")
    clients = [
        [run.name, title, *(percent(run.summary[name][kind]) for kind in kinds)]
        for run in runs
        for name, title in CLIENTS.items()
        if run.summary.get(name)
    ]
    head = ["run", "", "mean", "deviation", "least", "worst tenth"]
    having = [run for run in runs if run.summary.get("client_accuracy")]
    return [
        html.table("Of each class", ["run", *map(str, range(most))], rows)
        if rows
        else "",
        _lacking("by class", [r for r in runs if by_class[r.name]], runs, COUNTED),
        html.table("Of clients, own examples", head, clients) if clients else "",
        _lacking("by client", having, runs, "evaluate_clients=true records it"),
    ]


def _steps(runs: Sequence[Run]) -> list[str]:
    """A map of clients by rounds for each run, all on one scale, and a table."""
    having = [run for run in runs if len(run.record.clients)]
    of = lambda run: run.record.clients["num_steps"].to_numpy()
    most = max((int(of(run).max()) for run in having), default=0) or 1
    drawings, tables = [], []
    for run in having:
        rows = run.record.clients.filter(of(run) > 0)
        number, client, steps = (
            rows[name].to_numpy().astype(int)
            for name in ("round", "client", "num_steps")
        )
        width = -(-run.summary["rounds"] // MOST_COLUMNS)
        shape = run.record.config["num_clients"], -(-run.summary["rounds"] // width)
        total, times = np.zeros(shape), np.zeros(shape)
        np.add.at(total, (client, (number - 1) // width), steps)
        np.add.at(times, (client, (number - 1) // width), 1)
        mean = total / np.maximum(times, 1)
        title = f"{run.name}: local steps, {most} where the colour is full"
        drawings.append(
            html.drawn_map(
                title, "communication round", "client", mean / most, 1, width
            )
        )
        table = []
        for one in np.unique(client):
            own = steps[client == one]
            figures = (one, len(own), own.sum(), own.min(), own.max())
            table.append([f"{v:,}" for v in figures])
        head = ["client", "rounds", "local steps", "fewest in a round", "most"]
        tables.append(
            html.details(f"{run.name}: numbers", html.table(run.name, head, table))
        )
    lacking = _lacking("local steps of each client", having, runs, COUNTED)
    return [html.figures(drawings), *tables, lacking]


def _partitions(runs: Sequence[Run]) -> list[str]:
    """A map of clients by labels for each partition, and its numbers."""
    found: dict[tuple, list[Run]] = {}
    for run in runs:
        rows = read_table(run.record.folder, PARTITION)
        if len(rows):
            counts = tuple(map(tuple, rows["label_counts"].to_pylist()))
            found.setdefault(counts, []).append(run)
    drawings, tables = [], []
    for labels, own in found.items():
        counts, names = np.array(labels), ", ".join(run.name for run in own)
        sizes = counts.sum(1, keepdims=True)
        share = np.sqrt(counts / np.maximum(sizes, 1))  # a tenth is told from nothing
        title = f"{names}: root of each label's share of a client's examples"
        drawings.append(html.drawn_map(title, "label", "client", share))
        head = ["client", "examples", *map(str, range(counts.shape[1]))]
        rows = [
            [str(i), *map(str, row)] for i, row in enumerate(np.hstack([sizes, counts]))
        ]
        tables.append(html.details(f"{names}: numbers", html.table(names, head, rows)))
    having = [run for own in found.values() for run in own]
    how = "an earlier version made the run; fedjax-adapt partition --config draws them"
    lacking = _lacking("labels of each client", having, runs, how)
    return [html.figures(drawings), *tables, lacking]


def _contributions(runs: Sequence[Run]) -> list[str]:
    """The ranking of `contributions` for each run that measured r_k."""
    having = [run for run in runs if "gsnr" in run.record.clients.column_names]
    drawings, tables = [], []
    for run in having:
        ranked = contributions(run.record.folder)
        bars, dots = [one.mean for one in ranked], [one.median for one in ranked]
        title = f"{run.name}: mean r_k of each client, and its median as a dot"
        drawings.append(
            html.drawn_bars(title, "clients, the best first", "r_k", bars, dots)
        )
        head = ["client", "rounds", "mean r_k", "median r_k"]
        rows = [
            [str(one.client), str(one.rounds), f"{one.mean:.4g}", f"{one.median:.4g}"]
            for one in ranked
        ]
        tables.append(
            html.details(f"{run.name}: numbers", html.table(run.name, head, rows))
        )
    lacking = _lacking("GSNR of clients", having, runs, "algorithm=fedgsnr measures it")
    return [html.figures(drawings), *tables, lacking]


def _environment(summary: Mapping[str, Any]) -> dict[str, str]:
    parts = ("versions", "hardware", "own")
    found = {n: v for part in parts for n, v in summary.get(part, {}).items()}
    found = {"commit": summary.get("commit") or "not known"} | found
    return {
        name: _said(value) for name, value in found.items() if value not in ("", {})
    }


def _again(run: Run) -> str:
    """The command that makes the run again, and the file it reads."""
    config, folder = run.record.folder / CONFIG, run.name.replace(os.sep, "-")
    words = ["fedjax-adapt", "run", "--config", str(config)]
    command = shlex.join([*words, "--folder", f"runs/{folder}-again"])
    code = lambda of: f'<pre tabindex="0"><code>{html.text(of)}</code></pre>'
    file = html.details(str(config), code(config.read_text(encoding="utf-8")))
    return f"<h3>{html.text(run.name)}</h3>{code(command)}{file}"
