"""Clients with another optimizer than SGD."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, constructed, keys, make_task, start

import fedjax_adapt as fa
from fedjax_adapt import with_local_optimizer
from fedjax_adapt.algorithms import ALGORITHMS, fedavg, feddyn, fednova, fedprox, fedrep
from fedjax_adapt.engine.local import optimizer
from fedjax_adapt.engine.setup import Setup

B1, B2, EPS = 0.9, 0.999, 1e-8  # Kingma & Ba, "Adam", ICLR 2015, Algorithm 1
# what they keep is a client's move, over what SGD would have gone on a unit gradient
FOR_SGD = {"scaffold", "fednova", "fedcm", "feddc", "fedssg", "fedrep"}
# one of each kind of local rule, of steps and of servers; the others are traced only
TRAINED = {
    "fedavg",
    "moon",
    "feddyn",
    "ditto",
    "pfedme",
    "fedgsnr",
    "fedveca",
    "fedbuff",
}


def adam(theta, client, round):
    lr = PLAN.lr * PLAN.lr_decay**round
    m = v = 0.0
    steps = oracle.batches(*client, PLAN.batch_size, 2)
    for t, (x, y) in enumerate(steps, start=1):
        g = oracle.clip(oracle.gradient(theta, x, y), PLAN.clip_norm)
        g = g + PLAN.weight_decay * theta
        m, v = B1 * m + (1 - B1) * g, B2 * v + (1 - B2) * g**2
        up = np.sqrt(v / (1 - B2**t)) + EPS
        theta = theta - lr * m / (1 - B1**t) / up
    return theta


def test_adam_at_the_clients_follows_the_numpy_oracle(x64):
    """Its memory begins anew in every round, and its rate decays with the plan's."""
    clients, theta, history = run(with_local_optimizer(fedavg(), optax.adam))

    def follow(t, cohort):
        nonlocal theta
        ends = [adam(theta, clients[i], t) for i in cohort]
        theta = np.average(ends, 0, [len(clients[i][1]) for i in cohort])
        return theta

    assert_follows(history, follow, atol=1e-9)


def test_a_schedule_over_local_steps_follows_the_numpy_oracle(x64):
    """The rate falls within a round, to 0 in the sixth step."""
    falling = lambda lr: optax.sgd(optax.linear_schedule(lr, 0.0, 5))
    clients, theta, history = run(with_local_optimizer(fedavg(), falling))

    def local(theta, client, round):
        for t, (x, y) in enumerate(oracle.batches(*client, PLAN.batch_size, 2)):
            g = oracle.clip(oracle.gradient(theta, x, y), PLAN.clip_norm)
            g = g + PLAN.weight_decay * theta
            lr = PLAN.lr * PLAN.lr_decay**round * max(0, 1 - t / 5)
            theta = theta - lr * g
        return theta

    def follow(t, cohort):
        nonlocal theta
        ends = [local(theta, clients[i], t) for i in cohort]
        theta = np.average(ends, 0, [len(clients[i][1]) for i in cohort])
        return theta

    assert_follows(history, follow, atol=1e-7)  # optax counts steps in float32


@pytest.mark.slow
@pytest.mark.parametrize("base", [partial(fedprox, 0.1), feddyn])
def test_sgd_is_the_algorithm_itself(base, task, data):
    plan = fa.Plan(cohort_size=4, batch_size=3, weight_decay=0.1, lanes=2)
    momentum = fa.Plan(**{**vars(plan), "momentum": 0.5})
    of = lambda algorithm, plan: _rounds(algorithm, task, data, plan)
    sgd = partial(optax.sgd, momentum=0.5)
    close(of(with_local_optimizer(base(), optax.sgd), plan), of(base(), plan))
    close(of(with_local_optimizer(base(), sgd), plan), of(base(), momentum))


def _rounds(algorithm, task, data, plan):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(2):
        state, info = step(state, key)
    return state.params, state.clients, info.delta_norm


