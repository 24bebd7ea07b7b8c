"""Tables and figures of the papers, as their files say them.

    papers/fedssg/table1.toml is the item fedssg-table1

    title = "..."                what the table or figure shows
    place = "Table 1"            where in the paper
    of = "table1"                its runs are those of that item
    only = {rows = [...], methods = [...]}               some of these
    figures = ["last_mean"]      of a run's summary, or the last of a column of its metrics:
                                 the columns; else those that it draws
    draw = ["accuracy"]          columns of its metrics, or what else report/reproduce.py's
                                 `picture` knows: the picture
    against = "round"
    chosen = ["..."]             what the paper does not state; a word of the paper's
                                 chosen.toml stands for the sentence there
    [run]                        settings of every run
    [rows.ROW], [methods.METHOD], [cells.ROW.METHOD]     settings of some of them; an item
                                 without methods draws data, and trains nothing
    [scales.cpu]                 rows, methods, seeds and [scales.cpu.run] of that scale
    [published.ROW.METHOD]       the paper's figures

What a method takes from the run of another, of the same row and seed:

    steps_of = "METHOD"          as many local steps in all
    constants_of = "METHOD"      beta, delta and rho of AFL, whose trial run that is
    over = "METHOD"              the rounds that its speed-up is over; else the first's
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from .. import check
from ..errors import SettingError
from .store import COSTS

PAPERS = Path(__file__).parents[1] / "papers"
CHOSEN = "chosen.toml"
Scale = Literal["smoke", "cpu", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)
SHARED = ("run", "rows", "methods", "cells", "scales")  # what `of` brings
DATA = ("partition", "inputs")  # what is drawn without a run
TAKEN = ("steps_of", "constants_of")  # from a run that has to be there first
KEYS = (
    *("title", "place", "of", "figures", "draw", "against", "chosen"),
    *("only", "published", *SHARED),
)


class Item(NamedTuple):
    """A table or a figure of a paper."""

    name: str  # PAPER-FILE
    title: str
    place: str  # in the paper
    origin: str  # the item that its runs lie under
    run: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    methods: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, dict[str, Any]]]
    scales: dict[str, dict[str, Any]]
    figures: list[str]
    draw: list[str]
    against: str
    chosen: list[str]
    published: dict[str, dict[str, dict[str, Any]]]

    def base_of(self, method: str) -> str:
        """The method that a method's speed-up is over: the first, where it names none."""
        return self.methods[method].get("over", next(iter(self.methods)))


def names() -> list[str]:
    """Every item, paper by paper."""
    files = [file for file in PAPERS.glob("*/*.toml") if file.name != CHOSEN]
    files.sort(key=lambda file: (file.parent.name, _order(file.stem)))
    return [f"{file.parent.name}-{file.stem}" for file in files]


def _order(stem: str) -> tuple[str, int]:
    word = stem.rstrip("0123456789")
    return word != "table", word, int(stem[len(word) :] or 0)  # pyright: ignore[reportReturnType]


@cache
def read_item(name: str) -> Item:
    """An item by its name, as in fedssg-table1; SettingError if there is none."""
    if name not in names():
        raise SettingError(
            f"item {name!r} is unknown; {check.nearest(name, names())}", setting="item"
        )
    paper, _, stem = name.partition("-")
    path = PAPERS / paper / f"{stem}.toml"
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    _check_keys(path, raw)
    shared: Mapping[str, Any] = raw
    origin = name
    if "of" in raw:
        other = read_item(f"{paper}-{raw['of']}")
        shared, origin = other._asdict(), other.name
    rows, methods = dict(shared["rows"]), dict(shared.get("methods", {}))
    for method, given in methods.items():
        for key in (*TAKEN, "over"):
            if given.get(key, method) not in methods:
                raise SettingError(
                    f"{path} has {key}={given[key]!r}, which is none of its methods."
                )
    for scale, of_scale in raw.get("scales", {}).items():
        for kind, known in {"rows": rows, "methods": methods}.items():
            for lost in set(of_scale.get(kind, ())) - set(known):
                raise SettingError(
                    f"{path} has {lost!r} among the {kind} of scales.{scale}, which is "
                    f"none of its {kind}."
                )
    _check_columns(path, raw)
    only, drawn = raw.get("only", {}), raw.get("draw", [])
    if not methods and not (drawn and {*drawn} <= {*DATA}):
        raise SettingError(
            f"{path} has no methods, so it can draw {' and '.join(DATA)} alone."
        )
    for table in (shared.get("cells", {}), raw.get("published", {})):
        for row, of in table.items():
            lost = [row] if row not in rows else [m for m in of if m not in methods]
            if lost:
                raise SettingError(
                    f"{path} says something of {lost[0]}, which it has not."
                )
    return Item(
        name=name,
        title=raw["title"],
        place=raw["place"],
        origin=origin,
        run=shared.get("run", {}),
        rows={row: rows[row] for row in only.get("rows", rows)},
        methods={method: methods[method] for method in only.get("methods", methods)},
        cells=shared.get("cells", {}),
        scales=shared.get("scales", {}),
        figures=raw.get("figures", [x for x in drawn if x in ("accuracy", "loss")]),
        draw=drawn,
        against=raw.get("against", "round"),
        chosen=_reasons(path, raw.get("chosen", [])),
        published=raw.get("published", {}),
    )


