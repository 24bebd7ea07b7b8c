"""The picture of a sitting: how many times our seconds a round takes in every simulator.

One panel for each workload, one bar for each simulator at its best setting, ours too. A bar
is the median over the passes of its ratio to ours, its whisker the least and the most.
"""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import common
from matplotlib.figure import Figure
from matplotlib.transforms import blended_transform_factory
from settings import Setting
from table import Line, Row, evidence, quiet, rows

OURS_COLOR, PEER_COLOR = "#0b6e8f", "#b9c2c8"
WIDTH, BAR = 7.5, 0.34  # inches: of the picture, and of a bar with its gap
LETTERS, LABEL = 112, 34  # letters of a line of the caption, and of a setting


def best(found: Sequence[Row]) -> list[Row]:
    """The fastest row of each simulator, among those that were divided by ours.

    Args:
      found: of one workload, the fastest first.
    """
    chosen: dict[str, Row] = {}
    for row in found:
        if row.ratios:
            chosen.setdefault(row.setting.title, row)
    return list(chosen.values())


def draw(
    settings: Mapping[str, Sequence[Setting]], lines: Sequence[Line], path: Path
) -> bool:
    """Writes the picture as `path` in .png and .svg; False: there is nothing to be drawn.

    Args:
      settings: of every workload.
      lines: of the sitting; those that others disturbed are left out.
      path: of one of the files; its ending does not matter.
    """
    undisturbed = quiet(lines)
    of = lambda name: [line for line in undisturbed if line["workload"] == name]
    found = {name: best(rows(some, of(name))) for name, some in settings.items()}
    # ours alone says nothing
    panels = {name: bars for name, bars in found.items() if len(bars) > 1}
    if not panels:
        return False
    counts = [len(bars) for bars in panels.values()]
    caption = textwrap.fill(evidence(undisturbed, versions=False), LETTERS)
    height = BAR * sum(counts) + 0.75 * len(counts) + 0.2 * (caption.count("\n") + 2)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    drawn = figure.subplots(len(panels), 1, squeeze=False, height_ratios=counts)
    for axes, (name, bars) in zip(drawn.flat, panels.items(), strict=True):
        _panel(axes, name, bars)
    drawn.flat[-1].set_xlabel(
        "time of a round, by ours (shorter is faster)", fontsize=8
    )
    figure.supxlabel(caption, fontsize=7, color="#555555", x=0.01, ha="left")
    for ending in (".png", ".svg"):
        figure.savefig(path.with_suffix(ending), dpi=150)
    return True


def _panel(axes, name: str, bars: Sequence[Row]) -> None:
    """The bars of one workload, the fastest on top."""
    middle = [median(row.ratios) for row in bars]
    low = [m - min(row.ratios) for m, row in zip(middle, bars, strict=True)]
    high = [max(row.ratios) - m for m, row in zip(middle, bars, strict=True)]
    ours = [row.setting.simulator == "ours" for row in bars]
    axes.barh(
        range(len(bars)),
        middle,
        xerr=[low, high],
        color=[OURS_COLOR if mine else PEER_COLOR for mine in ours],
        error_kw={"elinewidth": 1, "capsize": 3},
        height=0.72,
    )
    axes.axvline(1, color=OURS_COLOR, linewidth=0.8, linestyle=":")
    beside = blended_transform_factory(axes.transAxes, axes.transData)
    for i, (row, m) in enumerate(zip(bars, middle, strict=True)):
        told = f"{m:.2f}   {_seconds(row.seconds)}"
        axes.text(1.01, i, told, transform=beside, va="center", fontsize=8)
    label = lambda setting: textwrap.fill(setting.label, LABEL)
    names = [f"{row.setting.title}\n{label(row.setting)}" for row in bars]
    axes.set_yticks(range(len(bars)), names, fontsize=7)
    axes.tick_params(axis="x", labelsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    work = common.work.WORKLOADS[name]
    told = f"{work.model}, {work.cohort} of {work.clients} clients in a round"
    axes.set_title(f"{name.upper()}: {told}", fontsize=9, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, axis="x", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.3g} ms"
