"""Readings of time: taken in turn, a line of JSON each, none taken twice.

Cases that are compared are read one after the other, pass after pass, so that what the
machine does meanwhile falls on all of them. A reading is some calls, each timed until
`block_until_ready`, after one that is not timed; compiling is apart. The file says which
readings there are: called again, a benchmark goes on with those that it lacks.
"""

import argparse
import functools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from stopwatch import busy_elsewhere

from fedjax_adapt.engine.memory import is_exhausted
from fedjax_adapt.engine.xla import keep_memory, keeps_memory
from fedjax_adapt.experiment.summary import commit, hardware, versions

RESULTS = Path(__file__).parent / "results"
Line = dict[str, Any]


class Ready(NamedTuple):
    """Something that can be timed."""

    call: Callable[[], Any]  # once; what it returns is waited for
    about: Line = {}  # what its lines say besides the times
    units: int = 1  # of what a time is given for, in one call


class Case(NamedTuple):
    """What is to be timed. It is built when the first reading of it is missing."""

    setting: Line  # tells its lines from all others; plain numbers and words
    build: Callable[[], Ready]


class Effort(NamedTuple):
    """How much is read."""

    passes: int
    calls: int  # of a reading, at least
    seconds: float  # of a reading, at least


class Ledger:
    """The lines of a file, old and new."""

    def __init__(self, path: Path):
        """Reads what is there. A line that a kill cut short is dropped."""
        self.path = path
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole)
        self.lines: list[Line] = [json.loads(line) for line in whole.splitlines()]

    def find(self, **fields: Any) -> list[Line]:
        """The lines that have all these fields."""
        return [line for line in self.lines if fields.items() <= line.items()]

    def add(self, line: Line) -> None:
        """Writes one line more."""
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as end:
            end.write(json.dumps(line) + "\n")


def take(cases: Sequence[Case], ledger: Ledger, effort: Effort) -> None:
    """Takes the readings that the ledger lacks, the cases in turn, pass after pass.

    All cases stay built until the end. One that cannot be built, or for which there is no
    room in memory, is left out, and why is said.
    """
    keep_memory()  # as `fedjax-adapt` does
    evidence()  # now: the checkout may move on
    built: dict[int, Ready | None] = {}
    for number in range(effort.passes):
        for i, case in enumerate(cases):
            setting = {**case.setting, "pass": number}
            if ledger.find(**setting):
                continue
            try:
                ready = built[i] if i in built else case.build()
                built[i] = ready
                if ready is not None:
                    found = reading(ready, effort.calls, effort.seconds)
                    ledger.add(setting | found | ready.about | evidence())
            except (ValueError, jax.errors.JaxRuntimeError) as error:
                if not isinstance(error, ValueError) and not is_exhausted(error):
                    raise
                which = ", ".join(f"{n} {v}" for n, v in case.setting.items())
                why = str(error).partition("\n")[0]
                print(f"left out: {why} ({which})", file=sys.stderr)
                built[i] = None


class Read:
    """The seconds of some cases, pass by pass."""

    def __init__(self, ledger: Ledger, cases: Mapping[Any, Case]):
        """Reads the ledger."""
        self.of = {
            name: {
                line["pass"]: line["seconds"] for line in ledger.find(**case.setting)
            }
            for name, case in cases.items()
        }

    def value(
        self,
        written: Callable[[float], str],
        name: Any,
        less: Any = None,
        by: Any = None,
    ) -> str:
        """(name - less) / by of each pass: "median (minimum to maximum)".

        Args:
          written: a number as text.
          name: of a case.
          less: of the case that is taken off; None: nothing is.
          by: of the case that it is divided by; None: by nothing.
        """
        used = [self.of[n] for n in (name, less, by) if n is not None]
        passes = sorted(set.intersection(*map(set, used)))
        if not passes:
            return ""
        at = lambda n, i, otherwise: otherwise if n is None else self.of[n][i]
        found = [(at(name, i, 0) - at(less, i, 0)) / at(by, i, 1) for i in passes]
        low, high = written(min(found)), written(max(found))
        return f"{written(float(np.median(found)))} ({low} to {high})"


def reading(ready: Ready, calls: int, seconds: float) -> Line:
    """Seconds per unit over at least so many calls, which take at least so long."""
    os.sync()  # what a checkpoint left behind is written now, and not meanwhile
    jax.block_until_ready(ready.call())  # memory touched, caches filled
    taken: list[float] = []
    busy, first = busy_elsewhere(), time.perf_counter()
    while len(taken) < calls or sum(taken) < seconds:
        begin = time.perf_counter()
        jax.block_until_ready(ready.call())
        taken.append(time.perf_counter() - begin)
    whole = time.perf_counter() - first
    each = np.array(taken) / ready.units
    return {
        "seconds": short(np.median(each)),
        "min": short(each.min()),
        "max": short(each.max()),
        "n": len(taken),
        "other_cores": round((busy_elsewhere() - busy) / whole, 2),
    }


def short(value: float) -> float:
    """Four digits of it."""
    return float(f"{value:.4g}")


@functools.cache
def evidence() -> Line:
    """What any reading hangs on."""
    return {
        "tuned_allocator": keeps_memory(),
        "versions": versions(),
        "commit": commit(),
        "hardware": hardware(),
    }


def scratch() -> Path:
    """An empty folder that goes when the process ends."""
    return Path(tempfile.mkdtemp(dir=_all_scratch().name))


@functools.cache
def _all_scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def described(lines: Iterable[Line]) -> str:
    """On what some lines were read, and how many calls they hold, in one sentence."""
    lines = list(lines)
    if not lines:
        return "Nothing was read."
    of = lambda name: sorted({json.dumps(line[name]) for line in lines})
    machines = {(x["hardware"]["cpu"], x["hardware"]["cores"]) for x in lines}
    return (
        f"{len(lines)} readings of {min(line['n'] for line in lines)} to "
        f"{max(line['n'] for line in lines)} calls; "
        f"{', '.join(f'{cpu}, {cores} cores' for cpu, cores in sorted(machines))}; "
        f"allocator tuned: {', '.join(of('tuned_allocator'))}; commit "
        f"{', '.join(of('commit'))}; other programs used up to "
        f"{max(line['other_cores'] for line in lines)} cores."
    )


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options of every benchmark that takes readings. `name`: of its results."""
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--passes", type=int, default=5, help="over all cases, in turn")
    parser.add_argument("--calls", type=int, default=5, help="of a reading, at least")
    parser.add_argument(
        "--seconds", type=float, default=1.0, help="of a reading, at least"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS / f"{name}-{today}.jsonl"
    )


def effort_of(arguments: argparse.Namespace) -> Effort:
    """From the options above."""
    return Effort(arguments.passes, arguments.calls, arguments.seconds)


def number_or_auto(text: str) -> int | str:
    """For options such as --lanes."""
    return text if text == "auto" else int(text)
