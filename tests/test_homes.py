"""A path that cannot be used as it is written is one sentence, wherever it is written."""

import os

import pytest

from fedjax_adapt import cli, load_run
from fedjax_adapt.errors import SettingError
from fedjax_adapt.experiment import Config, run, sweep

SAYS = "the folder that ~nosuch stands for is not known; write the path without ~."


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


BYTES = "this path, or a folder above it, has a name that is not UTF-8"
CONTROL = "has a control character; rename it, or give another path."


@pytest.mark.parametrize(
    "line",
    [
        "run --folder {}",
        "run --folder {} --resume",
        "sweep --folder {} --resume",
        "compare {}",
        "report {} --out page.html",
        "contributions {}",
        "replay {}",
        "run --match {}",
        "run --config {}",
        "run --dataset {}/x.npz",
        "partition --output {}/x.png",
    ],
)
@pytest.mark.parametrize(
    "name, says",
    [
        (os.fsdecode(b"a\xff"), BYTES),
        ("a\nb", CONTROL),
        ("a\x1b[31mb", CONTROL),
        ("a\x9b", CONTROL),
    ],
    ids=["bytes", "newline", "escape", "another escape"],
)
def test_a_name_that_is_no_text_is_one_sentence(line, name, says, capfd, elsewhere):
    code = cli.main([word.format(name) for word in line.split()])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "") and err.count("\n") == 1 and says in err, err
    assert "\x1b" not in err and not list(elsewhere.iterdir())


def test_a_folder_above_that_is_no_text_is_one_sentence(capfd, elsewhere, monkeypatch):
    above = elsewhere / os.fsdecode(b"a\xff")
    above.mkdir()
    monkeypatch.chdir(above)
    for line in ("run --rounds 1", "compare x"):
        assert cli.main(line.split()) == 2
        assert BYTES in capfd.readouterr().err
    assert not list(above.iterdir())
