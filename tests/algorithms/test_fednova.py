from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, keys, linear_task, make_data, make_task, start
from oracle import flat

from fedjax_adapt import Plan, constant_steps, with_steps
from fedjax_adapt.algorithms import fedavg, fednova, fedprox


def closed_form(tau, lr, momentum=0.0, mu=0.0):
    """The normalisers as the paper prints them."""
    if mu:
        return (1 - (1 - lr * mu) ** tau) / (lr * mu)
    rho = momentum
    return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)


def after_a_round(algorithm, task, data, momentum):
    plan = Plan(cohort_size=3, batch_size=4, momentum=momentum)
    algorithm = with_steps(algorithm, constant_steps(4))
    round_fn, state = start(algorithm, task, data, plan)
    after, _ = jax.jit(round_fn)(state, keys(1)[0])
    return flat(state.params), flat(after.params)


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_with_equal_steps_it_is_fedavg(task, data, momentum):
    ends = [after_a_round(a, task, data, momentum) for a in (fedavg(), fednova())]
    close(ends[1], ends[0], atol=1e-5)


@pytest.mark.slow
def test_with_equal_steps_and_prox_it_is_fedprox_with_a_longer_server_step(task, data):
    (begin, prox), (_, nova) = [
        after_a_round(a, task, data, 0.0) for a in (fedprox(0.5), fednova(0.5))
    ]
    longer = 4 / closed_form(4, 0.1, mu=0.5)
    close(nova - begin, longer * (prox - begin), atol=1e-5)


@pytest.mark.parametrize(
    "momentum, mu, weights, beta",
    [
        (0.0, 0.0, "data", None),
        (0.6, 0.0, "uniform", None),
        (0.0, 0.5, "data", None),
        (0.6, 0.0, "data", 0.7),
    ],
    ids=["plain", "momentum, uniform", "prox", "momentum at client and server"],
)
def test_follows_the_numpy_oracle(x64, momentum, mu, weights, beta):
    plan = replace(PLAN, momentum=momentum)
    clients, theta, history = run(fednova(mu, weights, beta), plan)
    velocity = 0

    def follow(round, cohort):
        nonlocal theta, velocity
        w, lr = theta, plan.lr * plan.lr_decay**round
        pull = lambda theta: mu * (theta - w)
        ends = [oracle.sgd(w, clients[i], plan, round, pull) for i in cohort]
        sizes = np.array([len(clients[i][1]) for i in cohort], float)
        p = (
            sizes / sizes.sum()
            if weights == "data"
            else np.full(len(ends), 1 / len(ends))
        )
        tau = np.array([oracle.num_batches(int(n), plan.batch_size, 2) for n in sizes])
        a = np.array([closed_form(t, lr, momentum, mu) for t in tau])
        info = history[round][1].clients["normaliser"]
        np.testing.assert_allclose(info, a, rtol=1e-12)
        effective = p @ (tau if mu else a)
        directions = [(end - w) / a_i for end, a_i in zip(ends, a, strict=True)]
        moved = effective * np.tensordot(p, directions, 1)
        velocity = (beta or 0) * velocity - moved / lr
        theta = w - lr * velocity
        return theta

    assert len(set(np.asarray(history[0][1].num_steps).tolist())) > 1
    assert_follows(history, follow)


@pytest.mark.slow
@pytest.mark.parametrize("momentum, mu", [(0.7, 0.0), (0.0, 0.9), (0.7, 0.9)])
def test_on_a_constant_gradient_every_client_sends_the_same_direction(
    x64, momentum, mu
):
    """The normaliser undoes tau_i, momentum, prox and both together, to the last digit."""
    data = make_data(dtype=np.float64)
    same_x = jnp.ones_like(data.x)
    data = replace(data, x=same_x)
    plan = Plan(batch_size=2, lr=0.2, momentum=momentum)  # the prox acts as a gradient
    round_fn, state = start(fednova(mu), linear_task(jnp.float64), data, plan)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    effective = np.average(
        info.num_steps if mu else info.clients["normaliser"], weights=data.size
    )
    close(after.params, state.params - 0.2 * effective, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("momentum, mu", [(1e-7, 0.0), (0.0, 1e-7)])
def test_without_momentum_or_prox_the_normaliser_is_the_number_of_steps(
    x64, momentum, mu
):
    data = make_data(dtype=np.float64)
    plan = Plan(batch_size=4, momentum=momentum)
    round_fn, state = start(fednova(mu), make_task(jnp.float64), data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    np.testing.assert_allclose(info.clients["normaliser"], info.num_steps, rtol=1e-5)
    alone = np.asarray(info.num_steps) == 1
    assert alone.any()
    np.testing.assert_array_equal(np.asarray(info.clients["normaliser"])[alone], 1)


def test_a_negative_mu_is_refused():
    with pytest.raises(ValueError, match="mu=-1 must be a finite number of at least 0"):
        fednova(mu=-1)
