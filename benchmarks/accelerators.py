"""What an H100 or a TPU v5e would run, compiled and counted on a machine without either.

    pip install '.[aot]'
    python benchmarks/accelerators.py                        # H100, everything
    python benchmarks/accelerators.py --only w2 scaffold round --lanes 25
    python benchmarks/accelerators.py --only w2 fedavg round --devices 8
    python benchmarks/accelerators.py --platform tpu --only w1 w2 round bare

XLA's own compilers make the programs that users run: one round, a chunk of rounds with an
evaluation (as `fa.train_and_evaluate` has it), and a sweep of 8 learning rates (as
`fedjax-adapt sweep` has it), all with the state's memory given up. Beside each workload
stands the bare loop, SGD in plain JAX. Arrays are shapes, nothing is run. hlo.py reads the
text of a program, launches.py says what it costs. Lines go to
results/accelerators-DATE.jsonl; one that is there for the same commit is not made again.

Autotuning needs the device and is off: which library computes a product, and in what
tiles, may differ there.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rounds
from hlo import Array, read
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from launches import counts
from readings import RESULTS, Ledger, Line, evidence, number_or_auto
from work import WORKLOADS, Workload

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.core import precise
from fedjax_adapt.core.precision import PRECISIONS
from fedjax_adapt.engine import memory, mesh, processes, trials
from fedjax_adapt.engine.footprint import footprint
from fedjax_adapt.engine.home import home_of
from fedjax_adapt.experiment import program
from fedjax_adapt.generators import latent_generator
from fedjax_adapt.models.ways import WAYS

W1, W2 = WORKLOADS["w1"], WORKLOADS["w2"]
HALF = (
    0.2,
    1.8,
)  # of the mean: what the smallest and the largest of unequal clients hold


class Kind(NamedTuple):
    """A workload, and how many clients run side by side."""

    work: Workload
    lanes: int | str = "auto"
    epochs: bool = False  # in place of 10 steps for everybody
    unequal: bool = False


KINDS = {
    "w1": Kind(W1, 10),
    "w2": Kind(W2, 50),
    "w1-500": Kind(WORKLOADS["w1-500"]),
    "resnet18": Kind(W1._replace(model="resnet18", cohort=100)),
    "w2-epochs": Kind(W2, 50, epochs=True),
    "w2-unequal": Kind(W2, 50, epochs=True, unequal=True),
    "w2-10000": Kind(W2._replace(clients=10_000), 50),
}
PROGRAMS = ("bare", "round", "chunk", "sweep")
STATEFUL = ("scaffold", "fedssg", "feddc")
NUM_STEPS, NUM_ROUNDS, NUM_TRIALS, NUM_TESTS = 10, 10, 8, 10_000
# what an algorithm cannot do without, or what keeps its other loops as short as a round's
OPTIONS = rounds.OPTIONS | {
    "fedbuff": {"concurrency": 100},
    "fedasync": {"concurrency": 100},
    "feddf": {"distill_steps": 10},
    "fedgen": {"generator_steps": 10},
    "fedftg": {"iterations": 1, "generator": latent_generator()},
    "fnr": {"epochs": 1},
    "fedavg_pubft": {"epochs": 1},
    "public_only": {"epochs": 1},
}
# bytes that JAX takes of an H100 with 80 GB, and those of a TPU v5e
MEMORY = {"cuda": int(0.75 * 84_942_979_072), "tpu": 16 * 2**30}
BACKENDS = {"cuda": "gpu", "tpu": "tpu"}
HLO_DTYPES = {"float32": "f32", "bfloat16": "bf16", "int32": "s32", "uint32": "u32"}


class Built(NamedTuple):
    """A program to be compiled."""

    function: Callable  # its first argument is given up
    arguments: tuple  # shapes that say where they lie
    num_rounds: int
    num_steps: int  # one after the other, of a round
    num_lanes: int
    state: fa.State | None = None  # the first argument, if it is one


@cache
def devices_of(platform: str) -> list[Any]:
    """Devices that can only be compiled for."""
    if platform == "cuda":
        spec = Path(__file__).with_name("h100.txtpb").read_text()
        where = {"target_config": spec, "topology": f"1x1x{jax.local_device_count()}"}
        return topologies.get_topology_desc("h100", "cuda", **where).devices
    os.environ.update(
        TPU_SKIP_MDS_QUERY="1",  # which would ask a cloud's server
        TPU_ACCELERATOR_TYPE="v5litepod-4",
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",  # nobody runs anything on it
    )
    where = {"chips_per_host_bounds": (2, 2, 1)}
    return topologies.get_topology_desc("v5e:2x2", "tpu", **where).devices


@contextmanager
def told(platform: str, devices: Sequence[Any] | None = None) -> Iterator[None]:
    """What is built or traced in the block is for a platform, which the package asks for.

    Args:
      platform: "cuda" or "tpu".
      devices: in place of those that there are, for programs on several.
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


