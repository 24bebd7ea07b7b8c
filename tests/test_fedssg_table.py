"""benchmarks/fedssg_table1.py: committed figures are of the published protocol alone."""

import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def table1():
    sys.path.insert(0, str(FOLDER))
    try:
        import fedssg_table1  # pyright: ignore[reportMissingImports]

        yield fedssg_table1
    finally:
        sys.path.remove(str(FOLDER))


def test_the_protocol_is_that_of_the_paper(table1):
    """drift.md 3, the column MNIST @100."""
    wanted = {"num_clients": 100, "participation": 0.15, "rounds": 300, "epochs": 5}
    wanted |= {"batch_size": 50, "lr": 0.1, "lr_decay": 0.998, "weight_decay": 1e-3}
    assert {name: table1.COMMON[name] for name in wanted} == wanted
    assert table1.COMMON["clip_norm"] == 10
    assert table1.METHODS["FedSSG"]["alpha"] == (0.03, 0.05, 0.04)
    assert [table1.METHODS[name]["alpha"] for name in ("FedDyn", "FedDC")] == [
        0.01,
        0.1,
    ]


def called(table1, monkeypatch, tmp_path, *words):
    """What it wrote to its results, which stand in for the committed ones."""
    results = tmp_path / "committed.jsonl"
    results.write_text("committed\n")
    figures = {
        "models": {},
        "last_mean": 0.9,
        "last_std": 0.0,
        "rounds_to": {"0.97": 3},
    }
    monkeypatch.setattr(table1, "RESULTS", results.resolve())
    monkeypatch.setattr(table1, "cell", lambda *given: figures)
    monkeypatch.setattr(sys, "argv", ["fedssg_table1.py", *words])
    table1.main()
    return results.read_text()


@pytest.mark.parametrize(
    "words", [("--rounds", "3"), ("--lr=0.2",), ("--train-examples", "600")]
)
def test_another_protocol_does_not_replace_committed_figures(
    table1, monkeypatch, tmp_path, capsys, words
):
    with pytest.raises(
        SystemExit, match="would make the committed figures those of an"
    ):
        called(table1, monkeypatch, tmp_path, *words)
    other = tmp_path / "other.jsonl"
    text = called(table1, monkeypatch, tmp_path, *words, "--results", str(other))
    assert text == "committed\n" and len(other.read_text().splitlines()) == 24
    assert "98.08" not in capsys.readouterr().out  # no published figure beside it


def test_a_part_of_the_table_replaces_nothing(table1, monkeypatch, tmp_path, capsys):
    where = ("--data-dir", "here", "--devices", "1")
    part = ("--only", "FedAvg")
    assert called(table1, monkeypatch, tmp_path, *where, *part) == "committed\n"
    assert "98.08" in capsys.readouterr().out
    assert "FedSSG" in called(table1, monkeypatch, tmp_path, *where)
