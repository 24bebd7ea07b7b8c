import jax
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import CLASSES, WIDTH, close, keys, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedper, fedrep

HEAD = WIDTH * CLASSES  # where the biases begin in the flat vector


def local(theta, client, lr, first):
    """`first` steps of the head, at most all but the last, then steps of the body."""
    passed = list(oracle.batches(*client, PLAN.batch_size, epochs=2))
    first = min(first, len(passed) - 1)
    for step, (x, y) in enumerate(passed):
        on = (np.arange(theta.size) >= HEAD) == (step < first)
        g = oracle.clip(on * oracle.gradient(theta, x, y), PLAN.clip_norm)
        theta = theta - lr * on * (g + PLAN.weight_decay * theta)
    return theta


@pytest.mark.parametrize(
    "head_steps, weights", [(None, "uniform"), (3, "data"), (0, "uniform")]
)
def test_follows_the_numpy_oracle(x64, head_steps, weights):
    clients, theta, history = run(fedrep(head_steps, "b", weights))
    begin, heads = theta, np.tile(theta[HEAD:], (6, 1))
    first = 99 if head_steps is None else head_steps

    def follow(round, cohort):
        nonlocal theta
        bodies, lr = [], PLAN.lr * PLAN.lr_decay**round
        for i in cohort:
            own = np.concatenate([theta[:HEAD], heads[i]])
            end = local(own, clients[i], lr, first)
            bodies.append(end[:HEAD])
            heads[i] = end[HEAD:]
        sizes = [len(clients[i][1]) for i in cohort]
        body = np.average(bodies, 0, sizes if weights == "data" else None)
        theta = np.concatenate([body, begin[HEAD:]])
        return theta

    assert_follows(history, follow)
    np.testing.assert_allclose(history[-1][0].clients.own["b"], heads, atol=1e-12)


@pytest.mark.slow
def test_a_client_of_one_step_trains_its_body(task, data):
    one = fa.constant_steps(1)
    round_fn, state = start(fa.with_steps(fedrep(personal="b"), one), task, data)
    after, _ = jax.jit(round_fn)(state, keys(1)[0])
    close(after.clients.own, state.clients.own)
    assert float(np.abs(after.params["w"] - state.params["w"]).max()) > 1e-3


def test_what_cannot_be_held_still_is_refused(task, data):
    plan = fa.Plan(cohort_size=3, batch_size=4, momentum=0.9)
    with pytest.raises(
        ValueError, match="momentum=0.9 would move a head and a body on"
    ):
        fa.make_round(fedrep(personal="b"), task, data, plan)
    fa.make_round(fedper(personal="b"), task, data, plan)
    with pytest.raises(
        ValueError, match="head_steps=-1 must be an integer >= 0, or None"
    ):
        fedrep(head_steps=-1)
