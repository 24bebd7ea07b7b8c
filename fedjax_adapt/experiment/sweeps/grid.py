"""A sweep as its file says it: the settings of every run, and what varies.

folder = "runs/lr-sweep"      # optional
first_trial = 0               # optional: the number of the first, of a shard not 0
[run]                         # settings of every run, as in its config.toml
algorithm = "fedavg"
[grid]                        # every combination; or several [[grid]] tables
lr = [0.1, 0.03]
seed = [0, 1, 2]
"""

import json
from collections.abc import Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ... import check
from ...errors import SettingError
from .. import objects, spelling, toml
from ..config import Config, common_options, from_settings, identity
from ..objects import KINDS
from ..reading import check_settings
from ..schema import settings_that_are
from .differences import what_follows

KEYS = ("folder", "run", "grid")  # of a file
FIRST = "first_trial"  # which a shard's has, too
MOST = 10_000  # trials; a mistake of a few lines makes more


class Trial(NamedTuple):
    """One run of a sweep."""

    number: int
    point: dict[str, Any]  # what the grid says of it
    config: Config
    in_search: int | None = None  # its number there; None: it is of none

    @property
    def shown(self) -> int:
        """The number that a user knows it by."""
        return self.number if self.in_search is None else self.in_search


class Sweep(NamedTuple):
    """What a file says, and the trials that follow."""

    folder: str | None
    run: dict[str, Any]  # settings of every run, as they are written
    grids: list[dict[str, list]]
    trials: list[Trial]

    @property
    def names(self) -> list[str]:
        """The settings that vary, in the order in which they are written."""
        return list(dict.fromkeys(name for grid in self.grids for name in grid))


class _Source:
    """Where things are written: in a file, by line, or in Python."""

    def __init__(self, path: Path | None):
        self.path = path
        self.name = "sweep" if path is None else str(path)

    def at(self, key: str, table: int | str | None = None) -> str:
        """Where `key` stands: in a table, [run] or the grid of a number."""
        if self.path is None:
            return self.name
        below = 0
        for _ in range(table + 1 if isinstance(table, int) else table is not None):
            name = "grid" if isinstance(table, int) else str(table)
            below = _header(self.path, name, below)
        return f"{self.path}, line {toml.line_of(self.path, key, below)}"


GRID_OF_ITS_OWN = "leave it out, or write a [[grid]] of its own for those that have it"


def read_sweep(
    source: str | Path | Mapping[str, Any] | Sweep, remedy: str = GRID_OF_ITS_OWN
) -> Sweep:
    """A sweep, every trial of it checked as a run is before its data are read.

    `source` is a TOML file, or what one would hold, or a sweep that was read; `remedy` says
    what to do about an option that not all trials have. A SettingError is a sentence on the
    first mistake, with its line.
    """
    if isinstance(source, Sweep):
        return source
    if not isinstance(source, str | Path | Mapping):
        raise SettingError(
            f"sweep={source!r} is not a sweep; write the path of a TOML file, "
            "or a dict as in "
            "{'run': {'algorithm': 'fedavg'}, 'grid': {'lr': [0.1, 0.03]}}."
        )
    path = None if isinstance(source, Mapping) else check.expanded("sweep=", source)
    tables = dict(source) if isinstance(source, Mapping) else toml.read(path, "sweep")
    where = _Source(path)
    for key in tables:
        if key not in (*KEYS, FIRST):
            raise SettingError(f"{where.at(key)}: {key} {_misplaced(key)}")
    folder, run = tables.get("folder"), tables.get("run", {})
    if not isinstance(folder, str | Path | None):
        raise SettingError(f"{where.at('folder')}: folder={folder!r}; write a text.")
    if not isinstance(run, Mapping):
        raise SettingError(
            f"{where.at('run')}: run={run!r}; write [run] above settings."
        )
    if "folder" in run:
        raise SettingError(
            f"{where.at('folder', 'run')}: folder is that of the sweep; write it above "
            "[run]."
        )
    grids = _grids(tables, where)
    old = all(map(spelling.without_kinds, (run, *grids)))
    run = spelling.flattened(toml.python_values(run))
    run, grids = _named(run, [spelling.flattened(grid) for grid in grids], old, where)
    # with several grids it may be that of a grid that does not vary it
    for name in run:
        if all(name in grid for grid in grids):
            raise SettingError(
                f"{where.at(name, 'run')}: {spelling.flat_name(name)} stands below [run] "
                "and below [grid]; leave it out of one of them."
            )
    for table in (run, *grids):
        objects.check_settings_free(table)
    run |= objects.settings()
    sweep = Sweep(None if folder is None else str(folder), run, grids, [])
    first = tables.get(FIRST, 0)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise SettingError(
            f"{where.at(FIRST)}: {FIRST}={first!r}; write a number, 0 or more."
        )
    trials = _trials(sweep, where, remedy)
    sweep.trials.extend(t._replace(number=first + t.number) for t in trials)
    return sweep


def _misplaced(key: str) -> str:
    if key in common_options():
        return "is a setting of runs; write it below [run], or a list of them below [grid]."
    return f"is not a part of a sweep; {check.nearest(key, KEYS)}"


