import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import close, fast, keys, make_data, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedprox, scaffold
from fedjax_adapt.engine import initial, memory, mesh, xla
from fedjax_adapt.engine.client_store import DEVICE, device
from fedjax_adapt.engine.cohort import num_devices_of
from fedjax_adapt.experiment import loop
from fedjax_adapt.experiment.config import Config


def test_no_device_is_left_over():
    assert mesh.count("auto", 100) == len(jax.local_devices()) == 4
    assert mesh.count(4, 10) == 4  # 3 + 3 + 3 + 1
    assert mesh.count(4, 6) == 3
    assert mesh.count(4, 3) == 3
    assert mesh.count(1, 10) == 1


def test_more_devices_than_there_are_is_one_sentence(task, data, monkeypatch):
    plan = fa.Plan(devices=5)
    with pytest.raises(
        ValueError, match="devices=5 but JAX sees 4; write devices=4, or"
    ):
        fa.make_round(fedavg(), task, data, plan)
    monkeypatch.setattr(mesh, "num_cores", lambda: 3)
    with pytest.raises(ValueError, match='or "auto".*; this machine has 3 cores'):
        fa.make_round(fedavg(), task, data, plan)
    with pytest.raises(ValueError, match="devices=0 must be an integer >= 1"):
        fa.Plan(devices=0)


def test_cores_cannot_become_devices_once_jax_runs():
    fa.cores_as_devices(4)  # it is so already
    with pytest.raises(ValueError, match=r"cores_as_devices\(3\) came after JAX"):
        fa.cores_as_devices(3)


UNEVEN = """
import os
import fedjax_adapt as fa

fa.cores_as_devices(2)
import jax
import jax.numpy as jnp
from fedjax_adapt.engine import memory, mesh

def uneven(shared, slots, table):
    work = lambda i, x: jnp.tanh(x @ x)
    return jax.lax.fori_loop(0, slots[0], work, shared), slots, table

spread = jax.jit(lambda x, n: mesh.run_on_devices(uneven, x, n, (), 2))
jax.block_until_ready(spread(jnp.full((500, 500), 1 / 500), jnp.array([5000, 1])))
print(os.environ["XLA_FLAGS"])
"""


@pytest.mark.slow
def test_a_device_waits_for_another_as_long_as_it_takes():
    """XLA gives up after 40 s and ends the process; here after 1 s, for the test."""
    environment = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    run = lambda: subprocess.run(
        [sys.executable, "-c", UNEVEN], capture_output=True, text=True, env=environment
    )
    patient = run()
    assert patient.returncode == 0, patient.stderr
    for flag in mesh.PATIENCE:
        assert f"{flag}=86400" in patient.stdout
    environment["XLA_FLAGS"] += "".join(f" {flag}=1" for flag in mesh.PATIENCE)
    assert run().returncode == -signal.SIGABRT  # the flags are what XLA heeds


