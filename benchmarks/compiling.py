"""How long a run compiles, with and without the programs that a run before it compiled.

    python benchmarks/compiling.py --data-dir DIR

A reading is `fedjax-adapt run` for one round, in a process of its own: first with an empty
folder for compiled programs, then with what the first has left there, and then at half
the learning rate, with another seed, which are arguments of the same program. What is
compiled is the whole of a run's program: rounds, evaluation, all devices. The seconds are
the `compile_seconds` of its summary, tracing and lowering included.

CIFAR-10's CNN (W1 of work.py): 100 clients, 10 a round, on all cores. Lines go to
results/compiling-DATE.jsonl; see benchmarks/README.md.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from readings import RESULTS, Ledger
from stopwatch import busy_elsewhere

COPIED = ("compile_seconds", "commit", "versions", "hardware")  # of a summary
SHOWN = ("compile_seconds", "whole_seconds")
CASES = {  # settings that differ
    "empty": {},
    "kept": {},
    "kept, another lr and seed": {"lr": 0.05, "seed": 1},
}


def command(
    algorithm: str, arguments: argparse.Namespace, folder: Path, overrides: dict
) -> list[str]:
    """The run, whose rounds do not matter."""
    settings = {
        "dataset": "cifar10",
        "data-dir": arguments.data_dir,
        "train-examples": 5000,
        "model": arguments.model,
        "partition": "iid",
        "num-clients": 100,
        "participation": 0.1,
        "algorithm": algorithm,
        "rounds": 1,
        "folder": folder,
    } | overrides
    words = [word for name, value in settings.items() for word in (f"--{name}", value)]
    return [sys.executable, "-m", "fedjax_adapt", "run", *map(str, words)]


def readings(algorithm: str, arguments: argparse.Namespace) -> list[dict]:
    """A line with an empty folder for programs, and those with it filled."""
    lines = []
    with tempfile.TemporaryDirectory() as place:
        for case, overrides in CASES.items():
            folder = Path(place, case)
            environment = {**os.environ, "XDG_CACHE_HOME": str(Path(place, "cache"))}
            busy, began = busy_elsewhere(os.getpid()), time.perf_counter()
            ended = subprocess.run(
                command(algorithm, arguments, folder, overrides),
                stdout=subprocess.DEVNULL,
                env=environment,
            )
            if ended.returncode < 0:
                raise SystemExit(f"{folder}: signal {-ended.returncode} ended the run.")
            if ended.returncode:  # it has said why
                raise SystemExit(ended.returncode)
            whole = time.perf_counter() - began
            elsewhere = (busy_elsewhere(os.getpid()) - busy) / whole
            summary = json.loads((folder / "summary.json").read_text())
            line = {"algorithm": algorithm, "model": arguments.model, "programs": case}
            line |= {"whole_seconds": round(whole, 2)}
            line |= {"other_cores": round(elsewhere, 2)}
            lines.append(line | {name: summary[name] for name in COPIED})
    return lines


def table(lines: list[dict]) -> str:
    """Medians with the least and the most, in seconds."""
    rows = ["| method | programs | to compile | whole run |", "|---|---|---|---|"]
    cases = dict.fromkeys((line["algorithm"], line["programs"]) for line in lines)
    for case in cases:
        own = [line for line in lines if (line["algorithm"], line["programs"]) == case]
        shown = [_spread([line[name] for line in own]) for name in SHOWN]
        rows.append(f"| {' | '.join([*case, *shown])} |")
    return "\n".join(rows)


def _spread(seconds: list[float]) -> str:
    middle = sorted(seconds)[len(seconds) // 2]
    return f"{middle:.1f} ({min(seconds):.1f} to {max(seconds):.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument(
        "--algorithms", nargs="+", default=["fedavg", "scaffold", "fedssg"]
    )
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--passes", type=int, default=2)
    default = RESULTS / f"compiling-{datetime.date.today()}.jsonl"
    parser.add_argument(
        "--results", type=Path, default=default, help="file of the lines"
    )
    arguments = parser.parse_args()
    ledger = Ledger(arguments.results)
    for _ in range(arguments.passes):
        for algorithm in arguments.algorithms:
            for line in readings(algorithm, arguments):
                ledger.add(line)
    print(table(ledger.lines))


if __name__ == "__main__":
    main()
