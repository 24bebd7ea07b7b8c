from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, distance_to_optimum, run
from helpers import close, keys, make_data, make_task, start

from fedjax_adapt import Plan, bernoulli, constant_steps, with_steps
from fedjax_adapt.algorithms import feddyn, fedprox

ALPHA = 0.4


@pytest.mark.parametrize("clip_scope", ["code", "all"])
def test_follows_the_numpy_oracle(x64, clip_scope):
    clients, theta, history = run(feddyn(ALPHA, clip_scope))
    alpha = ALPHA / oracle.size_ratios(clients)
    h = np.zeros((len(clients), theta.size))

    def follow(t, cohort):
        nonlocal theta
        w, ends = theta, []
        for i in cohort:
            inside = lambda theta, i=i: alpha[i] * (h[i] - w)
            outside = lambda theta, i=i: alpha[i] * theta
            if clip_scope == "all":
                inside = lambda theta, i=i: alpha[i] * (theta - w + h[i])
                outside = oracle.nothing
            end = oracle.sgd(w, clients[i], PLAN, t, inside, outside)
            h[i] += end - w
            ends.append(end)
        theta = np.mean(ends, 0) + h.mean(0)
        return theta

    assert any((np.asarray(info.clipped) > 0).any() for _, info in history)
    assert_follows(history, follow)
    close(
        oracle.flat(jax.tree.map(lambda a: a.mean(0), history[-1][0].clients)),
        h.mean(0),
    )


@pytest.mark.slow
def test_without_a_clip_its_scope_does_not_matter(x64):
    plan = replace(PLAN, clip_norm=None)
    ends = [run(feddyn(ALPHA, scope), plan)[2][-1][0] for scope in ("code", "all")]
    close(ends[0], ends[1], atol=1e-12)


@pytest.mark.slow
def test_the_first_round_of_a_client_is_fedprox(task, data):
    """On equal clients, h = 0: the local loss is F + alpha/2 ||theta - w||^2."""
    equal = make_data((8,) * 5)
    plan = Plan(cohort_size=3, batch_size=4)
    deltas = []
    for algorithm in (feddyn(ALPHA), fedprox(ALPHA, "uniform")):
        round_fn, state = start(algorithm, task, equal, plan)
        after, _ = jax.jit(round_fn)(state, keys(1)[0])
        deltas.append(jax.tree.map(jnp.subtract, after.params, state.params))
    longer = jax.tree.map(lambda leaf: leaf * (1 + 3 / 5), deltas[1])  # + mean of all h
    close(deltas[0], longer)


@pytest.mark.slow
def test_the_server_memory_is_the_mean_of_all_clients(task, data):
    plan = Plan(participation=bernoulli(0.5), batch_size=4)
    round_fn, state = start(feddyn(ALPHA), task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(5):
        state, _ = step(state, key)
        average = jax.tree.map(lambda leaf: leaf.mean(0), state.clients)
        close(state.server, average, atol=1e-5)
    assert float(jnp.abs(state.server["w"]).max()) > 1e-2


@pytest.mark.slow
def test_without_alpha_it_is_not_fedavg_but_fedavg_with_server_momentum(x64):
    """w' = mean_S theta + hbar', hbar' = hbar + m/N (mean_S theta - w)."""
    data = make_data((8,) * 5, np.float64)
    plan = Plan(cohort_size=2, batch_size=4, shuffle="none")
    task = make_task(jnp.float64)
    prox = with_steps(fedprox(0.0, "uniform"), constant_steps(3))
    round_fn, state = start(
        with_steps(feddyn(0.0), constant_steps(3)), task, data, plan
    )
    average, _ = start(prox, task, data, plan)
    h = jax.tree.map(jnp.zeros_like, state.params)
    for key in keys(3):
        reached, _ = jax.jit(average)(state._replace(clients=(), server=()), key)
        delta = jax.tree.map(jnp.subtract, reached.params, state.params)
        h = jax.tree.map(lambda h, d: h + 2 / 5 * d, h, delta)
        state, _ = jax.jit(round_fn)(state, key)
        close(state.params, jax.tree.map(jnp.add, reached.params, h), atol=1e-12)


def test_half_participation_reaches_the_weighted_optimum(x64):
    assert distance_to_optimum(feddyn(0.3)) < 1e-5


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="clip_scope='wrong' is unknown"):
        feddyn(clip_scope="wrong")
    with pytest.raises(
        ValueError, match="alpha=-1 must be a finite number of at least"
    ):
        feddyn(alpha=-1)
