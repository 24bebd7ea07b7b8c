"""The files of the papers' tables and figures: each can be run, at every scale."""

import pytest

from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment.reproduce import (
    SCALES,
    cells_of,
    make_runs,
    names,
    read_item,
    runs_of,
)
from fedjax_adapt.report.reproduce import measured, picture


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
        assert cells
        for cell in cells:
            assert cell.steps is None or cell.steps in item.methods


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


OWN = [name for name in names() if read_item(name).origin == name]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_an_item_runs_on_tiny_data(name, shared):
    """All methods of tables; two of figures, whose others differ in numbers."""
    item = read_item(name)
    methods = () if "table" in name else list(item.methods)[:2]
    cells = cells_of(item, shared, "smoke", methods=methods)
    make_runs(cells)
    runs = {(cell.row, cell.method): runs_of(cell) for cell in cells}
    assert all(
        len(folders) == 1 and None not in folders.values() for folders in runs.values()
    )
    found = measured(item.figures, item.published, runs)
    assert bool(found) == bool(item.figures)
    path = shared / f"{name}.png"
    assert picture(path, item.title, runs, found, item.draw, item.against) == path
