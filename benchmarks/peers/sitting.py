"""Simulators in turn, pass after pass, and the lines that they print.

In turn, so that what else the machine does falls on all. A line is kept as soon as it is
there, and one that is there is not made again.
"""

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import common
from environments import python_of
from readings import Ledger, Line
from settings import SIMULATORS, Setting

ATTEMPTS = 3  # at a line that others disturb


class Run(NamedTuple):
    """One line to be had."""

    workload: str
    setting: Setting
    turn: int  # pass, from 1
    size: tuple[int, int]  # rounds, warm-up rounds

    @property
    def words(self) -> list[str]:
        """The command line of the script."""
        rounds, warmup = map(str, self.size)
        size = ["--rounds", rounds, "--warmup", warmup]
        return ["--workload", self.workload, *size, *self.setting.options.split()]

    @property
    def key(self) -> dict[str, str | int]:
        """What its lines say of how they were made."""
        script = f"benchmarks/{SIMULATORS[self.setting.simulator][1]}"
        given = [f"{name}={value}" for name, value in self.setting.variables.items()]
        return {
            "setting": self.setting.name,
            "workload": self.workload,
            "pass": self.turn,
            "command": " ".join([*given, "python", script, *self.words]),
        }


def is_wanted(run: Run, ledger: Ledger) -> bool:
    """Whether a run has no undisturbed line yet, and fewer attempts than there may be."""
    made = ledger.find(**run.key)
    return len(made) < ATTEMPTS and all(line["disturbed"] for line in made)


def sit(
    runs: Sequence[Run],
    ledger: Ledger,
    measure: Callable[[Run], Line],
    limit: float = 0.06,
    in_time: Callable[[], bool] = lambda: True,
) -> list[str]:
    """Makes every line that is wanted, in the order of `runs`.

    Args:
      runs: all of them, whether their lines are there or not.
      ledger: the lines that are there; new ones are added to it.
      measure: makes a line; RuntimeError says why there is none.
      limit: cores that others may use during a line.
      in_time: whether another line may be begun.

    Returns:
      A sentence for every setting that could not be run, which is tried only once.
    """
    failures: dict[tuple[str, str], str] = {}
    for run in runs:
        which = run.workload, run.setting.name
        while which not in failures and is_wanted(run, ledger) and in_time():
            try:
                line: Line = {**measure(run), **run.key}
            except RuntimeError as error:
                failures[which] = f"{run.setting.name} at {run.workload}: {error}"
                continue
            line["disturbed"] = line["other_cores"] > limit
            ledger.add(line)
    return list(failures.values())


def call(setting: Setting, words: Sequence[str], folder: Path | None) -> Line:
    """What a simulator's script prints, under a setting.

    Args:
      setting: which script, in which environment.
      words: of its command line.
      folder: holds the environments; None: this Python has the peers.

    Raises:
      RuntimeError: there is no such environment, or the script failed; one sentence.
    """
    python = python_of(folder, setting.environment)
    if not python.exists():
        raise RuntimeError(f"{python} is not there; add --make-venvs.")
    command = [
        str(python),
        str(common.FOLDER / SIMULATORS[setting.simulator][1]),
        *words,
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=setting.surroundings()
    )
    lines = [text for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"ended with status {done.returncode}: {said[-1].strip()}")
    return json.loads(lines[-1])
