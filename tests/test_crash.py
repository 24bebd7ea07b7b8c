"""Kills at file operations and at moments that are drawn: benchmarks/crash.py, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import benchmark

FLAGS = {
    "run": "--runs",
    "sweep": "--sweeps",
    "controls": "--controls",
    "reproduction": "--reproductions",
    "search": "--searches",
}
SCRIPT = Path(__file__).parents[1] / "benchmarks" / "crash.py"


def crash(tmp_path, *words):
    """What the script writes, and its exit code."""
    out = tmp_path / "crash.json"
    code = subprocess.run([sys.executable, SCRIPT, *words, "--out", out]).returncode
    return json.loads(out.read_text()), code


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills",
    [
        {"run": 1, "sweep": 1},
        pytest.param(
            {"run": 13, "sweep": 3, "controls": 2, "reproduction": 1, "search": 1},
            marks=pytest.mark.campaign,
        ),
    ],
    ids=["few", "many"],
)
def test_what_is_killed_and_resumed_has_the_same_numbers(tmp_path, kills):
    words = [f"{flag}={kills.get(kind, 0)}" for kind, flag in FLAGS.items()]
    record, code = crash(tmp_path, *words, "--seed", "7")
    assert record["failed"] == [] and code == 0
    came = {kind: verdicts for kind, verdicts in record["came"].items() if verdicts}
    assert came == {kind: {"same": count} for kind, count in kills.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "every", [30, pytest.param(20, marks=pytest.mark.campaign)], ids=["few", "many"]
)
def test_a_run_whose_disk_fills_up_says_so_and_is_resumed(tmp_path, every):
    counts = [f"{flag}=0" for kind, flag in FLAGS.items() if kind != "run"]
    record, code = crash(tmp_path, f"--every={every}", "--runs=1", *counts)
    assert record["failed"] == [] and code == 0
    assert set(record["came"]["run"]) == {"same"} and record["came"]["run"]["same"] > 2


TOLD = "fedjax-adapt: no space is left for a; make room"
TRACE = "Traceback (most recent call last)"
NUMBERS = {"run": "1"}


@pytest.fixture
def script(monkeypatch):
    """The script as a module, whose commands end as a test says."""
    for name in ("OPENBLAS_NUM_THREADS", "JE_ARROW_MALLOC_CONF"):  # which it sets
        monkeypatch.setenv(name, "")
    module = benchmark("crash")

    def ends(*all_of_them):
        endings = iter(module.Ended(*one) for one in all_of_them)
        monkeypatch.setattr(module, "forked", lambda *_: next(endings))
        return module, module.Case("run", ("run",))

    return ends


@pytest.mark.parametrize(
    ("last", "numbers", "verdict"),
    [
        ((0, "", None), NUMBERS, "same"),
        ((2, "holds this run, finished", None), NUMBERS, "same"),
        ((0, "", None), {"run": "2"}, "other numbers"),
        ((0, "", None), {}, "other numbers"),
        ((1, "", None), NUMBERS, "no resume"),
        ((2, "holds another run", None), NUMBERS, "no resume"),
        ((-9, "finished", None), NUMBERS, "no resume"),
    ],
)
def test_what_a_resume_came_to_is_told(script, tmp_path, last, numbers, verdict):
    module, case = script(last, (0, "", numbers))
    assert module.resumed(case, tmp_path / "run", NUMBERS, "killed")[0] == verdict


@pytest.mark.parametrize(
    ("filled", "verdict"),
    [
        ((1, TOLD, 3), "same"),
        ((2, TOLD, 1), "same"),
        ((0, "", 0), "never full"),
        ((0, TOLD, 3), "no sentence"),  # it went on as if it had been written
        ((1, "it failed", 3), "no sentence"),
        ((1, f"{TRACE}\n{TOLD}", 3), "no sentence"),
        ((70, TOLD, None), "no sentence"),
    ],
)
def test_what_a_full_disk_came_to_is_told(script, tmp_path, filled, verdict):
    module, case = script(filled, (0, "", None), (0, "", NUMBERS))
    assert module.fill_disk(case, tmp_path / "run", NUMBERS, 5)[0] == verdict


def test_a_file_that_was_set_aside_is_told(script, tmp_path):
    module, case = script((1, TOLD, 3), (0, "", None), (0, "", NUMBERS))
    (tmp_path / "run-control-public").mkdir()  # next to the run
    (tmp_path / "run-control-public" / "part.unreadable").touch()
    assert module.fill_disk(case, tmp_path / "run", NUMBERS, 5)[0] == "set aside"


class Full:
    """Draws a disk that is full at the first operation, and no second kill."""

    def __init__(self):
        self.drawn = iter((0.0, 0.0, 1.0))

    def random(self):
        return next(self.drawn)

    def randrange(self, most):
        return 0


@pytest.mark.parametrize(
    ("killed", "verdict"),
    [
        ((1, TOLD, None), "same"),
        ((0, "", None), "same"),  # what could not be written was not needed
        ((1, f"{TRACE}\n{TOLD}", None), "no sentence"),
        ((-11, "", None), "no sentence"),
    ],
)
def test_a_command_that_finds_no_room_may_not_crash(script, tmp_path, killed, verdict):
    module, case = script(killed, (0, "", None), (0, "", NUMBERS))
    expected = module.Whole(NUMBERS, ["open"] * 3, 1.0)
    assert module.attempt(case, tmp_path / "run", expected, Full())[0] == verdict


def test_the_numbers_of_controls_count(script, tmp_path, monkeypatch):
    """They lie next to the run."""
    module, _ = script()
    roots = []
    ended = lambda call, *_: module.Ended(call()[0], "", [])
    monkeypatch.setattr(module, "forked", ended)
    monkeypatch.setattr(module, "main", lambda words: 0)
    monkeypatch.setattr(module, "watched", lambda *_: ([], []))
    monkeypatch.setattr(module, "digest", roots.append)
    case = module.Case("controls", ("run", "--controls"))
    module.whole(case, tmp_path / "whole" / "folder")
    module.resumed(case, tmp_path / "killed" / "folder", {}, "")
    assert roots == [tmp_path / "whole", tmp_path / "killed"]
