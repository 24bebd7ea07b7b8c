import jax
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, keys, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, pfedme

LAM, INNER, INNER_LR = 2.0, 3, 0.2


def solved(w, x, y):
    theta = w
    for _ in range(INNER):
        theta = theta - INNER_LR * (oracle.gradient(theta, x, y) + LAM * (theta - w))
    return theta


@pytest.mark.parametrize("beta", [1.0, 1.5])
def test_follows_the_numpy_oracle(x64, beta):
    clients, theta, history = run(pfedme(LAM, INNER, INNER_LR, beta))
    own = np.tile(theta, (6, 1))

    def local(w, client, lr):
        for x, y in oracle.batches(*client, PLAN.batch_size, epochs=2):
            g = oracle.clip(LAM * (w - solved(w, x, y)), PLAN.clip_norm)
            w = w - lr * (g + PLAN.weight_decay * w)
        return w

    def follow(round, cohort):
        nonlocal theta
        lr = PLAN.lr * PLAN.lr_decay**round
        ends = [local(theta, clients[i], lr) for i in cohort]
        for i, w in zip(cohort, ends, strict=True):
            own[i] = solved(w, *next(oracle.batches(*clients[i], PLAN.batch_size, 1)))
        theta = (1 - beta) * theta + beta * np.mean(ends, 0)
        return theta

    assert_follows(history, follow)
    models = fa.personal_models(pfedme(), history[-1][0])
    for i in range(6):
        found = oracle.flat(jax.tree.map(lambda leaf, i=i: leaf[i], models))
        np.testing.assert_allclose(found, own[i], atol=1e-12)


@pytest.mark.slow
def test_one_inner_step_of_one_over_lambda_is_fedavg(task, data):
    ends = []
    for algorithm in (pfedme(4.0, 1, 0.25), fedavg("uniform")):
        round_fn, state = start(algorithm, task, data)
        ends.append(fa.train(round_fn, state, keys(3))[0].params)
    close(*ends, atol=1e-5)


def test_wrong_arguments_are_refused():
    for name in ("lam", "inner_lr", "beta"):
        with pytest.raises(
            ValueError, match=f"{name}=0 must be a finite number above 0"
        ):
            pfedme(**{name: 0})
    with pytest.raises(ValueError, match="inner_steps=0 must be an integer >= 1"):
        pfedme(inner_steps=0)
