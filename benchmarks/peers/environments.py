"""The peers' environments: one virtual environment for each file of locks/."""

import subprocess
import sys
from pathlib import Path

LOCKS = Path(__file__).resolve().parent / "locks"


def python_of(folder: Path | None, environment: str | None) -> Path:
    """The Python of an environment in a folder; without either, the one that runs this."""
    if environment is None or folder is None:
        return Path(sys.executable)
    return folder / environment / "bin" / "python"


def make(folder: Path, environment: str) -> None:
    """Makes an environment from its lock file, or completes the one that is there.

    Raises:
      RuntimeError: that failed; one sentence.
    """
    python, lock = python_of(folder, environment), LOCKS / f"{environment}.txt"
    if not lock.exists():
        raise RuntimeError(
            f"there is no locks/{lock.name}: leave --venvs out, in a Python that has the "
            "peers."
        )
    print(f"installing {lock.name}", file=sys.stderr)
    if not python.exists():
        _call([sys.executable, "-m", "venv", str(folder / environment)])
    _call([str(python), "-m", "pip", "install", "-q", "-r", str(lock)])


def _call(command: list[str]) -> None:
    """Runs a command; its failure is one sentence."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{' '.join(command)} failed: {said[-1]}.")
