"""Plants every mutation of mutations.toml by itself and says whether a test sees it.

    python tests/mutate.py [--only N ...] [--from N]

A mutation replaces a text of one file of the package, in a copy that comes before the
checkout on the path; its tests must fail there, and pass without it. What was found is
kept in .pytest_cache until the file, the line of the list or the tests change, so that a
call goes on where the last one ended. Exit status: 0, 1 if more than three survive, 2 for
a mistake.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutations.toml")
PACKAGE = ROOT / "fedjax_adapt"
RESULTS = ROOT / ".pytest_cache" / "mutations.jsonl"
MOST_SURVIVORS = 3
LIMIT = 900  # seconds; a loop that no longer ends is seen as well
PYTEST = "-m pytest -x -q -p no:xdist -p no:cacheprovider".split()


class Mutation(NamedTuple):
    """A line of the list."""

    file: str  # below the package
    old: str  # there exactly once
    new: str
    tests: list[str]  # files or node ids, from the root of the checkout
    breaks: str  # which protocol
    survives: str = ""  # why no test sees it


def mutations() -> list[Mutation]:
    """The list; its first is number 1."""
    return [Mutation(**line) for line in tomllib.loads(LIST.read_text())["mutations"]]


def mutated(number: int, mutation: Mutation) -> str:
    """The text of its file with the mutation; ValueError unless it fits there once."""
    text = (PACKAGE / mutation.file).read_text()
    if text.count(mutation.old) != 1 or mutation.old == mutation.new:
        raise ValueError(
            f"mutation {number}: old={mutation.old!r} is {text.count(mutation.old)} times in "
            f"{mutation.file}; write a text that is there once, and another as new."
        )
    return text.replace(mutation.old, mutation.new)


def state_of(mutation: Mutation) -> str:
    """A digest of all that a result hangs on."""
    files = {
        PACKAGE / mutation.file,
        *(ROOT / t.split("::")[0] for t in mutation.tests),
    }
    parts = [repr(mutation), *(path.read_text() for path in sorted(files))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def fails(copy: Path, tests: list[str]) -> bool:
    """Whether a test fails with the package in `copy`; ValueError if none could run."""
    env = {
        **os.environ,
        "PYTHONSAFEPATH": "1",
    }  # without the working folder on the path
    env["PYTHONPATH"] = os.pathsep.join([str(copy), os.environ.get("PYTHONPATH", "")])
    env["JAX_COMPILATION_CACHE_DIR"] = str(ROOT / ".pytest_cache" / "d" / "jax")
    command = [sys.executable, *PYTEST, *tests]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, 1):
        last = (done.stdout + done.stderr).strip().splitlines()[-1]
        raise ValueError(f"{' '.join(tests)} cannot be run: {last}.")
    return done.returncode == 1


def run(chosen: list[int]) -> int:
    """How many of the mutations with these numbers survive; prints a line for each."""
    every, known = mutations(), {}
    if RESULTS.exists():
        lines = map(json.loads, RESULTS.read_text().splitlines())
        known = {line["state"]: line for line in lines}
    texts = {n: mutated(n, every[n - 1]) for n in chosen}
    states = {n: state_of(every[n - 1]) for n in chosen}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(PACKAGE, copy / PACKAGE.name)
        new = [every[n - 1] for n in chosen if states[n] not in known]
        tests = sorted({test for mutation in new for test in mutation.tests})
        if tests and fails(copy, tests):
            raise ValueError("the tests of the list do not pass without a mutation.")
        RESULTS.parent.mkdir(exist_ok=True)
        for n in chosen:
            if states[n] not in known:
                place, begin = copy / PACKAGE.name / every[n - 1].file, time.monotonic()
                place.write_text(texts[n])
                caught = fails(copy, every[n - 1].tests)
                shutil.copy(PACKAGE / every[n - 1].file, place)
                seconds = round(time.monotonic() - begin)
                known[states[n]] = dict(state=states[n], caught=caught, seconds=seconds)
                with RESULTS.open("a") as file:
                    file.write(json.dumps(known[states[n]]) + "\n")
            found = known[states[n]]
            came = "caught  " if found["caught"] else "SURVIVED"
            print(n, came, found["seconds"], "s", every[n - 1].breaks, flush=True)
    return sum(not known[states[n]]["caught"] for n in chosen)


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", type=int, nargs="+", metavar="N")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="N")
    given = parser.parse_args()
    try:
        numbers = range(1, len(mutations()) + 1)
        chosen = given.only or [n for n in numbers if n >= given.first]
        if not set(chosen) <= set(numbers) or not chosen:
            raise ValueError(
                f"there are mutations 1 to {len(numbers)}; write one of them."
            )
        return int(run(chosen) > MOST_SURVIVORS)
    except (ValueError, TypeError, OSError) as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
