"""Notebooks are written as scripts; the .ipynb beside each must say the same."""

from pathlib import Path

import jupytext
import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "notebooks").glob("[0-9]*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_the_notebook_is_its_script(script):
    cells = lambda path: [
        (cell.cell_type, cell.source) for cell in jupytext.read(path).cells
    ]
    assert len(cells(script)) > 5
    assert cells(script) == cells(script.with_suffix(".ipynb"))
