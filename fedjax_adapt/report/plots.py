"""Figures of a run, from its folder."""

import io
import warnings
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .. import check
from ..errors import SettingError
from ..experiment.config import differing
from ..experiment.files import replacing
from ..experiment.records import Record, read_run, runs_in
from ..experiment.store import TRAINED, TRIALS, shown_accuracy, shown_loss
from .seeds import by_seed, shared_settings
from .tables import shortened, shown_setting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, BLUE, ORANGE, GREY = "#222222", "#2a6fbb", "#d9822b", "#9aa0a6"
GREEN, PURPLE = "#3a8a4d", "#8a5aa8"
OTHERS = {
    "sel": ("sel: cohort mean", GREEN),
    "all": ("all: every client", PURPLE),
    "result": ("result: least estimated loss", ORANGE),
}
DENSE = 80  # evaluations above which single points are no longer marked


Against = Literal["round", "local_steps", "bytes_up", "bytes_down", "simulated_seconds"]
AGAINST = {  # column of the table metrics -> label of the axis
    "round": "communication round",
    "local_steps": "local steps of all clients",
    "bytes_up": "bytes from the clients",
    "bytes_down": "bytes to the clients",
    "simulated_seconds": "simulated time (s)",
}


def learning_curve(
    folder: str | Path, path: str | Path | None = None, against: str = "round"
) -> Path:
    """Draws accuracy and loss against the round, or against what they cost.

    Args:
      folder: of a run, finished or not.
      path: where the picture goes; None: learning_curve.png in the folder.
      against: the horizontal axis: "round", "local_steps", "bytes_up", "bytes_down" or
        "simulated_seconds", all since the start.

    Returns:
      The path of the picture.

    Raises:
      SettingError: the folder holds no run, or no row yet, or not what to draw against.
    """
    from matplotlib.figure import Figure

    record = drawable(folder, against)
    path = Path(folder) / "learning_curve.png" if path is None else Path(path)
    # no pyplot: a figure of its own leaves the caller's backend and figures alone
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    config = record.config
    title = (
        f"{config['algorithm']} on {Path(config['dataset']).name}: "
        f"{config['num_clients']} clients, {100 * config['participation']:g} % a round, "
        f"{config['partition']}, {config['model']}, seed {config['seed']}"
    )
    figure.suptitle(title, fontsize=11, color=INK)
    _accuracy(left, record, against)
    _loss(right, record, against)
    return saved(figure, path)


