from dataclasses import replace

import jax
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import keys, same, start

from fedjax_adapt.algorithms import fedavg, fedcm

ALPHA = 0.3


def passed(steps, momentum):
    """How far steps on a constant unit gradient go, one by one."""
    velocity = distance = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        distance += velocity
    return distance


@pytest.mark.parametrize("momentum, weights", [(0.0, "uniform"), (0.5, "data")])
def test_follows_the_numpy_oracle(x64, momentum, weights):
    plan = replace(PLAN, momentum=momentum)
    clients, theta, history = run(fedcm(ALPHA, 1.2, weights), plan)
    direction = np.zeros_like(theta)

    def follow(t, cohort):
        nonlocal theta, direction
        lr = plan.lr * plan.lr_decay**t
        n = [len(clients[i][1]) for i in cohort] if weights == "data" else None
        ends = [local(theta, clients[i], plan, lr, direction) for i in cohort]
        move = np.average(ends, 0, n) - theta
        counts = [oracle.num_batches(len(clients[i][1]), 3, 2) for i in cohort]
        far = np.average([passed(k, momentum) for k in counts], weights=n)
        direction = -move / (lr * far)
        theta = theta + 1.2 * move
        return theta

    assert_follows(history, follow)
    np.testing.assert_allclose(
        oracle.flat(history[-1][0].server), direction, atol=1e-12
    )


def local(theta, client, plan, lr, direction):
    velocity = np.zeros_like(theta)
    for x, y in oracle.batches(*client, plan.batch_size, 2):
        v = ALPHA * oracle.gradient(theta, x, y) + (1 - ALPHA) * direction
        v = oracle.clip(v, plan.clip_norm) + plan.weight_decay * theta
        velocity = plan.momentum * velocity + v
        theta = theta - lr * velocity
    return theta


@pytest.mark.slow
def test_with_its_own_gradient_alone_it_is_uniform_fedavg(task, data):
    ends = []
    for algorithm in (fedcm(1.0), fedavg("uniform")):
        round_fn, state = start(algorithm, task, data)
        step = jax.jit(round_fn)
        for key in keys(3):
            state, _ = step(state, key)
        ends.append(state)
    assert same(ends[0].params, ends[1].params)
    assert not same(ends[0].server, jax.tree.map(np.zeros_like, ends[0].server))


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="alpha=0 must lie in"):
        fedcm(0)
    with pytest.raises(ValueError, match="server_lr=0 must be a finite number above 0"):
        fedcm(server_lr=0)
    with pytest.raises(ValueError, match="weights='size' is unknown"):
        fedcm(weights="size")