SOME = ((1, "cpu"), (2, "cpu"), (3, "gpu"))
OTHERS = ((1, "cpu"), (3, "cpu"), (2, "gpu"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ids", "lanes", "spread"),
    fast(
        {
            "one home": ((0, 1, 2), 1, SOME),
            "at home": ((0, 1, 2, 3), 1, OTHERS),
            "far, lanes": ((3, 4, 5, 0), 2, SOME),
            "few": ((5, 1), 1, OTHERS),
        },
        "one home",
    ),
)
def test_a_client_trains_anywhere_and_its_row_comes_back(
    task, data, monkeypatch, ids, lanes, spread
):
    """Six clients live on two or three devices, three or two on each."""
    members = fa.Participation(
        slots=lambda num_clients: len(ids),
        sample=lambda key, num_clients: jnp.array(ids, jnp.int32),
    )
    ends = []
    for devices, backend in spread:
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        plan = fa.Plan(
            batch_size=4, devices=devices, lanes=lanes, participation=members
        )
        round_fn, state = start(scaffold(), task, data, plan)
        state, _ = fa.train(round_fn, state, keys(2))
        table = jax.tree.leaves(state.clients)[0]
        each = table.sharding.shard_shape(table.shape)[0]
        assert each == 6 // num_devices_of(data, plan)
        ends.append(jax.device_get(state))
        idle = np.setdiff1d(range(6), ids)  # whose rows stay to the bit
        assert not any(leaf[idle].any() for leaf in jax.tree.leaves(ends[-1].clients))
    for end in ends[1:]:
        close(end, ends[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "many"),  # 2 divides the 8 clients, 3 does not
    fast(
        {
            "padded": (dict(participation=fa.bernoulli(0.4)), 3),
            "everyone": (dict(), 2),
            "lanes": (dict(cohort_size=5, lanes=2), 3),
            "lanes, 2": (dict(cohort_size=5, lanes=2), 2),
        },
        "padded",
    ),
)
def test_devices_agree_on_cohorts_of_every_kind(task, plan, many):
    data = make_data((12, 0, 5, 9, 12, 3, 7, 0))
    ends = []
    for devices in (1, many):
        spread = fa.Plan(batch_size=4, devices=devices, **plan)
        round_fn, state = start(scaffold(), task, data, spread)
        ends.append(jax.device_get(fa.train(round_fn, state, keys(3))))
    close(ends[1], ends[0])


COINS = dict(participation=fa.bernoulli(0.5))
EARLIEST = dict(
    participation=fa.earliest(0.6),
    clock=fa.Clock(0.1, delay=fa.costs.exponential(2.0)),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "backend", "many"),
    fast(
        {
            "coins": (COINS, "cpu", 4),
            "coins, gpu": (COINS, "gpu", 4),
            "some": (dict(cohort_size=5), "gpu", 2),
            "everyone, lanes": (dict(lanes=2), "gpu", 4),
            "everyone, lanes, 2": (dict(lanes=2), "cpu", 2),
            "earliest": (EARLIEST, "cpu", 4),
        },
        "coins",
        "coins, gpu",
    ),
)
def test_states_of_any_shape_are_kept_in_parts_of_rows(
    task, monkeypatch, plan, backend, many
):
    """Seven clients on two or four devices."""
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    data = make_data((4, 9, 5, 0, 8, 3, 6))
    begin = {
        "wide": jnp.zeros((3, 4)),
        "long": jnp.zeros((12, 1, 2), jnp.bfloat16),
        "odd": jnp.zeros((5,), jnp.int32),
        "number": jnp.zeros((), jnp.int32),
        "none": jnp.zeros((0, 4)),
    }

    def finish(run):
        trained = run.client["number"] + 1
        mark = lambda leaf: (
            leaf
            + (trained + jnp.arange(leaf.size).reshape(leaf.shape)).astype(leaf.dtype)
        )
        new = jax.tree.map(mark, run.client) | {"number": trained}
        moved = jax.tree.map(jnp.subtract, run.params, run.anchor)
        return fa.Upload(moved), new

    local = fedavg().local._replace(init=lambda params: begin, finish=finish)
    ends = []
    for devices in (1, many):
        spread = fa.Plan(batch_size=4, devices=devices, **plan)
        round_fn, state = start(fa.Algorithm(local=local), task, data, spread)
        end, infos = fa.train(round_fn, state, keys(3))
        ends.append(jax.device_get((end, infos)))
        used = num_devices_of(data, spread)
        if devices == 4 and used == 4:
            shapes = {
                k: v.sharding.shard_shape(v.shape) for k, v in end.clients.items()
            }
            assert shapes["wide"] == (7, 3, 1) and shapes["long"] == (7, 3, 1, 2)
            assert shapes["odd"] == (7, 5) and shapes["none"] == (7, 0, 4)
    cohorts = ends[0][1].cohort[ends[0][1].num_steps > 0]
    counted = np.bincount(cohorts, minlength=8)[:7]
    np.testing.assert_array_equal(ends[0][0].clients["number"], counted)
    for end in ends[1:]:
        for leaf, one in zip(
            jax.tree.leaves(end[0].clients),
            jax.tree.leaves(ends[0][0].clients),
            strict=True,
        ):
            np.testing.assert_array_equal(leaf, one)  # nothing is summed over clients
        close(end[1], ends[0][1])


@pytest.mark.slow
def test_what_a_policy_measures_and_learns_does_not_depend_on_devices(task, data):
    policy = fa.StepPolicy(
        steps=lambda state, cohort, measured: state[cohort.ids] + (measured > 0),
        init=lambda params, num_clients: jnp.ones(num_clients, int),
        measure=lambda view, key: (view.batch.x * view.batch.weight[:, None]).sum(),
        update=lambda state, cohort, runs, outcome: state.at[cohort.ids].add(
            (runs.loss > 0.5) * cohort.active
        ),
    )
    algorithm = fa.with_steps(fedavg(), policy)
    ends = []
    for devices in (1, 2):
        plan = fa.Plan(cohort_size=4, batch_size=4, devices=devices)
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(jax.device_get(fa.train(round_fn, state, keys(4))))
    close(ends[1], ends[0])
    assert ends[0][0].policy.max() > 1


