"""One page of finished runs: settings, curves, figures, clients, and how to run them again.

What a run does not record is left out, and a line says what records it. Runs that do not
compare have curves and figures apart, as in `compare`.
"""

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..experiment.config import differing, setting_of
from ..experiment.records import Record, sweep_of
from ..experiment.store import (
    CONFIG,
    PARTITION,
    figures_of,
    read_table,
    shown_accuracy,
    shown_loss,
)
from . import html
from .clients import contributions
from .compare import sheets
from .plots import AGAINST, drawable
from .seeds import shared_settings
from .tables import CLIENTS, Sheet, percent, shortened, summary_rows

AXES = {**AGAINST, "seconds": "measured time of training (s)"}
HOW = {
    "simulated_seconds": "step_seconds turns on the simulated clock",
    "seconds": "trials of a sweep run side by side, and what one took is not known",
}
NONE = "there is none, or an earlier version made the run"
MOST_NAMES = 5  # of runs below a drawing
MOST_COLUMNS = 1000  # of the rounds in a map; where there are more they share columns


class Run(NamedTuple):
    """A finished run of the page."""

    name: str  # its path below the folder that all have in common
    record: Record
    summary: dict[str, Any]

    @property
    def is_trial(self) -> bool:
        """Whether it ran side by side with others: its seconds are not its own."""
        return sweep_of(self.record.folder) is not None

    def has(self, axis: str) -> bool:
        """Whether it counted what is on this axis."""
        if axis == "seconds" and self.is_trial:
            return False
        known = axis in self.record.metrics.column_names
        return known and bool(self.column(axis).any())

    def column(self, name: str) -> np.ndarray:
        """A column of its metrics."""
        return self.record.metrics[name].to_numpy()


def report_page(folders: Sequence[str | Path]) -> str:
    """The page as HTML, which needs no other file.

    Args:
      folders: of runs or of sweeps, whose trials are meant that did not diverge, or that
        have such below them.

    Raises:
      SettingError: a folder holds no run and no sweep, or a run that is not finished or has
        no evaluation; or `folders` is no list.
    """
    call = 'report_page(["runs/mine", "runs/other"])'
    check.kinds(call, folders=(folders, check.several_paths))
    found = sheets(folders)
    of = _runs([path for x in found for line in x.numbers for path in line["folders"]])
    runs = list(of.values())
    having = {axis: [run for run in runs if run.has(axis)] for axis in AXES}
    results = [
        html.switch(
            "Curves against", {a: AXES[a] for a, some in having.items() if some}
        ),
        *(_results(sheet, of) for sheet in found),
        *(
            _lacking(AXES[a], some, runs, HOW.get(a, NONE))
            for a, some in having.items()
        ),
    ]
    environment = {run.name: _environment(run.summary) for run in runs}
    return html.document(
        f"Run {runs[0].name}" if len(runs) == 1 else f"{len(runs)} runs",
        html.section("Settings", _by_run("setting", _settings(runs))),
        html.section("Results", *results),
        html.section("Local steps of clients", _steps(runs)),
        html.section("Labels of clients", _partitions(runs)),
        html.section("Contributions of clients", _contributions(runs)),
        html.section("Environment", _by_run("environment", environment)),
        html.section("Run again", *map(_again, runs)),
    )


def _runs(paths: Sequence[str]) -> dict[str, Run]:
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
    """A column for each run; unless `apart`, rows in which all agree are in one table."""
    names = dict.fromkeys(name for column in columns.values() for name in column)
    rows = [[name, *(of.get(name, "-") for of in columns.values())] for name in names]
    agree = lambda row: not apart and len(columns) > 1 and len({*row[1:]}) == 1
    differ = [row for row in rows if not agree(row)]
    shared = [row[:2] for row in rows if agree(row)]
    inside = html.table(f"{what} of all runs", [what, "all runs"], shared)
    page = html.table(f"{what} by run", [what, *columns], differ) if differ else ""
    hidden = f"the same in all runs ({len(shared)})"
    return page + (html.details(hidden, inside) if shared else "")