def _grids(tables: Mapping[str, Any], where: _Source) -> list[dict[str, list]]:
    grids = tables.get("grid")
    grids = [grids] if isinstance(grids, Mapping) else grids
    whole = isinstance(grids, list | tuple) and all(
        isinstance(grid, Mapping) and grid for grid in grids
    )
    if not grids or not whole:
        raise SettingError(
            f"{where.name} has no grid; write [grid] and below it what varies, as in "
            "lr = [0.1, 0.03]."
        )
    for number, grid in enumerate(grids):
        for name, values in spelling.flattened(grid).items():
            values = toml.python_values(values)
            at = where.at(name, number)
            if name == "match":
                raise SettingError(
                    f"{at}: match names one finished run, whose steps all trials take; "
                    "write it below [run]."
                )
            incidental = settings_that_are("incidental")
            if name in (*incidental, "resume", "config"):
                place = "above" if name == "folder" else "below"
                known = name in incidental
                rest = f"write it {place} [run]." if known else "leave it out."
                raise SettingError(
                    f"{at}: {name} changes no number of a run, so nothing varies; {rest}"
                )
            if not isinstance(values, list) or not values:
                came = "is empty" if values == [] else "is not a list"
                written = isinstance(values, bool | int | float | str)
                example = toml.spelled(values) if written else "1, 2"
                raise SettingError(
                    f"{at}: {name}={values!r} {came}; write the values to try, as in "
                    f"{name} = [{example}]."
                )
    return toml.python_values(grids)


def _named(
    run: dict[str, Any], grids: list[dict[str, list]], old: bool, where: _Source
) -> tuple[dict[str, Any], list[dict[str, list]]]:
    """[run] and the grids by full names; what no trial knows stays as it is."""
    means: list[dict[str, list[str]]] = []
    usual = spelling.choices_in(run)
    for grid in grids:
        several = [grid[kind] if kind in grid else [v] for kind, v in usual.items()]
        for values in product(*several):
            choices = dict(zip(KINDS, values, strict=True))
            means.append(spelling.spellings(spelling.known_names(choices)))

    names = {*run, *(name for grid in grids for name in grid)}

    def full(table: dict[str, Any], place: int | str) -> dict[str, Any]:
        found = {}
        for name, value in table.items():
            may = [m[name] for m in means if name in m]
            may = [m[:1] if old and spelling.is_flat(m, names) else m for m in may]
            may = list(dict.fromkeys(full for some in may for full in some)) or [name]
            if len(may) > 1:
                error = spelling.ambiguous(name, may, {})
                raise SettingError(f"{where.at(name, place)}: {error}")
            if may[0] in found:
                first = next(n for n in table if n in spelling.other_spellings(may[0]))
                error = spelling.twice(first, name, may[0])
                raise SettingError(f"{where.at(name, place)}: {error}")
            found[may[0]] = value
        return found

    return full(run, "run"), [full(grid, i) for i, grid in enumerate(grids)]


def _trials(sweep: Sweep, where: _Source, remedy: str) -> list[Trial]:
    trials: list[Trial] = []
    seen: dict[str, Trial] = {}
    count = sum(prod(map(len, grid.values())) for grid in sweep.grids)
    if count > MOST:
        raise SettingError(
            f"{where.name} has {count} trials, more than {MOST}; write several sweeps."
        )
    for number, grid in enumerate(sweep.grids):
        for values in product(*grid.values()):
            point = dict(zip(grid, values, strict=True))

            def at(key: str, point: dict = point, grid: int = number) -> str:
                if key in point:
                    return where.at(key, grid)
                return where.at(key, "run") if key in sweep.run else where.name

            settings = check_settings({**sweep.run, **point}, at, remedy)
            trial = Trial(len(trials), point, from_settings(settings))
            text = json.dumps(identity(trial.config), sort_keys=True)
            if text in seen:
                raise SettingError(
                    f"{where.name}: two trials are the same run ({described(trial)}); "
                    "leave one of them out."
                )
            seen[text] = trial
            trials.append(trial)
    return trials


def described(trial: Trial) -> str:
    """A trial by what the grid says of it."""
    short = spelling.flat_name
    return ", ".join(f"{short(name)}={value}" for name, value in trial.point.items())


def seed_hint(sweep: Sweep) -> str | None:
    """What to say of seeds that change the examples too; None: nothing."""
    given = {*sweep.run, *sweep.names}
    seeds = {trial.config.seed for trial in sweep.trials}
    if len(seeds) < 2 or "seed" not in sweep.names or "partition_seed" in given:
        return None
    changes = next(filter(None, (what_follows(t.config) for t in sweep.trials)), None)
    return changes and (
        f"every seed {changes}, so that trials of different seeds share no program; write "
        "partition_seed = 0 below [run] to vary the training alone."
    )


def _header(path: Path, name: str, below: int) -> int:
    """The next line after `below` that opens the table [name] or [[name]]."""
    opens = ("[" + name + "]", "[[" + name + "]]")
    numbered = enumerate(toml.lines_of(path), 1)
    return next(
        (n for n, x in numbered if n > below and x.strip().startswith(opens)), 0
    )
