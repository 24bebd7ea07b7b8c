"""How many clients run side by side, by rule."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_data

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedgsnr, scaffold
from fedjax_adapt.core import task_loss
from fedjax_adapt.engine import build, lanes, memory, step_time
from fedjax_adapt.engine.build import num_lanes_of
from fedjax_adapt.engine.setup import Setup
from fedjax_adapt.engine.step_time import Work

UNEQUAL = (4, 0, 20, 4, 0, 2, 4)  # by 2 an epoch: 2, 10, 2, 1 and 2 steps


# seconds that a client adds to a step, of which the launches take 60 microseconds
LARGE = Work(step=1e-3)
UNEVEN = [20, 2, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    "cohort_size, steps, found",
    [
        (8, [[5] * 8], 8),
        (8, [UNEVEN], 2),  # 34 / 20
        (8, [[10, 8, 8, 8, 8, 8, 8, 8]], 8),  # on 7 lanes two would follow each other
        (4, [UNEVEN], 1),  # on two devices
        (4, [[5, 5, 5, 0], [5, 5, 0, 0], [0, 0, 0, 0]], 3),  # empty slots
        (4, [[0, 0, 0, 0]], 4),
        (4, None, 4),
    ],
)
def test_as_many_lanes_as_unequal_clients_of_a_large_model_keep_busy(
    cohort_size, steps, found
):
    steps = None if steps is None else np.array(steps)
    assert lanes.kept_busy(cohort_size, steps, LARGE) == found


def test_unequal_clients_of_a_small_model_have_a_lane_each():
    """Fewer lanes would wait and make room more often, and a step would take no less."""
    assert lanes.kept_busy(8, np.array([UNEVEN]), Work()) == 8
    ends = np.linspace(2, 18, 50).astype(int)[None]  # as W2 with 20 to 180 examples
    assert lanes.kept_busy(50, ends, Work(1.4e-6, 1.4e-6)) == 50
    assert lanes.kept_busy(50, ends, LARGE) == 27
    # as much work, but to make room takes a hundred times as long
    assert lanes.kept_busy(50, ends, LARGE._replace(room=0.1)) == 50


def test_a_block_of_a_large_model_leaves_fewer_steps_idle():
    steps = np.array([[10, 7, 6, 6]])
    small, large = (lanes.paced(steps, 2, 6, work) for work in (Work(), LARGE))
    assert small[1] == 6 and large[1] == 2
    between = step_time.WAIT + step_time.ROOM
    assert small[0] == pytest.approx(3 * (6 * step_time.STEP + between))
    step = step_time.STEP + 2 * LARGE.step
    assert large[0] == pytest.approx(8 * (2 * step + between))


def test_where_each_client_has_a_lane_no_room_is_made():
    took, block = lanes.paced(np.array([[10, 7, 6, 6]]), 4, 4, LARGE._replace(room=1.0))
    step = step_time.STEP + 4 * LARGE.step
    assert (took, block) == (pytest.approx(10 * step + step_time.WAIT), 10)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["lax", "patches"])
def test_a_client_adds_the_products_of_its_batch_or_moves_its_model(way):
    shape, size = (16, 16, 3), 4000
    task = fa.classification(fa.models.cnn(shape, 10), shape)
    task = fa.models.with_ways(task, way)
    clients = [(np.zeros((size, *shape), np.float32), np.zeros(size, int))]
    data = fa.FederatedDataset.from_clients(clients, num_classes=10)
    params = jax.eval_shape(task.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((2, *shape), jnp.float32)
    found = step_time.operations(jax.make_jaxpr(task.apply)(params, x).jaxpr)
    of_all = jax.jit(task.apply).lower(params, x).cost_analysis()["flops"]
    assert 0.95 * of_all < found < of_all  # XLA counts sums and maxima as well
    moving = 6 * sum(4 * leaf.size for leaf in jax.tree.leaves(params)) / 3.35e12
    few = Setup(fedavg(), task, data, fa.Plan(batch_size=2))
    assert step_time.work_of(few) == (pytest.approx(moving),) * 2
    products = 3 * found * size / 2 / 67e12
    work = step_time.work_of(few._replace(plan=fa.Plan(batch_size=None)))
    assert work == (pytest.approx(products), pytest.approx(moving))


def test_a_product_in_a_scan_counts_as_often_as_it_is_made():
    def program(x):
        return jax.lax.scan(lambda x, _: (jax.jit(jnp.dot)(x, x), None), x, None, 7)

    jaxpr = jax.make_jaxpr(program)(jnp.ones((5, 5))).jaxpr
    assert step_time.operations(jaxpr) == 7 * 2 * 5**3


@pytest.fixture
def large(monkeypatch):
    """On an accelerator, a model whose step is work."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(build, "work_of", lambda *_: LARGE)


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
def test_on_an_accelerator_auto_asks_the_policy(policy, options, found, task, large):
    plan = fa.Plan(**{"cohort_size": 5, "batch_size": 2} | options)
    algorithm = fa.with_steps(fedavg(), policy)
    assert num_lanes_of(Setup(algorithm, task, make_data(UNEQUAL), plan)) == found


