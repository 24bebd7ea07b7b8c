"""A sweep in shards: each runs a part of its trials, on any machine that sees the folder.

FOLDER/whole.toml       the whole sweep
FOLDER/shard-2-of-8/    the folder of a sweep of the second eighth of its trials

`merge` makes FOLDER the folder of the whole sweep, as if it had been run at once.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from ... import check
from ...errors import SettingError
from .. import files, records, store
from ..files import WHOLE, locked
from ..folder import create
from . import results
from .grid import Sweep, read_sweep


def shard_of(text: str) -> tuple[int, int]:
    """Which shard, and of how many, from a text as in 2/8; else SettingError."""
    number, _, count = text.partition("/")
    if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
        return int(number), int(count)
    raise SettingError(
        f"shard={text!r} is not a shard; write which of how many, as in 2/8.",
        setting="shard",
    )


def part_of(asked: Sweep, number: int, count: int) -> Sweep:
    """The sweep of the trials of a shard: those that stand next to each other.

    Neighbours share a program more often than trials far apart. Shards differ by one trial
    at most.
    """
    total = len(asked.trials)
    mine = asked.trials[(number - 1) * total // count : number * total // count]
    if not mine:
        raise SettingError(
            f"shard={number}/{count} has no trial of {total}; write {total} shards "
            "or fewer.",
            setting="shard",
        )
    grids = [{name: [v] for name, v in trial.point.items()} for trial in mine]
    varies = lambda name: all(name in trial.point for trial in mine)
    run = {name: v for name, v in asked.run.items() if not varies(name)}
    return Sweep(asked.folder, run, grids, mine)


def begin_shard(folder: Path, asked: Sweep, number: int, count: int) -> Path:
    """As `shard_folder`; the file of the whole sweep is written where there is none."""
    shard_folder(folder, asked, number, count)  # or it is refused
    if not (folder / WHOLE).exists():
        create(folder)
        with locked(folder, wait=True):  # other shards may begin at the same moment
            if not (folder / WHOLE).exists():
                files.write_listed(folder / WHOLE, results.to_toml(asked))
    # one of another sweep may have begun meanwhile
    return shard_folder(folder, asked, number, count)


def shard_folder(folder: Path, asked: Sweep, number: int, count: int) -> Path:
    """The folder of a shard below the sweep's; SettingError where that holds others."""
    if (folder / store.SWEEP).exists():
        raise SettingError(
            f"folder={folder} holds a sweep without shards, or one that was merged; give "
            "another folder.",
            setting="folder",
        )
    for other in records.shards_in(folder):
        if other.count != count:
            raise SettingError(
                f"folder={folder} holds shards of a sweep in {other.count}, not {count}; "
                "write as many, or give another folder.",
                setting="folder",
            )
    whole = folder / WHOLE
    change = results.first_change(read_sweep(whole), asked) if whole.exists() else None
    if change is not None:
        raise SettingError(
            f"folder={folder} holds shards of another sweep ({change}); give another "
            "folder.",
            setting="folder",
        )
    return folder / f"shard-{number}-of-{count}"


def merge(folder: str | Path) -> records.Swept:
    """Makes a folder of finished shards the folder of the whole sweep.

    Trials are moved, not copied, and keep their numbers, which are those of the whole
    sweep. What is left of the shards goes when all else is written. A merge that was
    killed goes on when it is called again.
    """
    folder = check.expanded("", folder)
    sweeps = records.shards_in(folder)
    if not sweeps:
        merged = (folder / store.SUMMARY).exists()
        why = "it is whole" if merged else "write the folder that --shard was given"
        raise SettingError(f"{folder} holds no shards to merge; {why}.")
    if len(sweeps) > 1:
        counts = " and of ".join(str(sweep.count) for sweep in sweeps)
        raise SettingError(
            f"{folder} holds shards of {counts}; move those of another sweep away."
        )
    (whole,) = sweeps
    names = [folder / f"shard-{i}-of-{whole.count}" for i in range(1, whole.count + 1)]
    there = list(filter(Path.is_dir, names))
    with ExitStack() as stack:
        for place in (folder, *there):  # so that no shard is resumed meanwhile
            stack.enter_context(locked(place))
        if not (folder / store.SUMMARY).exists():  # else only the shards are left to go
            # asked here: until it is locked a shard may come to its end, or begin
            for path in names:
                if not (path / store.SUMMARY).exists():
                    raise SettingError(
                        f"{path} is not finished; run or resume it first."
                    )
            _merge(folder, names)
        (folder / WHOLE).unlink(missing_ok=True)
        for shard in there:
            shutil.rmtree(shard)
    return records.read_swept(folder)


