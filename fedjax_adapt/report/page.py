"""One page of finished runs: settings, curves, figures, clients, and how to run them again.

What a run does not record is left out, and a line says what records it.
"""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..experiment import store
from ..experiment.store import Record, differing, figures_of, read_table, setting_of
from . import html
from .clients import contributions
from .compare import Sheet, sheets
from .plots import AGAINST, drawable, shown_accuracy
from .tables import CLIENTS, percent, summary_rows

AXES = {**AGAINST, "seconds": "measured time of training (s)"}
HOW = {"simulated_seconds": "step_seconds turns on the simulated clock"}
NONE = "there is none, or an earlier version made the run"
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
    of = _runs([path for x in found for line in x.numbers for path in line["folders"]])
    runs = list(of.values())
    having = {axis: [run for run in runs if run.has(axis)] for axis in AXES}
    results = [
        html.switch("Curves against", {a: AXES[a] for a, own in having.items() if own}),
        *(_results(sheet, of) for sheet in found),
        *(_lacking(AXES[a], own, runs, HOW.get(a, NONE)) for a, own in having.items()),
        _by_run("figure", {run.name: summary_rows(run.summary) for run in runs}, True),
    ]
    environment = {run.name: _environment(run.summary) for run in runs}
    return html.document(
        f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs",
        html.section("Settings", _by_run("setting", _settings(runs))),
        html.section("Results", *results),
        html.section("Accuracy by class and by client", _shares(runs)),
        html.section("Local steps of each client", _steps(runs)),
        html.section("Labels of each client", _partitions(runs)),
        html.section("Contributions of clients", _contributions(runs)),
        html.section("Environment", _by_run("environment", environment)),
        html.section("Run again", *map(_again, runs)),
    )


def _runs(paths: Sequence[str]) -> dict[str, Run]:
    """The runs, by their folders."""
    whole = {path: os.path.abspath(path) for path in paths}
    common, found = os.path.commonpath(map(os.path.dirname, whole.values())), {}
    for path, name in whole.items():
        record = drawable(path, "round")
        assert record.summary is not None  # or `sheets` had refused it
        found[path] = Run(os.path.relpath(name, common), record, record.summary)
    return found


def _lacking(what: str, having: Sequence[Run], runs: Sequence[Run], how: str) -> str:
    """A sentence on the runs that do not record what others do, or could."""
    known = {run.name for run in having}
    without = [run.name for run in runs if run.name not in known]
    whose = f" by {', '.join(without)}" if having else ""
    return html.notes([f"{what}: not recorded{whose}; {how}."] if without else [])


def _by_run(what: str, columns: Mapping[str, Mapping], apart: bool = False) -> str:
    """A table with a column for each run; rows in which all agree in one of their own.

    Args:
      what: is in a row.
      columns: the rows of each run.
      apart: rows in which all agree stay with the others.
    """
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(own.get(name, "-") for own in columns.values())] for name in names]
    alike = lambda row: not apart and len(columns) > 1 and len({*row[1:]}) == 1
    differ = [row for row in rows if not alike(row)]
    shared = [row[:2] for row in rows if alike(row)]
    shown = html.table(f"{what} by run", [what, *columns], differ) if differ else ""
    if shared:
        inside = html.table(f"{what} of all runs", [what, "all runs"], shared)
        shown += html.details(f"the same in all runs ({len(shared)})", inside)
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
            for name in names  # the options of other algorithms are none of the run
            if name in run.record.config or "." not in name
        }
        for run in runs
    }


def _results(sheet: Sheet, of: Mapping[str, Run]) -> str:
    """Curves of runs that compare, their numbers, and the table of `compare`."""
    lines = [[of[path] for path in numbers["folders"]] for numbers in sheet.numbers]
    runs = [run for line in lines for run in line]
    accuracy = shown_accuracy(runs[0].record)
    loss = "test loss" if sheet.ranked else "loss on the public set"
    panels = ""
    for axis, label in AXES.items():
        drawn = [
            (i, run.record.metrics[axis].to_numpy(), run.record)
            for i, line in enumerate(lines)
            for run in line
            if run.has(axis)
        ]
        shares = [
            html.Curve(i, x, 100 * r.metrics[r.accuracy].to_numpy())
            for i, x, r in drawn
        ]
        losses = [html.Curve(i, x, r.metrics["loss"].to_numpy()) for i, x, r in drawn]
        panels += (
            f'<div class="figures by {axis}">'
            + html.curves(f"{accuracy}, {label}", label, f"{accuracy} (%)", shares)
            + html.curves(f"{loss}, {label}", label, loss, losses)
            + "</div>"
        )
    differ = differing([line[0].record.config for line in lines])
    named = [
        ", ".join([f"{place}: {method}", *(f"{n}={_said(v)}" for n, v in own.items())])
        for (place, method, *_), own in zip(sheet.cells, differ, strict=True)
    ]
    return (
        f"<h3>{html.text(sheet.title)}</h3>{html.keys(named)}{panels}"
        + "".join(map(_numbers, runs))
        + html.table(sheet.title, sheet.head, sheet.cells)
        + html.notes(sheet.notes)
    )


def _numbers(run: Run) -> str:
    """The curves of a run as a table."""
    accuracy = run.record.accuracy
    head = {axis: label for axis, label in AXES.items() if run.has(axis)}
    head |= {accuracy: shown_accuracy(run.record), "loss": "loss"}
    number = lambda v: f"{v:,}" if isinstance(v, int) else f"{v:.4g}"
    rows = [
        [percent(v) if name == accuracy else number(v) for name, v in row.items()]
        for row in run.record.metrics.select([*head]).to_pylist()
    ]
    return _in_numbers(run.name, [*head.values()], rows)


