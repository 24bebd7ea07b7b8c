import math
from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from helpers import close, fast, linear_task
from tiny_runs import sharing_programs

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS, fedacg
from fedjax_adapt.cli import main
from fedjax_adapt.core import Info
from fedjax_adapt.experiment import Config, files, read_run, run, store, value_cohort
from fedjax_adapt.experiment import valuation as module
from fedjax_adapt.report.clients import agreement

pytestmark = pytest.mark.usefixtures("shared_programs")

GSNR = {
    "algorithm": "fedgsnr",
    "model": "linear",
    "num_clients": 6,
    "participation": 0.5,
    "rounds": 2,
    "batch_size": 100,
    "checkpoint_every": 1,
    "evaluate_clients": False,
    "devices": 1,
}
SCAFFOLD = {"base": "scaffold", "num_steps": 3}


class Stop(Exception):
    pass


def interrupted(config, after):
    """Runs a config that is stopped after so many rounds."""

    def progress(now):
        if now.round > after:
            raise Stop

    with pytest.raises(Stop):
        run(config, progress=progress)
    return config


def contents(folder):
    return {p: p.is_file() and p.read_bytes() for p in Path(folder).rglob("*")}


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """A run on two devices that was stopped; only to be read, but for the first test."""
    folder = str(tmp_path_factory.mktemp("runs") / "half")
    config = Config(
        folder=folder, **GSNR | {"algorithm_options": SCAFFOLD, "devices": 2}
    )
    with sharing_programs():  # with the run that goes on with it
        return interrupted(config, 1)


@pytest.fixture(scope="module")
def values(half):
    before = contents(half.folder)
    found = value_cohort(half.folder, "shapley", orders=5)
    assert contents(half.folder) == before
    return found


def check_against_the_run(config, values):
    """Goes on with the run and compares what it writes of that round."""
    run(config, resume=True)
    record = read_run(config.folder)
    rows = record.clients.filter(record.clients["round"].to_numpy() == values.round)
    rows = rows.filter(rows["num_steps"].to_numpy() > 0).to_pydict()
    assert rows["client"] == values.clients.tolist()
    assert rows["gsnr"] == values.gsnr.tolist()
    losses = dict(zip(*map(record.metrics.column, ("round", "loss")), strict=True))
    losses = {round.as_py(): loss.as_py() for round, loss in losses.items()}
    if {values.round - 1, values.round} <= set(losses):
        # these servers take the mean: all together are worth what the round gains
        gain = losses[values.round - 1] - losses[values.round]
        assert values.values.sum() == pytest.approx(gain, abs=1e-5)


@pytest.mark.slow
def test_a_round_run_again_is_the_runs_own_to_the_bit(half, values):
    check_against_the_run(half, values)


CASES = {
    "two rounds to an evaluation": {
        "sampler": "uniform",
        "rounds": 4,
        "evaluate_every": 2,
    },
    "a round left over, other models too, three devices": {
        "algorithm_options": {"base": "feddisco", "num_steps": 3},
        "rounds": 3,
        "evaluate_every": 2,
        "evaluate_also": ("sel", "all"),
        "devices": 3,
    },
}


@pytest.mark.parametrize("changes", fast(CASES))
def test_other_rounds_run_again_are_the_runs_own_too(tmp_path, changes):
    config = Config(folder=str(tmp_path / "run"), **{**GSNR, **changes})
    interrupted(config, config.evaluate_every)
    check_against_the_run(config, value_cohort(config.folder, "shapley", orders=3))


@pytest.mark.slow
def test_all_together_have_the_servers_model_where_clients_start_elsewhere(data):
    plan = fa.Plan(batch_size=None, shuffle="none", lanes=1)
    federation = algorithm, task, data, plan = fedacg(), linear_task(), data, plan
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    state = state._replace(server=optax.tree.scale(0.3, state.params))
    info = module._shown(Config(), federation, state)
    after, _ = fa.make_round(algorithm, task, data, plan)(state, jax.random.key(0))
    together = jax.tree.map(lambda leaf: leaf.mean(0), info.clients)
    close(together, optax.tree.sub(after.params, state.params), atol=1e-5)


@pytest.mark.slow
def test_a_finished_run_of_any_method_can_be_valued(whole):
    before = contents(whole.folder)
    found = value_cohort(whole.folder, value="accuracy")
    assert found.round == 8 and found.gsnr is None
    assert contents(whole.folder) == before
    # shares of 360 test examples
    shares = found.values * 360
    assert shares.any()
    np.testing.assert_allclose(shares, np.round(shares), atol=1e-3)


