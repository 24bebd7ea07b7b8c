"""The step loops of an accelerator, run on a processor: the same numbers as its own."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    ditto,
    fedavg,
    fedgsnr,
    fednova,
    fedssg,
    fedveca,
    gift,
    scaffold,
)
from fedjax_adapt.core import scheduled_steps
from fedjax_adapt.data import feature_noise
from fedjax_adapt.engine import lanes, steps
from fedjax_adapt.engine.footprint import inner_jaxprs
from fedjax_adapt.engine.lanes import fixed_steps
from fedjax_adapt.engine.local import correction
from fedjax_adapt.engine.setup import Setup
from fedjax_adapt.engine.step_time import Work

EQUAL, UNEQUAL = (8,) * 6, (3, 9, 14, 6, 1, 12)
FULL = dict(batch_size=2, lr=0.1)


def steps_of(*rounds):
    """A policy that gives each client its own number of steps in each round."""
    table = jnp.array(rounds)

    def wanted(state, cohort, measured):
        return table[cohort.round % len(table)][cohort.ids % table.shape[1]]

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
    "some sit out, then nobody trains": (
        fa.with_steps(scaffold(), steps_of((0, 19, 2, 0, 8, 9), (0,) * 6)),
        EQUAL,
        {},
    ),
    "a draw and momentum": (
        fa.with_steps(scaffold(), fa.epochs(1)),
        UNEQUAL,
        dict(cohort_size=5, momentum=0.9, clip_norm=1.0),
    ),
    "coins": (fedssg(total_rounds=4), UNEQUAL, dict(participation=fa.bernoulli(0.4))),
    "coins, and a known number": (
        fa.with_steps(scaffold(), fa.constant_steps(3)),
        EQUAL,
        dict(participation=fa.bernoulli(0.4)),
    ),
    "whole gradients": (scaffold(option="I"), UNEQUAL, {}),
    "measured": (fedgsnr(4, base=scaffold()), UNEQUAL, {}),
    "learnt": (fedveca(initial_steps=2, max_steps=9), UNEQUAL, {}),
    "gift": (gift(), UNEQUAL, {}),
    "steps taken again": (ditto(0.5), UNEQUAL, {}),
    "others of a known number": (ditto(0.5, steps=3), UNEQUAL, {}),
}


def two_rounds(algorithm, task, data, plan):
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(algorithm, task, data, plan))
    ends = []
    for key in jax.random.split(jax.random.key(1), 2):
        state, info = round_fn(state, key)
        ends.append((state, info))
    return ends


@functools.cache
def by_processor(name, task):
    """`two_rounds` of a case on a processor, whose lanes are tested in test_lanes.py."""
    algorithm, sizes, more = CASES[name]
    plan = fa.Plan(lanes=4, **FULL | more)
    return two_rounds(algorithm, task, make_data(sizes), plan)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_lanes"),
    [
        # fedveca, which learns its steps as well, is the fast case of GIFT
        *(
            pytest.param(name, 4, marks=pytest.mark.slow if name == "gift" else ())
            for name in CASES
        ),
        *(("unequal", lanes) for lanes in (1, 6)),
        *(pytest.param("known", lanes, marks=pytest.mark.slow) for lanes in (1, 6)),
    ],
)
def test_an_accelerator_does_what_a_processor_does(name, num_lanes, task, monkeypatch):
    expected = by_processor(name, task)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    algorithm, sizes, more = CASES[name]
    plan = fa.Plan(lanes=num_lanes, **FULL | more)
    found = two_rounds(algorithm, task, make_data(sizes), plan)
    for a, b in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)
    for (_, info), (_, wanted) in zip(found, expected, strict=True):
        assert info.num_steps.tolist() == wanted.num_steps.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("policy", [fa.constant_steps(3), fa.epochs(1)])
@pytest.mark.parametrize("num_lanes", [1, 2, 5])
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_empty_slots_take_no_steps(policy, num_lanes, backend, task, monkeypatch):
    """Coins fill about a third of the slots: a run on a GPU took 3.5 times its steps."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    taken = []

    def loss(*arguments):
        jax.debug.callback(lambda: taken.append(1))  # once for all lanes
        return task.loss(*arguments)

    plan = fa.Plan(
        batch_size=2, lr=0.1, participation=fa.bernoulli(0.1), lanes=num_lanes
    )
    algorithm = fa.with_steps(fedavg(), policy)
    counted, data = task._replace(loss=loss), make_data((6,) * 40)
    state = fa.init_state(algorithm, counted, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(algorithm, counted, data, plan))
    for key in jax.random.split(jax.random.key(1), 3):
        taken.clear()
        state, info = jax.block_until_ready(round_fn(state, key))
        jax.effects_barrier()
        groups = -(-int(info.num_active) // num_lanes)
        assert len(info.cohort) > 2 * info.num_active
        assert len(taken) == 3 * groups


@pytest.mark.slow
def test_nobody_measures_in_an_empty_slot(task):
    """But beside somebody: lanes go together."""
    measured = []

    def client(view, key):
        jax.debug.callback(lambda: measured.append(1))  # once for all lanes
        return jnp.ones(())

    policy = fa.StepPolicy(
        lambda state, cohort, found: jnp.where(found > 0, 2, 0),
        measure=fa.Measure(client),
    )
    plan = fa.Plan(batch_size=2, lr=0.1, participation=fa.bernoulli(0.1), lanes=2)
    algorithm, data = fa.with_steps(fedavg(), policy), make_data((6,) * 40)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    trials = jax.jit(jax.vmap(round_fn, (None, 0)))  # side by side in one loop

    def groups(program, *given):
        """How often somebody measured, and the clients of the round or of each trial."""
        measured.clear()
        _, info = jax.block_until_ready(program(state, *given))
        jax.effects_barrier()
        there = (info.cohort < 40).sum(-1)
        assert (info.num_steps.sum(-1) == 2 * there).all()  # and zeros are no steps
        return len(measured), -(-there // 2)

    every = jax.random.split(jax.random.key(1), 4)
    alone = [groups(jax.jit(round_fn), key) for key in every]
    assert all(taken == wanted for taken, wanted in alone)
    assert len({int(wanted) for _, wanted in alone}) > 1
    taken, wanted = groups(trials, every)
    assert taken == wanted.max() < 9  # of 19 slots


@pytest.mark.slow
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
    algorithm = fedavg()._replace(policy=policy)
    return fixed_steps(Setup(algorithm, task, data, fa.Plan(**plan)))


@pytest.mark.slow
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
    assert known(steps_of((2, 2)), task, equal) is None  # by id


def loops_of(jaxpr):
    """Names of all loops of a program."""
    found = [eqn.primitive.name for eqn in jaxpr.eqns]
    inner = (one for eqn in jaxpr.eqns for one in inner_jaxprs(eqn))
    return [name for name in found if name in ("scan", "while")] + [
        name for one in inner for name in loops_of(one)
    ]


@pytest.mark.parametrize(
    "build",
    [fedavg, ditto, lambda: ditto(steps=3), lambda: fednova(mu=0.1)],
    ids=["fedavg", "ditto", "own steps", "fednova"],
)
def test_loops_over_known_steps_have_known_trips(build, task, monkeypatch):
    """Also those of what a client does after its local steps."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    algorithm, data = fa.with_steps(build(), fa.constant_steps(4)), make_data(UNEQUAL)
    plan = fa.Plan(lanes=6, **FULL)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    found = loops_of(jax.make_jaxpr(round_fn)(state, jax.random.key(1)).jaxpr)
    assert "scan" in found and "while" not in found


@pytest.mark.slow
def test_a_traced_number_of_own_steps_is_taken(task, monkeypatch):
    data, plan = make_data(UNEQUAL), fa.Plan(lanes=6, **FULL)

    def ends(number):
        algorithm = ditto(0.5, steps=number)
        state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
        round_fn = fa.make_round(algorithm, task, data, plan)
        return round_fn(state, jax.random.key(1))[0].clients.own

    expected = jax.jit(lambda: ends(3))()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    for a, b in zip(*map(jax.tree.leaves, (jax.jit(ends)(3), expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


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


def block_of(taken, num_lanes, cohort_size):
    """Of a model so small that a step takes what its launches do."""
    return lanes.block_of(taken, num_lanes, cohort_size, Work())


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


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [steps.DRAWN + 1, 2 * steps.DRAWN + 1])
def test_known_steps_in_several_blocks_are_those_one_by_one(num_steps, task):
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(num_steps))
    data = make_data(UNEQUAL)
    alone, together = (
        two_rounds(algorithm, task, data, fa.Plan(lanes=n, batch_size=2, lr=0.01))
        for n in (1, 6)
    )
    for a, b in zip(*map(jax.tree.leaves, (together, alone)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("read", ["state", "key"])
def test_steps_that_follow_from_a_state_or_a_key_are_not_known(task, read):
    def wanted(state, cohort, measured):
        number = state if read == "state" else jax.random.randint(cohort.key, (), 1, 9)
        return jnp.zeros_like(cohort.ids) + number

    policy = fa.StepPolicy(wanted, init=lambda params, num_clients: jnp.array(3))
    assert known(policy, task, make_data(EQUAL)) is None


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 4])
def test_steps_that_follow_from_the_rounds_of_a_run_are_taken(task, lanes):
    """The plan leaves the rounds open, and `train` says them."""

    def wanted(state, cohort, measured):
        rounds = cohort.setting.rounds
        return jnp.ones_like(cohort.ids) * (1 if rounds is None else rounds)

    algorithm = fa.with_steps(fedavg(), fa.StepPolicy(wanted))
    data, ends = make_data(EQUAL[:4]), []
    for rounds in (None, 5):
        plan = fa.Plan(batch_size=2, lr=0.1, lanes=lanes, rounds=rounds)
        state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
        round_fn = fa.make_round(algorithm, task, data, plan)
        ends.append(fa.train(round_fn, state, jax.random.split(jax.random.key(1), 5)))
    for a, b in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("if_none, if_known, found", [(2, 3, None), (2, 2, 2)])
def test_steps_are_known_if_they_are_the_same_with_and_without_rounds(
    task, if_none, if_known, found
):
    def wanted(state, cohort, measured):
        rounds = cohort.setting.rounds
        return jnp.full_like(cohort.ids, if_none if rounds is None else if_known)

    assert known(fa.StepPolicy(wanted), task, make_data(EQUAL)) == found
    chosen = known(fa.StepPolicy(wanted), task, make_data(EQUAL), rounds=9)
    assert chosen == if_known


def test_a_block_is_chosen_by_the_lanes_of_all_devices():
    taken = np.array([[20] * 2 + [5] * 6])
    assert block_of(taken, 2, 4) == 7  # two devices of two lanes; 5 for one device


ADD = {"correct": lambda grads, view: grads + 1, "decay": lambda grads, view: grads + 2}


@pytest.mark.parametrize(
    "names, total",
    [((), None), (("correct",), 1), (("decay",), 2), (("correct", "decay"), 3)],
)
def test_a_corrected_gradient_has_all_that_a_rule_adds(names, total):
    found = correction(fa.LocalRule(**{name: ADD[name] for name in names}), None)
    assert (found is None) if total is None else found(0) == total


def folded(number=None, over=True):
    """An algorithm that shows a sum over a client's steps, of each batch and its number."""

    def add(value, batch, step):
        return value + (step + 1.0) * (batch.x.sum() + batch.y.sum())

    def of(run):
        if over:
            return run.over_steps(add, jnp.float32(0), number)
        most = (
            run.num_steps if number is None else jnp.minimum(run.num_steps, 1) * number
        )
        one = lambda step, value: add(value, run.batch_at(step), step)
        return jax.lax.fori_loop(0, most, one, jnp.float32(0))

    def finish(run):
        moved = jax.tree.map(jnp.subtract, run.params, run.anchor)
        return fa.Upload(moved, info={"sum": of(run)}), run.client

    return fa.Algorithm(local=fa.LocalRule(finish=finish))


@pytest.mark.slow
@pytest.mark.parametrize("number", [None, 3])
@pytest.mark.parametrize(
    "policy", [fa.constant_steps(5), steps_of((0, 7, 2, 0, 4, 9))], ids=["known", "not"]
)
def test_what_follows_the_steps_sees_their_batches_in_order(policy, number, task):
    data = make_data(UNEQUAL)
    noise = feature_noise(6, 2.0, np.ones((4, 2), np.float32))  # drawn at every step
    data = replace(data, noise=noise)
    shown, counts = [], []
    for over in (True, False):
        algorithm = fa.with_steps(folded(number, over), policy)
        for _, info in two_rounds(algorithm, task, data, fa.Plan(lanes=2, **FULL)):
            shown.append(np.asarray(info.clients["sum"]))
            counts.append(info.num_steps)
    for mine, batch_by_batch in zip(shown[:2], shown[2:], strict=True):
        np.testing.assert_allclose(mine, batch_by_batch, rtol=1e-5)
    idle = np.asarray(counts[0]) == 0
    assert (shown[0][~idle] != 0).all() and not shown[0][idle].any()
