"""Seconds per round on two fixed workloads, as one line of JSON.

    python benchmarks/rounds.py --workload w1

The work is that of work.py, drawn by formulas that do not depend on this package, so that
another simulator can do the same (peers/); `--check` prints what to compare. See
benchmarks/README.md.
"""

import argparse
import json
import time
from importlib.metadata import version
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import work
from stopwatch import Stopwatch
from work import WORKLOADS, Workload

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.core.precision import PRECISIONS
from fedjax_adapt.engine.footprint import footprint
from fedjax_adapt.engine.memory import peak_memory
from fedjax_adapt.engine.xla import compiler_options, keeps_memory
from fedjax_adapt.experiment.summary import commit, hardware
from fedjax_adapt.models import MODELS
from fedjax_adapt.models.ways import WAYS

# options under which a step policy works and the clients take the usual 10 steps, so that
# what it costs can be seen; FedVeca moves on from there: compare its steps per second
OPTIONS = {
    "fedgsnr": {"num_steps": 10, "interpolation": 1.0},
    "fedveca": {"initial_steps": 10},
    "gift": {"initial_steps": 10},
    "adacomm": {"initial_steps": 10, "every_rounds": 1000},
    "afl": {"trial_steps": 10},
}


def examples(workload: Workload, clients: int) -> fa.FederatedDataset:
    """The first clients of the workload."""
    n = workload.examples
    x = np.empty((clients * n, *workload.shape), np.float32)
    y = np.empty(clients * n, np.int32)
    rows = [np.arange(i * n, (i + 1) * n) for i in range(clients)]
    for i, mine in enumerate(rows):
        x[mine], y[mine] = work.client(workload, i)
    return fa.FederatedDataset.from_rows(x, y, rows, num_classes=work.CLASSES)


def initial_params(workload: Workload) -> dict:
    """Those of the workload, in our layout."""
    params = {}
    for name, value in work.parameters(workload).items():
        *path, last = name.split(".")
        layer = params
        for part in path:
            layer = layer.setdefault(part, {})
        layer[last] = jnp.asarray(work.inputs_before_outputs(value))
    return params


def named(params: dict) -> dict[str, np.ndarray]:
    """Parameters by name, as work.py names them."""
    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {name(path): np.asarray(leaf) for path, leaf in leaves}


def task_of(workload: Workload, **options: Any) -> fa.Task:
    """Model and loss of a workload. `options`: of the model."""
    model = MODELS[workload.model](workload.shape, work.CLASSES, **options)
    return fa.classification(model, workload.shape)


def plan_of(workload: Workload, **more: Any) -> fa.Plan:
    """How its clients train. `more`: of `fa.Plan`, which wins."""
    return fa.Plan(**(workload.training | more))


class Built(NamedTuple):
    """A round that is compiled, and what it takes."""

    workload: Workload
    plan: fa.Plan
    data: fa.FederatedDataset
    params: dict
    round_fn: Any
    step: Any  # (round_fn, state, key) -> (state, info); the state is donated
    state: fa.State
    keys: jax.Array  # of rounds to warm up, and of the others
    held: Any  # bytes, see `footprint`
    compile_seconds: float


