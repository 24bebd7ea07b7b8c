"""Simulators in turn, pass after pass, each in its environment, and the lines they print.

In turn, so that what else the machine does falls on all. A line is written as soon as it is
there, and one that is there is not made again. An environment is a virtual environment,
made from its file of locks/.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import common
from readings import Ledger, Line
from settings import SIMULATORS, Setting

LOCKS = Path(__file__).resolve().parent / "locks"
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
      What went wrong with every setting that could not be run, which is tried only once.
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


def python_of(folder: Path | None, environment: str | None) -> Path:
    """The Python of an environment in a folder; without either, the one that runs this."""
    if environment is None or folder is None:
        return Path(sys.executable)
    return folder / environment / "bin" / "python"


def make_environment(folder: Path, environment: str) -> None:
    """Makes an environment from its lock file, or completes the one that is there.

    Raises:
      RuntimeError: that failed.
    """
    python, lock = python_of(folder, environment), LOCKS / f"{environment}.txt"
    if not lock.exists():
        raise RuntimeError(
            f"there is no locks/{lock.name}: leave --venvs out, in a Python that has the "
            "peers."
        )
    print(f"installing {lock.name}", file=sys.stderr)
    commands = [[str(python), "-m", "pip", "install", "-q", "-r", str(lock)]]
    if not python.exists():
        commands.insert(0, [sys.executable, "-m", "venv", str(folder / environment)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            output = (done.stderr or done.stdout).strip().splitlines()
            last = output[-1] if output else "it printed nothing"
            raise RuntimeError(f"{' '.join(command)} failed: {last}.")


def call(setting: Setting, words: Sequence[str], folder: Path | None) -> Line:
    """What a simulator's script prints, under a setting.

    Args:
      setting: which script, in which environment.
      words: of its command line.
      folder: holds the environments; None: this Python has the peers.

    Raises:
      RuntimeError: there is no such environment, or the script failed.
    """
    python = python_of(folder, setting.environment)
    if not python.exists():
        raise RuntimeError(f"{python} is not there; add --make-venvs.")
    script = common.FOLDER / SIMULATORS[setting.simulator][1]
    command = [str(python), str(script), *words]
    done = subprocess.run(
        command, capture_output=True, text=True, env=setting.surroundings()
    )
    lines = [text for text in done.stdout.splitlines() if text.startswith("{")]
    if done.returncode or not lines:
        errors = done.stderr.strip().splitlines() or ["it printed no error"]
        raise RuntimeError(f"ended with status {done.returncode}: {errors[-1].strip()}")
    return json.loads(lines[-1])
