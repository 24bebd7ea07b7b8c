"""What --dry-run says: what the run then does, and nothing is written."""

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import QUICK_RUN, fedjax_adapt

import fedjax_adapt as fa
from fedjax_adapt.engine.mesh import num_cores
from fedjax_adapt.experiment import (
    build,
    checkpoint,
    estimates,
    run,
    sweep,
    tuning,
)
from fedjax_adapt.experiment.config import from_settings, to_toml
from fedjax_adapt.experiment.preview import preview, preview_sweep
from fedjax_adapt.experiment.sweeps.grid import read_sweep
from fedjax_adapt.experiment.sweeps.results import to_toml as sweep_to_toml
from fedjax_adapt.participation import bernoulli

pytestmark = pytest.mark.usefixtures("elsewhere")
RUN = {
    **{"model": "linear", "num_clients": 6, "participation": 1.0, "rounds": 3},
    **{"batch_size": 20, "partition": "pareto", "evaluate_every": 2, "devices": 1},
}


def config_of(**changes):
    return from_settings({**RUN, "folder": "mine", **changes})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": "fedavg", "max_local_steps": 55},
        {"algorithm": "scaffold", "partition": "iid", "num_steps": 3},
        {"algorithm": "fedgsnr"},
        {"algorithm": "fnr", "algorithm.epochs": 2},
        pytest.param(
            {
                **{"algorithm": "gift", "sampler": "earliest", "participation": 0.4},
                "step_seconds": "0.1",
            },
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_said_is_what_the_run_does(changes):
    config = config_of(**changes)
    found = preview(config)
    assert not Path("mine").exists()
    summary = run(config)
    said, rounds = found.rounds, summary.rounds
    refined = summary.public_steps > 0
    down = said.broadcast_bytes + rounds * said.bytes_down
    up = rounds * said.bytes_up
    moved = summary.bytes_down + summary.bytes_up
    assert 0 <= moved - down - up <= rounds * 6 * said.bytes_refined
    assert refined or (summary.bytes_down, summary.bytes_up) == (down, up)
    if said.gradients is not None:
        assert summary.local_steps == rounds * said.gradients
        clients = summary.data["clients"]
        assert said.gradients == pytest.approx(clients * said.mean_steps)
    assert (said.gradients is None) == (config.algorithm in ("fedgsnr", "gift"))
    assert found.memory.peak == summary.memory["predicted_peak"]
    assert (found.programs, found.method) == ([2, 1], summary.method)
    assert found.devices == summary.hardware["devices"]


@pytest.mark.slow
def test_steps_of_unequal_clients_are_told_by_mean_and_most():
    config = config_of(algorithm="fedavg", epochs=1)
    sizes = [int(size) for size in build(config).data.size]
    steps = [math.ceil(size / 20) for size in sizes]
    assert len({*steps}) > 1
    said = preview(config).rounds
    assert said.most_steps == max(steps) and said.gradients == sum(steps)
    assert said.mean_steps == pytest.approx(sum(steps) / 6)
    half = preview(replace(config, participation=0.5, sampler="uniform")).rounds
    assert (half.cohort, half.gradients) == (3, pytest.approx(sum(steps) / 2))
    assert half.bytes_down == said.bytes_down / 2 > 0


@pytest.mark.slow
def test_a_cohort_of_coins_is_expected_to_have_a_client_at_least():
    said = preview(config_of(algorithm="fedavg", participation=0.1)).rounds
    draw = jax.vmap(lambda key: bernoulli(0.1).sample(key, 6))
    ids = draw(jax.random.split(jax.random.key(0), 20_000))
    assert said.cohort == pytest.approx(float((ids < 6).sum(1).mean()), rel=0.02)
    assert said.cohort > 1


@pytest.mark.slow
def test_a_dry_run_prints_what_would_be_run_and_writes_nothing(capsys, elsewhere):
    everyone = QUICK_RUN.replace("participation 0.5", "participation 1")
    line = f"{everyone} --evaluate-every 4 --folder mine --dry-run"
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, err) == (0, "") and list(elsewhere.iterdir()) == []
    lines = [line.split(maxsplit=1) for line in out.splitlines()]
    said = {name: text for name, text in lines if name != "local"}
    assert said["run"] == "scaffold on digits, 7 rounds"
    assert said["clients"] == "6, 6 expected in a round"
    assert "local steps  3 of a client in the first round, a mean, and 3 of" in out
    assert said["gradients"].startswith("18 on batches in the first round, 126 in all")
    assert "MiB down and" in said["traffic"] and "data 0." in said["memory"]
    assert said["programs"] == "2 to compile, of 4 and of 3 rounds with an evaluation"
    assert said["folder"] == "mine"
    time = r"\d+ s, a rough guess, and \d+ s to compile what has not been compiled"
    assert re.fullmatch(time, said["time"])


