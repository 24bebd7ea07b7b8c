"""What a run will hold, predicted from its trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import keys, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedveca, scaffold
from fedjax_adapt.core.scores import largest_of
from fedjax_adapt.engine import memory, mesh
from fedjax_adapt.engine.footprint import Footprint, bytes_held, footprint
from fedjax_adapt.models import MODELS

MIB = 2**20


def held(function, *shapes, parts=1):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return bytes_held(jax.make_jaxpr(function)(*arguments).jaxpr, parts)


def test_what_is_made_is_held_until_its_last_use():
    square = (100, 100)
    product = lambda x, y: (x @ y) @ y  # both results at once
    assert held(product, square, square) == 2 * 40_000
    three = lambda x, y: ((x @ y) @ y) @ y  # the first is gone by the third
    assert held(three, square, square) == 2 * 40_000


def test_elementwise_work_is_done_where_it_is_read():
    assert held(lambda x: jnp.exp(2 * x + 1).sum(), (1000,)) == 4
    assert held(lambda x: jnp.exp(2 * x + 1), (1000,)) == 4000
    # the largest values beside where they lie
    assert held(lambda x: largest_of(2 * x), (100, 10)) == 800
    # a product reads it from memory
    assert held(lambda x, y: (jnp.exp(x) @ y).sum(), (50, 10), (10, 1)) == 2200


def test_a_loop_that_writes_a_row_holds_the_table_once():
    def rounds(table):
        body = lambda i, table: table.at[i].set(table[i] + 1)
        return jax.lax.fori_loop(0, 3, body, table)

    assert held(rounds, (1000, 10)) < 1000
    both = lambda table: (rounds(table), table)  # and now there is another
    assert 40_000 <= held(both, (1000, 10)) < 41_000


def test_what_a_loop_carries_is_held_while_it_runs():
    def steps(table, x):  # 40 kB, and a product of 4 kB at a time
        body = lambda i, table: table + (x @ table).sum()
        return jax.lax.fori_loop(0, 3, body, table * 2).sum()

    assert 44_000 <= held(steps, (100, 100), (10, 100)) < 44_100


def test_what_is_made_later_holds_what_it_is_made_of():
    def twice(x, y):  # of the first product, 4 kB, again after three larger ones
        first = jnp.exp(x @ y)
        other = (x.T @ y.T @ x.T).sum()
        return first.sum() + (other * first).sum()

    alone = held(lambda x, y: (x.T @ y.T @ x.T).sum(), (10, 100), (100, 10))
    assert held(twice, (10, 100), (100, 10)) >= alone + 400
    # or a mask of it, a quarter
    masked = lambda x, y: jnp.where(x @ y > 0, (x.T @ y.T @ x.T).sum(), 0.0).sum()
    assert held(masked, (10, 100), (100, 10)) <= alone + 108


def test_a_call_is_what_it_calls_and_a_new_shape_no_copy():
    inside = jax.jit(lambda x: (x + 1, 2))

    def outside(x, y):
        more, two = inside(x @ y)
        return (more * two).sum()

    assert held(outside, (50, 50), (50, 50)) <= 10_008

    def both(x, y):
        found = x @ y
        return (found.reshape(2, 25, 50) @ y).sum() + (found @ y).sum()

    assert held(both, (50, 50), (50, 50)) <= 20_008


@pytest.mark.parametrize("backend, copies", [("cpu", 2), ("gpu", 1)])
def test_an_accelerator_fuses_copies(backend, copies, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    both = lambda x, y: jnp.stack([jnp.pad(x, 1), jnp.pad(2 * x, 1)]) @ y
    product, stacked = 2 * 50 * 4, 2 * 50 * 50 * 4
    found = held(both, (48, 48), (50, 1))
    assert found == max(copies * stacked, stacked + product)


def test_devices_of_one_memory_each_hold_their_own():
    every, cut = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(mesh.AXIS)

    def on_each(x, y):
        return ((x @ y) @ y).sum(keepdims=True)

    both = jax.shard_map(
        on_each, mesh=mesh.mesh_of(2), in_specs=(every, every), out_specs=cut
    )
    one = held(both, (100, 100), (100, 100))
    assert held(both, (100, 100), (100, 100), parts=2) > 1.9 * one


def test_what_devices_make_a_part_of_each_takes_a_part_of_each_memory():
    every, cut = jax.sharding.PartitionSpec(), jax.sharding.PartitionSpec(mesh.AXIS)

    def product(lies):
        made = jax.shard_map(
            lambda x: jnp.sort(x, -1),
            mesh=mesh.mesh_of(2),
            in_specs=lies,
            out_specs=lies,
        )
        return lambda x: made(x) @ x

    assert held(product(every), (100, 100)) == 2 * 40_000
    assert held(product(cut), (100, 100)) == 40_000 // 2 + 40_000
    assert held(product(cut), (100, 100), parts=2) == 2 * 40_000


def traced(algorithm, task, data, plan):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(lambda state, f, key: f(state, key), donate_argnums=0)
    program = step.trace(state, round_fn, keys(1)[0])
    devices = round_fn.num_devices
    return footprint(program.jaxpr.jaxpr, state, round_fn.data, devices), program


def images(num_clients, cohort_size, lanes, model="cnn", devices=1, batch_size=20):
    shape = (28, 28, 1) if model == "cnn" else (784,)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_clients * 20, *shape)).astype(np.float32)
    y = rng.integers(0, 10, num_clients * 20)
    rows = np.split(np.arange(len(x)), num_clients)
    data = fa.FederatedDataset.from_rows(x, y, rows, num_classes=10)
    plan = fa.Plan(
        cohort_size=cohort_size, batch_size=batch_size, lanes=lanes, devices=devices
    )
    return fa.classification(MODELS[model](shape, 10), shape), data, plan


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm, options",
    [
        (fedavg(), dict(lanes=1)),
        (fedavg(), dict(lanes=4)),
        (scaffold(), dict(lanes=4, model="mlp", num_clients=40, cohort_size=12)),
        (fedveca(initial_steps=2), dict(lanes=1, model="mlp", cohort_size=8)),
    ],
)
def test_the_prediction_is_near_what_xla_allocates(algorithm, options):
    given = dict(num_clients=12, cohort_size=8) | options
    predicted, program = traced(algorithm, *images(**given))
    found = program.lower().compile().memory_analysis()
    assert found is not None
    state = found.alias_size_in_bytes
    assert predicted.clients + predicted.models == pytest.approx(state, rel=0.01)
    total = found.temp_size_in_bytes + state
    assert predicted.total - predicted.data == pytest.approx(total, rel=0.25)


@pytest.mark.slow
def test_of_tables_in_blocks_or_parts_of_rows(task, data):
    clients = {}
    for devices in (1, 3, 4):  # 4 divides the weights, neither 6 nor the 3 biases
        plan = fa.Plan(cohort_size=4, batch_size=4, devices=devices)
        clients[devices] = traced(scaffold(), task, data, plan)[0].clients
    row = 4 * fa.num_parameters(task.init(jax.random.key(0)))
    biases = 4 * 6 * 3
    assert clients == {1: 6 * row, 3: 6 * row, 4: 6 * row + 3 * biases}


@pytest.mark.slow
def test_accelerators_hold_a_part_each_or_leave_it_to_the_host(task, data, monkeypatch):
    row = 4 * fa.num_parameters(task.init(jax.random.key(0)))
    for where, expected in (
        ("device", (2 * row, 0)),
        ("host", (0, 2 * row)),
    ):
        plan = fa.Plan(cohort_size=3, batch_size=4, devices=3, client_memory=where)
        round_fn, state = start(scaffold(), task, data, plan)
        program = jax.jit(lambda s, f, k: f(s, k)).trace(state, round_fn, keys(1)[0])
        with monkeypatch.context() as patched:
            patched.setattr(jax, "default_backend", lambda: "gpu")
            found = footprint(program.jaxpr.jaxpr, state, round_fn.data, 3)
        assert (found.clients, found.host) == expected


def test_a_round_without_room_is_one_sentence(monkeypatch):
    needed = Footprint(data=5 * MIB, clients=300 * MIB, models=MIB, work=212 * MIB)
    monkeypatch.setattr(memory, "free_memory", lambda: 513 * MIB)
    memory.check_room(needed)
    monkeypatch.setattr(memory, "free_memory", lambda: 512 * MIB)
    says = (
        r"a round takes 0.50 GiB besides the data \(client state 0.29 GiB, models 1.00 "
        r"MiB, work 0.21 GiB\) but 0.50 GiB are free; write fewer lanes"
    )
    with pytest.raises(ValueError, match=says):
        memory.check_room(needed)


@pytest.mark.slow
def test_train_says_when_there_is_no_room_for_its_copy(task, data, monkeypatch):
    round_fn, state = start(scaffold(), task, data, fa.Plan(cohort_size=3))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state) if leaf.ndim)
    monkeypatch.setattr(memory, "free_memory", lambda: size - 1)
    with pytest.raises(ValueError, match="train leaves .* donate_argnums=0"):
        fa.train(round_fn, state, keys(1))
    monkeypatch.setattr(memory, "free_memory", lambda: size)
    fa.train(round_fn, state, keys(1))
    assert memory.peak_memory() > MIB


@pytest.mark.slow
def test_what_is_needed_is_known_before_anything_is_allocated():
    task, data, plan = images(12, 8, lanes=4, model="mlp")
    found = fa.memory_needed(scaffold(), task, data, plan)
    row = 4 * fa.num_parameters(task.init(jax.random.key(0)))
    assert found.clients == 12 * row
    assert 2 * row <= found.models <= 2 * row + 100  # and the control variate's mean
    assert found.data == sum(leaf.nbytes for leaf in jax.tree.leaves(data))
    predicted, _ = traced(scaffold(), task, data, plan)
    assert found == predicted
    # far more than there is
    many = fa.FederatedDataset.from_rows(
        data.x, data.y, [np.arange(1)] * 100_000, num_classes=10
    )
    assert fa.memory_needed(scaffold(), task, many, plan).clients == 100_000 * row


def test_what_is_needed_is_said_in_words():
    needed = Footprint(
        data=5 * MIB, clients=0, models=MIB, work=300 * MIB, host=2 * MIB
    )
    assert str(needed) == (
        "0.30 GiB: data 5.00 MiB, models 1.00 MiB, work 0.29 GiB, in the host's memory "
        "2.00 MiB"
    )


@pytest.mark.slow
def test_a_longer_program_takes_more_to_compile(task, data):
    found = [traced(one, task, data, fa.Plan())[0] for one in (fedavg(), scaffold())]
    assert found[0].compiler < found[1].compiler < 2 * found[0].compiler
    assert found[0].peak - found[0].total > found[0].compiler


@pytest.mark.slow
def test_a_model_that_nobody_has_room_for_is_refused_not_counted_in_int32(
    data, monkeypatch
):
    shape, widths = data.x.shape[1:], (200_000, 200_000)
    wide = fa.models.mlp(shape, data.num_classes, widths)
    task = fa.classification(wide, shape)
    plan = fa.Plan(cohort_size=3, clock=fa.Clock(step_seconds=1.0))
    needed = fa.memory_needed(fedavg(), task, data, plan)
    assert needed.models > 160e9
    monkeypatch.setattr(memory, "free_memory", lambda: 2**36)
    with pytest.raises(ValueError, match="a round takes .* GiB besides the data"):
        memory.check_room(needed)