def comparison_curves(
    folders: Sequence[str | Path], path: str | Path, against: str = "round"
) -> Path:
    """Draws the accuracy of several runs into one picture; see `learning_curve`.

    Runs that differ in the seed alone are one curve, their mean, in a band from the least
    to the most.

    Args:
      folders: of runs, or of sweeps, of which all trials are meant that did not diverge.
      path: where the picture goes.
      against: the horizontal axis.

    Raises:
      SettingError: as there; or a run trained on its test set, whose accuracy compares with
        no other's; or one is of test and one of validation accuracy.
    """
    from matplotlib.figure import Figure

    call = 'comparison_curves(["runs/mine", "runs/other"], "both.png")'
    check.kinds(call, folders=(folders, check.several_paths))
    figure = Figure(figsize=(6, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    paths = [path for given in folders for path in runs_in(given)]
    records = [drawable(path, against) for path in paths]
    if not records:
        raise SettingError(
            "there is no run to draw; give the folders of finished runs."
        )
    for record in records:
        if record.accuracy == TRAINED:
            raise SettingError(
                f"{record.folder} trained on its test set, so its accuracy compares with "
                "no other's; leave it out."
            )
        if record.accuracy != records[0].accuracy:
            raise SettingError(
                f"{record.folder} has {shown_accuracy(record.accuracy)} but "
                f"{records[0].folder} {shown_accuracy(records[0].accuracy)}; draw one "
                "picture of each kind."
            )
    settings = differing([record.config for record in records], "seed")
    over = [
        (r.config, {**r.summary, "at": i}) for i, r in enumerate(records) if r.summary
    ]
    lines = [[run[1]["at"] for run in line.values()] for line in by_seed(over)]
    lines += [[i] for i, r in enumerate(records) if not r.summary]  # not finished
    drawn = []
    for line in sorted(lines):
        first, curves = records[line[0]], []
        for i in line:
            names = ("round", against, first.accuracy)
            rounds, at, share = (records[i].metrics[n].to_numpy() for n in names)
            curves.append((rounds, at, 100 * share))
        shared = shared_settings([settings[i] for i in line])
        said = [f"{n}={shown_setting(v)}" for n, v in shared.items()]
        full = "\n".join([method_of(first.config, first.summary), *said])
        drawn.append((full, line, curves))
    short = shortened(full for full, *_ in drawn)
    for full, line, curves in drawn:
        method, *said = short[full].split("\n")
        if len(line) > 1:
            said.append(f"n = {len(line)}")
        else:
            folder = records[line[0]].folder
            above = f"{folder.parents[1].name}/" if folder.parent.name == TRIALS else ""
            said.insert(0, above + folder.name)
        label = f"{method} ({', '.join(said)})"
        draw_mean(axes, curves, label=label, **_line(curves[0][0]))
    axes.set_ylabel(f"{shown_accuracy(records[0].accuracy)} (%)")
    figure.legend(loc="outside lower left", frameon=False, fontsize=8)  # names are long
    dress(axes, against)
    return saved(figure, Path(path))


def draw_mean(
    axes: "Axes",
    curves: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    **line: Any,
) -> None:
    """Draws the mean of curves, and a band from least to most, in rounds that all have.

    A curve is (rounds, at, values). One that was stopped, or tested less often, has fewer.
    """
    shared = reduce(np.intersect1d, (rounds for rounds, *_ in curves))
    kept = lambda i: np.array([of[i][np.isin(of[0], shared)] for of in curves])
    at, values = kept(1).mean(0), kept(2)
    (drawn,) = axes.plot(at, values.mean(0), **line)
    if len(values) > 1:
        color = drawn.get_color()
        axes.fill_between(at, values.min(0), values.max(0), color=color, alpha=0.2)


def method_of(config: Mapping[str, Any], summary: Mapping[str, Any] | None) -> str:
    """What a run trained with, as its summary says; without one, algorithm and base."""
    if summary is not None and "method" in summary:
        return summary["method"]
    base = config.get("algorithm.base")
    return config["algorithm"] if base is None else f"{config['algorithm']} on {base}"


def drawable(folder: str | Path, against: str) -> Record:
    """A run that has what to draw, and something to draw it against.

    Raises:
      SettingError: see `learning_curve`.
    """
    record = read_run(folder)
    if not len(record.metrics):
        raise SettingError(
            f"{folder} has no evaluation yet, so there is no curve to draw."
        )
    check.one_of("against", against, AGAINST)
    if against not in record.metrics.column_names:
        raise SettingError(
            f"{folder} does not say its {against}; draw it against local_steps."
        )
    if not record.metrics[against].to_numpy().any():
        why = "has no simulated clock; train with --step-seconds"
        if against != "simulated_seconds":
            why = f"has no {AGAINST[against]} to count; leave it out"
        raise SettingError(f"{folder} {why}, or draw it against round.")
    return record


def saved(figure: "Figure", path: Path) -> Path:
    """Writes a picture whole or not at all, in the format its name ends in.

    Raises:
      OSError: it cannot be written; the error names it.
      SettingError: nothing is drawn in a format of this name.
    """
    kind = path.suffix.removeprefix(".") or "png"
    if kind.lower() not in figure.canvas.get_supported_filetypes():
        raise SettingError(f"path={path} must end in .png, .pdf or .svg.")
    drawn = io.BytesIO()  # for matplotlib's PDF crashes where there is no room for it
    # of a glyph that the font does not have
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        figure.savefig(drawn, format=kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        temporary.write_bytes(drawn.getvalue())
    return path


def _accuracy(axes, record: Record, against: str) -> None:
    rounds, at = (record.metrics[name].to_numpy() for name in ("round", against))
    named = record.accuracy
    accuracy = 100 * record.metrics[named].to_numpy()
    for name, (label, color) in OTHERS.items():
        if f"{named}_{name}" in record.metrics.column_names:
            other = 100 * record.metrics[f"{named}_{name}"].to_numpy()
            axes.plot(at, other, color=color, label=label, **_line(rounds))
    axes.plot(at, accuracy, color=BLUE, label="server", **_line(rounds))
    best = int(np.nan_to_num(accuracy, nan=-np.inf).argmax())
    axes.plot(at[best], accuracy[best], "o", color=BLUE, markersize=5)
    axes.annotate(
        f"best {accuracy[best]:.2f} %, round {rounds[best]}",
        (1, 0),
        xycoords="axes fraction",
        xytext=(-6, 6),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=9,
        color=BLUE,
    )
    axes.set_ylabel(f"{shown_accuracy(record.accuracy)} (%)")
    if len(axes.lines) > 2:  # the curve and its best point need no names
        axes.legend(frameon=False, fontsize=9, loc="center right")
    dress(axes, against)


def _loss(axes, record: Record, against: str) -> None:
    at = record.metrics[against].to_numpy()
    line = _line(at)
    train = record.metrics["train_loss"].to_numpy()
    test = record.metrics["loss"].to_numpy()
    of = f"{shown_loss(record.accuracy)}, global model"
    axes.plot(at, test, color=BLUE, label=of, **line)
    axes.plot(at, train, color=ORANGE, label="local training objective", **line)
    if np.nanmin([train, test]) > 0:
        axes.set_yscale("log")
    axes.set_ylabel("mean loss (nats per example)")
    axes.legend(frameon=False, fontsize=9)
    dress(axes, against)


def _line(rounds) -> dict:
    marked = {} if len(rounds) > DENSE else {"marker": ".", "markersize": 3}
    return {"linewidth": 1.4, **marked}


def dress(axes, across: str, grid: Literal["both", "x", "y"] = "both") -> None:
    """Names the horizontal axis, and draws a faint grid in place of a frame."""
    axes.set_xlabel(AGAINST.get(across, across))
    if across in AGAINST:
        axes.xaxis.get_major_locator().set_params(integer=across == "round")
    axes.grid(True, axis=grid, color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
