"""A path below the home folder of nobody is one sentence, wherever it is written."""

import pytest

from fedjax_adapt import cli, load_run
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import Config, run, sweep

SAYS = "the home folder that ~nosuch stands for is not known; write the path without ~."


@pytest.mark.parametrize(
    "line, begins",
    [
        ("run --config ~nosuch/x", "--config ~nosuch/x"),
        ("run --folder ~nosuch/x", "folder=~nosuch/x"),
        ("run --folder ~nosuch/x --resume", "--folder ~nosuch/x"),
        ("run --algorithm ~nosuch/x.py:mine", "algorithm=~nosuch/x.py"),
        ("run --dataset mnist --data-dir ~nosuch/x", "data_dir=~nosuch/x"),
        ("run --dataset ~nosuch/x.npz", "dataset=~nosuch/x.npz"),
        ("run --match ~nosuch/x", "match=~nosuch/x"),
        ("partition --output ~nosuch/x.png", "--output ~nosuch/x.png"),
        ("compare ~nosuch/x", "~nosuch/x"),
        ("compare a --plot ~nosuch/x.png", "--plot ~nosuch/x.png"),
        ("report a --out ~nosuch/x.html", "--out ~nosuch/x.html"),
        ("sweep ~nosuch/x.toml", "~nosuch/x.toml"),
        ("sweep --folder ~nosuch/x --resume", "--folder ~nosuch/x"),
        ("reproduce list --folder ~nosuch/x", "--folder ~nosuch/x"),
    ],
)
def test_a_home_of_nobody_is_one_sentence(line, begins, capsys, elsewhere):
    code = cli.main(line.split())
    out, err = capsys.readouterr()
    assert (code, err) == (2, f"fedjax-adapt: {begins}: {SAYS}\n")
    assert not list(elsewhere.iterdir())


def test_so_it_is_in_the_environment_and_in_python(monkeypatch, capsys, elsewhere):
    monkeypatch.setenv("FEDJAX_ADAPT_DATA", "~nosuch/x")
    assert cli.main(["run", "--dataset", "mnist"]) == 2
    assert f"FEDJAX_ADAPT_DATA=~nosuch/x: {SAYS}" in capsys.readouterr().err
    for call, begins in {
        lambda: run(Config(folder="~nosuch/x")): "folder=",
        lambda: sweep({"folder": "~nosuch/x", "grid": {"lr": [0.1, 0.2]}}): "folder=",
        lambda: load_run("~nosuch/x"): "",
    }.items():
        with pytest.raises(SettingError) as error:
            call()
        assert str(error.value) == f"{begins}~nosuch/x: {SAYS}"
    assert not list(elsewhere.iterdir())
