"""The files of the papers' tables and figures: each can be run, at every scale."""

import pytest

from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment.reproduce import SCALES, cells_of, names, read_item


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
