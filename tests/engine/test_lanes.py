"""How many clients run side by side, by rule."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedgsnr
from fedjax_adapt.engine import forecast, lanes
from fedjax_adapt.engine.slots import num_lanes_of

UNEQUAL = (4, 0, 20, 4, 0, 2, 4)  # by 2 an epoch: 2, 10, 2, 1 and 2 steps


@pytest.mark.parametrize(
    "cohort_size, steps, found",
    [
        (8, [[5] * 8], 8),
        (8, [[20, 2, 2, 2, 2, 2, 2, 2]], 2),  # 34 / 20
        (8, [[10, 8, 8, 8, 8, 8, 8, 8]], 8),  # on 7 lanes two would follow each other
        (4, [[20, 2, 2, 2, 2, 2, 2, 2]], 1),  # on two devices
        (4, [[5, 5, 5, 0], [5, 5, 0, 0], [0, 0, 0, 0]], 3),  # empty slots
        (4, [[0, 0, 0, 0]], 4),
        (4, None, 4),
    ],
)
def test_as_many_lanes_as_unequal_clients_keep_busy(cohort_size, steps, found):
    steps = None if steps is None else np.array(steps)
    assert lanes.kept_busy(cohort_size, steps) == found


def loss_steps(state, cohort, measurement):
    return jnp.full_like(cohort.ids, jnp.ceil(cohort.train_loss({})).astype(int))


@pytest.mark.parametrize(
    "policy, options, found",
    [
        (fa.epochs(1), {}, 2),
        (fa.epochs(1), {"max_steps": 2}, 5),  # 9 / 2
        (fa.epochs(1), {"participation": fa.bernoulli(1.0), "cohort_size": None}, 2),
        (fa.constant_steps(4), {}, 5),
        (fa.constant_steps(4), {"lanes": 3}, 3),
        (fedgsnr().policy, {}, 5),  # who knows?
        (fa.StepPolicy(loss_steps), {}, 5),
    ],
)
def test_on_an_accelerator_auto_asks_the_policy(
    policy, options, found, task, monkeypatch
):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    plan = fa.Plan(**{"cohort_size": 5, "batch_size": 2} | options)
    algorithm = fa.with_steps(fedavg(), policy)
    assert num_lanes_of(algorithm, task, make_data(UNEQUAL), plan) == found


def test_a_round_that_is_traced_has_the_lanes_of_one_that_is_not(task, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    data, plan, seen = make_data(UNEQUAL), fa.Plan(cohort_size=5, batch_size=2), []

    def traced(num_epochs, lr, data):
        for policy in (fa.epochs(1), fa.epochs(num_epochs)):
            algorithm = fa.with_steps(fedavg(), policy)
            seen.append(fa.make_round(algorithm, task, data, plan).num_lanes)
        return lr

    jax.eval_shape(lambda num, lr: traced(num, lr, data), 2.0, 0.1)
    jax.vmap(lambda num, lr: traced(num, lr, data))(jnp.ones(2), jnp.ones(2))
    jax.eval_shape(traced, 2.0, 0.1, data)  # data, too
    assert seen == [2, 5, 2, 5, 5, 5]


def test_cohorts_are_drawn_as_rounds_draw_them():
    data = make_data(UNEQUAL)
    drawn = forecast.cohorts(fa.Plan(participation=fa.bernoulli(0.4)), data)
    there = drawn < 7
    assert set(drawn[there]) == {0, 2, 3, 5, 6} and (drawn[~there] == 7).all()
    assert 1 < there.sum(1).mean() < 3.5 and there.any(1).all()
    clock = fa.Clock(step_seconds=1.0)
    early = fa.Plan(participation=fa.earliest(0.6), clock=clock)
    drawn = forecast.cohorts(early, data)
    assert drawn.shape == (forecast.DRAWS, 3) and len(np.unique(drawn)) == 5
    everyone = forecast.cohorts(fa.Plan(), data)
    np.testing.assert_array_equal(everyone, [range(7)] * forecast.DRAWS)
