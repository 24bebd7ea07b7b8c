"""Lanes that are found by trying."""

import math

import jax
import numpy as np
import pytest
from helpers import constructed, make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    ALGORITHMS,
    fedavg,
    fedgsnr,
    fedssg,
    fedveca,
    scaffold,
)
from fedjax_adapt.costs import exponential
from fedjax_adapt.engine import calibrate, memory
from fedjax_adapt.engine.client_store import DEVICE, STORES
from fedjax_adapt.engine.lanes import cohorts
from fedjax_adapt.engine.setup import Setup


@pytest.mark.parametrize(
    "first, seconds, found, tried",
    [
        (10, {1: 9, 2: 5, 5: 4, 10: 6, 25: 7}, 5, [10, 25, 5, 2]),
        (1, {1: 9, 2: 5, 5: 4, 10: 6, 25: 7}, 5, [1, 2, 5, 10]),
        (25, {1: 1, 2: 2, 5: 3, 10: 4, 25: 5}, 1, [25, 10, 5, 2, 1]),
        (4, {1: 2, 2: 2, 5: 2}, 5, [5, 2, 1]),  # no faster is no reason to move
        # a little slower is none to stop
        (1, {1: 10, 2: 10.5, 5: 9, 10: 9.8, 25: 8, 50: 9}, 25, [1, 2, 5, 10, 25, 50]),
        (7, {7: 1}, 7, [7]),
        # no room: fewer, until there is
        (
            500,
            {50: 2, 100: math.inf, 250: math.inf, 500: math.inf},
            50,
            [500, 250, 100, 50],
        ),
        (25, {5: 1, 10: 2, 25: math.inf}, 5, [25, 10, 5]),
        (5, {2: math.inf, 5: math.inf}, 5, [5, 2]),
    ],
)
def test_it_climbs_as_long_as_nothing_is_much_slower(first, seconds, found, tried):
    asked = []
    ask = lambda lanes: asked.append(lanes) or seconds[lanes]
    assert calibrate.climb(ask, sorted(seconds), first) == found
    assert asked == tried


@pytest.mark.slow
def test_it_times_the_clients_of_a_round_for_a_few_steps(task, monkeypatch):
    sizes = (4, 0, 20, 4, 0, 2, 4)  # 2, 10, 2, 1 and 2 steps, 3.4 in the mean
    data, seen, told = make_data(sizes), [], []

    def seconds(setup):
        algorithm, task, data, plan = setup[:4]
        seen.append(plan.lanes)
        # the last makes them as many on either device
        np.testing.assert_array_equal(data.size, [4, 20, 4, 2, 4, 0])
        assert (data.num_holders, data.num_clients) == (5, 6)
        assert (plan.devices, plan.cohort_size) == (2, None)
        state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
        assert len(jax.tree.leaves(state.clients)[0]) == 6
        if plan.lanes == 1:
            round_fn = jax.jit(fa.make_round(algorithm, task, data, plan))
            # 3 / 3.4 of each, rounded up
            steps = round_fn(state, jax.random.key(1))[1].num_steps
            np.testing.assert_array_equal(steps, [2, 9, 2, 1, 2, 0])
        return 1 / plan.lanes

    monkeypatch.setattr(calibrate, "_seconds", seconds)
    plan = fa.Plan(participation=fa.uniform(5), batch_size=2, devices=2)
    tell = lambda *said: told.append(said)
    assert calibrate.fastest_lanes(scaffold(), task, data, plan, tell) == 3
    assert seen == [1, 3]
    assert told == [(1, 1.0), (3, 1 / 3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param(fedgsnr(num_steps=9), id="gsnr", marks=pytest.mark.slow),
        pytest.param(fedveca(max_steps=9), id="veca"),
    ],
)
def test_what_is_measured_or_learnt_real_rounds_tell(algorithm, task):
    data, plan = make_data((9, 3, 4)), fa.Plan(batch_size=2)
    found = calibrate._few_steps(Setup(algorithm, task, data, plan))
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(algorithm, task, data, plan))
    for _ in range(3):
        state, info = round_fn(state, jax.random.key(1))
    steps = np.asarray(info.num_steps)
    assert len(set(steps)) > 1
    np.testing.assert_array_equal(found, np.ceil(3 * steps / steps.mean()))


def test_where_real_rounds_have_no_room_all_take_as_many(task, monkeypatch):
    monkeypatch.setattr(calibrate, "_compiled", lambda *_: None)
    data, plan = make_data((9, 0, 4)), fa.Plan(batch_size=2)
    found = calibrate._few_steps(Setup(fedgsnr(), task, data, plan))
    np.testing.assert_array_equal(found, [3, 0, 3])


