"""The programs that users run, on devices that can only be compiled for.

    build(setting) -> Built        # setting: a line of accelerators.py

A round, a chunk of rounds with an evaluation and a sweep are made by the package's own
functions, which find another platform than the one at hand. Arrays are shapes: of a
data set there are only as many examples as the largest client has.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rounds
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from work import CLASSES, WORKLOADS, Workload

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.core import precise
from fedjax_adapt.engine import lanes, memory, mesh, processes
from fedjax_adapt.engine.client_store import store_of
from fedjax_adapt.engine.setup import Setup
from fedjax_adapt.experiment import program
from fedjax_adapt.experiment.sweeps import compiled_group
from fedjax_adapt.generators import latent_generator

W1, W2 = WORKLOADS["w1"], WORKLOADS["w2"]


class Kind(NamedTuple):
    """A workload, and how many clients run side by side."""

    work: Workload
    lanes: int | str = "auto"
    epochs: bool = False  # one for each client, in place of NUM_STEPS
    spread: float = 0.0  # clients hold (1 - spread) to (1 + spread) of the mean


KINDS = {
    "w1": Kind(W1, 10),
    "w2": Kind(W2, 50),
    "w1-500": Kind(WORKLOADS["w1-500"]),
    "resnet18": Kind(W1._replace(model="resnet18", cohort=100)),
    "w2-epochs": Kind(W2, 50, epochs=True),
    "w2-unequal": Kind(W2, 50, epochs=True, spread=0.8),
    "w2-unequal-auto": Kind(W2, epochs=True, spread=0.8),
    "w2-10000": Kind(W2._replace(clients=10_000), 50),
    # which 8 devices divide, so that tables are cut up among them
    "w2-504": Kind(W2._replace(clients=504), 50),
    "w2-504-all": Kind(W2._replace(clients=504, cohort=504)),
}
PROGRAMS = ("bare", "round", "chunk", "sweep")
NUM_STEPS, NUM_ROUNDS, NUM_TRIALS, NUM_TESTS = 10, 10, 8, 10_000
# what an algorithm cannot do without, and what keeps other loops less work than local steps
OPTIONS = rounds.OPTIONS | {
    "fedbuff": {"concurrency": 100},
    "fedasync": {"concurrency": 100},
    "feddf": {"distill_steps": 10, "distill_batch": 10},
    "fedgen": {"generator_steps": 10},
    "fedftg": {
        "iterations": 1,
        "student_steps": 1,
        "generated_batch": 10,
        "generator": latent_generator(),  # inputs here are no images
    },
    "fedssg": {"total_rounds": 300},
    "fnr": {"epochs": 1},
    "fedavg_pubft": {"epochs": 1},
    "public_only": {"epochs": 1},
}
INNER_LOOPS = {"pfedme": 1}  # that the products of a local step are in
# bytes that JAX takes of an H100 of 80 GB, and those of a TPU v5e
MEMORY = {"cuda": int(0.75 * 84_942_979_072), "tpu": 16 * 2**30}
BACKENDS = {"cuda": "gpu", "tpu": "tpu"}  # by JAX's other name


class Built(NamedTuple):
    """A program to be compiled."""

    function: Callable  # gives up the memory of its first argument
    arguments: tuple  # shapes that say where they lie
    num_rounds: int
    num_steps: int  # of a round, one after the other
    num_lanes: int
    inner_loops: int = 0  # of a local step
    state: fa.State | None = None  # the first argument, if it is one


@cache
def devices_of(platform: str) -> list[Any]:
    """Devices that can only be compiled for."""
    if platform == "cuda":
        spec = Path(__file__).with_name("h100.txtpb").read_text()
        where = {"target_config": spec, "topology": f"1x1x{jax.local_device_count()}"}
        return topologies.get_topology_desc("h100", "cuda", **where).devices
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1",  # which would ask a server of the cloud
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # nothing is run on one
    )
    where = {"chips_per_host_bounds": (2, 2, 1)}
    return topologies.get_topology_desc("v5e:2x2", "tpu", **where).devices


@contextmanager
def platform_is(platform: str, devices: Sequence[Any] | None = None) -> Iterator[None]:
    """What is built or traced in the block is for a platform, which the package asks for.

    Args:
      platform: "cuda" or "tpu".
      devices: that programs on several are for; None: those that there are.
    """
    kept = jax.default_backend, memory.free_memory, processes.devices
    jax.default_backend = lambda: BACKENDS[platform]
    memory.free_memory = lambda: MEMORY[platform]
    if devices is not None:
        processes.devices = lambda: list(devices)
    mesh.mesh_of.cache_clear()
    try:
        yield
    finally:
        jax.default_backend, memory.free_memory, processes.devices = kept
        mesh.mesh_of.cache_clear()


def build(setting: dict[str, Any]) -> Built:
    """The program of a setting.

    Raises:
      ValueError: as `fa.make_round`.
    """
    platform, num_devices = setting["platform"], setting["devices"]
    kind = KINDS[setting["workload"]]
    work, bare = kind.work, setting["program"] == "bare"
    task = fa.with_precision(rounds.task_of(work), setting["precision"])
    if way := setting["convolutions"] or ("lax" if bare else None):
        task = fa.models.with_ways(task, way)
    data, longest = _data_of(kind)
    steps = -(-longest // work.batch) if kind.epochs else NUM_STEPS
    devices = devices_of(platform)[:num_devices]
    lies = SingleDeviceSharding(devices[0])
    if num_devices > 1:
        lies = NamedSharding(Mesh(np.array(devices), (mesh.AXIS,)), PartitionSpec())
    placed = partial(_placed, lies)
    full, key = placed(_full_size(data, work)), placed(jax.random.key(0))
    if bare:
        params = placed(jax.eval_shape(task.init, key))
        index = placed(np.zeros((work.cohort, steps, work.batch), np.int32))
        function = precise(task)(partial(bare_round, task, rounds.plan_of(work)))
        return Built(function, (params, full.x, full.y, index), 1, steps, work.cohort)

    wanted = kind.lanes if setting["lanes"] is None else setting["lanes"]
    plan = rounds.plan_of(work, lanes=wanted, devices=num_devices)
    algorithm = _algorithm_of(setting["algorithm"], kind)
    if algorithm.server.busy is not None:
        plan = replace(plan, clock=fa.Clock(step_seconds=0.05))
    with platform_is(platform):
        round_fn = fa.make_round(algorithm, task, data, plan)
    plan = replace(plan, lanes=round_fn.num_lanes)
    state = placed(
        jax.eval_shape(partial(fa.init_state, algorithm, task, data, plan), key)
    )
    if num_devices > 1:
        with platform_is(platform, devices):
            state = store_of(plan).place(state, num_devices)
    with platform_is(platform):
        setup = Setup(algorithm, task, data, plan, round_fn.step.pace)
        turns = steps_of_busiest(setup)
    groups = -(-work.cohort // (round_fn.num_lanes * num_devices))
    built = partial(
        Built,
        num_steps=turns or groups * steps,
        num_lanes=round_fn.num_lanes,
        inner_loops=INNER_LOOPS.get(setting["algorithm"], 0),
    )
    score = partial(program.measure, algorithm, task, num_devices, data.num_classes)
    if setting["program"] == "sweep":
        states = _placed(lies, state, NUM_TRIALS)
        rates = _placed(lies, (jnp.float32(0), key), NUM_TRIALS)
        function = _sweep(algorithm, task, data, plan, score)
        return built(function, (states, full, *rates), NUM_ROUNDS, state=states)
    round_fn = placed(replace(round_fn, data=full))
    if setting["program"] == "round":
        function = lambda state, round_fn, key: round_fn(state, key)
        return built(function, (state, round_fn, key), 1, state=state)
    measured = jax.tree_util.Partial(score, full.test, None)
    function = partial(program.rounds, NUM_ROUNDS)
    return built(function, (state, round_fn, measured, key), NUM_ROUNDS, state=state)


def steps_of_busiest(setup: Setup) -> int | None:
    """Steps of the lane that ends last, whole blocks, in the mean of some rounds.

    None: all clients take as many, or a policy cannot say.
    """
    found, plan, pace = lanes.cohort_steps(setup), setup.plan, setup.pace
    if pace.known is not None or found is None:
        return None
    together = plan.lanes * plan.devices
    blocks = (-(-found // pace.block)).tolist()
    trips = sum(lanes.busiest(row, together) for row in blocks) / len(blocks)
    return math.ceil(trips * pace.block)


def bare_round(task: fa.Task, plan: fa.Plan, params, x, y, index):
    """A round in plain JAX. index: rows of x and y, [clients, steps, batch]."""

    def loss(params, x, y):
        return task.loss(task.apply(params, x).logits, y).mean()

    def step(params, batch):
        grads = jax.grad(loss)(params, *batch)
        move = lambda p, g: p - plan.lr * (g + plan.weight_decay * p)
        return jax.tree.map(move, params, grads), None

    def client(*batches):
        return jax.lax.scan(step, params, batches)[0]

    trained = jax.vmap(client)(x[index], y[index])
    return jax.tree.map(lambda leaf: leaf.mean(0), trained)


def _sweep(algorithm, task, data, plan, score: Callable) -> Callable:
    """Rounds of trials that differ in their learning rate, as a sweep has them."""

    def trial(shared, lr, key, state):
        # checked with the data at hand, run with those that are an argument
        round_fn = fa.make_round(algorithm, task, data, replace(plan, lr=lr))
        measured = jax.tree_util.Partial(score, shared.test, None)
        round_fn = replace(round_fn, data=shared)
        return program.rounds(NUM_ROUNDS, state, round_fn, measured, key)

    every = compiled_group.over(
        trial, compiled_group.Layout(num_devices=1, each=NUM_TRIALS)
    )
    return lambda states, shared, lrs, keys: every(shared, lrs, keys, states)


def _placed(lies, tree, *axes: int):
    """Shapes of a tree on the devices, behind further axes."""
    place = lambda leaf: jax.ShapeDtypeStruct(
        (*axes, *leaf.shape), leaf.dtype, sharding=lies
    )
    return jax.tree.map(place, jax.eval_shape(lambda tree: tree, tree))


def _data_of(kind: Kind) -> tuple[fa.FederatedDataset, int]:
    """Clients that share a few examples, and how many the largest client holds."""
    work = kind.work
    shares = np.linspace(1 - kind.spread, 1 + kind.spread, work.clients)
    sizes = np.random.default_rng(0).permutation((work.examples * shares).astype(int))
    draw = np.random.default_rng(1).standard_normal

    def examples(n):
        return draw((n, *work.shape), np.float32), np.arange(n) % CLASSES

    public = fa.PublicSet(*examples(100), validation=examples(100))
    rows = [np.arange(size) for size in sizes]
    data = fa.FederatedDataset.from_rows(
        *examples(max(sizes)), rows, test=examples(100), public=public
    )
    return data, int(max(sizes))


def _full_size(data: fa.FederatedDataset, work: Workload) -> fa.FederatedDataset:
    """The shapes of the data set, with as many examples as there would be."""
    long = lambda leaf, n: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), leaf.dtype)
    every = work.clients * work.examples
    test = tuple(long(leaf, NUM_TESTS) for leaf in data.test or ())
    return replace(data, x=long(data.x, every), y=long(data.y, every), test=test)


def _algorithm_of(name: str, kind: Kind) -> fa.Algorithm:
    """By name, with as many steps as the workload says unless its own policy decides."""
    made = ALGORITHMS[name](**OPTIONS.get(name, {}))
    if kind.epochs or made.policy.steps is not fa.Algorithm().policy.steps:
        return made
    return fa.with_steps(made, fa.constant_steps(NUM_STEPS))
