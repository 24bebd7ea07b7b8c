"""Runs whose clients have models of their own."""

import io
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console
from tiny_runs import TINY

from fedjax_adapt import evaluate_clients, init_state, personal_models
from fedjax_adapt.experiment import build, checkpoint, read_run, run, sweep
from fedjax_adapt.experiment.program import run_keys
from fedjax_adapt.experiment.store import read_table
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.report.compare import sheets
from fedjax_adapt.report.tables import percent, summary_table


def spread(accuracy):
    return {"mean": accuracy.mean(), "std": accuracy.std(), "min": accuracy.min()}


@pytest.mark.slow
@pytest.mark.parametrize(
    "memory", ["device", pytest.param("host", marks=pytest.mark.slow)]
)
def test_the_end_of_a_run_tells_own_models_from_the_servers(tiny, memory):
    options = {"personal": "bias"}
    config = tiny(
        algorithm="fedper", algorithm_options=options, rounds=3, client_memory=memory
    )
    result = run(config)
    f, (key, _) = build(config), run_keys(config.seed)
    made = lambda: init_state(f.algorithm, f.task, f.data, f.plan, key)
    state, _ = checkpoint.restore(
        Path(config.folder) / "checkpoints", jax.eval_shape(made)
    )
    models = personal_models(f.algorithm, state)
    end = read_run(config.folder).summary
    for name, params in {"client": state.params, "personal": models}.items():
        own = np.asarray(evaluate_clients(f.task, params, f.data).accuracy)
        saved = read_table(Path(config.folder), "partition")[f"{name}_accuracy"]
        np.testing.assert_allclose(saved.to_numpy(), own, atol=1e-6)
        for figure, value in spread(own).items():
            found = end[f"{name}_accuracy"][figure]
            assert found == pytest.approx(float(value), abs=1e-6), (name, figure)
    assert end["personal_accuracy"]["mean"] > end["client_accuracy"]["mean"]
    sent = 4 * 64 * 10  # bytes of the weights alone
    assert result.bytes_up == result.bytes_down == end["bytes_up"] > 0
    assert result.bytes_up % sent == 0
    console = Console(file=io.StringIO(), width=140)
    console.print(summary_table(config.folder))
    for row, name in {
        "by client ": "client",
        "by client, own models": "personal",
    }.items():
        share = 100 * end[f"{name}_accuracy"]["mean"]
        line = next(x for x in console.file.getvalue().splitlines() if row in x)
        assert f"{share:.2f} %" in line


@pytest.mark.slow
def test_a_table_shows_own_models_beside_the_servers_by_which_it_ranks(tiny):
    configs = [
        tiny(algorithm="fedper", algorithm_options={"personal": "bias"}, rounds=2),
        tiny(algorithm="fedavg", rounds=2),
    ]
    configs[1] = replace(configs[1], folder=f"{configs[0].folder}-plain")
    personal, plain = (run(config) for config in configs)
    (sheet,) = sheets([config.folder for config in configs])
    at = sheet.head.index("by client")
    shown = {row[1].partition("(")[0]: row[at] for row in sheet.cells}
    assert shown == {
        "fedper": percent(personal.personal_accuracy["mean"]),
        "fedavg": percent(plain.client_accuracy["mean"]),
    }
    line = str([row[1].partition("(")[0] for row in sheet.cells].index("fedper") + 1)
    assert (
        "by client: the mean over clients, on their own training examples, of the client's "
        f"own model in {line}, else of the server's; the rank is of the server's model, "
        "which those clients do not use"
    ) in sheet.notes
    (sheet,) = sheets([configs[1].folder])
    assert "by client" not in sheet.head
    assert not [note for note in sheet.notes if note.startswith("by client")]


def test_a_run_whose_clients_use_the_servers_model_has_no_such_figures(whole):
    assert read_run(whole.folder).summary["personal_accuracy"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_trial_tells_own_models_as_its_run_does(tmp_path, devices):
    common = {**TINY, "algorithm": "ditto", "rounds": 2, "devices": devices}
    grid = {"mu": [0.0, 1.0], "lr": [0.1, 0.03]}
    asked = read_sweep({"run": common, "grid": grid})
    found = sweep(asked, tmp_path / "sweep", side_by_side=3 - devices)
    for number in (1, 3):
        config = replace(
            asked.trials[number].config, folder=str(tmp_path / str(number))
        )
        expected = run(config).personal_accuracy
        folder = tmp_path / "sweep" / "trials" / f"000{number}"
        trial = read_run(folder).summary
        ours, theirs = (
            read_table(Path(place), "partition")["personal_accuracy"]
            for place in (folder, config.folder)
        )
        np.testing.assert_allclose(ours.to_numpy(), theirs.to_numpy(), atol=1e-5)
        row = found.results.to_pylist()[number]
        assert expected and set(trial["personal_accuracy"]) == set(expected)
        for figure, value in expected.items():
            value = pytest.approx(value, abs=1e-5)
            assert trial["personal_accuracy"][figure] == value
            assert row[f"personal_accuracy_{figure}"] == value


@pytest.mark.slow
def test_a_trial_whose_clients_use_the_servers_model_has_no_such_figures(tmp_path):
    common = {**TINY, "rounds": 1, "devices": 1}
    found = sweep({"run": common, "grid": {"lr": [0.1, 0.03]}}, tmp_path / "sweep")
    assert not [name for name in found.results.column_names if "personal" in name]
