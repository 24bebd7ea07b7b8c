import sys
from dataclasses import replace
from math import erfc, exp, sqrt

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, keys, make_clients, make_task, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    fedavg,
    feddisco,
    feddyn,
    fednova,
    fedprox,
    fnr,
    scaffold,
)

EMPTY = (np.zeros((0, 4), np.float32), np.zeros(0, np.int32))


def after(algorithm, task, data, plan=None, rounds=3):
    round_fn, state = start(algorithm, task, data, plan)
    step, infos = jax.jit(round_fn), []
    for key in keys(rounds):
        state, info = step(state, key)
        infos.append(info)
    return state, infos


def test_without_noise_it_follows_the_numpy_oracle(x64):
    """Clipped displacements over how many come on average, not over how many came."""
    plan = replace(PLAN, cohort_size=None, participation=fa.bernoulli(0.5))
    clients, theta, history = run(fa.with_privacy(fedavg(), 0.4, 0.0), plan)
    shares = []

    def follow(t, cohort):
        nonlocal theta
        moves = [oracle.sgd(theta, clients[i], plan, t) - theta for i in cohort]
        norms = np.array([np.linalg.norm(move) for move in moves])
        shares.append((norms > 0.4).mean())
        moves = [
            m * min(1, 0.4 / (n + 1e-6)) for m, n in zip(moves, norms, strict=True)
        ]
        theta = theta + np.sum(moves, 0) / (0.5 * 6 / (1 - 0.5**6))
        return theta

    assert_follows(history, follow)
    shown = [float(info.server["clipped_fraction"]) for _, info in history]
    np.testing.assert_allclose(shown, shares, rtol=1e-6)
    assert min(shares) < 1 and max(shares) > 0
    assert len({int(info.num_active) for _, info in history}) > 1


@pytest.mark.slow
def test_a_huge_clip_without_noise_is_uniform_fedavg(task, data):
    state, infos = after(fa.with_privacy(fedavg(), 1e6, 0.0), task, data)
    close(state.params, after(fedavg("uniform"), task, data)[0].params)
    assert not any(info.server["clipped_fraction"] for info in infos)


@pytest.mark.slow
def test_a_small_clip_bounds_what_one_client_can_do(task, data):
    one = fa.Plan(cohort_size=1, batch_size=4, lr=5.0)
    _, infos = after(fa.with_privacy(fedavg(), 0.01, 0.0), task, data, one)
    for info in infos:
        np.testing.assert_allclose(info.delta_norm, 0.01, rtol=1e-3)
        assert info.server["clipped_fraction"] == 1
        assert info.clients["privacy_clipped"].tolist() == [1]


@pytest.mark.slow
def test_noise_is_normal_of_the_deviation_it_says(task, data):
    """Where clients may move by almost nothing, all of a move is noise."""
    plan = fa.Plan(participation=fa.bernoulli(0.5), batch_size=4)
    algorithm = fa.with_privacy(fedavg(), 1e-4, 30.0)
    round_fn, state = start(algorithm, task, data, plan)
    rounds = jax.jit(jax.vmap(lambda key: round_fn(state, key)))
    after, info = rounds(keys(600))
    std = 30 * 1e-4 / (0.5 * 6 / (1 - 0.5**6))
    np.testing.assert_allclose(info.server["noise_std"], std, rtol=1e-6)
    for name in ("w", "b"):
        leaf = np.asarray(after.params[name] - state.params[name][None])
        noise = leaf.reshape(600, -1) / std
        assert np.abs(noise.mean(0)).max() < 4.5 / sqrt(600) + 1e-4 / (3 * std) + 0.05
        np.testing.assert_allclose(noise.std(0), 1, atol=0.14)
        np.testing.assert_allclose((noise**4).mean(), 3, atol=0.3)
        apart = np.corrcoef(noise.T) - np.eye(noise.shape[1])
        assert np.abs(apart).max() < 0.2  # numbers do not share their noise


@pytest.mark.slow
def test_noise_on_a_model_in_half_precision_is_normal_too(data):
    wide = lambda key: make_task(jnp.bfloat16).init(key) | {"u": jnp.zeros(200_000)}
    half = lambda key: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), wide(key))
    task = make_task()._replace(init=half)
    algorithm = fa.with_privacy(fedavg(), 1.0, 3.0)  # of 3 clients
    noise = after(algorithm, task, data, rounds=1)[0].params["u"].astype(float)
    assert abs(noise.mean()) < 0.008 and np.abs(noise).max() > 4
    np.testing.assert_allclose(noise.std(), 1, rtol=0.01)


