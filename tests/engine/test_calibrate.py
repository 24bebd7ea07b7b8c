"""Lanes that are found by trying."""

import jax
import numpy as np
import pytest
from helpers import make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import scaffold
from fedjax_adapt.engine import calibrate


@pytest.mark.parametrize(
    "first, seconds, found, tried",
    [
        (10, {1: 9, 2: 5, 5: 4, 10: 6, 25: 7}, 5, [10, 25, 5, 2]),
        (1, {1: 9, 2: 5, 5: 4, 10: 6, 25: 7}, 5, [1, 2, 5, 10]),
        (25, {1: 1, 2: 2, 5: 3, 10: 4, 25: 5}, 1, [25, 10, 5, 2, 1]),
        (4, {1: 2, 2: 2, 5: 2}, 5, [5, 2]),  # no faster is no reason to move
        (7, {7: 1}, 7, [7]),
    ],
)
def test_it_climbs_as_long_as_it_gets_faster(first, seconds, found, tried):
    asked = []
    ask = lambda lanes: asked.append(lanes) or seconds[lanes]
    assert calibrate.climb(ask, sorted(seconds), first) == found
    assert asked == tried


def test_it_times_the_clients_of_a_round_for_a_few_steps(task, monkeypatch):
    sizes = (4, 0, 6, 3, 5, 2, 4, 4)
    data, seen = make_data(sizes), []

    def seconds(algorithm, task, data, plan):
        seen.append(plan.lanes)
        np.testing.assert_array_equal(data.size, [4, 6, 3, 5])
        assert data.num_holders == data.num_clients == 4
        assert (plan.max_steps, plan.devices, plan.cohort_size) == (3, 2, None)
        state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
        _, info = fa.make_round(algorithm, task, data, plan)(state, jax.random.key(1))
        np.testing.assert_array_equal(info.num_steps, [2, 3, 2, 3])
        assert len(jax.tree.leaves(state.clients)[0]) == 4
        return 1 / plan.lanes

    monkeypatch.setattr(calibrate, "_seconds", seconds)
    plan = fa.Plan(participation=fa.uniform(4), batch_size=2, devices=2)
    assert calibrate.fastest_lanes(scaffold(), task, data, plan) == 2
    assert seen == [1, 2]


def test_what_it_times_is_a_compiled_round(task):
    plan = fa.Plan(batch_size=4, lanes=2, max_steps=1)
    assert 0 < calibrate._seconds(scaffold(), task, make_data((4, 5)), plan) < 10
