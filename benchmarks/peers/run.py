"""Ours beside its peers: every simulator in turn, pass after pass, and a table.

    python benchmarks/peers/run.py --venvs DIR --make-venvs       # all of it
    python benchmarks/peers/run.py --venvs DIR --check            # is it the same work?

Lines go to results/peers-DATE.jsonl as they come, the table to the file beside it. Call it
again to go on: a line that is there is not made again. Lines during which other processes
used more than 0.06 of a core are marked, made again up to twice, and left out of the
table. A ratio is that of two lines of one pass. See benchmarks/README.md.
"""

import argparse
import datetime
import sys
from pathlib import Path

import agreement
import environments
import sitting
import table
from settings import OURS, SETTINGS, SIMULATORS, Setting

from fedjax_adapt.experiment.summary import commit

RESULTS = Path(__file__).resolve().parents[1] / "results"
ROUNDS = {"w1": 5, "w2": 20}


def chosen(arguments) -> dict[str, list[Setting]]:
    """The settings of every workload; ours is always there, to be compared with."""
    wanted = {"ours", *(arguments.only or SIMULATORS)}
    return {
        workload: [s for s in SETTINGS[workload] if s.simulator in wanted]
        for workload in arguments.workloads
    }


def check(settings: dict[str, list[Setting]], folder: Path) -> list[str]:
    """Holds a round of every peer against ours; sentences on those that do not agree."""
    wrong = []

    def fingerprint(setting: Setting, workload: str) -> dict:
        words = ["--workload", workload, "--check", *setting.options.split()]
        return sitting.call(setting, words, folder)["fingerprint"]

    for workload, some in settings.items():
        ours = fingerprint(OURS, workload)
        # an allocator changes no number
        for setting in dict.fromkeys(s._replace(tuned=True) for s in some if s != OURS):
            name = f"{setting.name} at {workload}"
            try:
                theirs = fingerprint(setting, workload)
            except RuntimeError as error:
                wrong.append(f"{name}: {error}")
                continue
            norm, projection = agreement.differences(ours, theirs)
            told = f"norms to {norm:.1e}, decay to {projection:.1e}"
            if agreement.agree(workload, ours, theirs):
                print(f"{name} agrees: {told}", flush=True)
            else:
                limit = agreement.TOLERANCE[workload]
                wrong.append(f"{name} does other work: {told}, allowed is {limit:g}.")
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
    lines = sitting.read(path)
    if old := {str(line["commit"]) for line in lines} - {str(now)}:
        print(
            f"{path} has lines of commit {', '.join(sorted(old))}, which are kept as "
            f"they are: to measure {now} alone give another --results.",
            file=sys.stderr,
        )

    def line_of(run: sitting.Run) -> sitting.Line:
        print(f"pass {run.turn}, {run.workload}, {run.setting.name}", file=sys.stderr)
        return sitting.call(run.setting, run.words, arguments.venvs) | {"commit": now}

    keep = lambda line: sitting.append(path, line)
    failures = sitting.sit(runs, lines, line_of, keep)
    text = table.table(
        settings, [line for run in runs for line in sitting.of(run, lines)]
    )
    path.with_suffix(".md").write_text(text)
    print(text)
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--venvs", type=Path, required=True, help="folder of the peers' environments"
    )
    parser.add_argument(
        "--make-venvs", action="store_true", help="make those that are not there"
    )
    parser.add_argument("--check", action="store_true", help="compare one round's work")
    parser.add_argument(
        "--workloads", nargs="+", choices=SETTINGS, default=list(SETTINGS)
    )
    peers = [name for name in SIMULATORS if name != "ours"]
    parser.add_argument("--only", nargs="+", choices=peers, help="beside ours")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--rounds", type=int, help="of a line; default: 5 w1, 20 w2")
    parser.add_argument("--warmup", type=int, default=2, help="untimed rounds before")
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS / f"peers-{datetime.date.today()}.jsonl",
        help="file of the lines",
    )
    arguments = parser.parse_args()
    for name, least in (("passes", 1), ("rounds", 1), ("warmup", 0)):
        value = getattr(arguments, name)
        if value is not None and value < least:
            parser.error(f"--{name} {value}: write {least} or more.")
    settings = chosen(arguments)
    needed = {
        s.environment for some in settings.values() for s in some if s.environment
    }
    wrong = []
    if arguments.make_venvs:
        for environment in sorted(needed):
            try:
                environments.make(arguments.venvs, environment)
            except RuntimeError as error:
                wrong.append(str(error))
    there = [environments.python_of(arguments.venvs, n).exists() for n in needed]
    if not any(there):
        told = "holds no environment of a peer: add --make-venvs."
        parser.error("; ".join(wrong) or f"--venvs {arguments.venvs} {told}")
    try:
        if arguments.check:
            wrong += check(settings, arguments.venvs)
        else:
            wrong += measure(settings, arguments)
    except RuntimeError as error:  # ours, which all are held against
        wrong.append(str(error))
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
