"""A run is a folder: what lies in it, written so that a kill loses nothing written.

    config.toml               every setting, resolved; `--config` reads it back
    metrics/part-*.parquet    one row per evaluation
    clients/part-*.parquet    one row per client that took part in a round
    partition/part-*.parquet  one row per client: label_counts, examples of each label;
                              its name, where `FederatedDataset.from_frame` has one;
                              and what `client_accuracy` of the summary is the mean of,
                              likewise `personal_accuracy`
    checkpoints/<round>/      the last two states (orbax)
    summary.json              the result; a folder that has one is finished
    own.json                  what was a user's own or has been revised, and a random
                              generator or x64 mode that is not JAX's default
    files.sha256              the checksums of all these, see files.py
    learning_curve.png

A part is named after its last round and appears whole or not at all, so cutting a run
back to a checkpoint is deleting files. `pyarrow.parquet.read_table(folder / "metrics")`
reads the parts as one table, and so does pandas.
"""

import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import SettingError, first_line
from . import files
from .files import LOCK

if TYPE_CHECKING:
    import pyarrow

ACCURACY = "accuracy"
# in its place:
TRAINED = "training_accuracy_on_the_public_set"  # where that is tested on
VALIDATED = "validation_accuracy"  # evaluate_on=validation
ACCURACIES = (ACCURACY, VALIDATED, TRAINED)  # in the order of tables
CONFIG, SUMMARY = "config.toml", "summary.json"
OWN = "own.json"
CHECKPOINTS = "checkpoints"  # a folder for each round that is kept
SWEEP, RESULTS = "sweep.toml", "results.parquet"  # of a sweep, see sweeps/results.py
TUNE = "tune.toml"  # of a search, see sweeps/tune.py
NOTHING = "nothing"  # that a method was also given
TRIALS = "trials"  # of a sweep, a folder for each, see sweeps/results.py
GROUPS = "groups"  # likewise, see sweeps/sweep.py
TABLES = ("metrics", "clients")
# columns of `metrics`: what a run has cost so far
COSTS = ("local_steps", "bytes_up", "bytes_down", "simulated_seconds")
PARTITION = "partition"  # a table of one part, written when a run ends


def accuracy_in(names: Collection[str]) -> str:
    """What accuracy is called among the names of columns or keys.

    FedDF's runs of earlier versions have a column validation_accuracy too.
    """
    first = (ACCURACY, TRAINED, VALIDATED)
    return next((name for name in first if name in names), ACCURACY)


def accuracy_shown_as(text: str) -> str:
    """The accuracy that `shown_accuracy` shows so, as a summary and a sweep have it."""
    return next(name for name in ACCURACIES if shown_accuracy(name) == text)


def shown_accuracy(name: str) -> str:
    """An accuracy's name as it is shown: "test accuracy" for `ACCURACY`."""
    return "test accuracy" if name == ACCURACY else name.replace("_", " ")


def shown_loss(name: str) -> str:
    """What the loss is called where the accuracy has this name."""
    return {
        ACCURACY: "test loss",
        TRAINED: "loss on the public set",
        VALIDATED: "validation loss",
    }[name]


def first_reaching(rounds: Any, accuracy: Any, target: float) -> int | None:
    """The first of `rounds` whose accuracy is at least `target`."""
    import numpy as np

    # in float32, as the device counts: 9,000 of 10,000 reach 0.9
    accuracy = np.asarray(accuracy, np.float32)
    reached = np.flatnonzero(accuracy >= np.float32(target))
    return int(rounds[reached[0]]) if len(reached) else None