@pytest.mark.slow
def test_neither_lanes_nor_the_slow_twin_change_it(task, data):
    algorithm = fa.with_steps(with_local_optimizer(fedprox(), optax.adam), fa.epochs(2))
    alone = fa.Plan(cohort_size=4, batch_size=4, lr=0.01, lanes=1)
    found = _rounds(algorithm, task, data, alone)
    close(_rounds(algorithm, task, data, fa.Plan(**{**vars(alone), "lanes": 3})), found)
    _, state = start(algorithm, task, data, alone)
    slow = fa.debug_round(algorithm, task, data, alone)
    for key in keys(2):
        state, info = slow(state, key)
    close((state.params, state.clients, info.delta_norm), found, atol=2e-6, rtol=1e-5)


def test_adam_does_not_divide_by_0_in_float16():
    """Where its epsilon is 0, as is the square of a small gradient."""
    algorithm = with_local_optimizer(fedavg(), optax.adam)
    setup = Setup(algorithm, make_task(), None, fa.Plan())
    by = optimizer(setup, SimpleNamespace(lr=0.1))
    params, grads = jnp.zeros(2, jnp.float16), jnp.asarray([0, 1e-4], jnp.float16)
    state = by.init(params)
    for _ in range(2):
        moves, state = by.update(grads, state, params)
    np.testing.assert_allclose(moves, [0, -0.1], rtol=1e-3)


@pytest.mark.parametrize(
    "needing, says",
    [
        (optax.polyak_sgd, "TypeError .*: .* 'value'; it takes"),
        (lambda lr: optax.lookahead(optax.sgd(lr), 5, 0.5), "AttributeError .* 'fast'"),
    ],
)
def test_an_optimizer_that_needs_more_than_a_gradient_is_one_sentence(
    needing, says, task, data
):
    algorithm = with_local_optimizer(fedavg(), needing)
    with pytest.raises(fa.SettingError, match=f"optimizer's update .* raised {says}"):
        fa.make_round(algorithm, task, data, PLAN)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_takes_one_or_says_that_it_is_for_sgd(name, task, data):
    algorithm = with_local_optimizer(constructed(name), optax.adam)
    plan = fa.Plan(
        cohort_size=4, batch_size=4, lr=0.01, clock=fa.Clock(step_seconds=0.1)
    )
    plan = fa.Plan(**{**vars(plan), "rounds": 300})
    if name in FOR_SGD:
        with pytest.raises(fa.SettingError, match="leave out with_local_optimizer"):
            fa.make_round(algorithm, task, data, plan)
        return
    round_fn, state = start(algorithm, task, data, plan)
    if name in TRAINED:
        params, clients, _ = _rounds(algorithm, task, data, plan)
        for leaf in jax.tree.leaves((params, clients)):
            assert np.isfinite(leaf).all()
    else:
        jax.eval_shape(round_fn, state, keys(1)[0])


def test_mistakes_are_one_sentence(task, data):
    with pytest.raises(
        fa.SettingError, match="got a GradientTransformation.* optax.ad"
    ):
        with_local_optimizer(fedavg(), optax.adam(0.1))
    with pytest.raises(fa.SettingError, match="got the function fedavg for algorithm"):
        with_local_optimizer(fedavg, optax.adam)
    none = with_local_optimizer(fedavg(), lambda lr: lr)
    with pytest.raises(fa.SettingError, match="return an optax transformation"):
        fa.make_round(none, task, data, PLAN)
    algorithm = with_local_optimizer(fedavg(), optax.adam)
    plan = fa.Plan(momentum=0.9)
    with pytest.raises(fa.SettingError, match=r"momentum=0\.9 is of local SGD"):
        fa.make_round(algorithm, task, data, plan)
    proximal = with_local_optimizer(fednova(mu=0.1), optax.adam)
    with pytest.raises(fa.SettingError, match="a sum of its gradients"):
        fa.make_round(proximal, task, data, PLAN)
    algorithm = with_local_optimizer(fedrep(personal="b"), optax.adam)
    with pytest.raises(fa.SettingError, match="fedrep holds still"):
        fa.make_round(algorithm, task, data, PLAN)
