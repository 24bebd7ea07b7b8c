"""The cells of benchmarks' tables, whose runs are only asked for here."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import benchmark


@pytest.fixture
def cells(monkeypatch):
    """The module, and the command lines it ran; a run ends unless its lr is 13."""
    module, ran = benchmark("cells"), []

    def run(program, **unused):
        words = program[3:]  # after python -m fedjax_adapt
        ran.append(words)
        folder = Path(words[words.index("--folder") + 1])
        folder.mkdir(exist_ok=True)
        if words[words.index("--lr") + 1] == "13":
            raise KeyboardInterrupt
        if words[words.index("--lr") + 1] == "-1":
            return SimpleNamespace(returncode=2)
        figures = dict.fromkeys(module.KEPT, 0.5) | {"best_accuracy": 1.0}
        (folder / "summary.json").write_text(json.dumps(figures))
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(module.subprocess, "run", run)
    return module, ran


def test_a_cell_is_run_once_and_leaves_out_where_things_lie(cells, tmp_path):
    module, ran = cells
    settings = {"lr": 0.1, "num_steps": 20, "targets": (0.3, 0.4)}
    more = ["--data-dir", "there", "--devices", "1"]
    line = module.cell(tmp_path / "one", settings, more)
    assert line["command"] == (
        "run --lr 0.1 --num-steps 20 --targets 0.3 0.4 --devices 1"
    )
    assert line["accuracy"] == 0.5 and "best_accuracy" not in line
    assert "--data-dir" in ran[0] and "--resume" not in ran[0]
    assert module.cell(tmp_path / "one", settings, more) == line
    assert len(ran) == 1


def test_a_cell_that_has_its_line_needs_no_folder(cells, tmp_path):
    module, ran = cells
    line = module.cell(tmp_path / "one", {"lr": 0.1}, [])
    kept = [{"skew": "label"} | line]
    assert module.cell(tmp_path / "two", {"lr": 0.1}, [], kept) == line
    assert len(ran) == 1 and not (tmp_path / "two").exists()
    module.cell(tmp_path / "two", {"lr": 0.2}, [], kept)
    assert len(ran) == 2


def test_a_cell_that_was_stopped_is_resumed_and_never_mixed_up(cells, tmp_path):
    module, ran = cells
    with pytest.raises(KeyboardInterrupt):
        module.cell(tmp_path / "one", {"lr": 13}, [])
    with pytest.raises(SystemExit, match="other settings; give another --folder"):
        module.cell(tmp_path / "one", {"lr": 0.1}, [])
    with pytest.raises(KeyboardInterrupt):
        module.cell(tmp_path / "one", {"lr": 13}, [])
    assert [words[-1] for words in ran] == ["13", "--resume"]


def test_a_run_that_fails_has_said_why_and_ends_the_benchmark_alike(cells, tmp_path):
    module, _ = cells
    with pytest.raises(SystemExit) as ended:
        module.cell(tmp_path / "one", {"lr": -1}, [])
    assert ended.value.code == 2