def task_of(work: Workload, convolutions: str | None, precision: str) -> fa.Task:
    """Model and loss."""
    task = fa.with_precision(rounds.task_of(work), precision)
    return fa.models.with_ways(task, convolutions) if convolutions else task


def data_of(kind: Kind) -> tuple[fa.FederatedDataset, int]:
    """Clients that share a few examples, which stand for as many as the workload has,
    and the largest client's number of examples."""
    work = kind.work
    low, high = HALF if kind.unequal else (1, 1)
    sizes = np.linspace(low * work.examples, high * work.examples, work.clients)
    sizes = np.random.default_rng(0).permutation(sizes.astype(int))
    draw = np.random.default_rng(1).standard_normal
    examples = lambda n: (
        draw((n, *work.shape), np.float32),
        np.arange(n) % rounds.work.CLASSES,
    )
    public = fa.PublicSet(*examples(100), validation=examples(100))
    x, y = examples(max(sizes))
    rows = [np.arange(size) for size in sizes]
    data = fa.FederatedDataset.from_rows(x, y, rows, examples(100), public)
    return data, int(max(sizes))


def shapes_of(data: fa.FederatedDataset, work: Workload) -> fa.FederatedDataset:
    """The data set with as many examples as there would be."""
    long = lambda leaf, n: jax.ShapeDtypeStruct((n, *leaf.shape[1:]), leaf.dtype)
    every = work.clients * work.examples
    test = tuple(long(leaf, NUM_TESTS) for leaf in data.test)
    return replace(data, x=long(data.x, every), y=long(data.y, every), test=test)


def algorithm_of(name: str, kind: Kind) -> fa.Algorithm:
    """By name, with as many steps as the workload says unless its own policy decides."""
    made = ALGORITHMS[name](**OPTIONS.get(name, {}))
    if kind.epochs or made.policy.steps is not fa.Algorithm().policy.steps:
        return made
    return fa.with_steps(made, fa.constant_steps(NUM_STEPS))


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


