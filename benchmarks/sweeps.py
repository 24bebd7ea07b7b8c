"""What a sweep of several seeds takes, over what one run of them takes.

    python benchmarks/sweeps.py                 # call it again to go on
    python benchmarks/sweeps.py --devices 1 --side-by-side 1 8 auto

FedAvg on W2 (work.py). The run is that of `fedjax-adapt run`, with the lanes that a long
one finds by trying, on as many devices as the sweep has; the sweep is the same run with
each of 8 seeds, so many trials side by side on each device, and one after the other where
there are more. Both are compiled, warm, and read in turn: a ratio is of one pass. After
each call's rounds the model is evaluated once, on few examples. Goals: at most 5 on a
CPU, 2 on a GPU.
"""

import argparse
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import rounds
from readings import (
    Case,
    Ledger,
    Read,
    Ready,
    add_options,
    described,
    effort_of,
    number_or_auto,
    take,
)

import fedjax_adapt as fa
from fedjax_adapt.experiment.build import Federation, build_algorithm, build_plan
from fedjax_adapt.experiment.config import Config, from_settings
from fedjax_adapt.experiment.program import compile_program
from fedjax_adapt.experiment.sweeps.compiled_group import compile_group, layout_of
from fedjax_adapt.models import MODELS


@cache
def data_of(workload: str) -> fa.FederatedDataset:
    """All clients of a workload; the first batch is the test set."""
    this = rounds.WORKLOADS[workload]
    data = rounds.examples(this, this.clients)
    return replace(data, test=(data.x[: this.batch], data.y[: this.batch]))


def federation_of(
    workload: str, num_rounds: int, num_devices: int
) -> tuple[Config, Federation]:
    """FedAvg's run of a workload, `num_rounds` rounds from one evaluation to the next."""
    this = rounds.WORKLOADS[workload]
    config = from_settings(
        {
            "num_clients": this.clients,
            "participation": this.cohort / this.clients,
            "sampler": "uniform",
            "batch_size": this.batch,
            "epochs": 1.0,
            "lr": rounds.work.LR,
            "lr_decay": 1.0,
            "momentum": 0.0,
            "clip_norm": None,
            "weight_decay": rounds.work.WEIGHT_DECAY,
            "algorithm": "fedavg",
            "rounds": num_rounds,
            "evaluate_every": num_rounds,
            "devices": num_devices,
            "partition_seed": 0,
        }
    )
    task = fa.classification(MODELS[this.model](this.shape, 10), this.shape)
    algorithm, plan = build_algorithm(config), build_plan(config)
    # what the data came from is not read here
    return config, Federation(algorithm, task, data_of(workload), plan, None, None)


def one_run(workload: str, num_rounds: int, num_devices: int) -> Ready:
    """A run, ready to be timed; a call is its rounds and an evaluation."""
    config, federation = federation_of(workload, num_rounds, num_devices)
    lanes = fa.fastest_lanes(*federation[:4])
    config = replace(config, lanes=lanes)
    federation = federation._replace(plan=build_plan(config))
    program = compile_program(config, federation)
    state, group = program.init(), program.group
    assert group is not None

    def call() -> Any:
        nonlocal state
        state, *results = group(state)
        return state, results

    about = {"compile_seconds": round(program.seconds, 2), "lanes": lanes}
    return Ready(call, about, num_rounds)


def one_sweep(
    workload: str,
    num_rounds: int,
    num_devices: int,
    num_seeds: int,
    side_by_side: int | str,
) -> Ready:
    """A sweep over seeds, ready to be timed; a call is all rounds of all its trials."""
    config, federation = federation_of(workload, num_rounds, num_devices)
    configs = [replace(config, seed=seed) for seed in range(num_seeds)]
    layout = layout_of(config, federation, num_seeds, side_by_side)
    group = compile_group(configs, federation, [], layout)
    starts = range(0, num_seeds, group.width)
    programs = [
        group.program_of(range(i, min(i + group.width, num_seeds))) for i in starts
    ]
    states = [program.init() for program in programs]

    def call() -> Any:
        results = []
        for i, program in enumerate(programs):
            assert program.group is not None
            # one after the other, as a sweep does: a CPU would run them all at once
            states[i], *found = jax.block_until_ready(program.group(states[i]))
            results.append(found)
        return states, results

    about = {"compile_seconds": round(programs[0].seconds, 2), "at_once": group.width}
    return Ready(call, about, num_rounds)


def measure(arguments: argparse.Namespace) -> None:
    """Takes what is missing and prints a table per workload."""
    ledger, used = Ledger(arguments.results), []
    for workload in arguments.workloads:
        print(f"\n{workload}, {arguments.seeds} seeds; seconds of a round of all\n")
        print("| devices | side by side | run, ms | sweep, ms | sweep over run |")
        print("|---|---|---|---|---|")
        for num_devices in arguments.devices:
            size = workload, arguments.rounds, num_devices
            names = ("workload", "rounds", "devices")
            setting = dict(zip(names, size, strict=True))
            cases = {"run": Case({"what": "run"} | setting, partial(one_run, *size))}
            for side in arguments.side_by_side:
                own = {"seeds": arguments.seeds, "side_by_side": side}
                build = partial(one_sweep, *size, *own.values())
                cases[side] = Case({"what": "sweep"} | setting | own, build)
            take([*cases.values()], ledger, effort_of(arguments))
            read, ms = Read(ledger, cases), lambda seconds: f"{1e3 * seconds:.4g}"
            for side in arguments.side_by_side:
                cells = [read.value(ms, "run"), read.value(ms, side)]
                cells.append(read.value(lambda r: f"{r:.2f}", side, by="run"))
                print(f"| {num_devices} | {side} | {' | '.join(cells)} |")
            used += cases.values()
    print(described(line for case in used for line in ledger.find(**case.setting)))


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    workloads = [*rounds.WORKLOADS]
    parser.add_argument("--workloads", nargs="*", default=["w2"], choices=workloads)
    parser.add_argument("--devices", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument(
        "--side-by-side", type=number_or_auto, nargs="*", default=[1, 2, 4, 8, "auto"]
    )
    parser.add_argument("--rounds", type=int, default=10, help="per call")
    add_options(parser, "sweeps")
    return parser


def main(words: list[str] | None = None) -> None:
    arguments = options().parse_args(words)
    fa.cores_as_devices()
    arguments.devices = arguments.devices or sorted({1, jax.local_device_count()})
    measure(arguments)


if __name__ == "__main__":
    main()
