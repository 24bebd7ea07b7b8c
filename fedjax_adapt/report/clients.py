"""Clients in tables and pictures: the examples that each holds, and what each contributed.

Contributions are by the gradient signal-to-noise ratio of the clients.

References:
  Tan et al., "Expediting Federated Learning on Non-IID Data by Maximizing Communication
  Channel Utilization", IEEE Transactions on Networking 2025,
  https://doi.org/10.1109/TON.2025.3565822. Sec. VII-B.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import SettingError
from ..experiment.records import read_run
from .plots import BLUE, INK, ORANGE, dress, saved

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

MOST_ROWS = 30  # of the table; the picture shows every client


def clients_table(skew: Any) -> "Table":
    """One row per client: how many examples, of how many labels, and which above all.

    Args:
      skew: `sizes` [clients], `label_counts` [clients, labels], `label_entropy` in nats
        and `label_distance`, as `data.Skew` has them.
    """
    from rich.table import Table

    table = Table(title_style="bold")
    for name in ("client", "examples", "labels", "entropy", "distance"):
        table.add_column(name, justify="right")
    table.add_column("most of them are")
    for i, size in enumerate(skew.sizes[:MOST_ROWS]):
        counts = skew.label_counts[i]
        top = np.argsort(-counts, kind="stable")[:3]
        table.add_row(
            str(i),
            str(size),
            str((counts > 0).sum()),
            f"{skew.label_entropy[i]:.2f}",
            f"{skew.label_distance[i]:.2f}",
            ", ".join(f"{k}: {100 * counts[k] / size:.0f} %" for k in top if counts[k]),
        )
    return table


def draw_partition(skew: Any, title: str, path: str | Path) -> Path:
    """Draws each client's label mix, and next to it how many examples it has.

    `skew` is as in `clients_table`; a file at the path, which it returns, is replaced.
    """
    from matplotlib.figure import Figure

    num_clients = len(skew.sizes)
    height = min(max(2.6 + 0.16 * num_clients, 4.0), 11.0)
    figure = Figure(figsize=(9, height), dpi=150, layout="constrained")
    widths = {"width_ratios": [3, 1], "wspace": 0.02}
    mix, sizes = figure.subplots(1, 2, sharey=True, gridspec_kw=widths)
    heading = f"{title}: {num_clients} clients, mean {skew.sizes.mean():.4g} (dotted)"
    figure.suptitle(heading, fontsize=11, color=INK)

    share = skew.label_counts / np.maximum(skew.sizes, 1)[:, None]
    image = draw_labels(share, 1, mix)  # one scale for all pictures
    mix.set_xlabel("label")
    mix.set_ylabel("client")
    bar = figure.colorbar(image, ax=mix, location="left", shrink=0.6, pad=0.02)
    bar.set_label("share of the client's examples", fontsize=8)

    edges = np.arange(num_clients + 1) - 0.5
    sizes.stairs(skew.sizes, edges, orientation="horizontal", fill=True, color=BLUE)
    sizes.axvline(skew.sizes.mean(), color=INK, linewidth=0.8, linestyle=":")
    sizes.set_xlim(0, 1.05 * max(skew.sizes.max(), 1))
    dress(sizes, "examples", "x")
    sizes.tick_params(labelleft=False)
    return saved(figure, Path(path))


def draw_labels(values: np.ndarray, most: float, axes: "Axes") -> Any:
    """Draws what each client has of each label, [clients, labels]; returns the image.

    The darkest colour is `most`.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.ticker import MaxNLocator

    num_clients, num_labels = values.shape
    image = axes.imshow(
        values,
        aspect="auto",
        cmap="Blues",
        norm=PowerNorm(0.5, 0, most),  # the root tells a tenth from nothing
        extent=(-0.5, num_labels - 0.5, num_clients - 0.5, -0.5),
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    return image


class Contribution(NamedTuple):
    """What a client's gradients said over the rounds it took part in."""

    client: int
    rounds: int
    mean: float  # of r_k
    median: float


def contributions(folder: str | Path) -> list[Contribution]:
    """The clients of a run by the mean of their r_k, the best first.

    Raises:
      SettingError: the folder holds no run, or one that did not measure r_k.
    """
    rows = read_run(folder).clients
    if "gsnr" not in rows.column_names:
        raise SettingError(
            f"{folder} has no column gsnr: only runs of fedgsnr measure what a client "
            "contributes; write algorithm=fedgsnr, with the run's algorithm as its base, "
            "or take fedjax_adapt.experiment.value_cohort in Python for any method."
        )
    if "measured" in rows.column_names:  # a failed measurement says nothing of a client
        rows = rows.filter(rows["measured"].to_numpy() > 0)
    clients, values = rows["client"].to_numpy(), rows["gsnr"].to_numpy()
    found = []
    for client in np.unique(clients):
        of_client = values[clients == client]
        mean, median = float(of_client.mean()), float(np.median(of_client))
        found.append(Contribution(int(client), len(of_client), mean, median))
    return sorted(found, key=lambda one: (-one.mean, one.client))


def agreement(values: Mapping[int, float], gsnr: Mapping[int, float]) -> str:
    """Spearman's rho of what clients are worth and their r_k, over those that have both."""
    from scipy.stats import spearmanr

    both = [k for k in values if math.isfinite(gsnr.get(k, math.nan))]
    a, b = ([of[k] for k in both] for of in (values, gsnr))
    if min(len(set(a)), len(set(b))) < 2:  # nothing to rank
        return f"undefined (n={len(both)})"
    rho: Any = spearmanr(a, b)
    return f"{rho.statistic:+.3f} (n={len(both)})"


def contributions_table(
    folder: str | Path, columns: Mapping[str, Mapping[int, float]] | None = None
) -> "Table":
    """The ranking as a table; raises like `contributions`.

    Args:
      folder: of the run.
      columns: more figures of some clients, by title and then by client; who took no
        part in the run before has a row below the others.
    """
    from rich.table import Table

    columns = columns or {}
    table = Table(title="contributions by GSNR", title_style="bold")
    for name in ("rank", "client", "rounds", "mean r_k", "median r_k", *columns):
        table.add_column(name, justify="right")
    shown = lambda value: f"{value:.4g}" if math.isfinite(value) else "-"

    def add(rank: str, client: int, rounds: int, *figures: float):
        more = (column.get(client, math.nan) for column in columns.values())
        table.add_row(rank, str(client), str(rounds), *map(shown, (*figures, *more)))

    ranked = contributions(folder)
    for rank, one in enumerate(ranked, 1):
        add(str(rank), *one)
    new = {k for column in columns.values() for k in column}
    for client in sorted(new.difference(one.client for one in ranked)):
        add("-", client, 0, math.nan, math.nan)
    num_clients = read_run(folder).config["num_clients"]
    if len(ranked) < num_clients:
        missing = num_clients - len(ranked)
        table.caption = f"{missing} of {num_clients} clients measured in no round"
    return table


def draw_contributions(folder: str | Path) -> Path:
    """The path of contributions.png in a run folder, which it draws.

    A bar is the mean of each client's r_k, a dot the median. Raises like `contributions`.
    """
    from matplotlib.figure import Figure

    ranked = contributions(folder)
    width = min(24.0, 3 + 0.22 * len(ranked))
    figure = Figure(figsize=(max(6.0, width), 3.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    places = range(len(ranked))
    means, medians = [one.mean for one in ranked], [one.median for one in ranked]
    axes.bar(places, means, color=BLUE, label="mean over its rounds")
    axes.plot(places, medians, "o", color=ORANGE, markersize=3, label="median")
    names = [str(one.client) for one in ranked]
    axes.set_xticks(list(places), names, fontsize=7, rotation=90)
    axes.set_ylabel("gradient signal-to-noise ratio")
    dress(axes, "client, the best first", "y")
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return saved(figure, Path(folder) / "contributions.png")
