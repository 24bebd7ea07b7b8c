"""Pictures of an item's runs, in panels: curves, clients, labels, gaps and figures."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..experiment.records import read_run
from ..experiment.store import PARTITION, read_table
from .clients import draw_labels
from .plots import AGAINST, INK, draw_mean, saved
from .reproduce import (
    CHANGES,
    CLASSES,
    CLIENTS,
    Measured,
    Runs,
    by_client,
    changes,
    column_of,
    with_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAPS = "gaps."  # stands before a column as `CHANGES` does
LEAST = {"premise": ("lr tau L", 1)}  # what a theorem wants to be at least so much
MOST_NAMED = 10  # clients in a legend

Methods = Mapping[str, Mapping[int, Path]]  # runs of a row, but those that diverged


def picture(
    path: Path,
    title: str,
    runs: Runs,
    found: Sequence[Measured],
    draw: Sequence[str] = (),
    against: str = "round",
    data: Mapping[str, Mapping[str, Any]] | None = None,
    base_of: Callable[[str], str | None] = lambda method: None,
) -> Path | None:
    """Draws runs into panels; returns the path, None: nothing is there to draw.

    Args:
      path: where the picture goes.
      title: above it.
      runs: that are over.
      found: their figures.
      draw: what, a panel for each and each row. Empty: the first figure of each row,
        published and measured. Else

          COLUMN            of the table metrics: the mean over seeds between their least
                            and most
          class_accuracy    by label, after the last round; class_accuracy@0.1: after the
                            first test at or after a tenth of the rounds
          clients.COLUMN    a panel for each method, a line for each client of one run
          changes.COLUMN    as `changes` finds them in one run, a dot for each
          gaps.COLUMN       a method's base less the method, in all tests of all runs; the
                            boxes are without outliers
          partition         how many examples of each label a client holds, in one run
          inputs            an example as each client sees it

      against: the horizontal axis of curves, a column likewise.
      data: what is drawn without a run, by kind and row: of partition the counts [clients,
        labels], of inputs what `_inputs` takes.
      base_of: the method that a method is compared with in gaps; None: with none.
    """
    from matplotlib.figure import Figure

    rows: dict[str, dict[str, dict[int, Path]]] = {}
    for (row, method), of in runs.items():
        if paths := {seed: path for seed, path in of.items() if path is not None}:
            rows.setdefault(row, {})[method] = paths
    panels: list[tuple[str, Callable[[Axes], None]]] = []
    for kind, of_rows in (data or {}).items():
        shown = _labels if kind == "partition" else _inputs
        panels += [(row, partial(shown, drawn)) for row, drawn in of_rows.items()]
    for column in draw or [""]:
        for row, methods in rows.items():
            if column.startswith(CLIENTS):
                name = column.removeprefix(CLIENTS)
                for method, paths in methods.items():
                    record = read_run(_first(paths))
                    if lines := by_client(record, name):
                        rounds = by_client(record, "round")
                        shown = partial(_client_lines, name, rounds, lines)
                        panels.append((f"{row}, {method}", shown))
            elif not column:
                here = [cell for cell in found if cell.row == row]
                panels.append((row, partial(_dots, here)))
            else:
                drawn = _drawing(column, methods, against, base_of)
                panels.append((row, drawn))
    if not panels:
        return None
    columns = min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure((4.2 * columns, 3.2 * lines), dpi=150, layout="constrained")
    figure.suptitle(textwrap.fill(title, 45 * columns), fontsize=11)
    grid = figure.subplots(lines, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.axis("off")
    for axes, (name, fill) in zip(grid.flat, panels, strict=False):
        axes.set_title(name, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        fill(axes)
    return saved(figure, path)


def _first(paths: Mapping[int, Path]) -> Path:
    """The run of the first seed."""
    return next(iter(paths.values()))


def _drawing(
    column: str,
    methods: Methods,
    against: str,
    base_of: Callable[[str], str | None],
) -> "Callable[[Axes], None]":
    """What fills the panel of a column that all methods of a row share."""
    if column == "partition":
        table = read_table(_first(next(iter(methods.values()))), PARTITION)
        return partial(_labels, np.array(table["label_counts"].to_pylist()))
    if column.startswith(CHANGES):
        return partial(_changes, methods, column.removeprefix(CHANGES))
    if column.startswith(GAPS):
        return partial(_gaps, methods, column.removeprefix(GAPS), base_of)
    name, _, share = column.partition("@")
    if name == CLASSES:
        return partial(_classes, methods, float(share or 1))
    return partial(_curves, methods, column, against)


def _name_axes(axes: "Axes", across: str, up: str) -> None:
    """Names both axes, and what is drawn where it has names."""
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(up, fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7)


def _curves(methods: Methods, column: str, against: str, axes: "Axes") -> None:
    """Draws a column of the metrics: a curve for each method, the mean of its seeds."""
    for method, paths in methods.items():
        records = [read_run(path) for path in paths.values()]
        curves = []
        for record in records:
            values = column_of(record, column)
            if values is not None:  # or this method does not show it
                across = (record.metrics[n].to_numpy() for n in ("round", against))
                curves.append((*across, values))
        if curves:
            draw_mean(axes, curves, linewidth=1.2, label=method)
    name = with_unit(column)
    if column in LEAST:
        name, least = LEAST[column]
        axes.axhline(least, color=INK, linewidth=0.8, linestyle=":")
    _name_axes(axes, AGAINST.get(against, against), name)


def _client_lines(
    column: str,
    rounds: Mapping[int, np.ndarray],
    lines: Mapping[int, np.ndarray],
    axes: "Axes",
) -> None:
    """Draws a column of the clients: a line for each of them, over its rounds."""
    for client, values in lines.items():
        label = f"client {client}" if len(lines) <= MOST_NAMED else None
        axes.plot(rounds[client], values, linewidth=0.8, label=label)
    _name_axes(axes, "communication round", with_unit(column))


def _classes(methods: Methods, share: float, axes: "Axes") -> None:
    """Draws accuracy by label after a share of the rounds, the mean of the seeds."""
    rounds = set()
    for method, paths in methods.items():
        values = []
        for path in paths.values():
            metrics = read_run(path).metrics
            tested = metrics["round"].to_numpy()
            at = int(np.argmax(tested >= share * tested[-1]))
            rounds.add(int(tested[at]))
            (name,) = (n for n in metrics.column_names if n.startswith("class_"))
            values.append(metrics[name][at].as_py())
        mean = 100 * np.mean(np.array(values, float), 0)
        axes.plot(mean, "o-", markersize=4, linewidth=0.8, label=method)
    when = " to ".join(map(str, sorted({min(rounds), max(rounds)})))
    _name_axes(axes, f"label; after round {when}", with_unit(CLASSES))


def _changes(methods: Methods, column: str, axes: "Axes") -> None:
    """Draws changes; axes reach to 98 % of them, as the first ones are far away."""
    found = {m: changes(read_run(_first(of)), column) for m, of in methods.items()}
    for method, dots in found.items():
        axes.plot(*dots.T, ".", markersize=2, alpha=0.4, label=method)
    whose = "a client's" if column.startswith(CLIENTS) else "the server model's"
    what = f"change of {whose} {with_unit(column.removeprefix(CLIENTS))}"
    dots = np.concatenate(list(found.values()))
    sizes = np.abs(dots[np.isfinite(dots).all(1)]).max(1)
    if len(sizes):
        most = 1.05 * np.quantile(sizes, 0.98) or 1
        axes.set_xlim(-most, most)
        axes.set_ylim(-most, most)
    else:
        axes.text(0.5, 0.5, "no dot: it takes three values", ha="center", fontsize=8)
    _name_axes(axes, "the change before", what)


def _gaps(
    methods: Methods,
    column: str,
    base_of: Callable[[str], str | None],
    axes: "Axes",
) -> None:
    """Draws a box for each method: the column of its base less its own, in all tests."""
    boxes = {}
    for method, paths in methods.items():
        base = base_of(method)
        if base is None or base == method or base not in methods:
            continue
        gaps = []
        for seed, path in paths.items():
            pair = [read_run(at) for at in (methods[base].get(seed), path) if at]
            values = [
                of for record in pair if (of := column_of(record, column)) is not None
            ]
            if len(values) == 2:
                rounds = (record.metrics["round"].to_numpy() for record in pair)
                _, one, other = np.intersect1d(*rounds, return_indices=True)
                gaps.append(values[0][one] - values[1][other])
        if gaps:
            boxes[f"{base} - {method}"] = np.concatenate(gaps)
    if boxes:
        axes.boxplot(list(boxes.values()), showfliers=False)
        axes.set_xticks(range(1, len(boxes) + 1), list(boxes), fontsize=7)
    axes.axhline(0, color=INK, linewidth=0.6)
    _name_axes(axes, "", f"difference of {with_unit(column)}")


def _labels(counts: np.ndarray, axes: "Axes") -> None:
    """Draws how many examples of each label clients hold, counts [clients, labels]."""
    most = int(counts.max())
    draw_labels(counts, most, axes)
    axes.grid(visible=False)
    _name_axes(axes, f"label; the darkest is {most:,} examples", "client")


def _inputs(seen: tuple[np.ndarray, np.ndarray], axes: "Axes") -> None:
    """Draws pictures [clients, height, width, 3] in [0, 1], and their noise [clients]."""
    pictures, noise = seen
    width = pictures.shape[2] + 2
    gap = [(0, 0), (0, 0), (1, 1), (0, 0)]
    axes.imshow(np.concatenate(list(np.pad(pictures, gap, constant_values=1)), 1))
    names = [f"{k}\n{deviation:.2g}" for k, deviation in enumerate(noise)]
    axes.set_xticks((np.arange(len(pictures)) + 0.5) * width, names)
    axes.set_yticks([])
    axes.grid(visible=False)
    _name_axes(axes, "client, and the deviation of its noise", "")


def _dots(found: Sequence[Measured], axes: "Axes") -> None:
    """Draws the first of these figures for each method, published and measured."""
    if not found:
        return
    found = [cell for cell in found if cell.figure == found[0].figure]
    names = [cell.method for cell in found]
    at = np.arange(len(names))
    number = lambda value: value if isinstance(value, int | float) else np.nan
    paper = [number(cell.published) for cell in found]
    ours = [number(cell.mean) for cell in found]
    spread = [cell.interval or 0 for cell in found]
    axes.plot(paper, at, "x", color=INK, label="published")
    label = "measured, 95 %" if any(spread) else "measured"
    bars = axes.errorbar(ours, at, xerr=spread, fmt="o", markersize=4)
    axes.set_yticks(at, names)
    axes.invert_yaxis()
    # a method that fails on some seeds has an interval that leaves no room for the others
    if known := [value for value in (*paper, *ours) if np.isfinite(value)]:
        room = 0.15 * (max(known) - min(known)) + np.median(spread)
        low, high = min(known) - (room or 1), max(known) + (room or 1)
        axes.set_xlim(low, high)
        ends = np.concatenate([np.subtract(ours, spread), np.add(ours, spread)])
        if np.nanmin(ends) < low or np.nanmax(ends) > high:
            label += ", some cut off"
    bars.set_label(label)
    _name_axes(axes, with_unit(found[0].figure), "")
