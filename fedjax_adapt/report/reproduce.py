"""Published and measured figures of an item: tables, a CSV file and a picture."""

import csv
import io
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..experiment.records import Record, read_run
from ..experiment.store import (
    ACCURACY,
    COSTS,
    PARTITION,
    figures_of,
    read_summary,
    read_table,
)
from .clients import draw_labels
from .plots import AGAINST, INK, draw_mean, saved
from .seeds import Sample, at_target, difference_text, sample, speed_ups

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = "class_accuracy"  # drawn by label
LEAST = {"premise": ("lr tau L", 1)}  # what a theorem wants to be at least so much
MOST_NAMED = 10  # clients in a legend
# what stands before a column in a figure or in what is drawn, see `measured` and `picture`
CLIENTS, CHANGES, GAPS = "clients.", "changes.", "gaps."
SHARES = (  # shown in %
    *("accuracy", "accuracy_all", "accuracy_sel", "best_accuracy", "last_mean"),
    *("last_std", "area_under_curve", "client_accuracy", "personal_accuracy", CLASSES),
)

# the runs of rows and methods: the folder of each by its seed; None: it diverged
Runs = Mapping[tuple[str, str], Mapping[int, Path | None]]
Methods = Mapping[str, Mapping[int, Path]]  # those of a row that did not diverge


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
        values = _by_client(read_run(path), column).get(int(client))
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
        series = _by_client(record, column.removeprefix(CLIENTS)).values()
    else:
        values = _column(record, column)
        series = [] if values is None else [values]
    steps = [np.diff(values) for values in series]
    return np.concatenate(
        [np.stack([x[:-1], x[1:]], 1) for x in steps if len(x)] + [np.zeros((0, 2))]
    )


def _column(record: Record, name: str) -> np.ndarray | None:
    """A column of the metrics, shares in %; None: the run has none."""
    at = record.accuracy if name == ACCURACY else name
    if at not in record.metrics.column_names:
        return None
    return (100 if name in SHARES else 1) * record.metrics[at].to_numpy()


def _by_client(record: Record, column: str) -> dict[int, np.ndarray]:
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
            (_unit(cell.figure), cell.method, *_texts(cell), str(cell.seeds))
            for figure in dict.fromkeys(cell.figure for cell in here)
            for cell in here
            if cell.figure == figure
        ]
    return made


def _unit(figure: str) -> str:
    """A figure's name with its unit, where it has one."""
    return f"{figure} (%)" if {*figure.split(".")} & {*SHARES} else figure


def _texts(cell: Measured) -> tuple[str, str, str]:
    """Published, measured and the difference, as they are shown.

    What is published is not rounded, but a share has two digits.
    """
    paper = "" if cell.published is None else cell.published
    share = _unit(cell.figure) != cell.figure
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
        place = (cell.row, cell.method, _unit(cell.figure), cell.published)
        values = " ".join(map(repr, cell.values))
        writer.writerow([*place, *numbers, cell.seeds, cell.lacking, values])
    return text.getvalue()


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
                    if lines := _by_client(read_run(_first(paths)), name):
                        shown = partial(_client_lines, _first(paths), name, lines)
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
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(up, fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=7)


def _curves(methods: Methods, column: str, against: str, axes: "Axes") -> None:
    for method, paths in methods.items():
        records = [read_run(path) for path in paths.values()]
        curves = []
        for record in records:
            values = _column(record, column)
            if values is not None:  # or this method does not show it
                across = (record.metrics[n].to_numpy() for n in ("round", against))
                curves.append((*across, values))
        if curves:
            draw_mean(axes, curves, linewidth=1.2, label=method)
    name = _unit(column)
    if column in LEAST:
        name, least = LEAST[column]
        axes.axhline(least, color=INK, linewidth=0.8, linestyle=":")
    _name_axes(axes, AGAINST.get(against, against), name)


def _client_lines(
    path: Path, column: str, lines: Mapping[int, np.ndarray], axes: "Axes"
) -> None:
    rounds = _by_client(read_run(path), "round")
    for client, values in lines.items():
        label = f"client {client}" if len(lines) <= MOST_NAMED else None
        axes.plot(rounds[client], values, linewidth=0.8, label=label)
    _name_axes(axes, "communication round", _unit(column))


def _classes(methods: Methods, share: float, axes: "Axes") -> None:
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
    _name_axes(axes, f"label; after round {when}", _unit(CLASSES))


def _changes(methods: Methods, column: str, axes: "Axes") -> None:
    """Draws changes; axes reach to 98 % of them, as the first ones are far away."""
    found = {m: changes(read_run(_first(of)), column) for m, of in methods.items()}
    for method, dots in found.items():
        axes.plot(*dots.T, ".", markersize=2, alpha=0.4, label=method)
    whose = "a client's" if column.startswith(CLIENTS) else "the server model's"
    what = f"change of {whose} {_unit(column.removeprefix(CLIENTS))}"
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
    boxes = {}
    for method, paths in methods.items():
        base = base_of(method)
        if base is None or base == method or base not in methods:
            continue
        gaps = []
        for seed, path in paths.items():
            pair = [read_run(at) for at in (methods[base].get(seed), path) if at]
            values = [
                of for record in pair if (of := _column(record, column)) is not None
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
    _name_axes(axes, "", f"difference of {_unit(column)}")


def _labels(counts: np.ndarray, axes: "Axes") -> None:
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
    _name_axes(axes, _unit(found[0].figure), "")
