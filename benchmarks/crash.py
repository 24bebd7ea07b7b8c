"""Kills runs and sweeps at any moment, resumes them, and compares with what none killed.

    python benchmarks/crash.py --runs 200 --sweeps 50 --controls 30 --reproductions 20 \\
        --searches 20

Half of the kills are SIGKILL at a moment that is drawn, a third just before a file
operation in the folder that is drawn: to open a file to write, to rename, to delete, to
make a folder. For the others the disk is full from such an operation on: no file can be
opened to write, and the command must say so without a traceback. A third of the resumes
are killed as well. What the last one leaves must have the numbers of a run that was never
killed, to the bit: rows, results and newest states.

    python benchmarks/crash.py --every 1 --runs 1 --sweeps 1 --controls 0 \\
        --reproductions 0 --searches 0

With `--every N` nothing is drawn. Each case runs once for every N-th of its operations that
need room: to open a file to write, or to make a folder. From there on the disk is full. The
resume must set no file aside. Files that TensorStore opens, and writes into files that are
open already, do not fail.

The process forks before JAX has a device, so a kill takes about as long as its training.
It needs Linux.
"""

import argparse
import errno
import faulthandler
import hashlib
import itertools
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

# the process that forks has this one thread: what another had locked would be locked in
# its children for ever
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["JE_ARROW_MALLOC_CONF"] = "background_thread:false"

# those that nothing here names are imported before the fork, lest each process does it
import matplotlib.backends.backend_agg  # noqa: F401
import orbax.checkpoint
import pyarrow as pa
import pyarrow.parquet as pq
import sklearn.datasets  # noqa: F401

import fedjax_adapt.algorithms  # noqa: F401
from fedjax_adapt.cli import main
from fedjax_adapt.experiment import sweeps  # noqa: F401
from fedjax_adapt.experiment.checkpoint import rounds
from fedjax_adapt.report import plots  # noqa: F401

AGAIN = 1 / 3  # of the resumes that are killed too
LONGEST = 300  # seconds; what has not ended by then hangs, and has printed where
TINY = (
    *(
        "--model linear --partition dirichlet --num-clients 6 --participation 0.5"
    ).split(),
    *("--rounds 8 --batch-size 100 --checkpoint-every 2 --devices 1").split(),
)
ALGORITHMS = (
    "fedssg",
    "fedgsnr --base scaffold",
    "fedveca",
    "gift",
    "feddf",
    "scaffold --client-memory host",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
OPERATIONS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir")
NEED_ROOM = ("open", "os.mkdir")  # on the disk
FULL = "no space"  # in what a user is told of a full disk
# of a summary and a table: what two equal runs need not share; the hash of a run that is
# matched to another has the folder of that
CIRCUMSTANCES = {
    "config_hash",
    *("seconds", "compile_seconds", "calibrate_seconds", "rounds_per_second"),
    *("folder", "commit", "memory", "hardware", "versions"),
}


class Case(NamedTuple):
    """A command that leaves a folder behind, and is resumed by the same command."""

    kind: str
    words: tuple[str, ...]

    def command(self, folder: Path) -> list[str]:
        """Its words, with a folder."""
        resume = [] if self.kind == "reproduction" else ["--resume"]
        return [*self.words, "--folder", str(folder), *resume]


def cases(place: Path) -> dict[str, Iterator[Case]]:
    """The cases of each kind, over and over."""
    grid = place / "sweep.toml"
    settings = "\n".join(
        ['algorithm = "scaffold"', 'model = "linear"', "num_clients = 6", "rounds = 6"]
        + ["participation = 0.5", "batch_size = 100", "checkpoint_every = 2"]
    )
    grid.write_text(f"[run]\n{settings}\n[grid]\nlr = [0.03, 0.1]\nseed = [0, 1]\n")
    runs = [Case("run", ("run", *f"{a}".split(), *TINY)) for a in _algorithms()]
    fnr = ("run", "--algorithm", "fnr", "--public", "holdout", "--controls", *TINY)
    swept = ("sweep", str(grid), "--side-by-side", "2", "--devices", "1")
    smoke = ("reproduce", "fedveca-table1", "--scale", "smoke")
    space = place / "space.toml"
    space.write_text(f"[run]\n{settings}\n[space]\nlr = {{ low = 0.01, high = 0.3 }}\n")
    halved = (
        "tune",
        str(space),
        *"--trials 6 --at-once 3 --halve 3 --seed 1".split(),
    )
    return {
        "run": itertools.cycle(runs),
        "sweep": itertools.cycle([Case("sweep", swept)]),
        "controls": itertools.cycle([Case("controls", fnr)]),
        "reproduction": itertools.cycle([Case("reproduction", smoke)]),
        "search": itertools.cycle([Case("search", halved)]),
    }


def _algorithms() -> list[str]:
    return [
        f"--algorithm {name}" + (" --public holdout" if name == "feddf" else "")
        for name in ALGORITHMS
    ]


class Ended(NamedTuple):
    """How a command ended: its exit code (-9: killed), what it printed, what it left."""

    code: int
    said: str
    left: Any  # what `function` returned


def forked(function: Callable[[], tuple[int, Any]], after: float = LONGEST) -> Ended:
    """Calls a function in a process of its own, killed after so many seconds."""
    with tempfile.TemporaryDirectory() as place:
        result, said = Path(place) / "result.json", Path(place) / "said"
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                with open(said, "w", buffering=1) as out:
                    os.dup2(out.fileno(), 1)
                    os.dup2(out.fileno(), 2)
                    faulthandler.dump_traceback_later(LONGEST - 5)
                    with redirect_stdout(out), redirect_stderr(out):
                        try:
                            code, left = function()
                            result.write_text(json.dumps(left))
                        except BaseException:
                            traceback.print_exc()
            finally:
                os._exit(code)
        until = time.monotonic() + after
        while time.monotonic() < until:
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)  # one that has ended waits to be asked how
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        left = json.loads(result.read_text()) if result.exists() else None
        return Ended(code, said.read_text() if said.exists() else "", left)


