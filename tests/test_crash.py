"""Kills at file operations and at moments that are drawn: benchmarks/crash.py, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "crash.py"


def crash(tmp_path, *words):
    """What the script writes, and its exit code."""
    out = tmp_path / "crash.json"
    code = subprocess.run([sys.executable, SCRIPT, *words, "--out", out]).returncode
    return json.loads(out.read_text()), code


@pytest.mark.slow
def test_what_is_killed_and_resumed_has_the_same_numbers(tmp_path):
    words = "--runs 14 --sweeps 3 --controls 2 --reproductions 1 --seed 7"
    record, code = crash(tmp_path, *words.split())
    assert record["failed"] == [] and code == 0
    assert record["came"] == {
        "run": {"same": 14},
        "sweep": {"same": 3},
        "controls": {"same": 2},
        "reproduction": {"same": 1},
    }
