import jax
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, keys, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ditto, fedper, scaffold

MU = 0.7


def own_steps(v, w, client, round, steps):
    """`steps` steps of v, held near w, on batches in order."""
    lr = PLAN.lr * PLAN.lr_decay**round
    passed = list(oracle.batches(*client, PLAN.batch_size, 9))[:steps]
    for x, y in passed:
        g = oracle.clip(oracle.gradient(v, x, y) + MU * (v - w), PLAN.clip_norm)
        v = v - lr * (g + PLAN.weight_decay * v)
    return v


@pytest.mark.parametrize("steps", [None, 5])
def test_follows_the_numpy_oracle(x64, steps):
    clients, theta, history = run(ditto(MU, steps))
    own = np.tile(theta, (6, 1))

    def follow(round, cohort):
        nonlocal theta
        w = theta
        for i in cohort:
            tau = oracle.num_batches(len(clients[i][1]), PLAN.batch_size, 2)
            own[i] = own_steps(own[i], w, clients[i], round, steps or tau)
        ends = [oracle.sgd(w, clients[i], PLAN, round) for i in cohort]
        theta = np.average(ends, 0, [len(clients[i][1]) for i in cohort])
        return theta

    assert_follows(history, follow)
    models = fa.personal_models(ditto(MU), history[-1][0])
    for i in range(6):
        found = oracle.flat(jax.tree.map(lambda leaf, i=i: leaf[i], models))
        np.testing.assert_allclose(found, own[i], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("build", [scaffold, lambda: fedper("b")], ids=["scaf", "per"])
def test_the_global_model_is_the_bases(task, data, build):
    ends = []
    for algorithm in (build(), ditto(base=build())):
        round_fn, state = start(algorithm, task, data)
        ends.append(fa.train(round_fn, state, keys(3)))
    (state, infos), (other, other_infos) = ends
    assert same(other.params, state.params) and same(other.server, state.server)
    assert same(other.clients.inner, state.clients)
    assert same(other_infos, infos)


@pytest.mark.slow
def test_at_mu_0_the_first_own_model_is_the_local_one(task, data):
    algorithm = fa.with_averages(ditto(0.0), clients=True)
    round_fn, state = start(algorithm, task, data)
    state, _ = jax.jit(round_fn)(state, keys(1)[0])
    close(fa.personal_models(algorithm, state), state.clients.model)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="mu=-1 must be a finite number of at least 0"):
        ditto(mu=-1)
    with pytest.raises(ValueError, match="steps=0 must be an integer >= 1"):
        ditto(steps=0)
