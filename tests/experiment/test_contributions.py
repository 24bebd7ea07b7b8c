import io
import math

import numpy as np
import pytest
from rich.console import Console

from fedjax_adapt.cli import main
from fedjax_adapt.experiment import files, store
from fedjax_adapt.report.clients import (
    contributions,
    contributions_table,
    draw_contributions,
)


@pytest.fixture
def measured(tmp_path):
    """The folder of a run of which client 7 took part once and client 1 twice."""
    folder = tmp_path / "run"
    folder.mkdir()
    files.write_text(folder / store.CONFIG, "num_clients = 10\n")
    rows = {
        "round": np.array([1, 1, 2, 2, 3]),
        "client": np.array([1, 4, 1, 7, 4]),
        "gsnr": np.array([0.2, 0.9, 0.4, 0.5, 0.1]),
    }
    store.append(folder, "clients", rows, 3)
    return folder


def test_clients_are_ranked_over_the_rounds_they_took_part_in(measured):
    ranked = contributions(measured)
    assert [(one.client, one.rounds) for one in ranked] == [(4, 2), (7, 1), (1, 2)]
    np.testing.assert_allclose([one.mean for one in ranked], [0.5, 0.5, 0.3])
    np.testing.assert_allclose([one.median for one in ranked], [0.5, 0.5, 0.3])
    assert draw_contributions(measured).read_bytes().startswith(b"\x89PNG")


def test_the_table_has_more_columns_and_who_is_in_them_alone(measured):
    columns = {"a": {4: 0.25, 9: -3.0}, "b": {7: math.nan}}
    console = Console(file=io.StringIO(), width=200)
    console.print(contributions_table(measured, columns))
    text = console.file.getvalue()
    assert "7 of 10 clients measured in no round" in text
    lines = text.splitlines()
    rows = [line.replace("│", " ").split() for line in lines if "│" in line]
    assert rows == [
        ["1", "4", "2", "0.5", "0.5", "0.25", "-"],
        ["2", "7", "1", "0.5", "0.5", "-", "-"],
        ["3", "1", "2", "0.3", "0.3", "-", "-"],
        ["-", "9", "0", "-", "-", "-3", "-"],
    ]


def test_the_command_prints_and_draws(measured, capsys):
    assert main(["contributions", str(measured)]) == 0
    text = capsys.readouterr().out
    assert "contributions by GSNR" in text and "median r_k" in text
    assert (measured / "contributions.png").exists()
    assert main(["contributions", "--help"]) == 0


def test_mistakes_are_one_sentence(tmp_path, capsys):
    def sentence(*arguments):
        assert main(["contributions", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert "give one, as in fedjax-adapt contributions runs/mine" in sentence()
    assert "holds no run" in sentence(str(tmp_path))
    files.write_listed(tmp_path / store.CONFIG, "")
    assert "has no column gsnr" in sentence(str(tmp_path))
