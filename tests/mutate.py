"""Plants every mutation of mutations.toml by itself and says whether a test sees it.

    python tests/mutate.py [--only WHICH ...] [--from N]

WHICH is the number of a mutation, or a part of its file's path or of what its line says.

A mutation replaces a text of one file in a copy of the package, which is put before the
checkout; its tests must fail there, and pass without it. What was found is kept in
.pytest_cache until file, mutation or tests change, so that a call goes on where the last
one ended. Exit status: 0, 1 if more than three survive, 2 for a mistake.
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
PACKAGE, CACHE = ROOT / "fedjax_adapt", ROOT / ".pytest_cache"
RESULTS = CACHE / "mutations.json"
MOST_SURVIVORS, LIMIT = 3, 1800  # seconds of a call of pytest
# slow tests as well
PYTEST = "-m pytest -x -q -p no:xdist -p no:cacheprovider -m".split() + [
    "not optimised"
]


class Mutation(NamedTuple):  # a line of the list
    file: str  # below the package
    old: str  # there exactly once
    new: str
    tests: list[str]  # files or node ids, from the root of the checkout
    breaks: str  # which protocol
    survives: str = ""  # why no test sees it


def mutations() -> list[Mutation]:
    """The list; its first is number 1."""
    text = Path(__file__).with_name("mutations.toml").read_text()
    return [Mutation(**line) for line in tomllib.loads(text)["mutations"]]


def matching(every: dict[int, Mutation], which: list[str]) -> dict[int, Mutation]:
    """Those with these numbers, files or texts; ValueError if one fits none."""
    found = set()
    says = {n: "\n".join([*line[:3], line.breaks]) for n, line in every.items()}
    for one in which:
        known = {int(one)} if one.isdecimal() else {n for n in says if one in says[n]}
        if not known or not known <= every.keys():
            raise ValueError(
                f"{one} is no mutation; write a number of 1 to {len(every)}, or a part of "
                "a file's path or of what a line says."
            )
        found |= known
    return {n: every[n] for n in sorted(found)}


def mutated(number: int, mutation: Mutation) -> str:
    """The text of its file with the mutation; ValueError unless it fits there once."""
    text = (PACKAGE / mutation.file).read_text()
    if text.count(mutation.old) != 1 or mutation.old == mutation.new:
        raise ValueError(
            f"mutation {number}: {mutation.old!r} is {text.count(mutation.old)} times in "
            f"{mutation.file}; write a text that is there once, and another as new."
        )
    return text.replace(mutation.old, mutation.new)


def state_of(mutation: Mutation) -> str:
    """A digest of all that a result hangs on."""
    files = {ROOT / test.split("::")[0] for test in mutation.tests}
    texts = [path.read_text() for path in (PACKAGE / mutation.file, *sorted(files))]
    return hashlib.sha256(repr([mutation[:4], *texts]).encode()).hexdigest()


def failed(copy: str, tests: list[str]) -> str:
    """The first test that fails with the package in `copy`, "" if all pass."""
    env = os.environ | {"PYTHONPATH": copy, "PYTHONSAFEPATH": "1"}  # ROOT is not on it
    env["JAX_COMPILATION_CACHE_DIR"] = str(CACHE / "d" / "jax")
    command, seen = [sys.executable, *PYTEST, *tests], {"stdout": subprocess.PIPE}
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, timeout=LIMIT, **seen)
    if done.returncode not in (0, 1):
        last = done.stdout.strip().rpartition("\n")[2] or "see above"
        raise ValueError(f"{' '.join(tests)} cannot be run: {last}.")
    summary = done.stdout.replace("\nERROR ", "\nFAILED ").rpartition("\nFAILED ")[2]
    return summary.split()[0] if done.returncode else ""


def run(chosen: dict[int, Mutation]) -> int:
    """How many of the mutations survive, by their numbers; prints a line for each."""
    texts = {n: mutated(n, mutation) for n, mutation in chosen.items()}
    states = {n: state_of(mutation) for n, mutation in chosen.items()}
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(PACKAGE, Path(copy, PACKAGE.name))
        new = [chosen[n].tests for n in chosen if states[n] not in known]
        if new and (test := failed(copy, sorted(set().union(*new)))):
            raise ValueError(f"{test} fails without a mutation; mend it first.")
        for n, (file, _, _, tests, breaks, _) in chosen.items():
            if states[n] not in known:
                place, begin = Path(copy, PACKAGE.name, file), time.monotonic()
                place.write_text(texts[n])
                came = "caught" if failed(copy, tests) else "survived"
                shutil.copy(PACKAGE / file, place)
                known[states[n]] = f"{came} in {time.monotonic() - begin:.0f} s"
                CACHE.mkdir(exist_ok=True)
                RESULTS.write_text(json.dumps(known))
            print(f"{n:2} {known[states[n]]}: {breaks}", flush=True)
    return sum("survived" in known[state] for state in states.values())


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="WHICH")
    parser.add_argument("--from", dest="first", type=int, default=1, metavar="N")
    given = parser.parse_args()
    try:
        every = dict(enumerate(mutations(), 1))
        numbers = map(str, range(given.first, max(len(every), given.first) + 1))
        return int(run(matching(every, given.only or [*numbers])) > MOST_SURVIVORS)
    except (ValueError, TypeError, OSError, subprocess.TimeoutExpired) as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
