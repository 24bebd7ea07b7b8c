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

import jax
import jax.numpy as jnp
import numpy as np
import work
from stopwatch import Stopwatch, peak_memory_mb
from stopwatch import busy_elsewhere as busy_elsewhere  # for those who time by us
from work import WORKLOADS, Workload

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.engine.allocator import keeps_memory
from fedjax_adapt.engine.footprint import footprint
from fedjax_adapt.engine.lanes import compiler_options
from fedjax_adapt.engine.mesh import placed
from fedjax_adapt.engine.slots import num_devices_of
from fedjax_adapt.experiment.summary import commit, hardware
from fedjax_adapt.models import MODELS

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


def measure(arguments: argparse.Namespace) -> dict:
    """Runs the rounds and says how long they took."""
    workload = WORKLOADS[arguments.workload]
    number = lambda text: text if text == "auto" else int(text)
    lanes, devices = number(arguments.lanes), number(arguments.devices)
    fa.cores_as_devices(None if devices == "auto" else devices)
    data = examples(workload, workload.cohort if arguments.check else workload.clients)
    task = fa.classification(MODELS[workload.model](workload.shape, 10), workload.shape)
    plan = fa.Plan(
        cohort_size=None if arguments.check else workload.cohort,
        batch_size=workload.batch,
        lr=work.LR,
        weight_decay=work.WEIGHT_DECAY,
        lanes=lanes,
        devices=devices,
        shuffle="none" if arguments.check else "epoch",
    )
    options = OPTIONS.get(arguments.algorithm, {})
    algorithm = ALGORITHMS[arguments.algorithm](**options)
    params = initial_params(workload)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    state = placed(
        jax.tree.map(jnp.copy, state._replace(params=params)),
        num_devices_of(plan, data),
    )
    round_fn = fa.make_round(algorithm, task, data, plan)
    keys = jax.random.split(jax.random.key(1), arguments.warmup + arguments.rounds)

    # the data are an argument of the program, not a constant in it
    step = jax.jit(lambda f, state, key: f(state, key), donate_argnums=1)
    begin = time.perf_counter()
    num_lanes = round_fn.num_lanes
    flags = compiler_options(num_lanes)  # as fedjax-adapt run does
    traced = step.trace(round_fn, state, keys[0])
    held = footprint(traced.jaxpr.jaxpr, state, data, num_devices_of(plan, data))
    step = traced.lower().compile(flags)
    fa.keep_memory()  # as `fedjax-adapt` does
    compile_seconds = time.perf_counter() - begin

    if arguments.check:
        state, _ = step(round_fn, state, keys[0])
        update = work.fingerprint(named(params), named(state.params))
        return {"workload": arguments.workload, "fingerprint": update}
    watch, steps = Stopwatch(), []
    for key in keys:
        watch.start()
        state, info = jax.block_until_ready(step(round_fn, state, key))
        watch.stop()
        steps.append(int(info.num_steps.sum()))
        if arguments.algorithm != "fedveca":
            assert steps[-1] == workload.steps, info.num_steps
    return {
        "workload": arguments.workload,
        "algorithm": arguments.algorithm,
        "lanes": num_lanes,
        "devices": num_devices_of(plan, data),
        **watch.figures(arguments.warmup, steps),
        "compile_seconds": round(compile_seconds, 2),
        "predicted_memory_mb": round(held.peak / 2**20),
        "peak_memory_mb": peak_memory_mb(),
        "tuned_allocator": keeps_memory(),
        "parameters": fa.num_parameters(params),
        "versions": {
            name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")
        },
        "commit": commit(),
        "hardware": hardware(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--algorithm", choices=list(ALGORITHMS), default="fedavg")
    parser.add_argument("--lanes", default="auto", help="clients side by side, or auto")
    parser.add_argument(
        "--devices", default="auto", help="that share a round; auto: every core or GPU"
    )
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2, help="untimed rounds before")
    parser.add_argument(
        "--check",
        action="store_true",
        help="one round of clients 0, 1, ... in order; prints a fingerprint of the update",
    )
    print(json.dumps(measure(parser.parse_args())))


if __name__ == "__main__":
    main()