@pytest.mark.slow
def test_the_slow_twin_draws_the_same_noise(task, data):
    algorithm = fa.with_privacy(fedprox(), 0.1, 0.5)
    plan = fa.Plan(cohort_size=4, batch_size=4, lanes=3)
    round_fn, state = start(algorithm, task, data, plan)
    expected = jax.jit(round_fn)(state, keys(1)[0])
    close(fa.debug_round(algorithm, task, data, plan)(state, keys(1)[0]), expected)
    quiet = fa.with_privacy(fedprox(), 0.1, 0.0)
    still = jax.jit(fa.make_round(quiet, task, data, plan))(state, keys(1)[0])
    assert np.abs(still[0].params["w"] - expected[0].params["w"]).max() > 1e-3


@pytest.mark.slow
def test_clip_and_noise_may_be_traced(task, data):
    def final(noise):
        return after(fa.with_privacy(fedavg(), 0.1, noise), task, data)[0].params

    together = jax.jit(jax.vmap(final))(jnp.array([0.0, 1.0]))
    for row, noise in enumerate((0.0, 1.0)):
        close(jax.tree.map(lambda leaf, row=row: leaf[row], together), final(noise))


REFUSED = {
    "combines them in its own way": [
        lambda: feddisco(),
        lambda: fa.with_aggregation(fedavg(), fa.median()),
        lambda: fa.with_privacy(fedavg(), 1.0, 1.0),
    ],
    "the step policy learns": [
        lambda: fa.with_steps(fedavg(), fa.gsnr_steps(5)),
        lambda: fa.with_steps(fedavg(), fa.veca_steps()),
        lambda: fa.with_steps(fedavg(), fa.adacomm_steps(3)),
    ],
    "the refinement is shown": [lambda: fnr()],
}


def test_what_gets_round_the_clip_is_refused(task, data):
    for match, builds in REFUSED.items():
        match = match.replace("combines them", "weighs or combines them")
        for build in builds:
            with pytest.raises(ValueError, match=match):
                fa.with_privacy(build(), 1.0, 1.0)
    for base in (scaffold(), fednova()):
        private = fa.with_privacy(base, 1.0, 1.0)
        with pytest.raises(ValueError, match="clips Upload.delta alone"):
            start(private, task, data)
    with pytest.raises(ValueError, match="clip=0 must be a finite number above 0"):
        fa.with_privacy(feddyn(), 0, 1.0)
    with pytest.raises(ValueError, match="noise_multiplier=-1 must be a finite"):
        fa.with_privacy(feddyn(), 1, -1)
    with pytest.raises(
        ValueError, match="got the function fedavg for algorithm; call it"
    ):
        fa.with_privacy(fedavg, 1, 1)


@pytest.mark.parametrize(
    "after, match",
    [
        (lambda private: fa.with_steps(private, fa.gsnr_steps(5)), "policy learns"),
        (lambda private: fa.with_steps(private, fa.adacomm_steps(3)), "policy learns"),
        (lambda private: fa.with_refinement(private, fnr()), "refinement is shown"),
        (lambda private: fa.with_compression(private, fa.sign()), "has clipped"),
        (lambda private: fa.with_aggregation(private, fa.median()), "its mean alone"),
    ],
)
def test_what_comes_after_and_gets_round_the_clip_is_refused(after, match, task, data):
    bare = fa.with_privacy(fedavg(), 1.0, 1.0)
    for private in (bare, fa.with_averages(bare)):
        fa.make_round(fa.with_steps(private, fa.epochs(2)), task, data, fa.Plan())
        with pytest.raises(ValueError, match=match):
            fa.make_round(after(private), task, data, fa.Plan())


def test_epsilon_is_refused_for_other_samplers_and_without_its_package(monkeypatch):
    with pytest.raises(ValueError, match="for coins of every client alone"):
        fa.epsilon(1.0, fa.uniform(4), 10, 1e-5)
    with pytest.raises(ValueError, match="for coins of every client alone"):
        fa.epsilon(1.0, fa.earliest(0.4), 10, 1e-5)
    with pytest.raises(ValueError, match=r"delta=1 must lie in \(0, 1\)"):
        fa.epsilon(1.0, 0.1, 10, 1)
    with pytest.raises(ValueError, match="participation=0 must lie in"):
        fa.epsilon(1.0, 0, 10, 1e-5)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ValueError, match=r"pip install 'fedjax-adapt\[privacy\]'"):
        fa.epsilon(1.0, 0.1, 10, 1e-5)


