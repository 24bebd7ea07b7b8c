"""Pieces of a page that needs no other file: text, tables and drawings, as HTML and SVG."""

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WIDTH, HEIGHT = 440, 280  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 58, WIDTH - 14, 8, HEIGHT - 46  # of what is drawn in it
COLORS, DASHES = 8, ("none", "6 3", "2 2")  # of curves; more than all of them repeat
BLUE = (42, 111, 187)  # of images; their opacity is the value


class Shaded(NamedTuple):
    """A cell of a table with as much colour behind it as its share of 1."""

    text: str
    share: float


class Curve(NamedTuple):
    """A curve of a drawing."""

    line: int  # which decides its colour
    x: np.ndarray
    y: np.ndarray


def text(value: Any) -> str:
    """A value as it stands in a page; "?" for what of a path is no text."""
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def table(
    caption: str, head: Sequence[str], rows: Sequence[Sequence[str | Shaded]]
) -> str:
    """A table, which scrolls where the page is narrower; a row begins with its name."""

    def cell(of: str | Shaded) -> str:
        if isinstance(of, Shaded):  # up to 45 %, through which the text can be read
            return f'<td style="--share:{45 * of.share:.0f}%">{text(of.text)}</td>'
        return f"<td>{text(of)}</td>"

    columns = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    lines = [
        f'<tr><th scope="row">{text(name)}</th>{"".join(map(cell, cells))}</tr>'
        for name, *cells in rows
    ]
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{text(caption)}">'
        f"<table><caption>{text(caption)}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def details(summary: str, *inside: str) -> str:
    """What is shown once its summary is chosen."""
    return f"<details><summary>{text(summary)}</summary>{''.join(inside)}</details>"


def notes(lines: Sequence[str]) -> str:
    """A list of sentences; nothing where there is none."""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return f'<ul class="notes">{items}</ul>' if lines else ""


def section(title: str, *inside: str) -> str:
    """A part of the page with a heading."""
    return f"<section><h2>{text(title)}</h2>{''.join(inside)}</section>"


def figures(drawings: Sequence[str], chosen_by: str = "") -> str:
    """Drawings beside each other; those of a button of `switch` only while it is chosen."""
    return f'<div class="figures {chosen_by}">{"".join(drawings)}</div>'


def switch(legend: str, choices: Mapping[str, str]) -> str:
    """Buttons of which one is chosen, by `chosen_by` of `figures`, the first to begin."""
    buttons = "".join(
        f'<label><input type="radio" name="by" id="{name}"{" checked" * (i == 0)}> '
        f"{text(label)}</label>"
        for i, (name, label) in enumerate(choices.items())
    )
    hidden = "".join(  # by style alone, as the page runs no script
        f"main:has(#{shown}:checked) .{name}{{display:none}}"
        for shown in choices
        for name in choices
        if name != shown
    )
    return (
        f"<style>{hidden}</style>"
        f"<fieldset><legend>{text(legend)}</legend>{buttons}</fieldset>"
    )


def keys(lines: Sequence[str]) -> str:
    """What each line of `drawn_curves` is."""
    items = "".join(
        '<li><svg viewBox="0 0 32 12" aria-hidden="true">'
        f'<polyline points="0,6 32,6" {_look(i)}/></svg>{text(line)}</li>'
        for i, line in enumerate(lines)
    )
    return f'<ul class="keys">{items}</ul>'


def _look(line: int) -> str:
    dash = DASHES[line // COLORS % len(DASHES)]
    return f'stroke="var(--c{line % COLORS})" stroke-dasharray="{dash}"'


def drawn_curves(title: str, x: str, y: str, curves: Sequence[Curve]) -> str:
    """Curves in one drawing; a positive y over more than a decade is logarithmic."""
    from matplotlib.ticker import LogLocator

    ends = [np.concatenate([curve[i] for curve in curves]) for i in (1, 2)]
    xs, ys = (values[np.isfinite(values)] for values in ends)
    if not len(xs) or not len(ys):
        return f"<p>{text(title)}: no finite value.</p>"
    (left, right), (low, high) = ((v.min(), v.max()) for v in (xs, ys))
    scale, ticks = np.asarray, _ticks(low, high)
    if 0 < 10 * low < high:
        scale = np.log10
        ticks = LogLocator(subs=(1, 2, 5)).tick_values(low, high).tolist()
        ticks = [v for v in ticks if low / 2 < v < 2 * high]
    across = _along(left, right, LEFT, RIGHT)
    up = _along(scale(min(low, ticks[0])), scale(max(high, ticks[-1])), BOTTOM, TOP)
    lines = []
    for line, *values in curves:
        own = np.stack(values)[:, np.isfinite(values).all(0)]
        pairs = zip(across(own[0]), up(scale(own[1])), strict=True)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)
        lines.append(f'<polyline points="{points}" {_look(line)}/>')
    places = {v: across(v) for v in _ticks(left, right)}
    heights = {v: up(scale(v)) for v in ticks}
    return _drawing(title, x, y, "".join(lines), places, heights)