def watched(
    folder: Path, at: int | None, full: bool = False
) -> tuple[list[str], list[str]]:
    """The file operations below a folder from now on, and those that found no room.

    This process ends at operation `at`. With `full` it goes on, but nothing new can be
    written from that operation on.
    """
    seen: list[str] = []
    refused: list[str] = []

    def audit(event: str, arguments: tuple) -> None:
        if event not in OPERATIONS or not isinstance(arguments[0], str | os.PathLike):
            return
        if event == "open" and not arguments[2] & WRITES:
            return
        if not str(Path(os.path.abspath(arguments[0]))).startswith(str(folder)):
            return
        seen.append(event)
        if full and at is not None and len(seen) > at and event in NEED_ROOM:
            refused.append(event)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))
        if len(seen) - 1 == at and not full:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
    return seen, refused


def digest(root: Path) -> dict[str, str]:
    """The checksum of the numbers of each run and sweep below a folder."""
    found = {}
    for config in sorted(root.rglob("config.toml")):
        folder = config.parent
        held = [json.loads((folder / "summary.json").read_text())]
        held = [{k: v for k, v in held[0].items() if k not in CIRCUMSTANCES}]
        held += [_rows(folder / name) for name in ("metrics", "clients", "partition")]
        saved = folder / "checkpoints"
        if rounds(saved):
            with orbax.checkpoint.StandardCheckpointer() as reader:
                state = reader.restore(saved.absolute() / f"{rounds(saved)[-1]:09d}")
            held.append(str(state))
            held.append(_bytes(state))
        text = json.dumps(held, sort_keys=True, default=str)
        name = str(folder.relative_to(root))
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    for table in sorted(root.rglob("results.parquet")):
        text = json.dumps(_rows(table), sort_keys=True, default=str)
        name = str(table.relative_to(root))
        found[name] = hashlib.sha256(text.encode()).hexdigest()
    return found


def _rows(path: Path) -> dict[str, list]:
    parts = sorted(path.glob("part-*.parquet")) if path.is_dir() else [path]
    if not path.exists():
        return {}
    tables = pa.concat_tables(map(pq.read_table, parts), promote_options="default")
    rows = tables.to_pydict()
    return {n: v for n, v in rows.items() if n not in CIRCUMSTANCES}


def _bytes(state: Any) -> str:
    import jax
    import numpy as np

    held = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        held.update(np.asarray(leaf).tobytes())
    return held.hexdigest()


class Whole(NamedTuple):
    """What a case leaves that is never killed, its file operations, and its seconds."""

    numbers: dict[str, str]
    operations: list[str]
    seconds: float


def whole(case: Case, folder: Path) -> Whole | str:
    """What becomes of a case that is never killed.

    Text where it fails: what it printed.
    """

    def function() -> tuple[int, Any]:
        seen, _ = watched(folder, None)
        return main(case.command(folder)), seen

    began = time.monotonic()
    ended = forked(function)
    seconds = time.monotonic() - began
    found = forked(lambda: (0, digest(folder.parent))) if ended.code == 0 else ended
    if found.code != 0:
        command = " ".join(case.command(folder))
        return f"{command}: exit {found.code}: {found.said[-2000:]}"
    return Whole(found.left, ended.left, seconds)


def attempt(
    case: Case,
    folder: Path,
    expected: Whole,
    draw: random.Random,
) -> tuple[str, str]:
    """Kills a case once or more, resumes it, and says what came of it, and how.

    Returns:
      "same", "other numbers", "no resume" or "no sentence" for a full disk, and how it was
      killed and what it printed.
    """
    kills = []
    while True:
        at, after, full = None, LONGEST, False
        if draw.random() < 0.5:
            at, full = draw.randrange(len(expected.operations)), draw.random() < 1 / 3
            kills.append(f"operation {at}{' (full disk)' if full else ''}")
        else:
            after = draw.uniform(0, expected.seconds)
            kills.append(f"{after:.2f} s")

        def killed(at: int | None = at, full: bool = full) -> tuple[int, Any]:
            watched(folder, at, full)
            return main(case.command(folder)), None

        ended = forked(killed, after)
        if full and (ended.code not in (0, 1, 2) or "Traceback" in ended.said):
            return "no sentence", f"{kills}; exit {ended.code}: {ended.said[-2000:]}"
        if draw.random() > AGAIN:
            break
    how = f"killed at {', '.join(kills)}"
    return resumed(case, folder, expected.numbers, how)