def build(setting: Line) -> Built:
    """The program of a setting, its arguments shapes on devices of the platform."""
    platform, num_devices = setting["platform"], setting["devices"]
    kind = KINDS[setting["workload"]]
    work, bare = kind.work, setting["program"] == "bare"
    way = setting["convolutions"] or ("lax" if bare else None)
    task = task_of(work, way, setting["precision"])
    data, longest = data_of(kind)
    steps = -(-longest // work.batch) if kind.epochs else NUM_STEPS
    full, key = shapes_of(data, work), jax.random.key(0)
    devices = devices_of(platform)[:num_devices]
    here = SingleDeviceSharding(devices[0])
    if num_devices > 1:
        here = NamedSharding(jax.sharding.Mesh(devices, (mesh.AXIS,)), PartitionSpec())

    def placed(tree):
        """Shapes, on every device."""
        lies = lambda one: jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=here)
        return jax.tree.map(lies, jax.eval_shape(lambda tree: tree, tree))

    if bare:
        params = placed(jax.eval_shape(task.init, key))
        index = np.zeros((work.cohort, steps, work.batch), np.int32)
        function = precise(task)(partial(bare_round, task, rounds.plan_of(work)))
        return Built(
            function, (params, *placed((full.x, full.y, index))), 1, steps, work.cohort
        )
    lanes = kind.lanes if setting["lanes"] is None else setting["lanes"]
    plan = rounds.plan_of(work, lanes=lanes, devices=num_devices)
    algorithm = algorithm_of(setting["algorithm"], kind)
    if algorithm.server.busy is not None:
        plan = replace(plan, clock=fa.Clock(step_seconds=0.05))
    with told(platform):
        round_fn = fa.make_round(algorithm, task, data, plan)
    plan = replace(plan, lanes=round_fn.num_lanes)
    groups = -(-work.cohort // (round_fn.num_lanes * num_devices))
    init = partial(fa.init_state, algorithm, task, data, plan)
    state = placed(jax.eval_shape(init, key))
    if num_devices > 1:
        with told(platform, devices):
            state = home_of(plan).placed(state, num_devices)
    built = partial(
        Built, num_steps=steps * groups, num_lanes=round_fn.num_lanes, state=state
    )
    round_fn = placed(replace(round_fn, data=full))
    if setting["program"] == "round":
        function = lambda state, round_fn, key: round_fn(state, key)
        return built(function, (state, round_fn, placed(key)), 1)
    score = partial(program.measure, algorithm, task, num_devices, data.num_classes)
    if setting["program"] == "chunk":
        measured = jax.tree_util.Partial(score, placed(full.test), None)
        function = partial(program.rounds, NUM_ROUNDS)
        return built(function, (state, round_fn, measured, placed(key)), NUM_ROUNDS)

    def trial(shared, lr, key, state):
        mine = replace(plan, lr=lr)
        round_fn = replace(fa.make_round(algorithm, task, data, mine), data=shared)
        measured = jax.tree_util.Partial(score, shared.test, None)
        return program.rounds(NUM_ROUNDS, state, round_fn, measured, key)

    trials_ = trials.over(trial, trials.Layout(1, NUM_TRIALS))
    many = lambda leaf: jax.ShapeDtypeStruct(
        (NUM_TRIALS, *leaf.shape), leaf.dtype, sharding=here
    )
    state, own = jax.tree.map(many, (state, placed((jnp.float32(0), key))))
    function = lambda state, shared, lr, key: trials_(shared, lr, key, state)
    return built(function, (state, placed(full), *own), NUM_ROUNDS)._replace(
        state=state
    )


def compiled(setting: Line, folder: Path | None) -> Line:
    """What one program costs, to compile and to run. `folder`: for its text."""
    jax.clear_caches()  # what was traced for another platform or number of devices
    platform, num_devices = setting["platform"], setting["devices"]
    built = build(setting)
    devices = devices_of(platform)[:num_devices]
    options = {"xla_gpu_autotune_level": 0} if platform == "cuda" else None
    begin = time.perf_counter()
    with told(platform, devices if num_devices > 1 else None):
        traced = jax.jit(built.function, donate_argnums=0).trace(*built.arguments)
        lowered = traced.lower(lowering_platforms=(platform,))
        traced_at = time.perf_counter()
        made = lowered.compile(options)
        line = {
            "num_lanes": built.num_lanes,
            "trace_s": round(traced_at - begin, 2),
            "compile_s": round(time.perf_counter() - traced_at, 2),
        }
        tables, state = [], built.state
        if state is not None:
            held = footprint(
                traced.jaxpr.jaxpr, state, built.arguments[1:], num_devices
            )
            line |= {
                "predicted_temp_mb": held.work >> 20,
                "predicted_mb": held.total >> 20,
            }
            tables = [
                Array(
                    HLO_DTYPES[leaf.dtype.name], leaf.sharding.shard_shape(leaf.shape)
                )
                for leaf in jax.tree.leaves(state.clients)
                if leaf.dtype.name in HLO_DTYPES
            ]
    text = made.as_text()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        name = "-".join(str(value) for value in setting.values() if value is not None)
        (folder / f"{name}.txt").write_text(text)
    memory_ = made.memory_analysis()
    sizes = {"temp": memory_.temp_size_in_bytes}
    sizes["argument"] = memory_.argument_size_in_bytes
    returned = memory_.output_size_in_bytes - memory_.alias_size_in_bytes
    sizes["peak"] = sum(sizes.values()) + returned
    line |= {f"{name}_mb": size >> 20 for name, size in sizes.items()}
    found = counts(read(text), built.num_rounds, built.num_steps, tables)
    if platform == "tpu":  # nobody waits there, and what is launched is another matter
        kept = ("table_copies", "transfers", "collectives")
        found = {name: found[name] for name in kept}
        cost = made.cost_analysis() or {}  # of loops one trip
        names = {"gflop": "flops", "gigabytes": "bytes accessed"}
        found |= {name: cost.get(theirs, 0.0) / 1e9 for name, theirs in names.items()}
    return line | found


def settings(given: argparse.Namespace) -> Iterator[Line]:
    """Of the programs that are asked for."""
    named = lambda names: [name for name in names if name in given.only]
    kinds, algorithms = named(KINDS), named(ALGORITHMS)
    for kind in kinds or KINDS:
        usual = {"w2": [*ALGORITHMS], "w1": ["fedavg"], "w1-500": ["fedavg"]}
        usual |= {"resnet18": ["fedavg"]}
        of_kind = usual.get(kind, ["fedavg", *STATEFUL])
        if algorithms:
            of_kind = algorithms if kinds else [a for a in algorithms if a in of_kind]
        for name in of_kind:
            for which in named(PROGRAMS) or PROGRAMS:
                alone = which in ("bare", "sweep")
                if (which == "bare" and name != of_kind[0]) or (
                    alone and given.devices > 1
                ):
                    continue
                if kind not in usual and not named(PROGRAMS) and which != "round":
                    continue
                yield {
                    "platform": given.platform,
                    "workload": kind,
                    "algorithm": "" if which == "bare" else name,
                    "program": which,
                    "lanes": given.lanes,
                    "convolutions": given.convolutions,
                    "precision": given.precision,
                    "devices": given.devices,
                }


COLUMNS = {  # heads and fields
    "launches a step": "launches_per_step",
    "nested": "nested_loops",
    "trips": "step_trips",
    "waits a step": "waits_per_step",
    "launches outside": "launches_outside",
    "dynamic loops": "dynamic_loops_outside",
    "conditionals": "conditionals_outside",
    "table copies": "table_copies",
    "transfers": "transfers",
    "temporary MB": "temp_mb",
    "predicted": "predicted_temp_mb",
    "peak MB": "peak_mb",
    "predicted ": "predicted_mb",
    "trace s": "trace_s",
    "compile s": "compile_s",
    "H100 ms": "h100_ms",
    "H200 ms": "h200_ms",
    "GB": "gigabytes",
    "collectives": "collectives",
}


def row(line: Line) -> str:
    """A line of the table."""
    name = " ".join(
        filter(None, (line["workload"], line["algorithm"], line["program"]))
    )
    shown = (line.get(field, "") for field in COLUMNS.values())
    return f"| {name} | {' | '.join(map(_shown, shown))} |"


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " x ".join("?" if one is None else f"{one:,}" for one in value)
    if isinstance(value, dict):
        return "; ".join(f"{kind} {_shown(some)} bytes" for kind, some in value.items())
    return str(value)


def measure(given: argparse.Namespace) -> None:
    """Makes the lines that are missing, and prints all that are asked for."""
    ledger = Ledger(given.results)
    same = {name: evidence()[name] for name in ("commit", "versions")}
    changed = str(same["commit"]).endswith("+")  # and nobody knows how
    print(f"| program | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for setting in settings(given):
        found = [] if changed else ledger.find(**setting, **same)
        if not found:
            try:
                found = [setting | compiled(setting, given.hlo) | evidence()]
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                said = str(error).partition("\n")[0]
                which = " ".join(str(value) for value in setting.values() if value)
                print(f"left out: {said} ({which})", file=sys.stderr)
                continue
            ledger.add(found[0])
        print(row(found[-1]), flush=True)


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = [*KINDS, *ALGORITHMS, *PROGRAMS]
    parser.add_argument("--platform", choices=MEMORY, default="cuda")
    parser.add_argument("--only", nargs="*", default=[], choices=names, metavar="NAME")
    parser.add_argument("--lanes", type=number_or_auto, help="as the workload has them")
    parser.add_argument("--convolutions", choices=WAYS)
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--devices", type=int, default=1, help="8 H100, 4 TPU v5e")
    parser.add_argument("--hlo", type=Path, help="folder that keeps the programs' text")
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument(
        "--results", type=Path, default=RESULTS / f"accelerators-{today}.jsonl"
    )
    return parser


def main() -> None:
    given = options().parse_args()
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", given.devices)  # for what is traced
    measure(given)


if __name__ == "__main__":
    main()
