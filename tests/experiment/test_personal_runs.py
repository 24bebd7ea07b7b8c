"""Runs whose clients have models of their own."""

import io
from pathlib import Path

import jax
import numpy as np
import pytest
from rich.console import Console

from fedjax_adapt import evaluate_clients, init_state, personal_models
from fedjax_adapt.experiment import build, checkpoint, read_run, run
from fedjax_adapt.experiment.program import run_keys
from fedjax_adapt.experiment.store import read_table
from fedjax_adapt.report.tables import summary_table


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


def test_a_run_whose_clients_use_the_servers_model_has_no_such_figures(whole):
    assert read_run(whole.folder).summary["personal_accuracy"] == {}