def test_a_small_model_has_all_lanes_on_an_accelerator(task, monkeypatch):
    data, plan = make_data(UNEQUAL), fa.Plan(cohort_size=5, batch_size=2)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    algorithm = fa.with_steps(fedavg(), fa.epochs(1))
    assert fa.make_round(algorithm, task, data, plan).num_lanes == 5


@pytest.mark.slow
def test_a_round_that_is_traced_has_the_lanes_of_one_that_is_not(task, large):
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, num_lanes, policy, who",
    [
        ("cpu", 1, fa.epochs(1), None),
        ("cpu", 3, fa.epochs(1), None),
        ("cpu", 5, fa.epochs(1), fa.bernoulli(0.4)),
        ("cpu", 3, fa.constant_steps(70), fa.bernoulli(0.4)),
        ("gpu", 1, fa.epochs(1), fa.bernoulli(0.4)),
        ("gpu", 3, fa.epochs(1), None),
        ("gpu", 5, fa.epochs(1), None),
        ("gpu", 3, fa.constant_steps(70), fa.bernoulli(0.4)),
    ],
)
def test_executed_steps_are_those_that_the_lanes_take(
    backend, num_lanes, policy, who, task, monkeypatch
):
    """Each lane reports each of its steps, those of an idle one too."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    taken = []

    def objective(params, view, key):
        loss = task_loss(params, view, key)
        jax.debug.callback(lambda loss: taken.append(loss), loss)
        return loss

    local = fa.LocalRule(objective=objective)
    algorithm = fa.with_steps(fa.Algorithm(local=local), policy)
    size = 5 if who is None else None
    plan = fa.Plan(
        cohort_size=size, participation=who, batch_size=2, lanes=num_lanes, devices=1
    )
    data = make_data((4, 6, 20, 4, 2, 8, 4))
    round_fn = fa.make_round(algorithm, task, data, plan)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    keys = jax.random.split(jax.random.key(2), 3)
    infos = fa.train(round_fn, state, keys)[1]
    jax.effects_barrier()
    assert round_fn.executed_steps(infos) == len(taken)
    assert len(taken) >= infos.num_steps.sum()
    each = [jax.tree.map(lambda leaf, i=i: leaf[i], infos) for i in range(3)]
    assert sum(map(round_fn.executed_steps, each)) == len(taken)


def test_executed_steps_of_several_devices_or_runs_are_refused(task):
    data = make_data(UNEQUAL)
    plan = fa.Plan(cohort_size=4, batch_size=2, devices=2)
    round_fn = fa.make_round(fedavg(), task, data, plan)
    zeros = jnp.zeros((2, 3, 4))
    info = fa.Info(zeros, zeros, (), (), (), ())
    with pytest.raises(ValueError, match="2 share this round; give Plan.devices=1."):
        round_fn.executed_steps(info)
    round_fn = fa.make_round(fedavg(), task, data, replace(plan, devices=1))
    with pytest.raises(
        ValueError, match=r"num_steps is \[2, 3, 4\]; give the Info of one"
    ):
        round_fn.executed_steps(info)
    with pytest.raises(
        ValueError, match="executed_steps got .* for info; write round_fn"
    ):
        round_fn.executed_steps(info.num_steps)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
    num_lanes_of(Setup(fedavg(), *wide), tell=seen.append)
    assert len(seen) == 1 and seen[0].startswith("lanes=5, since 10")
    task, data, plan = wide
    fa.make_round(fedavg(), task, data, replace(plan, lanes=10))  # as was asked for


@pytest.mark.slow
def test_unequal_clients_have_the_lanes_that_fit_of_those_kept_busy(
    wide, large, monkeypatch
):
    task, _, plan = wide
    data = make_data((8, *(4,) * 9))
    algorithm = fa.with_steps(fedavg(), fa.epochs(1))
    given = algorithm, task, data, plan
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    assert num_lanes_of(Setup(*given)) == 6  # 22 steps, 4 of the longest
    seen = []
    for fits in (6, 4):
        room_for(*given, fits, monkeypatch)
        assert num_lanes_of(Setup(*given), tell=seen.append) == fits
    assert len(seen) == 1


def test_a_round_that_easily_fits_is_not_traced_for_it(wide, monkeypatch):
    def traced(*_):
        raise AssertionError

    monkeypatch.setattr(build, "memory_needed", traced)
    monkeypatch.setattr(memory, "free_memory", lambda: 2**36)
    assert fa.make_round(fedavg(), *wide).num_lanes == 10


@pytest.mark.slow
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
