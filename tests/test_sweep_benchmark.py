"""benchmarks/sweeps.py: what it runs and keeps, never its times."""

import importlib
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def sweeps(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    rounds = importlib.import_module("rounds")
    tiny = rounds.WORKLOADS["w2"]._replace(
        model="linear", shape=(4,), clients=3, examples=6, cohort=2, batch=3
    )
    monkeypatch.setitem(rounds.WORKLOADS, "w2", tiny)
    yield importlib.import_module("sweeps")
    sys.modules.pop("sweeps")  # and with it the data that it keeps


@pytest.mark.slow
def test_a_sweep_is_read_beside_a_run_and_the_ratio_is_of_a_pass(
    sweeps, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sweeps.fa, "cores_as_devices", lambda: None)
    monkeypatch.setattr(sweeps.fa, "fastest_lanes", lambda *parts: 1)
    file = tmp_path / "results.jsonl"
    words = "--devices 1 --side-by-side 2 --seeds 3 --rounds 2 --passes 2 --calls 1"
    words = [*words.split(), "--seconds", "0", "--results", str(file)]
    sweeps.main(words)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    whats = [(line["what"], line["pass"]) for line in lines]
    assert whats == [("run", 0), ("sweep", 0), ("run", 1), ("sweep", 1)]
    assert lines[1]["at_once"] == 2 and lines[1]["seeds"] == 3
    ratios = [lines[i + 1]["seconds"] / lines[i]["seconds"] for i in (0, 2)]
    row = next(r for r in capsys.readouterr().out.splitlines() if r.startswith("| 1 |"))
    assert f"({min(ratios):.2f} to {max(ratios):.2f}) |" in row
    sweeps.main(words)  # nothing is missing
    assert len(file.read_text().splitlines()) == 4


@pytest.mark.slow
def test_every_trial_of_its_sweep_is_trained_and_its_run_is_the_first(sweeps):
    sweep = sweeps.one_sweep("w2", 2, 1, 3, 2)
    states, results = sweep.call()
    assert sweep.units == 2 and sweep.about["at_once"] == 2
    rounds_done = np.concatenate([np.asarray(state.round) for state in states])
    assert rounds_done.tolist() == [2] * 4  # of the last trial a copy
    kernels = [jax.tree.leaves(state.params)[-1] for state in states]
    assert len({float(k.sum()) for kernel in kernels for k in kernel}) == 3
    infos, _ = results[0]
    assert infos.num_steps.tolist() == [[[2, 2]] * 2] * 2