def figures_of(summary: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a summary has measured on what is tested on, under whichever name it is."""
    named = accuracy_in(summary)
    return summary if named == ACCURACY else summary[named]


def read_table(folder: Path, name: str) -> "pyarrow.Table":
    """The rows of `metrics` or `clients`, by round, or of `PARTITION`, by client.

    There are no columns if none is written.
    """
    import pyarrow as pa

    tables, known = [], files.listed(folder)
    for part in _parts(folder, name, known):
        files.check(folder, part, known)
        table = read_parquet(part)
        for field in table.schema:
            is_name = name == PARTITION and field.name == "name"
            if not is_name and not _holds_numbers(field.type):
                raise SettingError(
                    f"{part} is broken (its column {field.name} is of {field.type}, no "
                    "numbers)."
                )
        tables.append(table)
    if not tables:
        return pa.table({})
    try:
        return pa.concat_tables(tables, promote_options="default")
    except pa.ArrowException as error:
        raise SettingError(
            f"{folder / name} is broken ({first_line(error)})."
        ) from None


def _holds_numbers(kind: "pyarrow.DataType") -> bool:
    import pyarrow.types as of

    if of.is_list(kind) or of.is_large_list(kind) or of.is_fixed_size_list(kind):
        return _holds_numbers(kind.value_type)
    numbers = (of.is_integer, of.is_floating, of.is_boolean, of.is_null)
    return any(is_a(kind) for is_a in numbers)


def read_parquet(path: Path) -> "pyarrow.Table":
    """The rows of a Parquet file of a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        files.opened(path).close()  # of whose errors arrow says less
        # Arrow's threads would free what they read of a Python file at any later moment,
        # and a thread that asks for Python while it ends aborts the process.
        with pa.OSFile(os.fspath(path)) as file:
            return pq.read_table(file)
    except pa.ArrowException as error:
        raise SettingError(f"{path} is broken ({first_line(error)}).") from None
    except OSError as error:
        raise files.unreadable(path, error) from None


def read_summary(folder: Path) -> dict[str, Any] | None:
    """The summary of a finished run, None for one that is not finished."""
    return read_json(folder / SUMMARY)


def read_origins(folder: Path) -> dict[str, str]:
    """What `user_functions.origins` said of a run or a sweep when it began."""
    return read_json(folder / OWN) or {}


def read_json(path: Path) -> dict[str, Any] | None:
    """What a JSON file of a folder holds, checked against its list; None: no such file."""
    if not os.path.lexists(path):
        return None
    if path.is_file():
        files.check_own(path)
    try:
        return json.loads(files.read_text(path))
    except FileNotFoundError:  # deleted meanwhile
        return None
    except OSError as error:
        raise files.unreadable(path, error) from None
    except ValueError as error:
        raise SettingError(f"{path} is broken ({first_line(error)}).") from None


def write_origins(folder: Path, origins: Mapping[str, str]) -> None:
    """Writes that down where there is anything."""
    if origins:
        files.write_listed(folder / OWN, json.dumps(origins, indent=2) + "\n")


def append(folder: Path, name: str, rows: Mapping[str, Any], last_round: int) -> None:
    """Adds rows, as columns, to a table as one part, whole or not at all.

    The table is one of `TABLES`, or `PARTITION`. `last_round` are the rounds done when the
    last row was taken; parts never straddle one.
    """
    import pyarrow as pa

    path = _part(folder, name, last_round)
    files.make(path.parent)
    write_table(folder, path, pa.table(dict(rows)))


def write_table(folder: Path, path: Path, table: "pyarrow.Table") -> None:
    """Writes a Parquet file of `folder` whole or not at all, and lists it there."""
    import pyarrow.parquet as pq

    with files.listing(folder, path) as temporary:
        pq.write_table(table, temporary)


def begin_list(folder: Path, of: str | None = None) -> str:
    """As `files.begin`, of a folder for checkpoints; SettingError if its list is lost."""
    saved = folder / CHECKPOINTS
    if files.listed(folder) is None and files.listed(saved) is not None:
        raise SettingError(
            f"{folder / files.SUMS} is missing; put it back, or delete "
            f"{saved / files.SUMS} too, after which damage is not noticed."
        )
    return files.begin(folder, of)


def whole_until(folder: Path) -> tuple[int | None, list[Path], str]:
    """The last round up to which no part of a table is damaged; None: none is.

    Returns:
      That round, the damaged parts, and what is wrong with the first of them.
    """
    known = files.listed(folder)
    until, parts, why = None, [], ""
    for name in TABLES:
        last = 0
        for part in _parts(folder, name, known or {}):
            if damage := files.damaged(folder, part, known):
                if until is None or last < until:
                    until, why = last, damage
                parts.append(part)
            last = int(part.stem.partition("-")[2])
    return until, parts, why


def truncate(folder: Path, last_round: int, damaged: Iterable[Path] = ()) -> None:
    """Drops the rows after `last_round`, a checkpoint's; damaged ones are set aside."""
    is_later = lambda name, part: part > _part(folder, name, last_round)
    after = [x for name in TABLES for x in _parts(folder, name) if is_later(name, x)]
    for part in damaged:
        if os.path.lexists(part):
            part.rename(files.aside(part))
    files.strike(folder, [*after, *damaged])
    for part in after:
        part.unlink(missing_ok=True)


def drop(folder: Path, name: str) -> None:
    """Deletes what lies below a name in a folder."""
    files.strike(folder, [folder / name])
    shutil.rmtree(folder / name, ignore_errors=True)


def finish(folder: Path, summary: Mapping[str, Any]) -> None:
    """Writes the summary, which marks the run as finished, and drops the lock."""
    files.write_listed(folder / SUMMARY, json.dumps(summary, indent=2) + "\n")
    (folder / LOCK).unlink(missing_ok=True)


def _part(folder: Path, name: str, last_round: int) -> Path:
    return folder / name / f"part-{last_round:09d}.parquet"


def _parts(
    folder: Path, name: str, known: Mapping[str, str] | None = None
) -> list[Path]:
    """The parts of a table, oldest first: those in a list, or that lie there."""
    found = contents(folder / name)
    if known is not None:
        found = [folder / path for path in known if path.startswith(f"{name}/")]
    return sorted(path for path in found if path.match("part-*.parquet"))


def contents(folder: Path) -> list[Path]:
    """What lies in a folder, if there is one; SettingError where that cannot be read."""
    try:
        return list(folder.iterdir())
    except FileNotFoundError as error:
        if folder.is_symlink():
            error.strerror = "a link to nothing"
            raise files.unreadable(folder, error) from None
        return []
    except OSError as error:
        raise files.unreadable(folder, error) from None
