"""How many clients side by side are fastest, and what `lanes="auto"` makes of it.

    python benchmarks/best_lanes.py             # call it again to go on
    python benchmarks/best_lanes.py --workloads tiny --devices 1

FedAvg's round of W1 and W2 (rounds.py), and of W2 with 10 hidden units, with each number
of lanes on each number of devices, in turn; `rule` is what a short run takes, `auto` what
a long one finds by trying (engine/calibrate.py). Printed are the seconds of a round, and
what `rule` and `auto` take over the fastest fixed number of the same pass.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from functools import cache, partial

import jax
import rounds
from one_round import one_round
from readings import (
    Case,
    Ledger,
    Read,
    Ready,
    add_options,
    described,
    effort_of,
    take,
)

import fedjax_adapt as fa
from fedjax_adapt.models import MODELS

FIXED = {
    "w1": (1, 2, 5, 10),
    "w2": (1, 2, 5, 10, 25, 50),
    "tiny": (1, 2, 5, 10, 25, 50),
}
HIDDEN = 10


@cache
def data_of(workload: str) -> fa.FederatedDataset:
    """All clients of a workload; the tiny model learns from those of W2."""
    this = rounds.WORKLOADS["w1" if workload == "w1" else "w2"]
    return rounds.examples(this, this.clients)


def build(workload: str, num_devices: int, lanes: int | str) -> Ready:
    """A round, ready to be timed."""
    this = rounds.WORKLOADS["w1" if workload == "w1" else "w2"]
    algorithm = fa.algorithms.fedavg()
    own = {"widths": (HIDDEN,)} if workload == "tiny" else {}
    task = fa.classification(MODELS[this.model](this.shape, 10, **own), this.shape)
    plan = fa.Plan(
        cohort_size=this.cohort,
        batch_size=this.batch,
        lr=0.1,
        weight_decay=1e-3,
        lanes="auto" if isinstance(lanes, str) else lanes,
        devices=num_devices,
    )
    data = data_of(workload)
    if lanes == "auto":
        tried = fa.fastest_lanes(algorithm, task, data, plan)
        plan = dataclasses.replace(plan, lanes=tried)
    return one_round(algorithm, task, data, plan)


def over_the_best(read: Read, which: str, fixed: Sequence[int]) -> str:
    """Median (minimum to maximum) of its time over the fastest fixed one, by pass."""
    passes = set.intersection(*(set(read.of[lanes]) for lanes in fixed))
    read.of["best"] = {i: min(read.of[lanes][i] for lanes in fixed) for i in passes}
    return read.value(lambda ratio: f"{ratio:.3f}", which, by="best")


def measure(arguments: argparse.Namespace) -> None:
    """Takes what is missing and prints a table per workload and number of devices."""
    ledger, used = Ledger(arguments.results), []
    for workload in arguments.workloads:
        for num_devices in arguments.devices:
            cases = {
                lanes: Case(
                    {"workload": workload, "devices": num_devices, "lanes": lanes},
                    partial(build, workload, num_devices, lanes),
                )
                for lanes in (*FIXED[workload], "rule", "auto")
            }
            take([*cases.values()], ledger, effort_of(arguments))
            read = Read(ledger, cases)
            print(f"\n{workload}, {num_devices} devices\n")
            print("| lanes | ms |\n|---|---|")
            for lanes in cases:
                print(f"| {lanes} | {read.value(lambda s: f'{1e3 * s:.4g}', lanes)} |")
            for which in ("rule", "auto"):
                found = over_the_best(read, which, FIXED[workload])
                print(f"\n{which} over the fastest: {found}")
            used += cases.values()
    print(described(line for case in used for line in ledger.find(**case.setting)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="*", default=[*FIXED], choices=[*FIXED])
    parser.add_argument("--devices", type=int, nargs="*")
    add_options(parser, "best-lanes")
    arguments = parser.parse_args()
    fa.cores_as_devices()
    arguments.devices = arguments.devices or sorted({1, jax.local_device_count()})
    measure(arguments)


if __name__ == "__main__":
    main()
