"""Ours compared with its peers: every simulator in turn, pass after pass, and a table.

    python benchmarks/peers/run.py --venvs DIR --make-venvs       # all of it
    python benchmarks/peers/run.py --venvs DIR --check            # is it the same work?
    python benchmarks/peers/run.py --device cuda --minutes 9      # on a GPU

With --device cuda those that can use a GPU are compared on it, with W1 at 10, 100 and 500
clients a round; without --venvs the Python that runs this has their PyTorch.

Lines go to results/peers-DATE.jsonl as they come, table and picture next to it.
Call it again to go on: a line that is there is not made again. Lines during which other
processes used more than 0.06 of a core (1 with a GPU) are marked, made again up to twice,
and left out of the table. A ratio is that of two lines of one pass and precision. See
benchmarks/README.md.
"""

import argparse
import datetime
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import picture
import sitting
import table
from readings import RESULTS, Ledger, Line
from settings import BY_DEVICE, PRECISIONS, SIMULATORS, Setting

from fedjax_adapt.experiment.summary import commit

ROUNDS = {"w1": 5, "w1-100": 5, "w1-500": 3, "w2": 20}
OTHERS = {"cpu": 0.06, "cuda": 1.0}  # cores that others may use during a line
# how much two rounds may differ. W2 agrees to rounding. At W1 a learning rate of 0.1 makes
# rounding grow: where one unit's ReLU or maximum flips, ten steps later a client's update
# has moved by percents. Without weight decay the projection would be off by nine tenths,
# with 9 steps in place of 10 by 9 %
TOLERANCE = {"w1": 0.03, "w2": 1e-3}  # by the first part of a workload's name
PEAKS = (67.0, 494.0, 989.0)  # TFLOP/s of an H200 by its data sheet, without sparsity


def chosen(arguments) -> dict[str, list[Setting]]:
    """The settings of every workload; ours is always there, to be compared with."""
    wanted = {"ours", *(arguments.only or SIMULATORS)}
    precisions = arguments.precisions or PRECISIONS
    return {
        workload: [
            setting
            for setting in BY_DEVICE[arguments.device][workload]
            if setting.simulator in wanted and setting.precision in precisions
        ]
        for workload in arguments.workloads
    }


Fingerprint = Mapping[str, Sequence[float]]  # name -> norm, maximum, projection


def differences(ours: Fingerprint, theirs: Fingerprint) -> tuple[float, float]:
    """The largest relative differences: of a norm, and of a kernel's projection."""
    if set(ours) != set(theirs):
        return float("inf"), float("inf")
    norm = max(abs(theirs[name][0] / ours[name][0] - 1) for name in ours)
    projection = max(
        abs(theirs[name][2] / ours[name][2] - 1)
        for name in ours
        if name.endswith("kernel")  # the decay of a bias is lost in its gradient
    )
    return norm, projection


def check(settings: dict[str, list[Setting]], folder: Path | None) -> list[str]:
    """Compares a round of every peer with ours; returns what does not agree.

    Those of other precision than float32 are left out: they would differ from themselves.
    """
    wrong = []

    def fingerprint(setting: Setting, workload: str) -> dict:
        words = ["--workload", workload, "--check", *setting.options.split()]
        return sitting.call(setting, words, folder)["fingerprint"]

    for workload, some in settings.items():
        some = [s for s in some if s.precision == "float32"]
        mine = next((s for s in some if s.simulator == "ours"), None)
        if mine is None:
            continue
        ours, limit = fingerprint(mine, workload), TOLERANCE[workload.partition("-")[0]]
        # an allocator changes no number
        for setting in dict.fromkeys(s._replace(tuned=True) for s in some if s != mine):
            name = f"{setting.name} at {workload}"
            try:
                theirs = fingerprint(setting, workload)
            except RuntimeError as error:
                wrong.append(f"{name}: {error}")
                continue
            norm, projection = differences(ours, theirs)
            off = f"norms to {norm:.1e}, decay to {projection:.1e}"
            if norm < limit and projection < limit:
                print(f"{name} agrees: {off}", flush=True)
            else:
                wrong.append(f"{name} does other work: {off}, allowed is {limit:g}.")
    return wrong