@pytest.mark.slow
def test_the_time_that_is_said_follows_from_what_is_computed(monkeypatch):
    # 64 x 10 weights, 6 clients of 20 examples a step, 3 steps; 2 operations a weight,
    # forward and twice back
    config = config_of(partition="iid", num_steps=3, algorithm="fedavg", rounds=10**6)
    found = preview(config)
    seen = found.rounds.gradients * 20
    tested = len(build(config).data.test[1]) / config.evaluate_every
    work = (3 * seen + tested) * 2 * 640 * 10**6
    rate = estimates.CORE * num_cores()
    steps = 10**6 * 3 * math.ceil(6 / found.lanes)
    expected = max(work / rate, steps * estimates.STEP)
    assert found.train_seconds == pytest.approx(expected, rel=0.05)
    assert expected == steps * estimates.STEP  # the model is that small
    monkeypatch.setattr(estimates, "STEP", 0)
    assert preview(config).train_seconds == pytest.approx(work / rate, rel=0.05)
    with monkeypatch.context() as patched:  # three quarters are done
        patched.setattr(checkpoint, "rounds", lambda folder: [750_000])
        left = preview(config).train_seconds
    assert left == pytest.approx(work / rate / 4, rel=0.05)
    assert 1 < found.compile_seconds < 30
    # where the method chooses its steps there is none
    assert preview(config_of(algorithm="fedgsnr")).train_seconds is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape, model, clients, batch, took",
    [
        ((784,), lambda shape: fa.models.mlp(shape, 10, (200, 200)), 50, 10, 1.3e-3),
        ((32, 32, 3), lambda shape: fa.models.cnn(shape, 10), 10, 50, 24e-3),
    ],
    ids=["W2", "W1"],
)
def test_rounds_on_a_gpu_take_about_what_was_measured(
    monkeypatch, shape, model, clients, batch, took
):
    """Ten steps of each client, on an H200."""
    task = fa.classification(model(shape), shape)
    examples = np.zeros((batch, *shape), np.float32), np.zeros(batch, int)
    data = fa.FederatedDataset.from_clients([examples], num_classes=10)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    federation = None, task, data, fa.Plan(batch_size=batch)

    def seconds(steps):
        of_all = {"cohort": clients, "gradients": steps * clients}
        rounds = SimpleNamespace(rounds=1, most_steps=steps, **of_all)
        return estimates.seconds_of(config_of(), federation, rounds, clients)

    assert seconds(10) == pytest.approx(took, rel=0.1)
    # as much for each gradient and each step
    assert seconds(20) == pytest.approx(2 * seconds(10))