def drawn_bars(
    title: str, x: str, y: str, bars: Sequence[float], dots: Sequence[float]
) -> str:
    """A bar from 0 for each value, and a dot for another one of the same thing."""
    known = [v for v in (*bars, *dots, 0.0) if np.isfinite(v)]
    ticks = _ticks(min(known), max(known))
    up = _along(ticks[0], ticks[-1], BOTTOM, TOP)
    wide, marks = (RIGHT - LEFT) / len(bars), []
    for i, (bar, dot) in enumerate(zip(bars, dots, strict=True)):
        at = LEFT + (i + 0.5) * wide
        if np.isfinite(bar):
            top, end = sorted((up(bar), up(0)))
            size = f'width="{0.8 * wide:.1f}" height="{end - top:.1f}"'
            marks.append(f'<rect x="{at - 0.4 * wide:.1f}" y="{top:.1f}" {size}/>')
        if np.isfinite(dot):
            radius = min(3.0, 0.4 * wide + 0.5)
            marks.append(f'<circle cx="{at:.1f}" cy="{up(dot):.1f}" r="{radius:.1f}"/>')
    return _drawing(title, x, y, "".join(marks), {}, {v: up(v) for v in ticks})


def drawn_map(
    title: str, x: str, y: str, shares: np.ndarray, first: int = 0, step: int = 1
) -> str:
    """An image with a row for each y, from 0, as blue as its shares of 1 are high.

    Args:
      title: what it shows.
      x: what its columns are, the `first` one for `step` numbers from there on.
      y: what its rows are.
      shares: [rows, columns], in [0, 1].
      first: a number of x.
      step: how many of them share a column.
    """
    from matplotlib.image import imsave

    rgba = np.empty((*shares.shape, 4), np.uint8)
    rgba[..., :3] = BLUE
    rgba[..., 3] = np.ceil(255 * shares)
    file = io.BytesIO()
    imsave(file, rgba, format="png", metadata={"Software": None})
    data = base64.b64encode(file.getvalue()).decode()
    image = (
        f'<image href="data:image/png;base64,{data}" x="{LEFT}" y="{TOP}" '
        f'width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" preserveAspectRatio="none"/>'
    )
    rows, columns = shares.shape
    last = first + columns * step - 1
    across = _along(first - 0.5, last + 0.5, LEFT, RIGHT)
    down = _along(-0.5, rows - 0.5, TOP, BOTTOM)
    places = {v: across(v) for v in _ticks(first, last) if first <= v <= last}
    heights = {v: down(v) for v in _ticks(0, rows - 1) if 0 <= v < rows}
    whole = lambda at: {v: place for v, place in at.items() if v == int(v)}
    return _drawing(title, x, y, image, whole(places), whole(heights))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, of which the first is at most `low` and the last at least `high`."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high).tolist()


def _along(low: float, high: float, start: float, end: float):
    """The place of a value on an axis."""
    span = (high - low) or 1.0
    return lambda value: start + (np.asarray(value) - low) * (end - start) / span


def _number(value: float) -> str:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep="")(value) if abs(value) >= 1000 else f"{value:g}"


def _drawing(
    title: str,
    x: str,
    y: str,
    inside: str,
    places: Mapping[float, Any],
    heights: Mapping[float, Any],
) -> str:
    """A drawing between its axes, with the ticks that lie within them."""
    marks = [
        f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(v)}</text>'
        for v, at in heights.items()
    ] + [
        f'<text x="{at:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{_number(v)}</text>'
        for v, at in places.items()
        if LEFT - 1 <= at <= RIGHT + 1
    ]
    middle = f'text-anchor="middle" transform="translate(14,{(TOP + BOTTOM) / 2})'
    names = (
        f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">'
        f'{text(x)}</text><text {middle} rotate(-90)">{text(y)}</text>'
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text(title)}">{"".join(marks)}{inside}{names}</svg>'
        f"<figcaption>{text(title)}</figcaption></figure>"
    )


def document(title: str, *sections: str) -> str:
    """The whole page; its policy lets it load nothing and run nothing."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; img-src data:\">"
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head>"
        f"<body><main><h1>{text(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )
