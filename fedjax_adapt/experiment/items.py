"""Tables and figures of the papers, as their files say them.

    papers/fedssg/table1.toml is the item fedssg-table1

    title = "..."                what the table or figure shows
    place = "Table 1"            where in the paper
    of = "table1"                its runs are those of that item
    only = {rows = [...], methods = [...]}               some of these
    figures = ["last_mean"]      of a run's summary, or the last of a column of its metrics:
                                 the columns; else those that it draws
    draw = ["accuracy"]          columns of its metrics, or what else report/panels.py's
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

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from .. import check
from ..errors import SettingError

PAPERS = Path(__file__).parents[1] / "papers"
CHOSEN = "chosen.toml"
Scale = Literal["smoke", "cpu", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)
TAKEN = ("steps_of", "constants_of")  # from a run that has to be there first


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
    """An item by its name, as in fedssg-table1; SettingError if there is none.

    The files ship with the package: tests/test_papers.py checks all that they say.
    """
    if name not in names():
        raise SettingError(
            f"item {name!r} is unknown; {check.nearest(name, names())}", setting="item"
        )
    paper, _, stem = name.partition("-")
    raw, sentences = (
        tomllib.loads((PAPERS / paper / file).read_text(encoding="utf-8"))
        for file in (f"{stem}.toml", CHOSEN)
    )
    shared: Mapping[str, Any] = raw
    origin = name
    if "of" in raw:
        other = read_item(f"{paper}-{raw['of']}")
        shared, origin = other._asdict(), other.name
    rows, methods = shared["rows"], shared.get("methods", {})
    only, drawn = raw.get("only", {}), raw.get("draw", [])
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
        chosen=[sentences.get(said, said) for said in raw.get("chosen", [])],
        published=raw.get("published", {}),
    )
