"""How the examples of a training set lie with the clients: a table and a picture."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .plots import BLUE, GREY, INK, saved

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 30  # of the table; the picture shows every client


def clients_table(skew: Any) -> "Table":
    """One row per client: how many examples, of how many labels, and which above all.

    Args:
      skew: `sizes` [clients], `label_counts` [clients, labels], `label_entropy` in nats
        and `label_distance`, as `data.measure.Skew` has them.
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

    Args:
      skew: as in `clients_table`.
      title: above the picture.
      path: where it goes; a file there is replaced.

    Returns:
      The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    num_clients, num_labels = skew.label_counts.shape
    share = skew.label_counts / np.maximum(skew.sizes, 1)[:, None]
    height = min(max(2.6 + 0.16 * num_clients, 4.0), 11.0)
    figure = Figure(figsize=(9, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    widths = {"width_ratios": [3, 1], "wspace": 0.02}
    mix, sizes = figure.subplots(1, 2, sharey=True, gridspec_kw=widths)
    heading = f"{title}: {num_clients} clients, mean {skew.sizes.mean():.4g} (dotted)"
    figure.suptitle(heading, fontsize=11, color=INK)

    # one scale for all pictures; the root tells a tenth from nothing
    image = mix.imshow(
        share,
        aspect="auto",
        cmap="Blues",
        norm=PowerNorm(0.5, 0, 1),
        extent=(-0.5, num_labels - 0.5, num_clients - 0.5, -0.5),
    )
    mix.set_xlabel("label")
    mix.set_ylabel("client")
    for axis in (mix.xaxis, mix.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=12, integer=True))
    bar = figure.colorbar(image, ax=mix, location="left", shrink=0.6, pad=0.02)
    bar.set_label("share of the client's examples", fontsize=8)

    edges = np.arange(num_clients + 1) - 0.5
    sizes.stairs(skew.sizes, edges, orientation="horizontal", fill=True, color=BLUE)
    sizes.axvline(skew.sizes.mean(), color=INK, linewidth=0.8, linestyle=":")
    sizes.set_xlim(0, 1.05 * max(skew.sizes.max(), 1))
    sizes.set_xlabel("examples")
    sizes.grid(True, axis="x", color=GREY, alpha=0.25, linewidth=0.6)
    sizes.spines[["top", "right"]].set_visible(False)
    sizes.tick_params(labelleft=False)
    return saved(figure, Path(path))