def _merge(folder: Path, shards: list[Path]) -> None:
    """Writes what a sweep folder has, out of that of all shards."""
    # a merge that was killed may have struck out the file of the shards
    known = store.SWEEP if (folder / store.SWEEP).exists() else WHOLE
    whole = read_sweep(folder / known)
    rows, found_origins, said, moves, done = [], {}, {}, [], {}
    for number, shard in enumerate(shards, 1):
        renamed = lambda group, shard=shard: f"{shard.name}-{group}"
        found = records.read_swept(shard)
        _check_trials(shard, found, part_of(whole, number, len(shards)))
        for row in found.results.to_pylist():
            trial = whole.trials[row["trial"]]  # which settings vary is of the whole
            figures = {n: v for n, v in row.items() if n not in found.settings}
            figures["group"] = renamed(row["group"])
            rows.append(results.named_trial(trial, whole.names) | figures)
            done[folder / records.trial_folder(row["trial"])] = None
            done[folder / store.GROUPS / figures["group"]] = None
        moves += _moves(shard, store.TRIALS, folder, str)
        moves += _moves(shard, store.GROUPS, folder, renamed)
        said[shard.name] = store.read_summary(shard) or {}
        found_origins |= said[shard.name].get("own", {})
    for name in (store.TRIALS, store.GROUPS):  # all shards are as they were left
        (folder / name).mkdir(exist_ok=True)
    for path, place in moves:
        if path.exists():
            path.rename(place)
    rows.sort(key=lambda row: row["trial"])
    store.write_origins(folder, found_origins)
    table = results.table_of(rows, whole.names)
    store.write_table(folder, folder / store.RESULTS, table)
    files.enter_lists(folder, filter(Path.is_dir, done))  # some old ones have none
    files.write_listed(folder / store.SWEEP, results.to_toml(whole))
    files.strike(folder, [folder / WHOLE])
    store.finish(folder, {"trials": len(rows), "own": found_origins, "shards": said})


def _check_trials(shard: Path, found: records.Swept, part: Sweep) -> None:
    """Raises SettingError unless a shard has the trials that it should have."""
    has = found.results["trial"].to_pylist()
    wanted = [trial.number for trial in part.trials]
    if has != wanted:
        listed = lambda numbers: ", ".join(map(str, numbers))
        raise SettingError(
            f"{shard} has trials {listed(has)}, not {listed(wanted)}; put the shard there "
            "that has them."
        )


def _moves(
    shard: Path, kind: str, folder: Path, renamed: Callable[[str], str]
) -> list[tuple[Path, Path]]:
    """Where the trials or the groups of a shard lie, and where each will.

    Those that a merge that was killed has moved are there already.
    """
    known = files.listed(shard) or {}
    listed = [(shard / name).parent for name in known if name.startswith(f"{kind}/")]
    if kind == store.TRIALS and listed:
        records.check_no_others(shard, listed)
    moves = []
    for path in listed or store.contents(shard / kind):  # of an earlier version
        place = folder / kind / renamed(path.name)
        moves.append((path, place))
        if os.path.lexists(path) and os.path.lexists(place):
            raise SettingError(
                f"{place} is there already, where {path} is to go; move it away."
            )
        sums = place / files.SUMS
        name = f"{kind}/{path.name}/{files.SUMS}"
        if sums.is_file() and files.checksum(sums) == known.get(name):
            continue
        files.check(shard, path / files.SUMS, known)
        files.check_all(path)
    return moves
