"""The files of the papers' tables and figures: each can be run, at every scale."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from test_reproduce import HELD, TABLE

from fedjax_adapt.cli import main
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment.build import build
from fedjax_adapt.experiment.config import identity
from fedjax_adapt.experiment.items import (
    CHOSEN,
    PAPERS,
    SCALES,
    TAKEN,
    names,
    read_item,
)
from fedjax_adapt.experiment.reproduce import cells_of, configs_of, make_runs, runs_of
from fedjax_adapt.experiment.store import COSTS
from fedjax_adapt.experiment.sweeps import groups
from fedjax_adapt.report.panels import picture
from fedjax_adapt.report.reproduce import measured

SHARED = {"run", "rows", "methods", "cells", "scales"}  # what `of` brings
KEYS = {
    *("title", "place", "of", "figures", "draw", "against", "chosen"),
    *("only", "published", *SHARED),
}
FILES = [path for path in PAPERS.glob("*/*.toml") if path.name != CHOSEN]


def check_file(path):
    """Fails on what means nothing in the file of an item."""
    raw, chosen = (
        tomllib.loads(file.read_text()) for file in (path, path.with_name(CHOSEN))
    )
    shared = raw
    if "of" in raw:
        assert not SHARED & raw.keys()
        shared = tomllib.loads(path.with_stem(raw["of"]).read_text())
    rows, methods = shared["rows"], shared.get("methods", {})
    assert raw.keys() <= KEYS
    assert raw.get("only", {}).keys() <= {"rows", "methods"}
    assert raw.get("scales", {}).keys() <= {*SCALES}
    for scale in raw.get("scales", {}).values():
        assert scale.keys() <= {"rows", "methods", "seeds", "run"}
        assert {*scale.get("rows", ())} <= rows.keys()
        assert {*scale.get("methods", ())} <= methods.keys()
    for given in methods.values():
        assert {given[x] for x in (*TAKEN, "over") if x in given} <= methods.keys()
    for table in (shared.get("cells", {}), raw.get("published", {})):
        assert table.keys() <= rows.keys()
        assert all(row.keys() <= methods.keys() for row in table.values())
    for figure in raw.get("figures", ()):
        assert not figure.startswith("clients.") or figure.split(".")[-1].isdecimal()
        column, of_target, target = figure.partition("_to.")
        short = column.removeprefix("models.all.").removeprefix("models.sel.")
        # a cost by the round that another model reached a target in is not worked out
        known = ("rounds", *COSTS) if short == column else ("rounds",)
        assert not of_target or short in known
        assert not of_target or re.fullmatch(r"\d*\.?\d+", target)
    draw = raw.get("draw", [])
    for name, at, share in (drawn.partition("@") for drawn in draw):
        assert not at or (name == "class_accuracy" and 0 < float(share or 0) <= 1)
    assert methods or (draw and {*draw} <= {"partition", "inputs"})
    assert raw.get("against", "round") in ("round", *COSTS)
    assert all(" " in said or said in chosen for said in raw.get("chosen", ()))


@pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_all_that_an_items_file_says_means_something(path):
    check_file(path)


@pytest.mark.parametrize(
    "text, old, new",
    [
        (TABLE, 'place = "Table 1"', 'place = "Table 1"\nplaces = 1'),
        (TABLE, 'place = "Table 1"', 'place = "Table 1"\nof = "table1"'),
        (TABLE, "[scales.cpu]", "[scales.gpu]"),
        (TABLE, "seeds = 2", "seed = 2"),
        (TABLE, 'methods = ["fedveca"]', 'methods = ["veca"]'),
        (TABLE, 'rows = ["skewed"]', 'rows = ["skew"]'),
        (TABLE, "[cells.skewed.fedveca]", "[cells.skewed.fedvecca]"),
        (TABLE, "[published.iid]", "[published.idi]"),
        (TABLE, "batches of 20", "batches-of-20"),
        (TABLE, 'steps_of = "fedveca"', 'steps_of = "veca"'),
        (TABLE, 'shuffle = "replacement"', 'over = "moon"'),
        (TABLE, '"rounds_to.1.0"]', '"simulated_second_to.1.0"]'),
        (TABLE, '"rounds_to.1.0"]', '"round_to.1.0"]'),
        (TABLE, '"rounds_to.1.0"]', '"models.all.round_to.1.0"]'),
        (TABLE, '"rounds_to.1.0"]', '"models.sel.simulated_seconds_to.1.0"]'),
        (TABLE, '"rounds_to.1.0"]', '"rounds_to.O.9"]'),
        (TABLE, '"rounds_to.1.0"]', '"clients.A"]'),
        (TABLE, "figures = [", 'against = "bytes"\nfigures = ['),
        (TABLE, "figures = [", 'draw = ["class_accuracy@2"]\nfigures = ['),
        (TABLE, "figures = [", 'draw = ["class_accuracy@0.0"]\nfigures = ['),
        (TABLE, "figures = [", 'draw = ["class_accuracy@"]\nfigures = ['),
        (TABLE, "figures = [", 'draw = ["loss@0.5"]\nfigures = ['),
        (HELD, 'draw = ["partition", "inputs"]', 'draw = ["partition", "accuracy"]'),
        (HELD, 'draw = ["partition", "inputs"]', "draw = []"),
        (HELD, 'draw = ["partition", "inputs"]', "figures = []"),
    ],
)
def test_a_mistake_in_an_items_file_is_seen(tmp_path, text, old, new):
    path = tmp_path / "table1.toml"
    (tmp_path / CHOSEN).touch()
    path.write_text(text)
    check_file(path)
    path.write_text(text.replace(old, new))
    with pytest.raises(AssertionError):
        check_file(path)


@pytest.mark.parametrize("name", names())
def test_every_run_of_an_item_has_settings(name, tmp_path):
    item = read_item(name)
    assert item.title and item.place
    assert item.figures or item.draw
    for scale in SCALES:
        try:
            cells = cells_of(item, tmp_path, scale)
        except SettingError as error:  # the dear rows of a table, drawn by themselves
            assert scale == "cpu" and "write --scale full" in str(error)
            assert item.origin != item.name
            continue
        assert cells or not item.methods
        if not item.methods:
            rows = list(configs_of(item, scale))
            assert rows == list(item.rows)[: 1 if scale == "smoke" else None]
        for cell in cells:
            assert cell.takes is None or cell.takes[1] in item.methods


@pytest.mark.parametrize("paper", sorted(p.name for p in PAPERS.iterdir()))
def test_what_several_items_chose_is_written_once(paper):
    """And each word for it is of several items, which are given the sentence."""
    folder = PAPERS / paper
    known = tomllib.loads((folder / CHOSEN).read_text())
    written = Counter(
        said
        for file in folder.glob("*.toml")
        for said in tomllib.loads(file.read_text()).get("chosen", [])
    )
    assert {said for said, count in written.items() if count > 1} == set(known)
    assert len(set(known.values())) == len(known)
    for name in names():
        assert all(" " in said for said in read_item(name).chosen)


@pytest.mark.parametrize("name", [n for n in names() if read_item(n).methods])
def test_the_papers_own_method_is_tried_out(name, tmp_path):
    paper = name.partition("-")[0]
    own = {"gift": ("gift", "adacomm", "fedavg")}.get(paper, (paper,))
    cells = cells_of(read_item(name), tmp_path, "smoke")
    assert any(cell.config.algorithm in own for cell in cells)
    # a program takes 6 to 10 s to be compiled, and a smoke run less than a minute
    assert len(cells) <= 6


@pytest.mark.parametrize("name", names())
def test_published_figures_are_of_an_items_cells_and_columns(name):
    item = read_item(name)
    for row, methods in item.published.items():
        assert row in item.rows
        for method, figures in methods.items():
            assert method in item.methods
            assert set(figures) <= set(item.figures), (row, method)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A folder of runs that items share."""
    return tmp_path_factory.mktemp("reproduce")


