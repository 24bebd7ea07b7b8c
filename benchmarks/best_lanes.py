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

FIXED = {
    "w1": (1, 2, 5, 10),
    "w2": (1, 2, 5, 10, 25, 50),
    "tiny": (1, 2, 5, 10, 25, 50),
    "w1-100": (10, 25, 50, 100),  # for a GPU, as the next
    "w1-500": (25, 50, 100, 250, 500),
}
USUAL = ["w1", "w2", "tiny"]
HIDDEN = 10


def work_of(workload: str) -> rounds.Workload:
    """As rounds.py has it; the tiny model does the work of W2."""
    return rounds.WORKLOADS["w2" if workload == "tiny" else workload]


@cache
def data_of(workload: str) -> fa.FederatedDataset:
    """All its clients."""
    this = work_of(workload)
    return rounds.examples(this, this.clients)


def build(workload: str, num_devices: int, lanes: int | str) -> Ready:
    """A round, ready to be timed."""
    this = work_of(workload)
    algorithm = fa.algorithms.fedavg()
    own = {"widths": (HIDDEN,)} if workload == "tiny" else {}
    task = rounds.task_of(this, **own)
    fixed = "auto" if isinstance(lanes, str) else lanes
    plan = rounds.plan_of(this, lanes=fixed, devices=num_devices)
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


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workloads", nargs="*", default=USUAL, choices=[*FIXED])
    parser.add_argument("--devices", type=int, nargs="*")
    add_options(parser, "best-lanes")
    return parser


def main() -> None:
    arguments = options().parse_args()
    fa.cores_as_devices()
    arguments.devices = arguments.devices or sorted({1, jax.local_device_count()})
    measure(arguments)


if __name__ == "__main__":
    main()
