"""Client tables in the host's memory: the same numbers, wherever the rows lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import close, fast, keys, make_data, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import afl, fedavg, fnr, scaffold
from fedjax_adapt.costs import exponential
from fedjax_adapt.engine import memory, mesh
from fedjax_adapt.engine.client_store import host
from fedjax_adapt.engine.cohort import num_devices_of

HOST = dict(client_memory="host")


def kinds(state):
    """The memories in which tables and the rest lie."""
    of = lambda tree: {leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)}
    return of(state.clients), of(state._replace(clients=()))


ALGORITHMS = {
    "scaffold": (scaffold(), dict(cohort_size=4)),
    # it measures at the client, with the state of the client
    "afl": (afl(budget=1e6, base=scaffold()), dict(cohort_size=4)),
    # some of those that start end too late, and keep their rows
    "earliest": (
        scaffold(),
        dict(
            participation=fa.earliest(0.5),
            clock=fa.Clock(step_seconds=1.0, delay=exponential(5.0)),
        ),
    ),
    # it changes rows of clients after they have trained
    "fnr": (fnr(base=scaffold(), fraction=0.5, epochs=1), dict(cohort_size=4)),
}


@pytest.mark.slow
@pytest.mark.parametrize("algorithm, options", fast(ALGORITHMS, "scaffold"))
def test_the_same_numbers_from_the_memory_of_the_host(algorithm, options, task, data):
    ends = []
    for where in ("device", "host"):
        plan = fa.Plan(batch_size=4, client_memory=where, **options)
        round_fn, state = start(algorithm, task, data, plan)
        begun = jax.tree.map(np.asarray, state.clients)
        ends.append(fa.train(round_fn, state, keys(3)))
    assert kinds(ends[1][0])[0] == {mesh.HOST_MEMORY}
    assert mesh.HOST_MEMORY not in kinds(ends[1][0])[1]
    changed = lambda a, b: bool((a != np.asarray(b)).any())
    moved = jax.tree.map(changed, begun, ends[1][0].clients)
    assert any(jax.tree.leaves(moved))
    jax.tree.map(np.testing.assert_array_equal, *ends)


@pytest.mark.slow
@pytest.mark.parametrize("devices", fast({"2": 2, "3": 3}, "3"))
def test_each_device_has_its_part_of_the_host_s_memory(devices, task, data):
    ends = []
    for count, where in ((1, "device"), (devices, "host")):
        plan = fa.Plan(cohort_size=5, batch_size=4, devices=count, client_memory=where)
        round_fn, state = start(scaffold(), task, data, plan)
        ends.append(jax.jit(round_fn)(state, keys(1)[0])[0])
    close(*ends)
    for leaf in jax.tree.leaves(ends[1].clients):
        assert leaf.sharding.shard_shape(leaf.shape)[0] == 6 // devices
        assert leaf.sharding.memory_kind == mesh.HOST_MEMORY


@pytest.mark.slow
def test_a_state_goes_from_one_memory_to_the_other(task, data):
    plans = {m: fa.Plan(cohort_size=4, client_memory=m) for m in ("device", "host")}
    rounds = {m: start(scaffold(), task, data, plan) for m, plan in plans.items()}
    for here, there in (("device", "host"), ("host", "device")):
        round_fn, state = rounds[here][0], rounds[there][1]
        state, _ = round_fn(state, keys(1)[0])
        assert (kinds(state)[0] == {mesh.HOST_MEMORY}) == (here == "host")


@pytest.mark.slow
def test_the_slow_twin_reads_it_too(task, data):
    plan = fa.Plan(cohort_size=4, batch_size=4, **HOST)
    round_fn, state = start(scaffold(), task, data, plan)
    slow = fa.debug_round(scaffold(), task, data, plan)
    close(slow(state, keys(1)[0])[0], jax.jit(round_fn)(state, keys(1)[0])[0])


@pytest.mark.slow
def test_without_client_state_there_is_nothing_to_keep(task, data):
    plan = fa.Plan(cohort_size=2, batch_size=4, **HOST)
    round_fn, state = start(fedavg(), task, data, plan)
    assert jax.jit(round_fn)(state, keys(1)[0])[0].clients == ()


@pytest.mark.slow
def test_rows_of_nobody_are_neither_read_nor_written():
    table = {"a": jnp.arange(12.0).reshape(6, 2), "b": jnp.arange(6)}
    lies = jax.sharding.NamedSharding(
        mesh.mesh_of(3), host.CUT, memory_kind=mesh.HOST_MEMORY
    )
    held = jax.device_put(table, lies)
    ids = jnp.array([5, 6, 0])
    rows = jax.jit(host.rows_of, static_argnums=2)(held, ids, 3)
    np.testing.assert_array_equal(rows["a"], [[10, 11], [0, 0], [0, 1]])
    new = jax.tree.map(lambda leaf: leaf + 100, rows)
    written = jax.jit(host.scatter, static_argnums=3)(held, ids, new, 3)
    expected = np.array(table["b"])
    expected[[5, 0]] += 100
    np.testing.assert_array_equal(written["b"], expected)


def test_what_the_device_has_no_room_for_the_host_may_have(task, data, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 1)
    with pytest.raises(ValueError, match="the state of 6 clients takes"):
        start(scaffold(), task, data, fa.Plan())
    start(scaffold(), task, data, fa.Plan(**HOST))
    monkeypatch.setattr(memory, "free_host_memory", lambda: 1)
    with pytest.raises(ValueError, match="takes 0.00 MiB but the host has 0.00 MiB"):
        start(scaffold(), task, data, fa.Plan(**HOST))


def test_what_cannot_be_cut_evenly_is_one_sentence(task):
    data = make_data((4, 3, 5, 4, 3))
    with pytest.raises(ValueError, match="rows of 5 clients into 2 equal .* devices=1"):
        start(scaffold(), task, data, fa.Plan(devices=2, **HOST))
    auto = fa.Plan(devices="auto", **HOST)
    assert start(scaffold(), task, data, auto)[0].num_devices == 1
    assert num_devices_of(make_data((4, 3, 5, 4, 3, 2)), auto) == 3
    with pytest.raises(ValueError, match="client_memory='disk' is unknown"):
        fa.Plan(client_memory="disk")


def test_a_copy_of_tables_in_the_host_is_asked_of_the_host(task, data, monkeypatch):
    plan = fa.Plan(cohort_size=4, batch_size=4, **HOST)
    state = fa.init_state(scaffold(), task, data, plan, jax.random.key(0))
    rows = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients))
    rest = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) - rows
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(memory, "free_memory", lambda: rest)
    monkeypatch.setattr(memory, "free_host_memory", lambda: rows)
    memory.check_copy(state)
    monkeypatch.setattr(memory, "free_host_memory", lambda: rows - 1)
    with pytest.raises(ValueError, match="takes 0.00 MiB for a copy, but 0.00 MiB are"):
        memory.check_copy(state)