# what decides which code a tiny run goes through, besides the options of its method
TRAINED_BY = (
    *("model", "labels", "public", "sampler", "corrupt", "evaluate_also", "shuffle"),
)
TRAINING = ("algorithm", "feature_noise", "step_seconds", *TRAINED_BY)
SPLITTING = ("dataset", "partition", "num_clients", "labels", "public", "corrupt")


def named(settings, kind):
    """The options of a kind that are no numbers."""
    options = {n: v for n, v in settings.items() if n.startswith(f"{kind}.")}
    return {n: v for n, v in options.items() if isinstance(v, str | bool | None)}


def trained_alike(config):
    """A text that runs which train by the same code share."""
    settings = identity(config)
    deciding = {name: settings[name] for name in TRAINING}
    return json.dumps(deciding | named(settings, "algorithm"), sort_keys=True)


def split_alike(config):
    """A text that runs whose examples are split by the same code share."""
    settings = identity(config)
    deciding = {name: settings[name] for name in SPLITTING}
    return json.dumps(deciding | named(settings, "partition"), sort_keys=True)


def first_of(alike):
    """The cells of each item that are like those of no item before."""
    seen, found = set(), {}
    for name, cells in CELLS.items():
        for cell in cells:
            kind = alike(cell.configs[0])
            if kind not in seen:
                seen.add(kind)
                found.setdefault(name, []).append(cell)
    return found