@pytest.mark.slow
def test_refinements_and_own_means_see_the_cohort_in_order_on_any_devices(task, data):
    def refine(params, view, key):
        first = jax.tree.map(lambda leaf: leaf[0], view.runs.params)
        return jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, params, first)

    def median(uploads, cohort):
        return fa.Upload(jax.tree.map(lambda leaf: jnp.median(leaf, 0), uploads.delta))

    robust = fa.Algorithm(server=fa.ServerRule(combine=median), refine=refine)
    plans = [fa.Plan(cohort_size=5, batch_size=4, devices=d) for d in (1, 2, 4)]
    ends = []
    for plan in plans:
        round_fn, state = start(robust, task, data, plan)
        ends.append(jax.device_get(fa.train(round_fn, state, keys(2))))
    close(ends[1], ends[0])
    close(ends[2], ends[0])
    slow = fa.debug_round(robust, task, data, plans[1])
    _, state = start(robust, task, data)
    for key in keys(2):
        state, _ = slow(state, key)
    close(jax.device_get(state.params), ends[0][0].params)


@pytest.mark.slow
def test_hyper_parameters_may_be_traced_on_devices(task, data):
    plan = fa.Plan(cohort_size=4, batch_size=4, devices=2)

    def last(mu):
        round_fn, state = start(fedprox(mu), task, data, plan)
        return fa.train(round_fn, state, keys(2))[0].params

    together = jax.jit(jax.vmap(last))(jnp.array([0.0, 1.0]))
    for row, mu in enumerate((0.0, 1.0)):
        close(jax.tree.map(lambda leaf, row=row: leaf[row], together), last(mu))


def test_evaluation_counts_every_example_once_on_any_number_of_devices(task, data):
    params = task.init(jax.random.key(0))
    alone = fa.evaluate(task, params, data.test, batch_size=7)
    for devices in (3, "auto"):
        again = fa.evaluate(task, params, data.test, batch_size=7, devices=devices)
        close(again, alone)
    elsewhere = mesh.everywhere(params, 2)
    close(fa.evaluate(task, elsewhere, data.test, devices=3), alone)


def test_the_data_are_not_copied_to_cores(task, data):
    round_fn = fa.make_round(fedavg(), task, data, fa.Plan(devices=2))
    pointers = {
        shard.data.unsafe_buffer_pointer()
        for shard in round_fn.data.x.addressable_shards
    }
    assert len(round_fn.data.x.addressable_shards) == 2 and len(pointers) == 1


@pytest.mark.slow
def test_clients_without_examples_are_not_drawn(task):
    data = make_data((4, 0, 5, 0, 3))
    assert set(np.flatnonzero(data.size).tolist()) == {0, 2, 4}
    for participation in (fa.uniform(2), fa.bernoulli(0.3)):
        plan = fa.Plan(batch_size=4, participation=participation)
        round_fn, state = start(fedavg(), task, data, plan)
        _, infos = fa.train(round_fn, state, keys(30))
        assert set(np.unique(infos.cohort).tolist()) <= {0, 2, 4, 5}
        assert (infos.num_active >= 1).all()
    with pytest.raises(ValueError, match="4 but the data set has 3 clients that hold"):
        fa.make_round(fedavg(), task, data, fa.Plan(cohort_size=4))


def test_client_state_that_cannot_fit_is_one_sentence(task, data, monkeypatch):
    row = 4 * fa.num_parameters(task.init(jax.random.key(0)))
    fits = lambda rows: monkeypatch.setattr(memory, "free_memory", lambda: rows * row)

    def begin(**plan):
        start(scaffold(), task, data, fa.Plan(**plan))

    in_parts = dict(cohort_size=4, devices=4)  # 4 does not divide 6
    weights, bias, rows = 6 * 12 // 4, 6 * 3, 2 * 15  # of 15 numbers on each device
    fits(4 * (weights + bias + rows) / 15)
    begin(**in_parts)
    fits(4 * (weights + bias + rows) / 15 - 0.1)
    says = "6 clients takes .* MiB on 4 devices but .*; write devices=2, or take fewer"
    with pytest.raises(ValueError, match=says) as error:
        begin(**in_parts)
    assert "\n" not in str(error.value)
    fits(6 + 6)  # 2 x (3 + 3), with the rows received
    begin(devices=2)
    fits(6 + 5)
    with pytest.raises(
        ValueError, match="on 2 devices but .* free; write devices=1, or"
    ):
        begin(devices=2)
    fits(6)
    begin(devices=1)
    fits(6 - 1)
    with pytest.raises(
        ValueError, match="takes .* MiB but .* free; take fewer clients"
    ):
        begin(devices=1)
    monkeypatch.undo()
    assert memory.free_memory() > 2**20


