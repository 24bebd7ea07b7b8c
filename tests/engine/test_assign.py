"""Which device trains whom, which rows move for it, and what a round sends."""

import itertools
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import keys, make_data, make_task, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import scaffold
from fedjax_adapt.engine import cohort, lanes, mesh, train_cohort
from fedjax_adapt.engine.client_store import exchange
from fedjax_adapt.engine.setup import Setup


@pytest.mark.slow
def test_slots_stay_with_their_owner_while_it_has_room():
    steps, owner = jnp.full(6, 10), jnp.array([1, 0, 1, 1, 0, 1])
    order, back = mesh.assign(steps, owner, 2, mesh.SWAPS)
    np.testing.assert_array_equal(owner[order], [0, 0, 1, 1, 1, 1])  # one moves
    np.testing.assert_array_equal(order[back], range(6))
    steps = jnp.array([1, 9, 1, 9])
    order, _ = mesh.assign(steps, jnp.array([0, 1, 0, 1]), 2, 1)
    np.testing.assert_array_equal(steps[order].reshape(2, 2).sum(1), [10, 10])
    order, _ = mesh.assign(steps, jnp.array([0, 1, 0, 1]), 2, 0)
    np.testing.assert_array_equal(order, [0, 2, 1, 3])


@pytest.mark.parametrize("num_devices", [2, 5, 8])
@pytest.mark.parametrize("owned", [True, False])
def test_devices_have_as_much_to_do_and_few_rows_move(num_devices, owned):
    rng, each = np.random.default_rng(num_devices), 50
    slots = each * num_devices
    owner = np.arange(slots) // each if owned else np.full(slots, num_devices)
    owner = jnp.array(owner)
    assign = jax.jit(lambda steps: mesh.assign(steps, owner, num_devices, mesh.SWAPS))
    for _ in range(3):
        steps = 1 + rng.dirichlet(np.ones(slots)) * slots * 10
        steps = steps.astype(np.int32)
        order, back = assign(steps)
        np.testing.assert_array_equal(order[back], range(slots))
        load = steps[order].reshape(num_devices, each).sum(1)
        assert load.max() < 1.02 * load.mean(), load
        if owned:
            moved = np.asarray(owner)[order] != np.repeat(range(num_devices), each)
            assert moved.sum() <= mesh.SWAPS * num_devices


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_every_row_that_moves_has_a_place_on_its_way(monkeypatch, backend):
    """Whoever the cohort is: also if one device owns the rows of all."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    rng = np.random.default_rng(0)
    for num_devices, num_rows, size in ((2, 6, 4), (4, 3, 10), (3, 8, 24), (4, 9, 18)):
        num_clients, slots = (
            num_devices * num_rows,
            -(-size // num_devices) * num_devices,
        )
        draws = [np.arange(size), np.arange(size) + num_clients - size]
        draws += [rng.choice(num_clients, size, False) for _ in range(5)]

        @partial(jax.jit, static_argnums=2)
        def planned(ids, steps, swaps, num_devices=num_devices, num_rows=num_rows):
            owner = jnp.minimum(ids // num_rows, num_devices)
            order, _ = mesh.assign(steps, owner, num_devices, swaps)
            _, passed = exchange.plan_exchange(
                ids[order], steps > 0, num_rows, num_devices, swaps
            )
            return ids[order], passed

        for ids, swaps in itertools.product(draws, (0, mesh.SWAPS)):
            ids = np.pad(ids, (0, slots - size), constant_values=num_clients)
            there, passed = planned(ids, rng.integers(0, 9, slots), swaps)
            there = np.asarray(there)
            device = np.repeat(range(num_devices), slots // num_devices)
            away = (there < num_clients) & (there // num_rows != device)
            if passed is None:
                assert not away.any()
                continue
            slot = np.asarray(passed.slot)
            real = np.argwhere(slot < slots // num_devices)
            found = {
                (num_rows * at[0] + int(passed.row[tuple(at)]), at[1]) for at in real
            }
            assert found == set(zip(there[away], device[away], strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "rows"),
    [("cpu", 1), ("gpu", 4)],  # at most 4 of an owner to a device
)
def test_a_round_sends_its_sums_once_and_rows_twice(task, monkeypatch, backend, rows):
    """Four of sixteen clients on each of two devices; one owner may have all eight."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    data = make_data((5,) * 16)
    plan = fa.Plan(cohort_size=8, batch_size=4, devices=2, lanes=4)
    round_fn, state = start(scaffold(), task, data, plan)
    program = jax.jit(round_fn).lower(state, keys(1)[0]).compile().as_text()
    kinds = "all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    found = re.findall(rf"= (.*) ({kinds})(?:-start)?\(", program)
    floats = {"all-reduce": [], "all-to-all": []}
    for shapes, kind in found:
        sizes = re.findall(r"f32\[([\d,]*)\]", shapes)
        floats[kind].append(sum(math.prod(map(int, s.split(","))) for s in sizes))
    size = fa.num_parameters(state.params)
    losses_and_clipped = 2 * 8
    assert floats["all-reduce"] == [2 * size + losses_and_clipped]
    assert floats["all-to-all"] == [2 * rows * size] * 2  # a block for each device


@pytest.mark.slow
def test_devices_share_those_that_come_where_slots_are_empty():
    """Coins leave the last slots empty; all who train take as many steps."""
    data, task = make_data((4,) * 12), make_task()
    some = fa.bernoulli(0.4)
    plan = fa.Plan(participation=some, batch_size=2, lanes=1, devices=2)
    algorithm = fa.with_steps(fa.Algorithm(), fa.constant_steps(3))
    setup = Setup(algorithm, task, data, plan)
    setup = setup._replace(pace=lanes.pace_of(setup))
    assert setup.pace.known == 3
    ids = cohort.sample_cohort(data, plan, jax.random.key(0))
    some = cohort.gather_cohort(data, ids, jnp.int32(0), 2)
    wanted = jnp.full_like(ids, 3)
    some, _ = cohort.with_num_steps(some, wanted, plan, algorithm.policy)
    dealt = train_cohort.assign_slots(
        setup, some, exchange.CohortRows((), ids), jax.random.key(1)
    )
    load = dealt.slots.client.num_steps.reshape(2, -1).sum(1)
    assert some.num_active >= 4 and abs(load[0] - load[1]) <= 3, load


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_rows_that_fill_no_whole_number_of_blocks_all_move(monkeypatch, backend):
    """Five from one owner to one device, at most two at once."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    num_devices, num_rows = 4, 10
    ids, active = jnp.array([*range(15), *range(20, 25)]), jnp.ones(20, bool)
    order, _ = mesh.assign(jnp.ones(20, int), ids // num_rows, num_devices, 0)
    index, passed = exchange.plan_exchange(
        ids[order], active, num_rows, num_devices, swaps=0
    )
    remote = np.asarray(index.remote < 5).reshape(num_devices, 5)
    assert remote.sum() == 5 and remote[3].all()
    assert int((passed.slot[0, 3] < 5).sum()) == 5


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_client_state_may_have_an_empty_leaf(monkeypatch, backend):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)

    def finish(run):
        empty, rounds = run.client
        moved = jax.tree.map(jnp.subtract, run.params, run.anchor)
        return fa.Upload(moved), (empty, rounds + 1)

    rule = fa.LocalRule(
        init=lambda params: (jnp.zeros((0, 3)), jnp.zeros(2)), finish=finish
    )
    algorithm, task, data = fa.Algorithm(local=rule), make_task(), make_data((4,) * 8)
    plan = fa.Plan(cohort_size=4, batch_size=2, devices=2, lanes=2)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    state, _ = fa.train(round_fn, state, jax.random.split(jax.random.key(1), 2))
    assert state.clients[0].shape == (8, 0, 3) and state.clients[1].sum() == 16