def features(name, cell):
    """What a cell's run tries, of which an item's run needs no combination."""
    settings = identity(cell.configs[0])
    options = named(settings, "algorithm")
    found = {("item", name), *((kind, settings[kind]) for kind in TRAINED_BY)}
    found.add((settings["algorithm"], json.dumps(options, sort_keys=True)))
    found.add(("feature_noise", settings["feature_noise"] > 0))
    found.add(("step_seconds", settings["step_seconds"] is not None))
    return found | {
        ("takes", cell.takes and cell.takes[0], cell.config.num_clients == 1)
    }


def covering(found):
    """The methods of each item by which cells have all features of all that were found."""
    cells = [(name, cell) for name, cells in found.items() for cell in cells]
    left, methods = set().union(*(features(*one) for one in cells)), {}
    while left:
        name, cell = max(cells, key=lambda one: len(features(*one) & left))
        methods.setdefault(name, []).append(cell.method)
        left -= features(name, cell)
    return methods


ITEMS = {name: read_item(name) for name in names()}
CELLS = {  # of those that do not draw another's runs
    name: cells_of(item, Path("nowhere"), "smoke")
    for name, item in ITEMS.items()
    if item.origin == name
}
RUN = covering(first_of(trained_alike))
SPLIT = first_of(split_alike)


@pytest.mark.parametrize("name", SPLIT)
def test_the_examples_of_an_item_are_split_on_tiny_data(name):
    for cell in SPLIT[name]:
        config = cell.configs[0]
        found = build(config)
        clients = config.num_clients or found.data.num_clients
        assert found.data.num_clients == clients == len(found.skew.sizes)
        assert found.data.size.tolist() == found.skew.sizes.tolist()
        held, there = found.skew.label_counts.sum(0), np.bincount(found.labels)
        if config.partition == "copies":
            there = clients * there
        if config.partition in ("nonbalance", "pareto"):  # which hand out a part
            assert (held <= there).all() and held.sum() > 0
        else:
            assert held.tolist() == there.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", RUN)
def test_an_item_runs_on_tiny_data(name, shared, monkeypatch):
    """Without trying first which settings a sweep's program can trace: each has one run."""
    monkeypatch.setattr(groups, "can_trace", lambda *_: True)
    monkeypatch.setattr(groups, "check_values", lambda *_: None)
    item = read_item(name)
    cells = cells_of(item, shared, "smoke", methods=RUN[name])
    make_runs(cells, devices=1)
    runs = {(cell.row, cell.method): runs_of(cell) for cell in cells}
    assert all(len(of) == 1 and None not in of.values() for of in runs.values())
    found = measured(item.figures, item.published, runs)
    assert bool(found) == bool(item.figures)
    for other in (item for item in ITEMS.values() if item.origin == name):
        path = shared / f"{other.name}.png"
        about = other.draw, other.against, None, other.base_of
        drawn = picture(path, other.title, runs, found, *about)
        assert drawn == path or other.draw  # of what the other methods show


@pytest.mark.parametrize("name", [n for n, item in ITEMS.items() if not item.methods])
def test_an_item_of_data_is_drawn_from_tiny_data(name, tmp_path, capsys):
    told = ["reproduce", name, "--scale", "smoke", "--folder", str(tmp_path)]
    assert main(told) == 0
    assert "compare with nothing" in capsys.readouterr().out
    place = tmp_path / name / "smoke"
    assert (place / "picture.png").read_bytes()[:4] == b"\x89PNG"
    assert json.loads((place / "record.json").read_text())["datasets"] == ["digits"]


def test_a_dry_run_says_that_data_are_missing(capsys, tmp_path):
    words = ["fedssg-table4", "--folder", str(tmp_path), "--data-dir", "nowhere"]
    assert main(["reproduce", *words, "--dry-run"]) == 2
    assert "data_dir=nowhere does not exist" in capsys.readouterr().err
