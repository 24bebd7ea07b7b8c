"""Kills at file operations and at moments that are drawn: benchmarks/crash.py, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
        {"run": 3, "sweep": 1},
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
def test_a_run_whose_disk_fills_up_says_so_and_is_resumed(tmp_path):
    counts = [f"{flag}=0" for kind, flag in FLAGS.items() if kind != "run"]
    record, code = crash(tmp_path, "--every", "20", "--runs", "1", *counts)
    assert record["failed"] == [] and code == 0
    assert set(record["came"]["run"]) == {"same"} and record["came"]["run"]["same"] > 2