def build(arguments: argparse.Namespace) -> Built:
    """Compiles a round of a workload, as the command line has it."""
    workload = WORKLOADS[arguments.workload]
    if arguments.clients is not None:
        workload = workload._replace(clients=arguments.clients)
    number = lambda text: text if text == "auto" else int(text)
    lanes, devices = number(arguments.lanes), number(arguments.devices)
    fa.cores_as_devices(None if devices == "auto" else devices)
    data = examples(workload, workload.cohort if arguments.check else workload.clients)
    task = fa.with_precision(task_of(workload), arguments.precision)
    if arguments.convolutions is not None:
        task = fa.models.with_ways(task, arguments.convolutions)
    own = {"cohort_size": None, "shuffle": "none"} if arguments.check else {}
    own["client_memory"] = arguments.client_memory
    plan = plan_of(workload, lanes=lanes, devices=devices, **own)
    options = OPTIONS.get(arguments.algorithm, {})
    algorithm = ALGORITHMS[arguments.algorithm](**options)
    params = initial_params(workload)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    # a copy, as the rounds are given the state for good
    state = round_fn.placed(state._replace(params=jax.tree.map(jnp.copy, params)))
    keys = jax.random.split(jax.random.key(1), arguments.warmup + arguments.rounds)

    # the data are an argument of the program, not a constant in it
    function = lambda f, state, key: f(state, key)
    if (many := arguments.rounds_a_call) > 1:
        keys = jax.vmap(lambda key: jax.random.split(key, many))(keys)
        function = jax.lax.scan
    step = jax.jit(function, donate_argnums=1)
    begin = time.perf_counter()
    flags = compiler_options(round_fn.num_lanes)  # as fedjax-adapt run does
    traced = step.trace(round_fn, state, keys[0])
    held = footprint(traced.jaxpr.jaxpr, state, data, round_fn.num_devices)
    step = traced.lower().compile(flags)
    fa.keep_memory()  # as `fedjax-adapt` does
    seconds = time.perf_counter() - begin
    return Built(
        workload, plan, data, params, round_fn, step, state, keys, held, seconds
    )


def measure(arguments: argparse.Namespace) -> dict:
    """Runs the rounds and says how long they took."""
    built = build(arguments)
    workload, plan, data, params, round_fn, step, state, keys, held, _ = built
    if arguments.check:
        state, _ = step(round_fn, state, keys[0])
        update = work.fingerprint(named(params), named(state.params))
        return {"workload": arguments.workload, "fingerprint": update}
    many, watch, steps = arguments.rounds_a_call, Stopwatch(), []
    for key in keys:
        watch.start()
        state, info = jax.block_until_ready(step(round_fn, state, key))
        watch.stop()
        steps.append(int(info.num_steps.sum()))
        if arguments.algorithm != "fedveca":
            assert steps[-1] == many * workload.steps, info.num_steps
    figures = watch.figures(arguments.warmup, steps)
    peak, of_round = peak_memory(), ("seconds_per_round", "min", "max")
    figures |= {name: round(figures[name] / many, 6) for name in of_round}
    return {
        "workload": arguments.workload,
        "algorithm": arguments.algorithm,
        "precision": arguments.precision,
        "lanes": round_fn.num_lanes,
        "devices": round_fn.num_devices,
        "clients": workload.clients,
        "client_memory": plan.client_memory,
        "rounds_a_call": many,
        "convolutions": arguments.convolutions,
        **figures,
        "compile_seconds": round(built.compile_seconds, 2),
        "predicted_memory_mb": round(held.peak / 2**20),
        "peak_memory_mb": None if peak is None else round(peak / 2**20),
        "tuned_allocator": keeps_memory(),
        "parameters": fa.num_parameters(params),
        "versions": {
            name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")
        },
        "commit": commit(),
        "hardware": hardware(),
    }


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    work.add_options(parser)
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), default="fedavg")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--lanes", default="auto", help="clients side by side, or auto")
    parser.add_argument("--convolutions", choices=WAYS, help="default: by the rule")
    parser.add_argument(
        "--rounds-a-call", type=int, default=1, help="--rounds counts the calls"
    )
    parser.add_argument("--clients", type=int, help="default: as the workload has it")
    parser.add_argument(
        "--client-memory",
        choices=["device", "host"],
        default="device",
        help="of states",
    )
    parser.add_argument(
        "--devices", default="auto", help="that share a round; auto: every core or GPU"
    )
    return parser


def check(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Ends with an error message where there is no round to be timed."""
    work.check_rounds(parser, arguments)
    many = arguments.rounds_a_call
    if many < 1 or (arguments.check and many > 1):
        parser.error(f"--rounds-a-call {many}: write 1 or more, with --check 1.")


def main() -> None:
    arguments = options().parse_args()
    check(options(), arguments)
    try:
        print(json.dumps(measure(arguments)))
    except ValueError as error:  # a number out of range, or too much for the memory
        options().error(str(error))


if __name__ == "__main__":
    main()
