import io
import json

import pytest
from rich.console import Console

from fedjax_adapt.cli import main
from fedjax_adapt.experiment import store
from fedjax_adapt.report.compare import comparison_tables, groups


@pytest.fixture
def finished(tmp_path):
    """A folder that looks like a finished run."""

    def make(name, accuracy, trained=False, test=360, base=None, given=(), dataset="d"):
        folder = tmp_path / name
        folder.mkdir()
        base_line = f'base = "{base}"\n' if base else ""
        store.write_text(folder / store.CONFIG, f'algorithm = "{name}"\n{base_line}')
        found = {"accuracy": accuracy, "best_accuracy": accuracy, "rho": 1.25}
        summary = {
            **({store.TRAINED: found} if trained else found),
            **{"folder": f"runs/{name}", "rounds": 3, "seeds": {"seed": 7}},
            **{"bytes_down": 2**20, "bytes_up": 2**20, "auxiliary": list(given)},
            "data": {"name": dataset, "test": test},
        }
        store.write_text(folder / store.SUMMARY, json.dumps(summary))
        return folder

    return make


def printed(folders):
    console = Console(file=io.StringIO(), width=200)
    for table in comparison_tables(folders):
        console.print(table)
    return console.file.getvalue()


def test_training_accuracy_stands_below_all_others_without_a_rank(finished):
    folders = [
        finished("leaks", 0.997, trained=True),
        finished("second", 0.60),
        finished("first", 0.61, base="moon", given=["labelled public examples (9)"]),
    ]
    text = printed(folders)
    lines = text.splitlines()
    place = lambda word: next(i for i, line in enumerate(lines) if word in line)
    assert place("first on moon") < place("second") < place("99.70 %")
    below = lines[place("second") + 1 :]
    assert "training accuracy on the public set" in "".join(below)
    assert "no test accuracy, compares with no table above" in text
    honest = "\n".join(lines[: place("second") + 2])
    assert "leaks" not in honest and "99.70" not in honest
    assert not any("rank" in line or "test accuracy " in line for line in below[3:])
    assert "1: runs/first, seed 7; also given: labelled public examples (9)" in text
    assert "a: runs/leaks, seed 7; also given: nothing" in text and "1.25" in honest


def test_only_what_was_tested_on_the_same_examples_is_ranked_together(finished):
    folders = [
        finished("a", 0.5),
        finished("b", 0.9, test=180),
        finished("c", 0.7, dataset="other"),
        finished("d", 0.6),
    ]
    found = groups(folders)
    names = [[config["algorithm"] for config, _ in group.runs] for group in found]
    assert sorted(names) == [["b"], ["c"], ["d", "a"]]
    assert all(group.ranked for group in found)


def test_the_command_prints_and_draws_it(finished, capsys, tmp_path):
    one = str(finished("only", 0.5))
    assert main(["compare", one]) == 0
    assert "50.00 %" in capsys.readouterr().out
    for wrong, sentence in [
        ([], "compare got no folder before its flags"),
        ([one, "--rank"], "--rank"),
        ([one, "--against", "round"], "write --plot FILE as well"),
        ([one, "--plot", "p.png", "--against", "steps"], "against"),
    ]:
        assert main(["compare", *wrong]) == 2
        assert sentence in capsys.readouterr().err
    assert main(["compare", "--help"]) == 0
    capsys.readouterr()
    assert main(["compare", "nowhere"]) == 2
    assert "nowhere holds no run" in capsys.readouterr().err


def test_a_run_that_is_not_finished_is_not_compared(finished):
    folder = finished("half", 0.5)
    (folder / store.SUMMARY).unlink()
    with pytest.raises(ValueError, match="half holds a run that is not finished"):
        groups([folder])
