"""What the engine adds to the steps themselves.

    python benchmarks/overhead.py            # all three parts; call it again to go on
    python benchmarks/overhead.py --parts steps --workloads w2

steps: a round of W1 and W2 (rounds.py) and the bare loop (bare.py), in turn.
dispatch: empty rounds, sent one by one and in chunks (dispatch.py).
profile: what the parts of a round take (parts.py), on as many devices as there are.
"""

import argparse
from functools import cache, partial

import jax
import parts
import rounds
from bare import ACCESS, bare_loop
from dispatch import PATHS
from dispatch import cases as dispatch_cases
from parts import Work
from readings import (
    Case,
    Ledger,
    Read,
    add_options,
    described,
    effort_of,
    number_or_auto,
    take,
)

import fedjax_adapt as fa


@cache
def data_of(workload: str) -> fa.FederatedDataset:
    """All clients of a workload."""
    this = rounds.WORKLOADS[workload]
    return rounds.examples(this, this.clients)


def work_of(workload: str, num_devices: int, lanes: int | str) -> Work:
    """FedAvg's round of a workload, as rounds.py has it."""
    this = rounds.WORKLOADS[workload]
    plan = rounds.plan_of(this, lanes=lanes, devices=num_devices)
    task = rounds.task_of(this)
    steps = this.examples // this.batch
    return Work(task, data_of(workload), plan, rounds.initial_params(this), steps)


def step_cases(work: Work, setting: dict) -> dict[str, Case]:
    """A round, and the bare loop on both kinds of batches."""
    bare = partial(bare_loop, work.task, work.data, work.plan, work.params)
    where = {"num_devices": work.num_devices, "num_lanes": work.num_lanes}
    builds = {name: partial(bare, name, **where) for name in ACCESS}
    builds["round"] = partial(parts.round_of, work, fa.algorithms.fedavg())
    return {
        name: Case({"part": "steps", "what": name} | setting, build)
        for name, build in builds.items()
    }


# part -> how it is found, the round it is a share of, what is timed less what
SHARES = {
    "shuffle": ("left out: batches in order", "round", "round", "in order"),
    "shuffle and gather": ("own program, batches summed up", "round", "batches", None),
    "local steps": ("bare loop, batches ready", "round", "local steps", None),
    "uploads": ("left out: nothing sent", "round", "round", "nothing sent"),
    "client table": (
        "put in: a row of the model's size, read and written",
        *("SCAFFOLD", "row kept", "nothing sent"),
    ),
    "evaluation": ("own program, 10,000 examples", "round", "evaluation", None),
    "rows, Parquet": ("as `run` does, of one round", "round", "results", None),
    "checkpoint": ("as `run` does, to the disk", "round", "checkpoint", None),
    "checkpoint, SCAFFOLD": (
        "as `run` does, to the disk",
        *("SCAFFOLD", "checkpoint, SCAFFOLD", None),
    ),
}


def ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def ratio(value: float) -> str:
    return f"{value:.3f}"


def head(*names: str) -> str:
    return "| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|"


def steps_part(arguments, ledger: Ledger) -> list[Case]:
    """Takes the readings and prints the table."""
    used, rows = [], []
    for workload in arguments.workloads:
        for num_devices in arguments.devices:
            chosen = work_of(workload, num_devices, arguments.lanes).num_lanes
            for lanes in dict.fromkeys((chosen, 1)):
                setting = {"workload": workload, "devices": num_devices, "lanes": lanes}
                work = work_of(workload, num_devices, lanes)
                cases = step_cases(work, setting)
                take([*cases.values()], ledger, effort_of(arguments))
                read = Read(ledger, cases)
                cells = [read.value(ms, name) for name in ("round", *ACCESS)]
                cells += [read.value(ratio, "round", by=name) for name in ACCESS]
                rows.append(" | ".join([*map(str, setting.values()), *cells]))
                used += cases.values()
    bare = [f"bare, {name}" for name in ACCESS]
    columns = ["round, ms", *(f"{b}, ms" for b in bare), *(f"by {b}" for b in bare)]
    print(head("work", "devices", "lanes", *columns))
    print("\n".join(f"| {row} |" for row in rows), end="\n\n")
    return used


def dispatch_part(arguments, ledger: Ledger) -> list[Case]:
    """Likewise."""
    cases = dispatch_cases(arguments.chunks, arguments.empty_rounds, arguments.devices)
    take([*cases.values()], ledger, effort_of(arguments))
    read = Read(ledger, cases)
    print(
        head("devices", "through", "rounds a chunk", "ms per round", "less the limit")
    )
    for this in cases:
        num_devices, path, chunk = this
        limit = num_devices, path, arguments.empty_rounds
        cells = [read.value(ms, this), read.value(ms, this, less=limit)]
        if this == limit:
            cells[1] = "the limit"
        print(f"| {num_devices} | {PATHS[path]} | {chunk} | {' | '.join(cells)} |")
    print()
    return [*cases.values()]


def profile_part(arguments, ledger: Ledger) -> list[Case]:
    """Likewise."""
    used = []
    num_devices = max(arguments.devices)
    for workload in arguments.workloads:
        work = work_of(workload, num_devices, arguments.lanes)
        where = {"devices": num_devices, "lanes": work.num_lanes}
        cases = parts.cases(work, {"workload": workload} | where)
        take([*cases.values()], ledger, effort_of(arguments))
        read = Read(ledger, cases)
        print(head(f"{workload}: part", "how", "ms", "share of a round", "of"))
        for name, (how, by, what, less) in SHARES.items():
            cells = [read.value(ms, what, less), read.value(percent, what, less, by)]
            print(f"| {name} | {how} | {' | '.join(cells)} | {by} |")
        for name in ("round", "SCAFFOLD"):
            print(f"| {name} | whole | {read.value(ms, name)} | 100 % | {name} |")
        print()
        used += cases.values()
    return used


PARTS = {"steps": steps_part, "dispatch": dispatch_part, "profile": profile_part}


def measure(arguments: argparse.Namespace) -> None:
    """Takes what is missing of the parts asked for and prints their tables."""
    ledger, used = Ledger(arguments.results), []
    for part, take_and_print in PARTS.items():
        if part in arguments.parts:
            used += take_and_print(arguments, ledger)
    print(described(line for case in used for line in ledger.find(**case.setting)))


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="*", default=[*PARTS], choices=PARTS)
    every, usual = [*rounds.WORKLOADS], ["w1", "w2"]
    parser.add_argument("--workloads", nargs="*", default=usual, choices=every)
    parser.add_argument(
        "--devices", type=int, nargs="*", help="numbers of them; 1 and all by default"
    )
    parser.add_argument("--lanes", type=number_or_auto, default="auto")
    parser.add_argument("--chunks", type=int, nargs="*", default=[1, 10, 100])
    parser.add_argument("--empty-rounds", type=int, default=1000, help="per call")
    add_options(parser, "overhead")
    return parser


def main() -> None:
    arguments = parser().parse_args()
    fa.cores_as_devices()
    arguments.devices = arguments.devices or sorted({1, jax.local_device_count()})
    try:
        measure(arguments)
    except ValueError as error:  # a number that does not fit
        parser().exit(2, f"overhead.py: {error}\n")


if __name__ == "__main__":
    main()
