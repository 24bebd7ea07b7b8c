"""How many clients run side by side, by rule."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedgsnr, scaffold
from fedjax_adapt.engine import build, lanes, memory
from fedjax_adapt.engine.build import num_lanes_of

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
    drawn = lanes.cohorts(data, fa.Plan(participation=fa.bernoulli(0.4)))
    there = drawn < 7
    assert set(drawn[there]) == {0, 2, 3, 5, 6} and (drawn[~there] == 7).all()
    assert 1 < there.sum(1).mean() < 3.5 and there.any(1).all()
    clock = fa.Clock(step_seconds=1.0)
    early = fa.Plan(participation=fa.earliest(0.6), clock=clock)
    drawn = lanes.cohorts(data, early)
    assert drawn.shape == (lanes.DRAWS, 3) and len(np.unique(drawn)) == 5
    everyone = lanes.cohorts(data, fa.Plan())
    np.testing.assert_array_equal(everyone, [range(7)] * lanes.DRAWS)


def room_for(algorithm, task, data, plan, number, monkeypatch):
    """Leaves as much memory of an accelerator as a round with so many lanes takes."""
    found = fa.memory_needed(algorithm, task, data, replace(plan, lanes=number))
    least = (found.total - found.data) / memory.SHARE
    monkeypatch.setattr(memory, "free_memory", lambda: int(least) + 2)


@pytest.fixture
def wide(monkeypatch):
    """12 equal clients of a model that takes more than a round does otherwise."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    data, plan = (
        make_data((6,) * 12),
        fa.Plan(cohort_size=10, batch_size=2, shuffle="none"),
    )
    shape = data.x.shape[1:]
    return fa.classification(fa.models.mlp(shape, 3, (200,)), shape), data, plan


@pytest.mark.filterwarnings("ignore:lanes=")
@pytest.mark.parametrize(
    "algorithm, fits, found",
    [(fedavg(), 9, 5), (fedavg(), 4, 4), (fedavg(), 1, 1), (scaffold(), 7, 5)],
)
def test_as_many_lanes_as_fit_take_equal_turns(
    algorithm, fits, found, wide, monkeypatch
):
    room_for(algorithm, *wide, fits, monkeypatch)
    assert fa.make_round(algorithm, *wide).num_lanes == found


def test_fewer_lanes_than_would_be_fastest_are_told(wide, monkeypatch):
    room_for(fedavg(), *wide, 10, monkeypatch)
    fa.make_round(fedavg(), *wide)  # a warning is an error here
    room_for(fedavg(), *wide, 9, monkeypatch)
    says = (
        r"^lanes=5, since 10 would take .* MiB besides the data, more than 80% of the "
    )
    with pytest.warns(UserWarning, match=says):
        fa.make_round(fedavg(), *wide)
    seen = []
    num_lanes_of(fedavg(), *wide, tell=seen.append)
    assert len(seen) == 1 and seen[0].startswith("lanes=5, since 10")
    task, data, plan = wide
    fa.make_round(fedavg(), task, data, replace(plan, lanes=10))  # as was asked for


def test_unequal_clients_have_the_lanes_that_fit_of_those_kept_busy(wide, monkeypatch):
    task, _, plan = wide
    data = make_data((8, *(4,) * 9))
    algorithm = fa.with_steps(fedavg(), fa.epochs(1))
    given = algorithm, task, data, plan
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    assert num_lanes_of(*given) == 6  # 22 steps, 4 of the longest
    seen = []
    for fits in (6, 4):
        room_for(*given, fits, monkeypatch)
        assert num_lanes_of(*given, tell=seen.append) == fits
    assert len(seen) == 1


def test_a_round_that_easily_fits_is_not_traced_for_it(wide, monkeypatch):
    def traced(*_):
        raise AssertionError

    monkeypatch.setattr(build, "memory_needed", traced)
    monkeypatch.setattr(memory, "free_memory", lambda: 2**36)
    assert fa.make_round(fedavg(), *wide).num_lanes == 10


@pytest.mark.filterwarnings("ignore:lanes=")
def test_a_round_that_is_traced_fits_as_well(wide, monkeypatch):
    task, data, plan = wide
    room_for(fedavg(), *wide, 5, monkeypatch)
    seen = []

    def made(lr, data):
        round_fn = fa.make_round(fedavg(), task, data, replace(plan, lr=lr))
        seen.append(round_fn.num_lanes)
        return lr

    jax.vmap(lambda lr: made(lr, data))(jnp.ones(2))
    jax.eval_shape(made, 0.1, data)  # of as many examples as nobody knows
    assert seen[0] == 5 and 1 < seen[1] <= 5
