"""The cells of a published table, a run of `fedjax-adapt run` each.

A run that is finished is not run again, one that was killed is resumed; another command
than that of the run in a folder ends with a sentence.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

KEPT = (
    *("commit", "hardware", "versions", "seeds", "data", "rounds", "seconds"),
    *("last_mean", "last_std", "last_count", "rounds_to", "accuracy", "models"),
    *("class_accuracy", "client_accuracy", "area_under_curve"),
    *("public", "auxiliary", "local_steps", "public_steps", "bytes_down", "bytes_up"),
    *("kappa", "rho"),
    "training_accuracy_on_the_public_set",  # of a run that was tested on what it trained on
)
PRIVATE = ("--data-dir", "--folder")  # where things lie on this machine


def cell(
    folder: Path,
    settings: Mapping[str, Any],
    more: Sequence[str],
    lines: Sequence[Mapping[str, Any]] = (),
) -> dict:
    """What was measured in one run, which is made if it is not there.

    Args:
      folder: of the run.
      settings: of the run, by name; several values as a tuple.
      more: further words of the command line, which win over `settings`.
      lines: of the results so far; a run that has one, by its command, needs no folder.
    """
    words = ["run", "--folder", str(folder)]
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        words += [f"--{name.replace('_', '-')}", *map(str, values)]
    words += more
    kept_command = folder.with_suffix(folder.suffix + ".command.json")
    command = " ".join(
        word
        for before, word in zip(["", *words], words, strict=False)
        if word not in PRIVATE and before not in PRIVATE
    )
    for line in lines:
        if line["command"] == command:
            return {name: line[name] for name in ("command", *KEPT) if name in line}
    if kept_command.exists() and json.loads(kept_command.read_text()) != command:
        raise SystemExit(
            f"{folder} holds a run with other settings; give another --folder."
        )
    if not (folder / "summary.json").exists():
        resume = ["--resume"] if folder.exists() else []
        folder.parent.mkdir(parents=True, exist_ok=True)
        kept_command.write_text(json.dumps(command))
        program = [sys.executable, "-m", "fedjax_adapt", *words, *resume]
        ended = subprocess.run(program, stdout=subprocess.DEVNULL)
        if ended.returncode < 0:
            raise SystemExit(f"{folder}: signal {-ended.returncode} ended the run.")
        if ended.returncode:  # it has said why
            raise SystemExit(ended.returncode)
    summary = json.loads((folder / "summary.json").read_text())
    # a run of an earlier version has less, and one that is no test has no accuracy
    kept = {name: summary[name] for name in KEPT if name in summary}
    return {"command": command} | kept