def _said(value: Any) -> str:
    """A value as flags and files have it."""
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value)


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
    """Curves of runs that compare, in numbers too, what `compare` says, and all figures."""
    lines = [[of[path] for path in numbers["folders"]] for numbers in sheet.numbers]
    runs = [run for line in lines for run in line]
    accuracy = shown_accuracy(runs[0].record.accuracy)
    loss = shown_loss(runs[0].record.accuracy)
    panels = ""
    drawn = [(i, run) for i, line in enumerate(lines) for run in line]
    percents = lambda run: 100 * run.column(run.record.accuracy)
    for axis, label in AXES.items():
        curves = [(i, run, run.column(axis)) for i, run in drawn if run.has(axis)]
        shares = [(i, x, percents(run)) for i, run, x in curves]
        losses = [(i, x, run.column("loss")) for i, run, x in curves]
        panels += (
            f'<div class="figures by {axis}">'
            + html.curves(f"{accuracy}, {label}", label, f"{accuracy} (%)", shares)
            + html.curves(f"{loss}, {label}", label, loss, losses, decades=True)
            + "</div>"
        )
    named, differ = [], differing([line[0].record.config for line in lines])
    for line, own, (place, method, *_) in zip(lines, differ, sheet.cells, strict=True):
        configs = [run.record.config for run in line]
        shared = shared_settings([{n: setting_of(c, n) for n in own} for c in configs])
        said = [f"{n}={_said(v)}" for n, v in shared.items()]
        named.append(", ".join([f"{place}: {method}", *said]))
    short = shortened(named)
    keys = [short[name] for name in named]
    by_client = [run for run in runs if run.summary.get("client_accuracy")]
    how = "evaluate_clients=true measures it"
    return (
        f"<h3>{html.text(sheet.title)}</h3>{html.keys(keys)}{panels}"
        + html.details("curves in numbers", "".join(map(_numbers, runs)))
        + html.table("ranking", sheet.head, sheet.cells)
        + html.notes(sheet.notes)
        + _by_run("figure", {run.name: _figures(run) for run in runs}, True)
        + _lacking("by client", by_client, runs, how)
        + _clients(drawn)
        + _classes(runs, accuracy)
    )


def _figures(run: Run) -> dict[str, str]:
    rows = summary_rows(run.summary)
    return {n: text for n, text in rows.items() if n != "time" or not run.is_trial}


def _numbers(run: Run) -> str:
    accuracy = run.record.accuracy
    head = {axis: label for axis, label in AXES.items() if run.has(axis)}
    head |= {accuracy: shown_accuracy(accuracy), "loss": "loss"}
    number = lambda v: f"{v:,}" if isinstance(v, int) else f"{v:.4g}"
    shown = lambda name, v: percent(v) if name == accuracy else number(v)
    rows = [
        ["-" if v is None else shown(name, v) for name, v in row.items()]
        for row in run.record.metrics.select([*head]).to_pylist()
    ]
    return html.table(run.name, [*head.values()], rows)


def _classes(runs: Sequence[Run], accuracy: str) -> str:
    of = {run.name: figures_of(run.summary).get("class_accuracy") for run in runs}
    cell = lambda v: "-" if v is None else html.Bar(percent(v), v)
    rows = [[name, *map(cell, shares)] for name, shares in of.items() if shares]
    head = ["run", *range(max(map(len, rows), default=1) - 1)]
    what, having = f"{accuracy} on each class", [run for run in runs if of[run.name]]
    shown = html.table(what, head, rows) if rows else ""
    return shown + _lacking(what, having, runs, NONE)


def _clients(drawn: Sequence[tuple[int, Run]]) -> str:
    """A curve over the clients for each run, the least accurate first, and in numbers.

    Args:
      drawn: runs, each with the number of its line, which decides its colour.
    """
    figures, tables, having = "", "", []
    for name, what in CLIENTS.items():
        curves = []
        for i, run in drawn:
            rows = read_table(run.record.folder, PARTITION)
            if name not in rows.column_names:
                continue
            having.append(run)
            of = dict(enumerate(rows[name].to_pylist()))
            held = sorted((v, client) for client, v in of.items() if v is not None)
            shares = 100 * np.array([share for share, _ in held])
            curves.append((i, np.arange(1, len(held) + 1), shares))
            cells = [[client, html.Bar(percent(v), v)] for v, client in held]
            title = f"{run.name}: accuracy {what}"
            tables += html.table(title, ["client", what], cells)
        if curves:
            title = f"accuracy {what}, the least accurate first"
            figures += html.curves(title, "clients", "accuracy (%)", curves)
    asked = [run for _, run in drawn if run.summary.get("client_accuracy")]
    how = "of runs and trials of earlier versions the mean alone is known"
    return _maps([figures] if figures else [], tables) + _lacking(
        "each client", having, asked, how
    )


