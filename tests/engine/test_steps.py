"""The step loops of an accelerator, run on a processor: the same numbers as its own."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedgsnr, fedssg, fedveca, gift, scaffold
from fedjax_adapt.engine import steps
from fedjax_adapt.engine.forecast import fixed_steps
from fedjax_adapt.engine.lanes import block_of
from fedjax_adapt.steps import scheduled_steps

EQUAL, UNEQUAL = (8,) * 6, (3, 9, 14, 6, 1, 12)
FULL = dict(batch_size=2, lr=0.1)


def steps_of(*table):
    """A policy that gives each client its own number of steps."""
    table = jnp.array(table)
    wanted = lambda state, cohort, measured: table[cohort.ids % len(table)]
    return fa.StepPolicy(wanted)


CASES = {
    "known": (fa.with_steps(fedavg(), fa.constant_steps(3)), EQUAL, {}),
    "epochs": (fa.with_steps(fedavg(), fa.epochs(2)), EQUAL, {}),
    "longer than drawn at once": (
        fa.with_steps(fedavg(), fa.constant_steps(2 * steps.DRAWN + 1)),
        EQUAL,
        {},
    ),
    "unequal": (fa.with_steps(scaffold(), fa.epochs(3)), UNEQUAL, {}),
    "some sit out": (
        fa.with_steps(scaffold(), steps_of(0, 19, 2, 0, 8, 9)),
        EQUAL,
        {},
    ),
    "nobody trains": (fa.with_steps(scaffold(), steps_of(0)), EQUAL, {}),
    "a draw": (fa.with_steps(scaffold(), fa.epochs(1)), UNEQUAL, dict(cohort_size=4)),
    "coins": (fedssg(total_rounds=4), UNEQUAL, dict(participation=fa.bernoulli(0.4))),
    "momentum": (scaffold(), UNEQUAL, dict(momentum=0.9, clip_norm=1.0)),
    "whole gradients": (scaffold(option="I"), UNEQUAL, {}),
    "measured": (fedgsnr(4, base=scaffold()), UNEQUAL, {}),
    "learnt": (fedveca(initial_steps=2, max_steps=9), UNEQUAL, {}),
    "gift": (gift(), UNEQUAL, {}),
}


def two_rounds(algorithm, task, data, plan):
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(algorithm, task, data, plan))
    for key in jax.random.split(jax.random.key(1), 2):
        state, info = round_fn(state, key)
    return state, info


@pytest.mark.parametrize(
    ("name", "num_lanes"),
    [*((name, 4) for name in CASES), *itertools.product(("known", "unequal"), (1, 6))],
)
def test_an_accelerator_does_what_a_processor_does(name, num_lanes, task, monkeypatch):
    algorithm, sizes, more = CASES[name]
    plan = fa.Plan(lanes=num_lanes, **FULL | more)
    data = make_data(sizes)
    expected = two_rounds(algorithm, task, data, plan)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    found = two_rounds(algorithm, task, data, plan)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
    assert found[1].num_steps.tolist() == expected[1].num_steps.tolist()


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_trials_side_by_side_do_what_each_does_alone(backend, task, monkeypatch):
    """One loop for all of them, which ends with the longest of all."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    data, plan = make_data(UNEQUAL), fa.Plan(lanes=2, cohort_size=2, **FULL)
    algorithm = fa.with_steps(scaffold(), fa.epochs(2))
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    keys = jax.random.split(jax.random.key(1), 5)
    together = jax.jit(jax.vmap(round_fn, (None, 0)))(state, keys)
    alone = [jax.jit(round_fn)(state, key) for key in keys]
    alone = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    for a, b in zip(*map(jax.tree.leaves, (together, alone)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def known(policy, task, data, **plan):
    return fixed_steps(fedavg()._replace(policy=policy), task, data, fa.Plan(**plan))


def test_what_the_host_knows_of_the_steps(task):
    equal, unequal = make_data(EQUAL), make_data(UNEQUAL)
    assert known(fa.constant_steps(7), task, unequal) == 7
    assert known(fa.constant_steps(7), task, unequal, max_steps=5) == 5
    assert (
        known(fa.constant_steps(7), task, equal, participation=fa.bernoulli(0.5)) == 7
    )
    assert known(fa.epochs(3), task, equal, batch_size=3) == 9
    assert known(fa.epochs(3), task, equal, batch_size=3, cohort_size=2) == 9
    assert known(fa.epochs(3), task, unequal) is None
    # who is there is not known, and the policy goes by it
    assert known(fa.epochs(3), task, equal, participation=fa.bernoulli(0.5)) is None
    # an empty client is never drawn, but takes part with everyone
    holes = make_data((8, 8, 0, 8))
    assert known(fa.epochs(2), task, holes, batch_size=4, cohort_size=2) == 4
    assert known(fa.epochs(2), task, holes, batch_size=4) is None
    assert known(fedgsnr(4).policy, task, equal) is None
    assert known(fedveca(initial_steps=2).policy, task, equal) is None
    assert known(scheduled_steps(np.array([3, 3])), task, equal) is None
    assert known(steps_of(2, 2), task, equal) is None  # by id


def test_steps_that_are_traced_are_not_known(task):
    data, found = make_data(EQUAL), []

    def run(number):
        found.append(known(fa.constant_steps(number), task, data))
        return number

    jax.jit(run)(3)
    assert found == [None]


def test_other_numbers_may_be_traced(task):
    """As in a sweep over learning rates, whose steps are known all the same."""
    data, found = make_data(EQUAL), []

    def run(lr):
        found.append(known(fa.constant_steps(4), task, data, lr=lr))
        return lr

    jax.jit(run)(0.1)
    assert found == [4]


def test_a_loss_that_a_policy_asks_for_is_not_known(task):
    def wanted(state, cohort, measured):
        loss = cohort.train_loss(state)
        return jnp.where(loss > 1, 2, 2) + jnp.zeros_like(cohort.ids)

    policy = fa.StepPolicy(wanted, init=lambda params, num_clients: params)
    assert known(policy, task, make_data(EQUAL)) is None


def test_a_block_ends_with_the_clients():
    everyone = np.array([[3, 30, 9, 12]] * 4)  # the same longest client every round
    assert block_of(everyone, 4, 4) == 30
    assert block_of(everyone * 5, 4, 4) == 50  # three whole blocks
    assert block_of(np.full((3, 6), 5), 6, 6) == 5
    assert block_of(None, 4, 4) == block_of(np.zeros((2, 4), int), 4, 4) == steps.BLOCK
    # packed, a block has to make room, and is as long as most clients
    assert block_of(np.array([[40, *[4] * 20]]), 3, 21) == 4


def test_a_round_for_an_accelerator_is_told_its_block(task, monkeypatch):
    data, algorithm = make_data(UNEQUAL), fa.with_steps(fedavg(), fa.epochs(3))
    plan = fa.Plan(lanes=6, batch_size=2)
    assert fa.make_round(algorithm, task, data, plan).step.pace == steps.Pace()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert fa.make_round(algorithm, task, data, plan).step.pace.block == 21  # 7 x 3
