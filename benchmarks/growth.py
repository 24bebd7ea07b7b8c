"""A series of readings as points, the line through them, a table and a picture.

The line a + b x is fitted by least squares of

    (a + b x) / t - 1

so that all points count alike, and the largest of these is the series' deviation.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure


class Straight(NamedTuple):
    """a + b x."""

    a: float
    b: float

    def at(self, x: Any) -> Any:
        """Its value at a number or at many."""
        return self.a + self.b * x


def fit(x: Any, t: Any) -> Straight:
    """The line through the points (x, t), each off it by as small a share as can be."""
    x, t = np.asarray(x, float), np.asarray(t, float)
    (a, b), *_ = np.linalg.lstsq(np.stack([1 / t, x / t], 1), np.ones_like(t))
    return Straight(float(a), float(b))


def deviations(line: Straight, x: Any, t: Any) -> np.ndarray:
    """How far each t lies above the line, as a share of t."""
    return 1 - line.at(np.asarray(x, float)) / np.asarray(t, float)


class Points(NamedTuple):
    """What was read of a series, all passes taken together; [points], by value."""

    value: np.ndarray  # of what was varied
    x: np.ndarray  # what the line is a function of
    t: np.ndarray  # seconds per round, the median of the passes' medians
    low: np.ndarray
    high: np.ndarray

    @property
    def line(self) -> Straight | None:
        """None for so few points that there is a line through all."""
        return fit(self.x, self.t) if len(set(self.x.tolist())) > 2 else None


class Panel(NamedTuple):
    """Where a series is drawn."""

    number: int  # of four
    label: str  # of the x axis
    flat: bool = False  # the ideal is no growth: time is drawn from 0


def points(lines: Mapping[int, list[dict[str, Any]]]) -> Points | None:
    """The readings of each value as a point; None: there are none."""
    rows = []
    for value, some in sorted(lines.items()):
        if some:
            t = float(np.median([line["seconds"] for line in some]))
            low = min(line["min"] for line in some)
            rows.append(
                (value, some[0]["x"], t, low, max(line["max"] for line in some))
            )
    return Points(*map(np.array, zip(*rows, strict=True))) if rows else None


def tables(found: Mapping[str, Points]) -> str:
    """Every point beside its line, and every series with its largest deviation."""
    head = lambda *names: ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    each = head(
        *("series", "value", "x", "ms per round", "min to max", "line", "off the line")
    )
    all_ = head("series", "a, ms", "b, ms", "largest deviation", "at", "last by first")
    for name, of in found.items():
        line = of.line
        for value, x, t, low, high in zip(*of, strict=True):
            there, off = "", ""
            if line is not None:
                there = f"{1e3 * line.at(x):.4g}"
                off = f"{100 * deviations(line, x, t):+.1f} %"
            each.append(
                f"| {name} | {value:,} | {x:,} | {1e3 * t:.4g} | {1e3 * low:.4g} to "
                f"{1e3 * high:.4g} | {there} | {off} |"
            )
        if line is not None:
            off = abs(deviations(line, of.x, of.t))
            all_.append(
                f"| {name} | {1e3 * line.a:.4g} | {1e3 * line.b:.4g} | "
                f"{100 * off.max():.1f} % | {of.value[off.argmax()]:,} | "
                f"{of.t[-1] / of.t[0]:.2f} |"
            )
    return "\n".join([*each, "", *all_])


def plot(found: Mapping[str, Points], panels: Mapping[str, Panel], path: Path) -> None:
    """Points with bars from minimum to maximum, and their lines, in four panels."""
    figure = Figure(figsize=(10, 7), layout="constrained")
    drawn = list(figure.subplots(2, 2).flat)
    for number, (name, of) in enumerate(found.items()):
        panel, color = panels[name], f"C{number}"
        axes = drawn[panel.number]
        bars = 1e3 * np.stack([of.t - of.low, of.high - of.t])
        axes.errorbar(of.x, 1e3 * of.t, bars, fmt="o", ms=4, color=color, label=name)
        if of.line is not None:
            along = np.geomspace(of.x.min(), of.x.max(), 200)
            axes.plot(along, 1e3 * of.line.at(along), color=color, linewidth=1)
    for name in found:  # when all is drawn, for two series share a panel
        panel = panels[name]
        axes = drawn[panel.number]
        axes.set(xlabel=panel.label, ylabel="ms per round", xscale="log")
        if panel.flat:
            axes.set_ylim(0, None)
        else:
            axes.set_yscale("log")
        axes.grid(True, alpha=0.25, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    for empty in {*drawn} - {drawn[panels[name].number] for name in found}:
        empty.set_axis_off()
    figure.savefig(path, dpi=150)
