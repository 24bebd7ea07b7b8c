import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, keys, make_data, make_task, same, start

from fedjax_adapt import Algorithm, Plan, constant_steps, with_steps
from fedjax_adapt.algorithms import fedavg


def test_default_algorithm_is_fedavg():
    assert fedavg() == Algorithm()


@pytest.mark.parametrize("weights", ["data", "uniform"])
@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_follows_the_numpy_oracle(x64, weights, momentum):
    plan = Plan(**{**vars(PLAN), "momentum": momentum})
    clients, theta, history = run(fedavg(weights), plan)

    def follow(round, cohort):
        nonlocal theta
        ends = [oracle.sgd(theta, clients[i], plan, round) for i in cohort]
        sizes = [len(clients[i][1]) for i in cohort]
        theta = np.average(ends, 0, sizes if weights == "data" else None)
        return theta

    assert_follows(history, follow)
    clipped = np.asarray([info.clipped for _, info in history])
    assert 0.05 < clipped.mean() < 0.95  # the comparison saw both sides of the clip


@pytest.mark.slow
def test_one_client_with_full_batches_is_gradient_descent(x64):
    data = make_data(sizes=(12,), dtype=np.float64)
    task = make_task(jnp.float64)
    plan = Plan(batch_size=None, lr=0.2)
    round_fn, state = start(with_steps(fedavg(), constant_steps(5)), task, data, plan)
    params = state.params
    for _ in range(10):
        grads = jax.grad(
            lambda p: task.loss(task.apply(p, data.x).logits, data.y).mean()
        )(params)
        params = jax.tree.map(lambda p, g: p - 0.2 * g, params, grads)
    for key in keys(2):
        state, _ = jax.jit(round_fn)(state, key)
    close(state.params, params, atol=1e-12)


@pytest.mark.slow
def test_equal_clients_make_the_weights_irrelevant(task):
    data = make_data(sizes=(8,) * 6)
    ends = []
    for weights in ("data", "uniform"):
        round_fn, state = start(fedavg(weights), task, data)
        ends.append(round_fn(state, keys(1)[0])[0].params)
    close(*ends)


@pytest.mark.slow
def test_full_participation_does_not_depend_on_the_round_key_without_shuffling(
    task, data
):
    plan = Plan(batch_size=4, shuffle="none")
    round_fn, state = start(fedavg(), task, data, plan)
    one, two = (round_fn(state, key)[0].params for key in keys(2))
    assert same(one, two)


def test_unknown_weights_name_the_choices():
    with pytest.raises(ValueError, match="weights='size' is unknown.*data, uniform"):
        fedavg(weights="size")