def test_accelerators_have_a_memory_each_and_a_table_may_fit_only_cut(
    task, data, monkeypatch
):
    row = 4 * fa.num_parameters(task.init(jax.random.key(0)))
    client = scaffold().local.init(task.init(jax.random.key(0)))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(memory, "free_memory", lambda: 4 * row)
    device.check_room(client, 6, 6, 3)  # 2 + 2 rows on each
    for devices, place in ((1, "MiB but"), (2, "MiB on each of 2 devices but")):
        says = f"{place} .* free; write devices=3, or write client_memory=host, or take"
        with pytest.raises(ValueError, match=says):
            device.check_room(client, 6, 6, devices)


def test_a_table_is_made_where_it_lies(task, data, monkeypatch):
    seen = []
    watched = lambda state, n: seen.append(state) or DEVICE.place(state, n)
    store = DEVICE._replace(place=watched)
    monkeypatch.setattr(initial, "store_of", lambda plan: store)
    for devices in (3, 4):  # 4 does not divide 6
        plan = fa.Plan(cohort_size=4, batch_size=4, devices=devices)
        num_devices = num_devices_of(data, plan)
        _, state = start(scaffold(), task, data, plan)
        before, after = (jax.tree.leaves(s.clients) for s in (seen[-1], state))
        for early, leaf in zip(before, after, strict=True):
            assert early.sharding == leaf.sharding
            wanted = {
                2: (3, *leaf.shape[1:]),
                4: (6, 1, 3) if leaf.ndim == 3 else (6, 3),  # weights, biases
            }
            assert leaf.sharding.shard_shape(leaf.shape) == wanted[num_devices]
        _, alone = start(scaffold(), task, data, fa.Plan(cohort_size=4))
        for leaf, one in zip(after, jax.tree.leaves(alone.clients), strict=True):
            np.testing.assert_array_equal(leaf, one)
            assert leaf.dtype == one.dtype and leaf.weak_type == one.weak_type


def test_no_two_leaves_of_a_table_share_a_buffer():
    twice = jnp.ones(3)
    a, b = device.create((twice, twice), 6, 3)
    pointers = lambda x: {s.data.unsafe_buffer_pointer() for s in x.addressable_shards}
    assert not pointers(a) & pointers(b)


@pytest.mark.slow
def test_a_state_of_other_devices_is_moved(task, data):
    rounds, states = {}, {}
    for devices in (1, 2, 3):
        plan = fa.Plan(batch_size=4, devices=devices)
        rounds[devices], states[devices] = start(scaffold(), task, data, plan)
    ends = []
    for made, runs in ((1, 3), (2, 3), (3, 1)):
        end, _ = fa.train(rounds[runs], states[made], keys(1))
        table = jax.tree.leaves(end.clients)[0]
        assert len(table.sharding.device_set) == runs
        assert jax.tree.leaves(states[made].clients)[0].is_deleted() is False
        ends.append(jax.device_get(end))
    close(ends[0], ends[1])
    close(ends[0], ends[2])
    for made, runs in ((2, 3), (3, 1)):
        moved = rounds[runs].placed(states[made])
        assert len(moved.params["w"].sharding.device_set) == runs


@pytest.mark.slow
@pytest.mark.parametrize("devices, waits", [(2, 3), (1, 0)])
def test_a_loop_waits_for_each_call_where_devices_meet(
    task, data, monkeypatch, devices, waits
):
    """Without it the devices of a CPU may wait for each other for ever, see xla.py."""
    waited = []
    monkeypatch.setattr(xla.jax, "block_until_ready", waited.append)
    plan = fa.Plan(cohort_size=2, batch_size=4, devices=devices)
    round_fn, state = start(fedavg(), task, data, plan)
    fa.train(round_fn, state, keys(3), chunk_size=1)
    assert len(waited) == waits


def test_a_run_waits_for_each_group_where_devices_meet(monkeypatch):
    calls = []
    monkeypatch.setattr(loop, "wait_for_shared_cpu_state", calls.append)
    program = SimpleNamespace(group=lambda state: (state + 1, state), last=None)
    config = Config(rounds=8, evaluate_every=2)
    state, parts = loop._dispatch(config, program, 0, 0, 6, 10)
    assert (state, parts, calls) == (3, [[0], [1], [2]], [1, 2, 3])
