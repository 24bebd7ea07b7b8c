"""Pieces of a page that needs no other file: text, tables and drawings, as HTML and SVG."""

import base64
import html
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

WIDTH, HEIGHT = 440, 280  # of a drawing, in its own units
LEFT, RIGHT, TOP, BOTTOM = 58, WIDTH - 14, 8, HEIGHT - 46  # of what is drawn in it
COLORS, DASHES = 8, ("none", "6 3", "2 2")  # of curves; more than all of them repeat
BLUE = (42, 111, 187)  # of images, whose opacity is the value


class Bar(NamedTuple):
    """A cell of a table with a bar behind it."""

    text: str
    share: float  # of its width, in [0, 1]


Curve = tuple[int, np.ndarray, np.ndarray]  # which decides its colour, x and y


def text(value: Any) -> str:
    """A value as it stands in a page; "?" for what of a path is no text."""
    return html.escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def section(title: str, *inside: str) -> str:
    """A part of the page with a heading."""
    return f"<section><h2>{text(title)}</h2>{''.join(inside)}</section>"


def notes(lines: Iterable[str]) -> str:
    """A list of sentences; nothing where there is none."""
    items = "".join(f"<li>{text(line)}</li>" for line in lines)
    return items and f"<ul>{items}</ul>"


def details(summary: str, inside: str) -> str:
    """What is shown once its summary is chosen."""
    return f"<details><summary>{text(summary)}</summary>{inside}</details>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table, which scrolls where the page is narrower; a row begins with its name."""

    def cell(of: Any) -> str:
        if isinstance(of, Bar):
            return f'<td style="--share:{100 * of.share:.1f}%">{text(of.text)}</td>'
        return f"<td>{text(of)}</td>"

    columns = "".join(f'<th scope="col">{text(name)}</th>' for name in head)
    lines = "".join(
        f'<tr><th scope="row">{text(name)}</th>{"".join(map(cell, cells))}</tr>'
        for name, *cells in rows
    )
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{text(caption)}">'
        f"<table><caption>{text(caption)}</caption><thead><tr>{columns}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def switch(legend: str, choices: Mapping[str, str]) -> str:
    """Buttons that choose which class of what is also of class "by" is shown."""
    buttons = "".join(
        f'<label><input type="radio" name="by" id="{name}"{" checked" * (i == 0)}> '
        f"{text(label)}</label>"
        for i, (name, label) in enumerate(choices.items())
    )
    hidden = "".join(  # by style alone: the page runs no script
        f"main:has(#{name}:checked) .by:not(.{name}){{display:none}}"
        for name in choices
    )
    inside = f"<legend>{text(legend)}</legend>{buttons}"
    return f"<style>{hidden}</style><fieldset>{inside}</fieldset>"


def keys(lines: Iterable[str]) -> str:
    """What each line of `curves` is."""
    items = "".join(
        '<li><svg viewBox="0 0 32 12" aria-hidden="true">'
        f'<polyline points="0,6 32,6" {_look(i)}/></svg>{text(line)}</li>'
        for i, line in enumerate(lines)
    )
    return f'<ul class="keys">{items}</ul>'