def fill_disk(
    case: Case, folder: Path, numbers: dict[str, str], at: int
) -> tuple[str, str]:
    """What came of a case whose disk is full from a file operation on, and how.

    Returns:
      As `attempt`; "never full" where nothing needed room any more, or "set aside" where
      the resume found a file that it could not read.
    """

    def filled() -> tuple[int, Any]:
        _, refused = watched(folder, at, full=True)
        return main(case.command(folder)), len(refused)

    ended, how = forked(filled), f"disk full at operation {at}"
    if ended.left == 0:
        return "never full", f"{how}; {ended.said[-2000:]}"
    told = FULL in ended.said.lower() and "Traceback" not in ended.said
    if ended.code not in (1, 2) or not told:
        return "no sentence", f"{how}; exit {ended.code}: {ended.said[-2000:]}"
    verdict, how = resumed(case, folder, numbers, how)
    aside = sorted(folder.parent.rglob("*.unreadable*"))
    return ("set aside", f"{how}; {aside}") if aside else (verdict, how)


def resumed(
    case: Case, folder: Path, numbers: dict[str, str], how: str
) -> tuple[str, str]:
    """What the resume of a case comes to, and how."""
    last = forked(lambda: (main(case.command(folder)), None))
    how = f"{' '.join(case.command(folder))}: {how}"
    finished = "finished" in last.said and last.code in (0, 2)
    if last.code != 0 and not finished:
        return "no resume", f"{how}; exit {last.code}: {last.said[-2000:]}"
    found = forked(lambda: (0, digest(folder.parent))).left
    if found != numbers:
        return "other numbers", f"{how}; {last.said[-500:]}"
    return "same", how


def campaign(
    counts: dict[str, int],
    place: Path,
    seed: int,
    every: int | None,
    tell: Callable[[str], object],
) -> tuple[dict[str, Counter], list[str]]:
    """Kills as many of each kind as asked; returns what came of them and what failed.

    With `every` each case comes once, and the disk is full at every so-many-th of its file
    operations that need room, in turn.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"{threads} threads, and what one has locked a fork keeps.")
    came, failed = {}, []
    for kind, of_kind in cases(place).items():
        known: dict[Case, Any] = {}
        came[kind] = Counter()
        for number in range(counts.get(kind, 0)):
            case = next(of_kind)
            if every is not None and case in known:
                break
            # in a folder of its own, as controls lie next to their run
            folder = place / f"{kind}-{number}" / "folder"
            if case not in known:
                known[case] = whole(case, place / f"{kind}-whole-{number}" / "folder")
            expected = known[case]
            if isinstance(expected, str):
                ends = [("broken", expected)]
            elif every is not None:
                events = enumerate(expected.operations)
                places = [at for at, event in events if event in NEED_ROOM][::every]
                ends = (fill_disk(case, folder, expected.numbers, at) for at in places)
            else:
                draw = random.Random(f"{seed} {kind} {number}")
                ends = [attempt(case, folder, expected, draw)]
            for verdict, how in ends:
                came[kind][verdict] += 1
                shutil.rmtree(folder.parent, ignore_errors=True)
                if verdict != "same":
                    failed.append(f"{verdict}: {how}")
                    tell(failed[-1])
                tell(f"{kind} {number + 1}/{counts[kind]}: {dict(came[kind])}")
    return came, failed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for kind, many in (("run", 200), ("sweep", 50), ("control", 30)):
        parser.add_argument(f"--{kind}s", type=int, default=many)
    parser.add_argument("--reproductions", type=int, default=20)
    parser.add_argument("--searches", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every", type=int, metavar="N", help="fill the disk at every Nth operation"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for what came of it")
    asked = parser.parse_args()
    if asked.every is not None and asked.every < 1:
        parser.error(f"--every is {asked.every}; write 1 or more.")
    return asked


if __name__ == "__main__":
    asked = parse()
    counts = {"run": asked.runs, "sweep": asked.sweeps, "controls": asked.controls}
    counts |= {"reproduction": asked.reproductions, "search": asked.searches}
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as place:
        came, failed = campaign(counts, Path(place), asked.seed, asked.every, print)
    record = {
        "commit": commit,
        "hardware": f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}",
        "seed": asked.seed,
        "every": asked.every,
        "came": came,
        "failed": failed,
    }
    if asked.out is not None:
        asked.out.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(record, indent=2))
    sys.exit(bool(failed))
