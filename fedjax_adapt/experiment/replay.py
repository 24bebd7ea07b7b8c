"""A round of a run made again, to see whether it has the same numbers here and now."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from .. import check
from ..core import Algorithm, Task
from ..data import FederatedDataset
from ..errors import SettingError
from . import checkpoint, files, records, store, summary
from .config import from_settings
from .folder import stored_settings
from .run import Report, run, silent


class Replayed(NamedTuple):
    """A round made again.

    Attributes:
      round: its number.
      start: the round whose state it was made again from; 0: the beginning.
      differences: the largest difference of each number of that round between the run and
        now, by table and column, as in "clients.loss"; NaN where only one is finite, or
        where there are more or other clients. 0: the same bits.
      changed: what decides the numbers and was another then: name to (then, now).
    """

    round: int
    start: int
    differences: dict[str, float]
    changed: dict[str, tuple[str, str]]

    @property
    def same(self) -> bool:
        """Whether all numbers are the same bits."""
        return not any(value != 0 for value in self.differences.values())


def replay_round(
    folder: str | Path,
    round: int | None = None,
    data_dir: str | Path | None = None,
    devices: int | Literal["auto"] | None = None,
    progress: Report = silent,
    *,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    data: FederatedDataset | None = None,
) -> Replayed:
    """Makes a round of a run again, from the newest state before it, and compares it.

    The last two states are kept, so an early round takes all rounds up to it again.

    Args:
      folder: of the run, finished or not; it stays as it is.
      round: its number, 1 is the first; None: the last.
      data_dir: where data files lie; None: the variable FEDJAX_ADAPT_DATA.
      devices: that share the clients of a round; None: as many as the run had.
      progress: as of `run`.
      algorithm: that the run was given, if it was an object; likewise the next two.
      task: see there.
      data: see there.

    Raises:
      SettingError: the folder holds no run, or no such round; or what `run` raises.
    """
    folder = check.expanded("", folder)
    record = records.read_run(folder)
    done = record.metrics["round"].to_pylist()[-1] if len(record.metrics) else 0
    check.at_least("round", round, 1, none="the last")
    if not done:
        raise SettingError(
            f"{folder} has no evaluation yet, so no round to make again."
        )
    if round is not None and round > done:
        raise SettingError(
            f"round={round} is not in {folder}, whose rows end with round {done}; write "
            "one that is."
        )
    round = done if round is None else round
    saved = checkpoint.whole_rounds(folder / store.CHECKPOINTS)
    start = max((at for at in saved if at < round), default=0)
    here = {"data_dir": data_dir, "devices": devices}
    given = {name: value for name, value in here.items() if value is not None}
    store.read_origins(folder)  # or it is refused
    with tempfile.TemporaryDirectory() as place:
        again = Path(place) / "run"
        _copy(folder, again)
        try:
            checkpoint.set_aside(again / store.CHECKPOINTS, start)
            store.truncate(again, start)
            config = from_settings(stored_settings(again) | given)
            config = replace(config, folder=str(again), track=None)
            objects = {"algorithm": algorithm, "task": task, "data": data}
            is_last = lambda row: row["round"] >= round
            run(config, True, progress, **objects, callback=is_last)
        except SettingError as error:  # a user knows nothing of the copy
            raise SettingError(str(error).replace(str(again), str(folder))) from None
        now = records.read_run(again)
    differences = {}
    for name in ("metrics", "clients"):
        pair = (_rows(getattr(one, name), round) for one in (record, now))
        found = _differences(*pair)
        differences |= {f"{name}.{column}": value for column, value in found.items()}
    return Replayed(round, start, differences, _changed(record.summary))


def _copy(folder: Path, to: Path) -> None:
    """Copies what a run goes on from: its files, and nothing that lies with them."""
    kept = (store.CONFIG, store.OWN, files.SUMS, *store.TABLES, store.CHECKPOINTS)

    def others(place: str, names: list[str]) -> list[str]:
        is_part = lambda name: name in kept or Path(place) != folder
        is_whole = lambda path: path.is_file() or path.is_dir()  # no pipe, no device
        return [n for n in names if not (is_part(n) and is_whole(Path(place, n)))]

    shutil.copytree(folder, to, ignore=others)


def _rows(table: Any, round: int) -> dict[str, list]:
    """The rows of a round, or of the evaluation that follows it, by column."""
    if not len(table):
        return {}
    rounds = table["round"].to_numpy()
    at = rounds[rounds >= round].min()
    rows = table.filter(rounds == at).to_pydict()
    return {name: values for name, values in rows.items() if name != "seconds"}


def _differences(then: dict[str, list], now: dict[str, list]) -> dict[str, float]:
    found = {}
    for name in {**then, **now}:
        ours, theirs = (np.asarray(rows.get(name, []), float) for rows in (then, now))
        if ours.shape != theirs.shape:
            found[name] = float("nan")
        elif np.array_equal(ours, theirs, equal_nan=True):
            found[name] = 0.0
        else:
            gap = np.abs(ours - theirs)
            gap[np.isnan(ours) & np.isnan(theirs)] = 0
            found[name] = float(np.max(gap))
    return found


def _changed(said: dict[str, Any] | None) -> dict[str, tuple[str, str]]:
    if said is None:
        return {}
    then = said["versions"] | {n: str(v) for n, v in said["hardware"].items()}
    now = summary.versions() | {n: str(v) for n, v in summary.hardware().items()}
    other = [name for name in now if name in then and then[name] != now[name]]
    return {name: (then[name], now[name]) for name in other}