def _maps(drawings: Sequence[str], tables: str) -> str:
    if not drawings:
        return ""
    in_numbers = html.details("in numbers", tables)
    return f'<div class="figures">{"".join(drawings)}</div>{in_numbers}'


def _steps(runs: Sequence[Run]) -> str:
    """A map of clients by rounds for each run, all on one scale."""
    having = [run for run in runs if len(run.record.clients)]
    of = lambda run, name: run.record.clients[name].to_numpy().astype(int)
    most = max((of(run, "num_steps").max() for run in having), default=0)
    maps, tables = [], ""
    for run in having:
        steps, client, number = (of(run, n) for n in ("num_steps", "client", "round"))
        wide = -(-run.summary["rounds"] // MOST_COLUMNS)
        shape = run.record.config["num_clients"], -(-run.summary["rounds"] // wide)
        total, times = np.zeros(shape), np.zeros(shape)
        np.add.at(total, (client, (number - 1) // wide), steps)
        np.add.at(times, (client, (number - 1) // wide), steps > 0)
        shares = total / np.maximum(times, 1) / max(most, 1)
        title = f"{run.name}: local steps in a round, full colour is {most}"
        maps.append(html.image(title, "communication round", "client", shares, 1, wide))
        by_client = {k: steps[client == k] for k in np.unique(client)}
        rows = [[k, len(v), v.sum(), v.min(), v.max()] for k, v in by_client.items()]
        head = ["client", "rounds", "local steps", "fewest in a round", "most"]
        tables += html.table(run.name, head, rows)
    return _maps(maps, tables) + _lacking("local steps", having, runs, NONE)


def _partitions(runs: Sequence[Run]) -> str:
    """A map of clients by labels for each partition."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        rows = read_table(run.record.folder, PARTITION)
        if len(rows):
            counts = rows["label_counts"].to_pylist()
            found.setdefault(json.dumps(counts), []).append(run)
    maps, tables = [], ""
    for labels, holders in found.items():
        counts, names = np.array(json.loads(labels)), _names(holders)
        sizes = counts.sum(1, keepdims=True)
        shares = np.sqrt(counts / np.maximum(sizes, 1))  # as in `draw_partition`
        title = f"{names}: root of each label's share, full colour is all examples"
        maps.append(html.image(title, "label", "client", shares))
        head = ["client", "examples", *range(counts.shape[1])]
        rows = [[i, *row] for i, row in enumerate(np.hstack([sizes, counts]))]
        tables += html.table(", ".join(run.name for run in holders), head, rows)
    having = [run for holders in found.values() for run in holders]
    how = "an earlier version made the run; fedjax-adapt partition --config draws them"
    return _maps(maps, tables) + _lacking("labels", having, runs, how)


def _names(runs: Sequence[Run]) -> str:
    """The names of runs, of many the first and how many more there are."""
    shown = [run.name for run in runs[:MOST_NAMES]]
    more = len(runs) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _contributions(runs: Sequence[Run]) -> str:
    """The ranking of `contributions` for each run that measured r_k."""
    having, shown = [r for r in runs if "gsnr" in r.record.clients.column_names], ""
    for run in having:
        ranked = contributions(run.record.folder)
        most = max((v for one in ranked for v in one[2:] if np.isfinite(v)), default=0)
        share = lambda v, most=most or 1: np.nan_to_num(np.clip(v / most, 0, 1))
        bar = lambda v, share=share: html.Bar(f"{v:.4g}", share(v))
        rows = [[one.client, one.rounds, *map(bar, one[2:])] for one in ranked]
        head = ["client", "rounds", "mean r_k", "median r_k"]
        shown += html.table(f"{run.name}: gradient signal-to-noise ratio", head, rows)
    return shown + _lacking("GSNR", having, runs, "algorithm=fedgsnr measures it")


def _environment(summary: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, Any] = {"commit": summary.get("commit") or "not known"}
    for part in ("versions", "hardware", "own"):
        found |= summary.get(part) or {}
    return {name: _said(v) for name, v in found.items() if v not in ("", {})}


def _again(run: Run) -> str:
    """The command that makes the run again, and the file it reads."""
    config = run.record.folder / CONFIG
    folder = f"runs/{run.name.replace(os.sep, '-')}-again"
    words = ["fedjax-adapt", "run", "--config", str(config), "--folder", folder]
    code = lambda of: f'<pre tabindex="0"><code>{html.text(of)}</code></pre>'
    file = html.details(str(config), code(config.read_text(encoding="utf-8")))
    return f"<h3>{html.text(run.name)}</h3>{code(shlex.join(words))}{file}"
