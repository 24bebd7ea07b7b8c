"""Figures of a run, from its folder."""

import warnings
from pathlib import Path

from ..experiment.store import Record, read_run

INK, BLUE, ORANGE, GREY = "#222222", "#2a6fbb", "#d9822b", "#9aa0a6"
GREEN, PURPLE = "#3a8a4d", "#8a5aa8"
OTHERS = {"sel": ("sel: cohort mean", GREEN), "all": ("all: every client", PURPLE)}
DENSE = 80  # evaluations above which single points are no longer marked


def learning_curve(folder: str | Path, path: str | Path | None = None) -> Path:
    """Draws accuracy and loss against the round.

    Args:
      folder: of a run, finished or not.
      path: where the picture goes; None: learning_curve.png in the folder.

    Returns:
      The path of the picture.

    Raises:
      ValueError: the folder holds no run, or no row yet.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = read_run(folder)
    if not len(record.metrics):
        raise ValueError(
            f"{folder} has no evaluation yet, so there is no curve to draw."
        )
    path = Path(folder) / "learning_curve.png" if path is None else Path(path)
    # no pyplot: a figure of its own leaves the caller's backend and figures alone
    figure = Figure(figsize=(9, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.suptitle(_title(record), fontsize=11, color=INK)
    _accuracy(left, record)
    _loss(right, record)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a glyph the font does not have
        figure.savefig(path)
    return path


def _accuracy(axes, record: Record) -> None:
    rounds = record.metrics["round"].to_numpy()
    accuracy = 100 * record.metrics["accuracy"].to_numpy()
    for name, (label, color) in OTHERS.items():
        if f"accuracy_{name}" in record.metrics.column_names:
            other = 100 * record.metrics[f"accuracy_{name}"].to_numpy()
            axes.plot(rounds, other, color=color, label=label, **_line(rounds))
    axes.plot(rounds, accuracy, color=BLUE, label="server", **_line(rounds))
    best = int(accuracy.argmax())
    axes.plot(rounds[best], accuracy[best], "o", color=BLUE, markersize=5)
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
    axes.set_ylabel("test accuracy (%)")
    if len(axes.lines) > 2:  # the curve and its best point need no names
        axes.legend(frameon=False, fontsize=9, loc="center right")
    _dress(axes)


def _loss(axes, record: Record) -> None:
    rounds = record.metrics["round"].to_numpy()
    line = _line(rounds)
    train = record.metrics["train_loss"].to_numpy()
    test = record.metrics["loss"].to_numpy()
    axes.plot(rounds, test, color=BLUE, label="test, global model", **line)
    axes.plot(rounds, train, color=ORANGE, label="local training objective", **line)
    if min(train.min(), test.min()) > 0:
        axes.set_yscale("log")
    axes.set_ylabel("mean loss (nats per example)")
    axes.legend(frameon=False, fontsize=9)
    _dress(axes)


def _line(rounds) -> dict:
    marked = {} if len(rounds) > DENSE else {"marker": ".", "markersize": 3}
    return {"linewidth": 1.4, **marked}


def _dress(axes) -> None:
    axes.set_xlabel("communication round")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(True, color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _title(record: Record) -> str:
    config = record.config
    share = 100 * config["participation"]
    return (
        f"{config['algorithm']} on {Path(config['dataset']).name}: "
        f"{config['num_clients']} clients, {share:g} % a round, "
        f"{config['partition']}, {config['model']}, seed {config['seed']}"
    )