def gaussian_delta(epsilon, z):
    """Balle & Wang 2018, theorem 8: of one Gaussian mechanism, exactly."""
    phi = lambda t: erfc(-t / sqrt(2)) / 2
    a, b = 1 / (2 * z), epsilon * z
    return phi(a - b) - exp(epsilon) * phi(-a - b)


@pytest.mark.filterwarnings("ignore")  # of the package's own imports
def test_epsilon_takes_numbers_of_numpy_and_jax():
    pytest.importorskip("dp_accounting")
    numbers = (
        np.float32(8),
        fa.bernoulli(jnp.float32(0.5)),
        np.int64(2),
        np.float64(0.1),
    )
    assert fa.epsilon(*numbers) == fa.epsilon(8.0, 0.5, 2, 0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the package's own imports
def test_epsilon_is_that_of_the_closed_form_and_moves_as_it_should():
    pytest.importorskip("dp_accounting")
    for z, delta in ((0.8, 1e-5), (2.0, 1e-3)):
        found = fa.epsilon(z, 1.0, 1, delta)
        assert gaussian_delta(found, z) == pytest.approx(delta, rel=0.01)
    # so many rounds of all are one of a noise less by their root
    found = fa.epsilon(8.0, 1.0, 16, 1e-5)
    assert gaussian_delta(found, 2.0) == pytest.approx(1e-5, rel=0.02)
    # noise so small that there is hardly any privacy, in seconds and little memory
    assert gaussian_delta(fa.epsilon(0.1, 1.0, 4, 1e-5), 0.05) == pytest.approx(
        1e-5, rel=0.02
    )
    least = fa.epsilon(0.01, 0.9, 1000, 1e-5)
    assert fa.epsilon(0.01, 0.5, 1000, 1e-5) < least < fa.epsilon(0.01, 1.0, 1000, 1e-5)
    with pytest.raises(
        ValueError, match="noise_multiplier=1e-06 is so small that there"
    ):
        fa.epsilon(1e-6, 0.5, 10, 1e-5)
    usual = fa.epsilon(1.0, fa.bernoulli(0.05), 50, 1e-5)
    assert usual == pytest.approx(2.6704, abs=2e-4)  # of steps of 1e-4
    assert usual == fa.epsilon(1.0, 0.05, 50, 1e-5)
    assert fa.epsilon(2.0, 0.05, 50, 1e-5) < usual < fa.epsilon(1.0, 0.1, 50, 1e-5)
    assert usual < fa.epsilon(1.0, 0.05, 100, 1e-5)
    assert usual < fa.epsilon(1.0, 0.05, 50, 1e-7)


def alike_task():
    """Two tensors of one shape, of which the model is the sum."""

    def init(key):
        return {"a": jnp.zeros((4, 3)), "b": jnp.zeros((4, 3))}

    apply = lambda params, x: fa.Outputs(x @ (params["a"] + params["b"]))
    return fa.Task(init, apply, make_task().loss)


@pytest.mark.slow
def test_tensors_of_one_shape_get_noise_of_their_own(data):
    algorithm = fa.with_privacy(fa.algorithms.fedavg(), clip=1e-9, noise_multiplier=1e9)
    state, _ = after(algorithm, alike_task(), data, rounds=1)
    assert np.abs(state.params["a"] - state.params["b"]).max() > 0.1


@pytest.mark.slow
def test_clients_without_examples_are_not_among_those_that_share_the_noise(task):
    data = fa.FederatedDataset.from_clients([*make_clients((8, 8, 8, 8)), EMPTY])
    algorithm = fa.with_privacy(fa.algorithms.fedavg(), clip=2.0, noise_multiplier=3.0)
    plan = fa.Plan(participation=fa.bernoulli(0.5), batch_size=4)
    _, infos = after(algorithm, task, data, plan, rounds=1)
    come = 0.5 * 4 / (1 - 0.5**4)
    np.testing.assert_allclose(
        infos[0].server["noise_std"], 3.0 * 2.0 / come, rtol=1e-6
    )


@pytest.mark.slow
def test_an_upload_that_is_not_finite_counts_as_nothing(task, data):
    def finish(run):
        bad = jnp.where(run.id == 2, jnp.inf, 1.0)
        moved = jax.tree.map(lambda a, b: bad * (a - b), run.params, run.anchor)
        return fa.Upload(moved), run.client

    attacked = fa.Algorithm(local=fa.LocalRule(finish=finish))
    algorithm = fa.with_privacy(attacked, clip=1.0, noise_multiplier=0.0)
    state, infos = after(algorithm, task, data, fa.Plan(batch_size=4), rounds=2)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert infos[0].clients["privacy_clipped"][2] == 1
