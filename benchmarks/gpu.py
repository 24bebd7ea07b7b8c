"""Everything that is to be measured on a GPU, in parts that go on when called again.

    python benchmarks/gpu.py --list                       # the parts and their commands
    python benchmarks/gpu.py same peers --minutes 9       # some parts, in so many minutes
    python benchmarks/gpu.py --data-dir DIR               # all of them, in this order
    python benchmarks/gpu.py --tiny                       # all, made tiny, to try it

A part is some commands of the other benchmarks, which write lines down as they come and
make none twice. A command that outlasts the minutes is ended and goes on the next time; one
that is through is not called again (DIR/gpu-done.txt says which).
Nothing is imported but the library, JAX, and PyTorch by the peers, in the Python that runs
this. What is printed goes to DIR/gpu-PART.log as well, DIR as --results says.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent
GRACE = 20  # seconds that a command has to end by itself when its minutes are over
WITH_CUDA = ("loop", "vmap")  # peers that the Python of such a machine can run
WAYS = ("winograd", "shifts", "patches", "lax")  # of convolutions
Words = list[str]


class Command(NamedTuple):
    """One call of a benchmark."""

    script: str  # below benchmarks/
    words: Words
    minutes: str = ""  # its own option that says how long it may take, if it has one


class Part(NamedTuple):
    """Something to be measured."""

    about: str
    commands: Callable[[argparse.Namespace], Sequence[Command]]


def readings(given: argparse.Namespace, name: str, passes: int = 3) -> Words:
    """The options of readings.py."""
    words = ["--results", str(given.results / f"gpu-{name}.jsonl")]
    if given.tiny:
        return [*words, "--passes", "1", "--calls", "1", "--seconds", "0"]
    return [*words, "--passes", str(passes)]


def same(given: argparse.Namespace) -> list[Command]:
    words = ["--results", str(given.results / "gpu-same.jsonl")]
    if given.tiny:
        words += ["--backends", "cpu", "--cases", "unequal, packed on 2 lanes"]
    return [Command("same_numbers.py", words)]


def peers(given: argparse.Namespace) -> list[Command]:
    words = ["--results", str(given.results / "gpu-peers.jsonl")]
    if given.tiny:  # ours alone: W2, whose rounds are short
        size = ["--rounds", "1", "--warmup", "1", "--lanes", "1", "--devices", "1"]
        return [Command("rounds.py", ["--workload", "w2", *size])]
    words += ["--device", "cuda", "--only", *WITH_CUDA]
    if given.peaks:
        words += ["--peaks", *map(str, given.peaks)]
    first = [*words, "--workloads", "w1", "w2"]
    return [
        Command("peers/run.py", first, "--minutes"),
        Command("peers/run.py", words, "--minutes"),
    ]


def agreement(given: argparse.Namespace) -> list[Command]:
    if given.tiny:
        return [Command("rounds.py", ["--workload", "w2", "--devices", "1", "--check"])]
    words = ["--device", "cuda", "--only", *WITH_CUDA]
    words += ["--workloads", "w1", "w2", "--check"]
    return [Command("peers/run.py", words)]


def lanes(given: argparse.Namespace) -> list[Command]:
    which = ["tiny"] if given.tiny else ["w1", "w2", "w1-100", "w1-500", "tiny"]
    words = ["--workloads", *which, "--devices", "1", *readings(given, "lanes")]
    packed = ["--time", *(["--lanes", "2", "--repeats", "1"] if given.tiny else [])]
    return [Command("best_lanes.py", words), Command("lanes.py", packed)]


def convolutions(given: argparse.Namespace) -> list[Command]:
    words = ["--devices", "1", *readings(given, "convolutions")]
    if given.tiny:
        return [
            Command("convolutions.py", [*words, "--models", "lenet5", "--batch", "2"])
        ]
    return [Command("convolutions.py", [*words, "--lanes", n]) for n in ("10", "100")]


def seeds(given: argparse.Namespace) -> list[Command]:
    words = ["--devices", "1", *readings(given, "seeds")]
    if given.tiny:
        words += ["--seeds", "2", "--side-by-side", "2", "--rounds", "1"]
    return [Command("sweeps.py", words)]


def kernels(given: argparse.Namespace) -> list[Command]:
    size = ["--rounds", "1" if given.tiny else "5", "--warmup", "1"]
    work = [("w2", "fedavg"), ("w2", "fedssg"), ("w1", "fedavg"), ("w1-500", "fedavg")]
    if given.tiny:
        work, size = work[:1], [*size, "--lanes", "1", "--plane", "/host:CPU"]
    return [
        Command("kernels.py", ["--workload", name, "--algorithm", algorithm, *size])
        for name, algorithm in work
    ]


def ways(given: argparse.Namespace) -> list[Command]:
    size = ["--devices", "1", "--warmup", "1", "--rounds"]
    if given.tiny:
        many = ["--rounds-a-call", "2", "--lanes", "1"]
        return [Command("rounds.py", ["--workload", "w2", *size, "1", *many])]
    many = ["--workload", "w2", *size, "5", "--rounds-a-call", "20"]
    kinds = [(way, "float32") for way in WAYS] + [(way, "tf32") for way in WAYS[1:]]
    each = [["--convolutions", way, "--precision", kind] for way, kind in kinds]
    small = [["--workload", "w1", *size, "10", *words] for words in each]
    return [Command("rounds.py", words) for words in (many, *small)]


def growth(given: argparse.Namespace) -> list[Command]:
    words = ["--devices", "1", *readings(given, "growth", 2)]
    if given.tiny:
        words += ["--series", "cohort", "--cohort", "1", "2", "--lanes", "1"]
    return [Command("scaling.py", words)]


def memory(given: argparse.Namespace) -> list[Command]:
    size = ["--rounds", "1" if given.tiny else "5", "--warmup", "1", "--devices", "1"]
    many = "--workload w2 --algorithm scaffold --clients 10000"
    work = [
        *("--workload w1", "--workload w1-500", "--workload w2"),
        *("--workload w2 --algorithm scaffold", many, f"{many} --client-memory host"),
    ]
    if given.tiny:
        work = ["--workload w2 --algorithm scaffold --clients 60 --client-memory host"]
    return [Command("rounds.py", [*words.split(), *size]) for words in work]


def fedssg(given: argparse.Namespace) -> list[Command]:
    file = given.results / "gpu-fedssg-cifar10.jsonl"
    words = ["--results", str(file), "--folder", str(given.runs / "gpu-fedssg-cifar10")]
    if given.tiny:
        words += ["--tiny", "--only", "fedavg", "fedssg"]
    elif given.data_dir:
        words += ["--data-dir", given.data_dir]
    return [Command("fedssg_cifar.py", words, "--minutes")]


def precision(given: argparse.Namespace) -> list[Command]:
    if given.tiny:  # a part that fedssg has tried
        return []
    (block,) = fedssg(given)
    some = [*block.words, "--only", "fedavg", "fedssg", "--precision"]
    return [block._replace(words=[*some, name]) for name in ("tf32", "bf16")]


PARTS = {  # the most important first
    "same": Part("the engine's numbers, against those of the processor", same),
    "peers": Part("W1 at 10, 100, 500 clients and W2 beside PyTorch", peers),
    "agreement": Part("whether the peers do the same work", agreement),
    "kernels": Part("a round's time in kernels, in launches and in waits", kernels),
    "lanes": Part("how many clients side by side; unequal steps", lanes),
    "convolutions": Part("ways to convolve", convolutions),
    "seeds": Part("eight seeds at once, by the time of one", seeds),
    "ways": Part("20 rounds of W2 a call; W1's convolutions in each way", ways),
    "growth": Part("time against clients, cohort, steps, parameters", growth),
    "memory": Part("bytes predicted and measured", memory),
    "fedssg": Part("FedSSG's Table 1: CIFAR-10, 500 clients, eight methods", fedssg),
    "precision": Part("what tf32 and bf16 cost there in accuracy", precision),
}


def once(command: Command, end: float, log: Path) -> bool:
    """As `call`; one that has gone through before is not called again."""
    file = log.with_name("gpu-done.txt")
    key = " ".join([command.script, *command.words])
    if file.exists() and key in file.read_text().splitlines():
        print(f"done before: {key}", flush=True)
        return True
    well = call(command, end, log)
    if well and not command.minutes:  # one with minutes of its own knows what is left
        with file.open("a") as done:
            done.write(key + "\n")
    return well


def call(command: Command, end: float, log: Path) -> bool:
    """Runs a command until `end` at most, printing what it prints; whether it ended well.

    Args:
      command: which.
      end: by `time.monotonic`.
      log: what is printed is added to it.
    """
    script, left = FOLDER / command.script, end - time.monotonic()
    if not script.exists():
        return _say(f"benchmarks/{command.script} is not there.", log)
    if left <= 0:
        return _say(f"no time left for {command.script}: call it again to go on.", log)
    words = [sys.executable, str(script), *command.words]
    if command.minutes:
        words += [command.minutes, f"{left / 60:.2f}"]
        left += GRACE
    _say(f"$ python benchmarks/{' '.join([command.script, *words[2:]])}", log)
    with log.open("a") as file:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        # the package may not be installed
        path = filter(None, [str(FOLDER.parent), os.environ.get("PYTHONPATH")])
        own = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        group = {"start_new_session": True, "cwd": FOLDER.parent, "env": own}
        with subprocess.Popen(words, **pipes, **group) as process:
            try:
                told, _ = process.communicate(timeout=left)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
                told, _ = process.communicate()
                told += "the minutes are over: call it again to go on.\n"
            file.write(told)
    print(told, end="", flush=True)
    return process.returncode == 0


def _say(text: str, log: Path) -> bool:
    """Prints a line, and keeps it; False, for what was not done."""
    print(text, flush=True)
    with log.open("a") as file:
        file.write(text + "\n")
    return False


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help="default: all")
    parser.add_argument("--list", action="store_true", help="print them and do nothing")
    parser.add_argument("--tiny", action="store_true", help="to try it on any machine")
    parser.add_argument("--minutes", type=float, default=9, help="for all parts given")
    parser.add_argument("--results", type=Path, default=FOLDER / "results")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="of fedssg")
    parser.add_argument("--data-dir", help="folder of CIFAR-10's binary version")
    parser.add_argument(
        "--peaks", type=float, nargs=3, help="as peers/run.py takes them; default: H200"
    )
    return parser


def main() -> int:
    parser = options()
    given = parser.parse_args()
    for name in given.parts:
        if name not in PARTS:
            parser.error(f"PART {name} is unknown; write some of {', '.join(PARTS)}.")
    if given.minutes <= 0:
        parser.error(f"--minutes {given.minutes:g}: write a number above 0.")
    chosen = given.parts or list(PARTS)
    if given.list:
        for name in chosen:
            print(f"{name}: {PARTS[name].about}")
            for command in PARTS[name].commands(given):
                print(f"  python benchmarks/{' '.join([command[0], *command.words])}")
        return 0
    given.results.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + 60 * given.minutes, []
    for name in chosen:
        log = given.results / f"gpu-{name}.log"
        ended = [once(command, end, log) for command in PARTS[name].commands(given)]
        failed += [] if all(ended) else [name]
    if failed:
        print(f"\nnot whole: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