@pytest.mark.slow
def test_as_many_slots_are_empty_as_in_the_mean(task, monkeypatch):
    seen = []
    monkeypatch.setattr(calibrate, "_seconds", lambda work: seen.append(work) or 1)
    plan = fa.Plan(participation=fa.bernoulli(0.5), batch_size=2, max_steps=3)
    all_ = make_data()
    calibrate.fastest_lanes(fedavg(), task, all_, plan)
    algorithm, _, data, plan = seen[0][:4]
    assert data.num_clients == 6 and plan.participation is plan.max_steps is None
    drawn = cohorts(all_, fa.Plan(participation=fa.bernoulli(0.5)))
    mean = (drawn < 6).sum(1).mean()
    assert abs(data.num_holders - mean) <= 0.5 and mean < 5
    steps = np.asarray(algorithm.policy.steps((), (), ()))
    np.testing.assert_array_equal(steps > 0, np.asarray(data.size) > 0)


def test_an_odd_cohort_is_cut_up_among_devices_as_all_clients_are(task):
    data, memory = make_data(), dict(client_memory="host", devices=2)
    plan = fa.Plan(participation=fa.uniform(5), batch_size=2, **memory)
    data, plan = calibrate._usual_cohort(data, plan)
    assert data.num_clients == 6 and plan.devices == 2
    assert (np.asarray(data.size) > 0).sum() == 5
    fa.init_state(scaffold(), task, data, plan, jax.random.key(0))


def test_a_cohort_from_the_memory_of_the_host_has_the_devices_of_its_round(task):
    sizes = (3,) * 25  # which 4, 3 and 2 devices cannot cut up evenly
    plan = fa.Plan(cohort_size=6, batch_size=2, client_memory="host", devices="auto")
    data, plan = calibrate._usual_cohort(make_data(sizes), plan)
    assert data.num_clients == 6 and plan.devices == 1
    fa.init_state(scaffold(), task, data, plan, jax.random.key(0))


def test_clients_that_are_timed_keep_their_own_clock():
    law = exponential(2.0)
    clock = fa.Clock(step_seconds=np.arange(7.0), delay=law)
    plan = fa.Plan(participation=fa.uniform(5), clock=clock)
    _, plan = calibrate._usual_cohort(make_data((4, 0, 20, 4, 0, 2, 4)), plan)
    np.testing.assert_array_equal(plan.clock.step_seconds, [0, 2, 3, 5, 6])
    assert plan.clock.delay is law and plan.clock.bandwidth == clock.bandwidth


@pytest.mark.parametrize(
    "most, first, found",
    [
        (30, 24, [1, 5, 24, 30]),
        (50, 10, [1, 10, 25, 50]),
        (300, 300, [1, 5, 25, 100, 300]),
        (1, 1, [1]),
    ],
)
def test_the_rule_is_among_what_is_tried(most, first, found):
    assert calibrate.candidates(most, first) == found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scaffold", "fedgen"])
def test_what_it_times_is_a_compiled_round(name, task, monkeypatch):
    monkeypatch.setattr(
        calibrate, "climb", lambda seconds, candidates, first: seconds(2)
    )
    plan = fa.Plan(batch_size=4, max_steps=1)
    found = calibrate.fastest_lanes(constructed(name), task, make_data((4, 5)), plan)
    assert 0 < found < 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "participation", [fa.uniform(2), fa.bernoulli(0.4)], ids=["uniform", "bernoulli"]
)
def test_options_that_describe_the_federation_are_checked_against_it(
    participation, task, monkeypatch
):
    def seconds(setup):  # traced, not timed
        fa.make_round(*setup[:4])
        return 1.0

    monkeypatch.setattr(calibrate, "_seconds", seconds)
    data = make_data((4, 4, 4, 4, 4))
    plan = fa.Plan(participation=participation, batch_size=2, rounds=9)
    right = fedssg(participation=0.4, total_rounds=9)
    assert calibrate.fastest_lanes(right, task, data, plan) >= 1
    with pytest.raises(
        ValueError, match=r"participation=0\.9 but 0\.4\d* of the clients"
    ):
        calibrate.fastest_lanes(fedssg(participation=0.9), task, data, plan)


@pytest.mark.slow
def test_where_xla_finds_no_memory_there_is_no_room(task, monkeypatch):
    def no_memory(*_):
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(calibrate.jax, "block_until_ready", no_memory)
    plan = fa.Plan(batch_size=4, lanes=2, max_steps=1)
    setup = Setup(scaffold(), task, make_data((4, 5)), plan)
    assert calibrate._seconds(setup) == math.inf


def test_what_has_no_room_is_not_tried(task, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1)
    plan = fa.Plan(batch_size=4, lanes=2, max_steps=1)
    setup = Setup(scaffold(), task, make_data((4, 5)), plan)
    unchecked = DEVICE._replace(check_room=lambda *_: None)
    monkeypatch.setitem(STORES, "device", unchecked)
    assert calibrate._seconds(setup) == math.inf


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_says_how_many_steps_to_try(name, task, monkeypatch):
    real = lambda *_: np.array([1, 2, 3])
    monkeypatch.setattr(calibrate, "_steps_of_a_real_round", real)
    plan = fa.Plan(batch_size=2)
    algorithm = constructed(name)._replace(refine=None)
    steps = calibrate._few_steps(Setup(algorithm, task, make_data((9, 3, 4)), plan))
    assert steps.shape == (3,) and (steps >= 1).all() and steps.max() <= 9
