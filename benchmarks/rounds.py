"""Seconds per round on two fixed workloads, as one line of JSON.

    python benchmarks/rounds.py --workload w1

w1: 10 of 100 clients, 10 steps of batch 50 each: the CIFAR network, 797,962 parameters.
w2: 50 of 500 clients, 10 steps of batch 10 each: 784-200-200-10, 199,210 parameters.

Both: SGD at 0.1 with weight decay 1e-3, one shuffled epoch per client and round, plain
average. Data and initial parameters are drawn by formulas that do not depend on this
package, so that another simulator can do the same work; `--check` prints what to compare.
See benchmarks/README.md.
"""

import argparse
import json
import math
import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_adapt as fa
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.engine.lanes import compiler_options
from fedjax_adapt.engine.mesh import placed
from fedjax_adapt.engine.slots import num_devices_of, num_lanes_of
from fedjax_adapt.experiment.summary import commit, hardware
from fedjax_adapt.models import MODELS


class Workload(NamedTuple):
    model: str
    shape: tuple[int, ...]
    clients: int
    examples: int  # of each client
    cohort: int
    batch: int
    layers: dict  # name of the layer in the model -> weight shape, [out, in, ...]

    @property
    def steps(self) -> int:
        """Local steps in a round, over all clients."""
        return self.cohort * self.examples // self.batch


WORKLOADS = {
    "w1": Workload(
        "cnn", (32, 32, 3), 100, 500, 10, 50,
        {"conv1": (64, 3, 5, 5), "conv2": (64, 64, 5, 5), "fc1": (384, 1600),
         "fc2": (192, 384), "out": (10, 192)},
    ),
    "w2": Workload(
        "mlp", (784,), 500, 100, 50, 10,
        {"hidden/0": (200, 784), "hidden/1": (200, 200), "out": (10, 200)},
    ),
}  # fmt: skip


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
    """The first clients of the workload: normal pixels, uniform labels."""
    n = workload.examples
    x = np.empty((clients * n, *workload.shape), np.float32)
    y = np.empty(clients * n, np.int32)
    rows = [np.arange(i * n, (i + 1) * n) for i in range(clients)]
    for i, mine in enumerate(rows):
        rng = np.random.default_rng([7, i])
        x[mine] = rng.standard_normal((n, *workload.shape), dtype=np.float32)
        y[mine] = rng.integers(0, 10, n)
    return fa.FederatedDataset.from_rows(x, y, rows, num_classes=10)


def initial_params(workload: Workload) -> dict:
    """U(+-1/sqrt(fan_in)), drawn as [out, in, ...] and turned into our layout."""
    rng = np.random.default_rng(1234)
    params = {}
    for name, shape in workload.layers.items():
        fan_in = math.prod(shape[1:])
        draw = lambda size, fan_in=fan_in: (
            rng.uniform(-1, 1, size).astype(np.float32) / np.float32(np.sqrt(fan_in))
        )
        kernel, bias = draw(shape), draw(shape[:1])
        # [out, in, h, w] -> [h, w, in, out]
        kernel = kernel.transpose(*range(2, kernel.ndim), 1, 0)
        *path, last = name.split("/")
        layer = params
        for part in path:
            layer = layer.setdefault(part, {})
        layer[last] = {"kernel": jnp.asarray(kernel.copy()), "bias": jnp.asarray(bias)}
    return params


def fingerprint(before: dict, after: dict) -> dict:
    """Per tensor, whatever its layout: norm and maximum of the update, and its projection
    on the initial weights."""

    def of(old, new):
        old, new = np.asarray(old, np.float64), np.asarray(new, np.float64)
        step = new - old
        projection = (step * old).sum() / (old * old).sum()
        return [float(np.linalg.norm(step)), float(abs(step).max()), float(projection)]

    named = jax.tree_util.tree_leaves_with_path(before)
    names = [
        jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in named
    ]
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return dict(zip(names, (of(*pair) for pair in pairs), strict=True))


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
        lr=0.1,
        weight_decay=1e-3,
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
    num_lanes = num_lanes_of(plan, data, params)
    flags = compiler_options(num_lanes)  # as fedjax-adapt run does
    step = step.lower(round_fn, state, keys[0]).compile(flags)
    compile_seconds = time.perf_counter() - begin

    if arguments.check:
        state, _ = step(round_fn, state, keys[0])
        return {"workload": arguments.workload,
                "fingerprint": fingerprint(params, state.params)}  # fmt: skip
    seconds, elsewhere, steps = [], [], []
    for key in keys:
        busy, begin = busy_elsewhere(), time.perf_counter()
        state, info = jax.block_until_ready(step(round_fn, state, key))
        seconds.append(time.perf_counter() - begin)
        elsewhere.append(busy_elsewhere() - busy)
        steps.append(int(info.num_steps.sum()))
        if arguments.algorithm != "fedveca":
            assert steps[-1] == workload.steps, info.num_steps
    seconds, elsewhere, steps = (
        values[arguments.warmup :] for values in (seconds, elsewhere, steps)
    )
    median = float(np.median(seconds))
    return {
        "workload": arguments.workload,
        "algorithm": arguments.algorithm,
        "lanes": num_lanes,
        "devices": num_devices_of(plan, data),
        "seconds_per_round": round(median, 5),
        "min": round(min(seconds), 5),
        "max": round(max(seconds), 5),
        "n": len(seconds),
        "steps_per_second": round(
            float(np.median(np.array(steps) / np.array(seconds))), 1
        ),
        "compile_seconds": round(compile_seconds, 2),
        "peak_memory_mb": peak_memory_mb(),
        "other_cores": round(sum(elsewhere) / sum(seconds), 2),
        "tuned_allocator": "MALLOC_MMAP_THRESHOLD_" in os.environ,
        "parameters": fa.num_parameters(params),
        "versions": {
            name: version(name) for name in ("jax", "jaxlib", "flax", "numpy")
        },
        "commit": commit(),
        "hardware": hardware(),
    }


def busy_elsewhere() -> float:
    """Processor seconds that other processes have used; 0 where /proc is missing."""
    try:
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = map(int, ticks)
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return busy - sum(os.times()[:2])


def peak_memory_mb() -> float | None:
    """The largest resident memory of this process so far."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return round(int(line.split()[1]) / 1024)


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