def _reasons(path: Path, chosen: Sequence[str]) -> list[str]:
    """What an item chose, where a word stands for a sentence of its paper."""
    file = path.with_name(CHOSEN)
    known = tomllib.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    for name in chosen:
        if " " not in name and name not in known:
            raise SettingError(f"{path} has {name!r} chosen, which is not in {file}.")
    return [known.get(name, name) for name in chosen]


def _check_columns(path: Path, raw: Mapping[str, Any]) -> None:
    """Raises SettingError on a figure or a drawing that means nothing."""
    for figure in raw.get("figures", ()):
        if figure.startswith("clients.") and not figure.rpartition(".")[2].isdecimal():
            raise SettingError(
                f"{path} has the figure {figure} without a client; write one, as in "
                "clients.A.3."
            )
    for drawn in raw.get("draw", ()):
        name, at, share = drawn.partition("@")
        known = name == "class_accuracy" and re.fullmatch(r"\d*\.?\d+", share)
        if at and not (known and 0 < float(share) <= 1):
            raise SettingError(
                f"{path} draws {drawn}, but only class_accuracy has a share of the rounds; "
                "write one in (0, 1], as in class_accuracy@0.1."
            )
    for figure in raw.get("figures", ()):
        column, of_target, target = figure.partition("_to.")
        short = column.removeprefix("models.all.").removeprefix("models.sel.")
        # a cost by the round that another model reached a target in is not worked out
        known = ("rounds", *COSTS) if short == column else ("rounds",)
        if of_target and short not in known:
            raise SettingError(
                f"{path} has the figure {figure}, but {column!r} is nothing that a target "
                f"takes; {check.nearest(short, known)}"
            )
        if of_target and not target.replace(".", "", 1).isdecimal():
            raise SettingError(
                f"{path} has the figure {figure}, whose target {target!r} is no accuracy; "
                f"write one, as in {column}_to.0.9."
            )
    if raw.get("against", "round") not in (known := ("round", *COSTS)):
        raise SettingError(
            f"{path} has against={raw['against']!r}, which is no axis; "
            f"{check.nearest(raw['against'], known)}"
        )


def _check_keys(path: Path, raw: Mapping[str, Any]) -> None:
    """Raises SettingError on a key that means nothing in the file of an item."""
    unknown = [key for key in raw if key not in KEYS]
    if unknown:
        raise SettingError(f"{path.name} has {unknown[0]}, which is no part of an item")
    tables = {"only": raw.get("only", {}), **raw.get("scales", {})}
    keys = {"only": ("rows", "methods")}
    for table, given in tables.items():
        wrong = set(given) - {*keys.get(table, ("rows", "methods", "seeds", "run"))}
        if wrong or table not in ("only", *SCALES):
            raise SettingError(
                f"{path} has {table}.{min(wrong, default='')}, which means "
                "nothing; see experiment/items.py for what does."
            )
    if "of" in raw and any(key in raw for key in SHARED):
        raise SettingError(
            f"{path} has settings of runs, which are those of {raw['of']}."
        )