def measure(settings: dict[str, list[Setting]], arguments) -> list[str]:
    """Makes the lines that are wanted and writes the table; says what could not be run."""
    runs = [
        sitting.Run(
            workload,
            setting,
            turn,
            (arguments.rounds or ROUNDS[workload], arguments.warmup),
        )
        for turn in range(1, arguments.passes + 1)
        for workload, some in settings.items()
        for setting in some
    ]
    path, now = arguments.results, commit()
    path.parent.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(path)
    if old := {str(line["commit"]) for line in ledger.lines} - {str(now)}:
        print(
            f"{path} has lines of commit {', '.join(sorted(old))}, which are kept as "
            f"they are: to measure {now} alone give another --results.",
            file=sys.stderr,
        )

    def line_of(run: sitting.Run) -> Line:
        print(f"pass {run.turn}, {run.workload}, {run.setting.name}", file=sys.stderr)
        return sitting.call(run.setting, run.words, arguments.venvs) | {"commit": now}

    end = time.monotonic() + 60 * arguments.minutes
    in_time = lambda: time.monotonic() < end
    limit = OTHERS[arguments.device] if arguments.others is None else arguments.others
    failures = sitting.sit(runs, ledger, line_of, limit, in_time)
    made = [line for run in runs for line in ledger.find(**run.key)]
    peaks = dict(zip(PRECISIONS, arguments.peaks, strict=True))
    text = table.table(settings, made, peaks if arguments.device == "cuda" else None)
    path.with_suffix(".md").write_text(text)
    picture.draw(settings, made, path)
    print(text)
    if not in_time():
        over = f"{arguments.minutes:g} minutes are over; call it again to go on."
        print(over, file=sys.stderr)
    return failures


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--venvs", type=Path, help="folder of the peers' environments")
    parser.add_argument(
        "--make-venvs", action="store_true", help="make those that are not there"
    )
    parser.add_argument("--check", action="store_true", help="compare one round's work")
    parser.add_argument("--device", choices=BY_DEVICE, default="cpu")
    every = dict.fromkeys(name for some in BY_DEVICE.values() for name in some)
    parser.add_argument("--workloads", nargs="+", choices=every, help="default: all")
    parser.add_argument(
        "--precisions", nargs="+", choices=PRECISIONS, help="with cuda; default: all"
    )
    peers = [name for name in SIMULATORS if name != "ours"]
    parser.add_argument("--only", nargs="+", choices=peers, help="compared with ours")
    parser.add_argument("--passes", type=int, default=2)
    usual = ", ".join(f"{rounds} {name}" for name, rounds in ROUNDS.items())
    parser.add_argument("--rounds", type=int, help=f"of a line; default: {usual}")
    parser.add_argument("--warmup", type=int, default=2, help="untimed rounds before")
    parser.add_argument(
        "--results",
        type=Path,
        help="of the lines; default: results/peers-DATE.jsonl or peers-gpu-DATE.jsonl",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=float("inf"),
        help="begin no line after so many",
    )
    usual = ", ".join(f"{cores} with {device}" for device, cores in OTHERS.items())
    parser.add_argument(
        "--others",
        type=float,
        metavar="CORES",
        help=f"that others may use during a line; default: {usual}",
    )
    parser.add_argument(
        "--peaks",
        type=float,
        nargs=len(PRECISIONS),
        default=PEAKS,
        metavar=tuple(PRECISIONS),
        help="of the GPU, in TFLOP/s; default: an H200's",
    )
    return parser


def parsed() -> argparse.Namespace:
    """The options that were given; a mistake ends with an error message."""
    parser = options()
    arguments = parser.parse_args()
    known, kind = BY_DEVICE[arguments.device], "-gpu" * (arguments.device == "cuda")
    default = RESULTS / f"peers{kind}-{datetime.date.today()}.jsonl"
    arguments.results = arguments.results or default
    arguments.workloads = arguments.workloads or list(known)
    for name in arguments.workloads:
        if name not in known:
            parser.error(
                f"--workloads {name} is for a GPU; write --device cuda as well."
            )
    for name, least in (("passes", 1), ("rounds", 1), ("warmup", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            parser.error(f"--{name} {value}: write {least} or more.")
    if arguments.venvs is None and (arguments.device == "cpu" or arguments.make_venvs):
        parser.error("--venvs is missing: write a folder for the peers' environments.")
    if min(arguments.peaks) <= 0:
        parser.error(f"--peaks {min(arguments.peaks):g}: write numbers above 0.")
    return arguments


def main() -> None:
    arguments = parsed()
    settings = chosen(arguments)
    needed = {
        s.environment for some in settings.values() for s in some if s.environment
    }
    wrong = []
    if arguments.make_venvs:
        for environment in sorted(needed):
            try:
                sitting.make_environment(arguments.venvs, environment)
            except RuntimeError as error:
                wrong.append(str(error))
    there = [sitting.python_of(arguments.venvs, n).exists() for n in needed]
    if needed and not any(there):
        none = f"{arguments.venvs} holds no environment of a peer: add --make-venvs."
        options().error("; ".join(wrong) or f"--venvs {none}")
    try:
        if arguments.check:
            wrong += check(settings, arguments.venvs)
        else:
            wrong += measure(settings, arguments)
    except RuntimeError as error:  # ours, with which all are compared
        wrong.append(str(error))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
