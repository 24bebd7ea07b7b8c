"""Unequal local steps on few lanes: steps executed by steps that count, and what they take.

    python benchmarks/lanes.py                      # counts, on partitions of 60,000 labels
    python benchmarks/lanes.py --steps runs/gsnr runs/veca      # and those of finished runs
    python benchmarks/lanes.py --time          # seconds per useful step, equal and unequal

Without packing a cohort on L lanes is cut into groups of L, each as long as its longest
client; side by side all wait for the longest of the cohort. With packing the longest client
not begun goes to the first lane that is free (fedjax_adapt/engine/steps.py). An
accelerator looks who is done once in a block of steps: a client is idle until it ends.
"""

import argparse
import functools
import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import rounds
from entry import begin

import fedjax_adapt as fa
from fedjax_adapt.data import split
from fedjax_adapt.engine.lanes import block_of, busiest
from fedjax_adapt.engine.step_time import Work
from fedjax_adapt.engine.xla import compiler_options
from fedjax_adapt.experiment import read_run

PARTITIONS = {
    "dirichlet_classes 0.3": ("dirichlet_classes", {"concentration": 0.3}),
    "dirichlet_classes 0.1": ("dirichlet_classes", {"concentration": 0.1}),
    "nonbalance": ("nonbalance", {}),
    "pareto": ("pareto", {}),
    "quantity_dirichlet 0.5": ("quantity_dirichlet", {"concentration": 0.5}),
}
CLIENTS, COHORTS, BATCH = (100, 500), (10, 50, 100), 50
DRAWS = 50  # cohorts of each kind
# sigma of the steps' logarithm; nearly equal: 9 to 11 steps, sizes a few per cent apart
UNEQUAL = {
    "equal": 0.0, "nearly equal": 0.05, "lognormal 0.5": 0.5, "lognormal 1": 1.0,
}  # fmt: skip


def executed(cohorts: list[np.ndarray]) -> dict[str, float]:
    """Executed by useful steps over some cohorts: side by side, and packed.

    As many lanes as the sum holds of the longest client, and half as many. In blocks, as
    on an accelerator: those of the fewest steps for nothing.
    """
    useful = sum(int(steps.sum()) for steps in cohorts)
    size = max(map(len, cohorts))
    table = np.array([np.pad(steps, (0, size - len(steps))) for steps in cohorts])
    ratios = table.sum(1) / table.max(1)
    few = np.maximum(ratios.astype(int), 1)

    def of(lanes: np.ndarray, block: int = 1) -> float:
        whole = -(-table // block) * block
        rows = zip(lanes.tolist(), whole.tolist(), strict=True)
        return round(sum(n * busiest(row, n) for n, row in rows) / useful, 3)

    all_, typical = np.full(len(table), size), int(np.median(few))
    return {
        "padded": of(all_),
        "packed": of(few),
        "packed_half": of(np.maximum(few // 2, 1)),
        "lanes": float(np.median(few)),
        "padded_blocks": of(all_, block_of(table, size, size, Work())),
        "packed_blocks": of(few, block_of(table, typical, size, Work())),
    }


def of_partitions() -> list[dict]:
    """One epoch on the sizes that partitions make of 60,000 labels of ten classes."""
    labels, lines = np.arange(60_000) % 10, []
    rng = np.random.default_rng(0)
    for name, (partition, options) in PARTITIONS.items():
        for clients in CLIENTS:
            rows = split(partition, labels, clients, seed=0, **options)
            steps = -(-np.array([len(mine) for mine in rows]) // BATCH)
            for size in COHORTS:
                drawn = [rng.choice(steps, size, False) for _ in range(DRAWS)]
                line = {"partition": name, "num_clients": clients, "cohort": size}
                lines.append(line | executed(drawn))
    return lines


def of_run(folder: str) -> dict:
    """The steps that a finished run's clients took, round by round."""
    record = read_run(folder)
    rounds_, steps = (record.clients[n].to_numpy() for n in ("round", "num_steps"))
    cohorts = [steps[rounds_ == round] for round in np.unique(rounds_)]
    size = float(np.median([len(cohort) for cohort in cohorts]))
    named = {n: record.config[n] for n in ("algorithm", "partition", "num_clients")}
    return named | {"cohort": size} | executed([c for c in cohorts if c.any()])


@functools.cache
def w2() -> fa.FederatedDataset:
    """The data of W2."""
    workload = rounds.WORKLOADS["w2"]
    return rounds.examples(workload, workload.clients)


def timed(num_lanes: int, repeats: int) -> list[dict]:
    """W2 of rounds.py on one device, ten steps a client on average, in turn.

    `by_equal` is the time of a step that counts, by that of equal steps in the same turn.
    """
    workload, data = rounds.WORKLOADS["w2"], w2()
    task, plan = rounds.task_of(workload), rounds.plan_of(workload, lanes=num_lanes)
    table = jnp.zeros(workload.clients, jnp.int32)  # an argument: one program for all

    @jax.jit
    def steps_of(sigma, key):
        drawn = jnp.exp(sigma * jax.random.normal(key, (workload.clients,)))
        return jnp.maximum(jnp.round(10 * drawn / drawn.mean()), 1).astype(jnp.int32)

    def run(round_data, table, state, key):
        take = lambda state, cohort, measured: table[cohort.ids]
        algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.StepPolicy(take))
        return fa.make_round(algorithm, task, round_data, plan)(state, key)

    state = fa.init_state(
        fa.algorithms.fedavg(), task, data, plan, jax.random.key(0)
    )._replace(params=rounds.initial_params(workload))
    key = jax.random.key(1)
    options = compiler_options(num_lanes)
    program = jax.jit(run).lower(data, table, state, key).compile(options)
    found = {name: [] for name in UNEQUAL}
    for repeat in range(repeats + 1):
        for name, sigma in UNEQUAL.items():
            table = steps_of(sigma, jax.random.fold_in(key, repeat))
            round_key = jax.random.fold_in(key, 1000 + repeat)
            jax.block_until_ready(table)
            begin = time.perf_counter()
            _, info = jax.block_until_ready(program(data, table, state, round_key))
            spent = time.perf_counter() - begin
            steps = np.asarray(info.num_steps)
            if repeat:  # the first is not timed
                found[name].append((spent / steps.sum(), executed([steps])["padded"]))
    seconds = {name: np.array([s for s, _ in values]) for name, values in found.items()}
    by_equal = {name: some / seconds["equal"] for name, some in seconds.items()}
    return [
        {
            "steps": name,
            "lanes": num_lanes,
            "padded": round(float(np.mean([padded for _, padded in values])), 2),
            "ms_per_step": round(1e3 * float(np.median(seconds[name])), 4),
            "by_equal": round(float(np.median(by_equal[name])), 3),
            "n": len(values),
            "commit": rounds.commit(),
            "hardware": rounds.hardware(),
        }
        for name, values in found.items()
    ]


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", nargs="*", default=[], help="folders of runs")
    parser.add_argument("--time", action="store_true")
    parser.add_argument(
        "--lanes", type=int, nargs="+", default=[5, 10, 25, 50], help="for --time"
    )
    parser.add_argument("--repeats", type=int, default=20, help="for --time")
    return parser


def main() -> None:
    arguments = options().parse_args()
    if arguments.time:
        lines = (
            line for some in arguments.lanes for line in timed(some, arguments.repeats)
        )
    else:
        lines = of_partitions() + [of_run(folder) for folder in arguments.steps]
    for line in lines:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    begin(main)