def _in_numbers(name: str, head: Sequence[str], rows: Sequence[Sequence]) -> str:
    return html.details(f"{name} in numbers", html.table(name, head, rows))


def _shares(runs: Sequence[Run]) -> str:
    """The last accuracies on each class, and how they differ between clients."""
    classes = {r.name: figures_of(r.summary).get("class_accuracy") or [] for r in runs}
    labels = range(max(map(len, classes.values())))
    cell = lambda v: "-" if v is None else html.Bar(percent(v), v)
    by_class = [[name, *map(cell, own)] for name, own in classes.items() if own]
    kinds = ("mean", "std", "min", "worst_tenth")
    by_client = [
        [f"{run.name}, {title}", *(percent(run.summary[name][kind]) for kind in kinds)]
        for run in runs
        for name, title in CLIENTS.items()
        if run.summary.get(name)
    ]
    head = ["run", "mean", "deviation", "least", "worst tenth"]
    clients = [run for run in runs if run.summary.get("client_accuracy")]
    return (
        (html.table("on each class", ["run", *labels], by_class) if by_class else "")
        + _lacking("on each class", [r for r in runs if classes[r.name]], runs, NONE)
        + (html.table("on clients' examples", head, by_client) if by_client else "")
        + _lacking("by client", clients, runs, "evaluate_clients=true measures it")
    )


def _steps(runs: Sequence[Run]) -> str:
    """A map of clients by rounds for each run, all on one scale, and their numbers."""
    having = [run for run in runs if len(run.record.clients)]
    of = lambda run, name: run.record.clients[name].to_numpy().astype(int)
    most, maps, tables = (
        max((of(r, "num_steps").max() for r in having), default=0),
        [],
        "",
    )
    for run in having:
        steps, client, number = (of(run, n) for n in ("num_steps", "client", "round"))
        step = -(-run.summary["rounds"] // MOST_COLUMNS)
        shape = run.record.config["num_clients"], -(-run.summary["rounds"] // step)
        total, times = np.zeros(shape), np.zeros(shape)
        np.add.at(total, (client, (number - 1) // step), steps)
        np.add.at(times, (client, (number - 1) // step), steps > 0)
        shares = total / np.maximum(times, 1) / max(most, 1)
        title = f"{run.name}: local steps, {most} where it is bluest"
        maps.append(html.image(title, "communication round", "client", shares, 1, step))
        own = {k: steps[client == k] for k in np.unique(client)}
        rows = [[k, len(v), v.sum(), v.min(), v.max()] for k, v in own.items()]
        head = ["client", "rounds", "local steps", "fewest in a round", "most"]
        tables += _in_numbers(run.name, head, rows)
    return _figures(maps) + tables + _lacking("local steps", having, runs, NONE)


def _figures(drawings: Sequence[str]) -> str:
    return f'<div class="figures">{"".join(drawings)}</div>' if drawings else ""


def _partitions(runs: Sequence[Run]) -> str:
    """A map of clients by labels for each partition, and its numbers."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        rows = read_table(run.record.folder, store.PARTITION)
        if len(rows):
            counts = rows["label_counts"].to_pylist()
            found.setdefault(json.dumps(counts), []).append(run)
    maps, tables = [], ""
    for labels, own in found.items():
        counts, names = np.array(json.loads(labels)), ", ".join(run.name for run in own)
        sizes = counts.sum(1, keepdims=True)
        shares = np.sqrt(counts / np.maximum(sizes, 1))  # as in `draw_partition`
        title = f"{names}: share of each label, its root"
        maps.append(html.image(title, "label", "client", shares))
        head = ["client", "examples", *range(counts.shape[1])]
        rows = [[i, *row] for i, row in enumerate(np.hstack([sizes, counts]))]
        tables += _in_numbers(names, head, rows)
    having = [run for own in found.values() for run in own]
    how = "an earlier version made the run; fedjax-adapt partition --config draws them"
    return _figures(maps) + tables + _lacking("labels of clients", having, runs, how)


def _contributions(runs: Sequence[Run]) -> str:
    """The ranking of `contributions`, with bars, for each run that measured r_k."""
    having, shown = [r for r in runs if "gsnr" in r.record.clients.column_names], ""
    for run in having:
        ranked = contributions(run.record.folder)
        most = max((v for one in ranked for v in one[2:] if np.isfinite(v)), default=0)
        bar = lambda v, most=most or 1: html.Bar(f"{v:.4g}", np.clip(v / most, 0, 1))
        rows = [[one.client, one.rounds, *map(bar, one[2:])] for one in ranked]
        head = ["client", "rounds", "mean r_k", "median r_k"]
        shown += html.table(f"{run.name}: gradient signal-to-noise ratio", head, rows)
    return shown + _lacking("GSNR", having, runs, "algorithm=fedgsnr measures it")


def _environment(summary: Mapping[str, Any]) -> dict[str, str]:
    parts = (summary.get(part) or {} for part in ("versions", "hardware", "own"))
    found = {name: value for part in parts for name, value in part.items()}
    found = {"commit": summary.get("commit") or "not known"} | found
    return {
        name: _said(value) for name, value in found.items() if value not in ("", {})
    }


def _again(run: Run) -> str:
    """The command that makes the run again, and the file it reads."""
    config = run.record.folder / store.CONFIG
    folder = f"runs/{run.name.replace(os.sep, '-')}-again"
    words = ["fedjax-adapt", "run", "--config", str(config), "--folder", folder]
    code = lambda of: f'<pre tabindex="0"><code>{html.text(of)}</code></pre>'
    file = html.details(str(config), code(config.read_text(encoding="utf-8")))
    return f"<h3>{html.text(run.name)}</h3>{code(shlex.join(words))}{file}"