@pytest.mark.parametrize(
    "words",
    [
        "--lr -1",
        "--num-clients 5000",
        "--dataset mnist --data-dir nowhere",
        "--model cnn --partition nope",
        "--algorithm fnr --public given",
        "--config there.toml --folder there",
        "--config there.toml --folder there --lr 0.3 --resume",
        "--devices 4000",
    ],
)
def test_a_dry_run_refuses_what_the_run_does(capsys, words):
    config = config_of(algorithm="fedavg", folder="there")
    for file in (Path("there.toml"), Path("there") / "config.toml"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(to_toml(config))
    refused = fedjax_adapt(capsys, f"run {words}")
    assert refused[0] == 2
    assert fedjax_adapt(capsys, f"run {words} --dry-run") == refused


@pytest.mark.slow
def test_a_dry_run_says_what_is_done(capsys):
    run(config_of(algorithm="fedavg"))
    line = "run --folder mine --resume --dry-run"
    said = "mine holds this run, finished; nothing is left to run.\n"
    assert fedjax_adapt(capsys, line) == (0, said, "")
    Path("mine/summary.json").unlink()
    code, out, err = fedjax_adapt(capsys, line)
    assert (code, err) == (0, "")
    assert "folder       mine, which goes on after round 3\n" in out
    other = line.replace("mine", "other")
    code, out, err = fedjax_adapt(capsys, f"{other} --lr 0.2")
    assert code == 0 and "nothing to resume in other: the run begins at round 1" in err
    assert not Path("other").exists()


@pytest.mark.slow
def test_a_dry_run_of_a_sweep_says_its_programs(capsys, elsewhere):
    grid = {"algorithm": ["fedavg", "fedgsnr"], "lr": [0.1, 0.2], "seed": [0, 1]}
    asked = read_sweep({"run": RUN | {"partition_seed": 0}, "grid": grid})
    Path("sweep.toml").write_text(sweep_to_toml(asked))
    for words, folder, trials in [
        ("", "mine", 8),
        ("--shard 1/2", "mine/shard-1-of-2", 4),
    ]:
        line = f"sweep sweep.toml --folder mine {words} --dry-run --side-by-side 2"
        code, out, err = fedjax_adapt(capsys, line)
        assert (code, err) == (0, "")
        programs = trials // 4
        assert out.count("trials, 2 at once, 3 rounds") == programs
        assert f"{trials} trials to run, {2 * programs} programs to compile" in out
        assert out.splitlines()[-1].split() == ["folder", folder]
        assert "000-fedavg, 4 trials" in out and "MiB besides the data, a guess" in out
        assert [path.name for path in elsewhere.iterdir()] == ["sweep.toml"]
        code, out, err = fedjax_adapt(capsys, f"{line} --json")
        assert (code, err) == (0, "") and json.loads(out)["status"] == "dry run"
        assert [len(x["trials"]) for x in json.loads(out)["groups"]] == [4] * programs
    line = "sweep sweep.toml --folder sweep.toml"
    refused = fedjax_adapt(capsys, line)
    assert refused[0] == 2 and fedjax_adapt(capsys, f"{line} --dry-run") == refused


@pytest.mark.slow
def test_trials_take_as_many_times_as_long_as_one():
    times = []
    for rates in ([0.1], [0.1, 0.2, 0.3]):
        asked = read_sweep({"run": RUN | {"num_steps": 3}, "grid": {"lr": rates}})
        (group,) = preview_sweep(asked, Path("mine")).groups
        times.append(group.train_seconds)
    assert times[1] == pytest.approx(3 * times[0]) and times[0] > 0


@pytest.mark.slow
def test_a_dry_run_of_a_sweep_leaves_out_what_is_finished(capsys):
    asked = {"run": RUN, "grid": {"algorithm": ["fedavg", "scaffold"]}}
    done = sweep(asked, "mine").folder
    (done / "summary.json").unlink()
    (done / "groups/001-scaffold/summary.json").unlink()
    code, out, _ = fedjax_adapt(capsys, "sweep --folder mine --resume --dry-run")
    assert code == 0
    assert "000-fedavg, 1 trial, finished\n" in out
    assert "1 trial to run, 2 programs to compile" in out


@pytest.mark.parametrize(
    "settings, said",
    [
        ({}, "with warmup=50 gift changes no local steps in 50 rounds; give fewer"),
        ({"rounds": 51}, None),
        ({"warmup": 0}, None),
        ({"detector": "literal"}, None),  # which has no warm-up
    ],
)
def test_a_warm_up_as_long_as_the_run_is_said(settings, said):
    of_gift = {"algorithm": "gift", "initial_steps": 2, "rounds": 50}
    notes = preview(config_of(**of_gift | settings)).notes
    found = [note for note in notes if "warmup" in note]
    assert len(found) == (said is not None)
    assert all(note.startswith(said) for note in found)


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "tries"), [("fedavg", True), ("fnr", False)])
def test_lanes_are_said_to_be_tried_where_the_run_tries_them(
    monkeypatch, algorithm, tries
):
    monkeypatch.setattr(tuning, "LONG_SECONDS", 0)
    found = preview(config_of(algorithm=algorithm, rounds=100, lanes="auto"))
    assert any("tries out which are fastest" in n for n in found.notes) == tries
    assert not preview(config_of(algorithm=algorithm, rounds=99)).notes