@pytest.mark.slow
def test_the_command_shows_the_values_and_how_they_agree(
    half, values, capsys, monkeypatch
):
    asked = {}
    replayed = lambda folder, **options: asked.update(options) or values
    monkeypatch.setattr(module, "value_cohort", replayed)
    line = f"contributions {half.folder} --reference shapley --orders 5"
    assert main(line.split()) == 0
    assert asked["reference"] == "shapley" and asked["orders"] == 5
    text = " ".join(capsys.readouterr().out.split())
    assert f"shapley: of the cohort of round {values.round}" in text
    assert all(f"{value:.4g}" in text for value in values.values)
    gsnr = dict(zip(values.clients, values.gsnr, strict=True))
    shown = agreement(dict(zip(values.clients, values.values, strict=True)), gsnr)
    assert f"Spearman's rho with r_k of that round: {shown}" in text
    assert "Spearman's rho with the mean r_k:" in text


def test_agreement_is_over_clients_that_have_both():
    values = {1: 0.1, 2: 0.2, 3: 0.4, 4: 0.3}
    gsnr = {1: 5.0, 2: 6.0, 3: math.nan, 4: 7.0, 9: 0.0}
    assert agreement(values, gsnr) == "+1.000 (n=3)"
    assert agreement(values, {1: 5.0, 2: 4.0}) == "-1.000 (n=2)"
    assert agreement(values, {1: 5.0, 2: 5.0}) == "undefined (n=2)"
    assert agreement(values, {}) == "undefined (n=0)"
    assert agreement(values, {1: 1, 2: 3, 4: 2, 3: 4}) == "+0.800 (n=4)"


@pytest.mark.parametrize(
    "line, says",
    [
        (
            "",
            "contributions got 0 folders before its flags; give one, as in fedjax-adapt",
        ),
        ("a b", "contributions got 2 folders"),
        ("--reference shapley a", "contributions got 0 folders"),
        ("RUN --reference loo", "--reference loo: write one of 'leave_one_out', 'sha"),
        ("RUN --orders 3", "--orders is about what r_k is compared with; write --refe"),
        ("RUN --orders 2.5", "--orders 2.5: write an integer or none."),
        (
            "RUN --reference leave_one_out --orders 3",
            "orders=3 is about random orders, which reference=leave_one_out does not",
        ),
        ("RUN --reference shapley --orders 0", "orders=0 must be an integer >= 1"),
        ("RUN --reference shapley --tolerance -1", "tolerance=-1.0 must be a finite"),
        ("RUN --reference shapley --devices 99", "devices=99 but JAX sees 4; write"),
        ("none --reference shapley", "none holds no run: it has no config.toml; write"),
    ],
)
def test_a_mistake_is_one_sentence(half, capsys, line, says):
    words = [half.folder if word == "RUN" else word for word in line.split()]
    assert main(["contributions", *words]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith("fedjax-adapt: " + says)


def test_a_run_that_cannot_be_valued_says_why(half, tmp_path, monkeypatch):
    def settings(**changes):
        settings = {"algorithm": "fedavg", "num_clients": 6} | changes
        lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
        files.write_text(tmp_path / store.CONFIG, "".join(lines))

    settings()
    with pytest.raises(ValueError, match="has no checkpoint to go on from; write fed"):
        value_cohort(tmp_path)
    (tmp_path / "checkpoints" / "000000001").mkdir(parents=True)
    settings(dataset="mnist")
    with pytest.raises(ValueError, match="data_dir=/none does not exist"):
        value_cohort(tmp_path, data_dir="/none")

    def median():
        algorithm = ALGORITHMS["fedprox"]()
        server = algorithm.server._replace(combine=lambda uploads, cohort: uploads)
        return algorithm._replace(server=server)

    settings()
    monkeypatch.setitem(ALGORITHMS, "fedavg", median)
    with pytest.raises(ValueError, match="algorithm=fedavg takes no weighted mean of"):
        value_cohort(tmp_path)
    with pytest.raises(ValueError, match="value='f1' is unknown"):
        value_cohort(tmp_path, value="f1")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "num_steps, delta, says",
    [
        (
            [3, 0, 0],
            0.0,
            "1 clients trained in round 2 of .*, and one has nobody to be",
        ),
        ([3, 2, 0], math.nan, "round 2 of .* leads to a loss that is not finite, by"),
    ],
)
def test_values_that_say_nothing_are_refused(half, monkeypatch, num_steps, delta, says):
    def replay(folder, config, federation):
        params = federation.task.init(jax.random.key(0))
        fill = lambda leaf: np.full((3, *leaf.shape), delta, leaf.dtype)
        nothing = np.zeros(3, np.float32)
        cohort, steps = np.array([0, 4, 6]), np.array(num_steps)
        deltas = jax.tree.map(fill, params)
        info = Info(cohort, steps, nothing, nothing, steps.max(), nothing[0], deltas)
        return 2, params, info, {"client": np.array([0, 4])}

    monkeypatch.setattr(module, "replay", replay)
    with pytest.raises(ValueError, match=says):
        value_cohort(half.folder)