def _look(line: int) -> str:
    dash = DASHES[line // COLORS % len(DASHES)]
    return f'stroke="var(--c{line % COLORS})" stroke-dasharray="{dash}"'


def curves(
    title: str, x: str, y: str, drawn: Sequence[Curve], decades: bool = False
) -> str:
    """Curves in one drawing, with `decades` logarithmic where y spans more than one."""
    from matplotlib.ticker import LogLocator

    known = [np.isfinite(xs) & np.isfinite(ys) for _, xs, ys in drawn]
    drawn = [(i, xs[k], ys[k]) for (i, xs, ys), k in zip(drawn, known, strict=True)]
    xs, ys = (np.concatenate([[], *(curve[at] for curve in drawn)]) for at in (1, 2))
    if not len(xs):
        return f"<p>{text(title)}: nothing to draw.</p>"
    low, high, last, scale = ys.min(), ys.max(), xs.max(), np.asarray
    ticks = _ticks(low, high)
    if decades and 0 < 10 * low < high:
        ticks, scale = LogLocator(subs=(1, 2, 5)).tick_values(low, high), np.log10
        ticks = [tick for tick in ticks if low / 2 < tick < 2 * high]
    across = _axis(0, last, LEFT, RIGHT)
    up = _axis(scale(min(low, ticks[0])), scale(max(high, ticks[-1])), BOTTOM, TOP)
    inside = ""
    for i, xs, ys in drawn:
        pairs = [*zip(across(xs), up(scale(ys)), strict=True)]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in pairs)
        inside += f'<polyline points="{points}" {_look(i)}/>'
        if len(pairs) == 1:  # a line of which nothing is seen
            at = 'cx="{:.1f}" cy="{:.1f}"'.format(*pairs[0])
            inside += f'<circle {at} r="3" fill="var(--c{i % COLORS})"/>'
    places = {v: across(v) for v in _ticks(0, last) if v <= last}
    return _drawing(title, x, y, inside, places, {v: up(scale(v)) for v in ticks})


def image(
    title: str, x: str, y: str, shares: np.ndarray, first: int = 0, step: int = 1
):
    """A drawing of shares of 1, [y, x]: y from 0, and x from `first`, `step` a column."""
    from matplotlib.image import imsave

    rgba = np.empty((*shares.shape, 4), np.uint8)
    rgba[..., :3], rgba[..., 3] = BLUE, np.ceil(255 * shares)
    file = io.BytesIO()
    imsave(file, rgba, format="png", metadata={"Software": ""})
    data = base64.b64encode(file.getvalue()).decode()
    inside = (
        f'<image href="data:image/png;base64,{data}" x="{LEFT}" y="{TOP}" '
        f'width="{RIGHT - LEFT}" height="{BOTTOM - TOP}" preserveAspectRatio="none"/>'
    )
    rows, columns = shares.shape
    last = first + columns * step - 1
    across = _axis(first - 0.5, last + 0.5, LEFT, RIGHT)
    down = _axis(-0.5, rows - 0.5, TOP, BOTTOM)
    places = {v: across(v) for v in _ticks(first, last) if first <= v <= last}
    heights = {v: down(v) for v in _ticks(0, rows - 1) if v < rows}
    return _drawing(title, x, y, inside, places, heights)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers, of which the first is at most `low` and the last at least `high`."""
    from matplotlib.ticker import MaxNLocator

    return list(MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high))


def _axis(low: Any, high: Any, start: float, end: float) -> Callable:
    """The place of a value between those of `low` and `high`."""
    return lambda v: start + (np.asarray(v) - low) * (end - start) / (high - low or 1)


def _drawing(title: str, x: str, y: str, inside: str, places: dict, heights: dict):
    """A drawing between its axes, with where the ticks of each are."""
    from matplotlib.ticker import EngFormatter

    short = EngFormatter(sep="")
    number = lambda v: short(v) if abs(v) >= 1000 else f"{v:g}"
    marks = [
        f'<line x1="{LEFT}" x2="{RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(v)}</text>'
        for v, at in heights.items()
    ] + [
        f'<text x="{at:.1f}" y="{BOTTOM + 16}" text-anchor="middle">{number(v)}</text>'
        for v, at in places.items()
    ]
    middle, centre = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    names = (
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{text(x)}</text>'
        f'<text transform="translate(14,{centre}) rotate(-90)" text-anchor="middle">'
        f"{text(y)}</text>"
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{text(title)}">{"".join(marks)}{inside}{names}</svg>'
        f"<figcaption>{text(title)}</figcaption></figure>"
    )


def document(title: str, *sections: str) -> str:
    """The whole page; its policy lets it load nothing and run nothing."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head>"
        f"<body><main><h1>{text(title)}</h1>{''.join(sections)}</main></body></html>\n"
    )
