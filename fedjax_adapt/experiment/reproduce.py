"""The runs of an item: which there must be, which there are, and making the others.

They lie in FOLDER/ITEM/SCALE/ROW/METHOD, one sweep for the seeds that were asked for at
once. A run that is there is not made again, nor one that another item has made.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from .. import check
from ..algorithms.afl import CONSTANTS, means_of_trial
from ..errors import SettingError
from . import records, store
from .config import Config, first_difference, from_settings, identity, read_config
from .items import TAKEN, Item, Scale, read_item
from .objects import KINDS
from .reading import check_settings
from .run import Report, silent
from .spelling import canonical, flattened
from .sweeps.grid import Sweep, Trial, read_sweep
from .sweeps.sweep import sweep

Devices = int | Literal["auto"]
# settings that a run takes from the run of another method
TAKES = {
    "steps_of": ("match", "num_steps"),
    "constants_of": tuple(f"algorithm.{name}" for name in CONSTANTS),
}
# finished runs by `_settings_of` and seed; None: it diverged
Made = Mapping[str, Mapping[int, Path | None]]
# a run of the same code that takes seconds; options of its data set and model go with them
SMOKE = {
    "dataset": "digits",
    "train_examples": 300,
    "model": "mlp",
    "model.widths": (16,),
    "projection": None,
    "augment": "none",
    "num_clients": 10,
    "rounds": 2,
    "evaluate_every": 1,
    "partition_seed": 0,
}


class Cell(NamedTuple):
    """The runs of a row and a method, one for each seed."""

    row: str
    method: str
    folder: Path
    configs: dict[int, Config]  # by seed
    # what, as in `TAKES`, and from the runs of which method
    takes: tuple[str, str] | None

    @property
    def config(self) -> Config:
        """Of the first seed; those of the others differ in the seed alone."""
        return next(iter(self.configs.values()))


def cells_of(
    item: Item,
    folder: Path,
    scale: Scale = "full",
    rows: Sequence[str] = (),
    methods: Sequence[str] = (),
    seeds: int | None = None,
    data_dir: str | None = None,
) -> list[Cell]:
    """The runs of an item, row by row.

    Args:
      item: the table or figure.
      folder: of all reproductions.
      scale: "full" is the paper's; "cpu" what the item's file says of one; "smoke" some
        methods of the first row on the digits, two rounds, to try it out.
      rows: of the item; empty: those of the scale.
      methods: likewise. A method whose run another needs comes with it, and so do those
        that speed-ups are over where the item shows any.
      seeds: how many, from 0; None: as the scale has it, else 1.
      data_dir: where data files are.

    Raises:
      SettingError: a row or method is unknown, the scale has none of the item's, or seeds
        is no number of seeds.
    """
    rows = _chosen(item, scale, "rows", rows)
    rows = rows[:1] if scale == "smoke" else rows
    methods = _chosen(item, scale, "methods", methods)
    if any(figure.startswith("speed_up.") for figure in item.figures):
        methods = [*map(item.base_of, methods), *methods]
    first = [item.methods[m][key] for m in methods for key in _taken(item, m)]
    methods = list(dict.fromkeys([*first, *methods]))
    count = item.scales.get(scale, {}).get("seeds", 1) if seeds is None else seeds
    check.at_least("seeds", count, 1)
    place = folder / item.origin / scale
    cells = []
    for row in rows:
        for method in methods:
            settings = _settings(item.origin, scale, row, method)
            given = lambda seed, s=settings: {**s, "seed": seed, "data_dir": data_dir}
            configs = {seed: from_settings(given(seed)) for seed in range(count)}
            key = next(iter(_taken(item, method)), None)
            takes = None if key is None else (key, item.methods[method][key])
            cells.append(Cell(row, method, place / row / method, configs, takes))
    return cells


def configs_of(
    item: Item, scale: Scale, data_dir: str | None = None
) -> dict[str, Config]:
    """The settings of each row of an item that has no methods; at "smoke" of the first."""
    rows = list(item.rows)[: 1 if scale == "smoke" else None]
    settings = {row: _settings(item.origin, scale, row) for row in rows}
    given = {"data_dir": data_dir}
    return {row: from_settings({**of, **given}) for row, of in settings.items()}


def _taken(item: Item, method: str) -> list[str]:
    """The keys of a method that say whose run it needs."""
    return [key for key in TAKEN if key in item.methods[method]]


def _chosen(
    item: Item, scale: Scale, name: Literal["rows", "methods"], given: Sequence[str]
) -> list[str]:
    """The rows or methods that were asked for, else those of the scale."""
    known = getattr(item, name)
    for one in given:
        check.one_of(name, one, known)
    wanted = given or item.scales.get(scale, {}).get(name, known)
    found = [one for one in known if one in wanted]
    if known and not found:
        raise SettingError(
            f"scale={scale} has none of the {name} of {item.name}; give some of "
            f"{', '.join(known)} by --{name}, or write --scale full.",
            setting=name,
        )
    return found


@cache
def _settings(name: str, scale: Scale, row: str, method: str = "") -> Mapping[str, Any]:
    """The settings of the runs of a cell of the item of this name, but for their seed."""
    item = read_item(name)
    at = lambda key: f"{', '.join(filter(None, (item.name, row, method)))}: {key}"
    of_method = item.methods.get(method, {})
    settings: dict[str, Any] = {}
    for table in (
        item.run,
        item.rows[row],
        {n: v for n, v in of_method.items() if n not in (*TAKEN, "over")},
        item.cells.get(row, {}).get(method, {}),
        item.scales.get(scale, {}).get("run", {}),
    ):
        settings = _merged(settings, flattened(table))
    settings = check_settings(settings, at)
    return _smoke(settings) if scale == "smoke" else settings


def _merged(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by full names with more of them; a new choice drops the old one's."""
    choices = {kind: settings[kind] for kind in KINDS if kind in settings}
    more = canonical({**choices, **more})
    gone = tuple(f"{k}." for k in KINDS if more.get(k) != settings.get(k, more.get(k)))
    kept = {n: v for n, v in settings.items() if not n.startswith(gone)}
    return {**kept, **more}


def _smoke(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the same code on tiny data, for seconds."""
    kinds = ("dataset.", "model.")
    small = {n: v for n, v in settings.items() if not n.startswith(kinds)} | SMOKE
    if settings.get("num_clients") == 1:  # that holds all data
        small["num_clients"] = 1
    if settings.get("labels") == "parity":  # two classes, of which the SVM knows
        small["model"] = settings["model"]
        del small["model.widths"]
    for name, most in {"public_examples": 30, "batch_size": 20, "epochs": 1}.items():
        if isinstance(small.get(name), int | float):
            small[name] = min(small[name], most)
    if "later_steps" in small:
        small["later_steps"] = (1, 1)  # of the two rounds
    for name, value in small.items():
        steps = name.endswith(("num_steps", "initial_steps", "trial_steps"))
        if steps and isinstance(value, int):
            small[name] = min(value, 3)
    return small


def make_runs(
    cells: Sequence[Cell],
    devices: Devices = "auto",
    progress: Report = silent,
    done: Callable[[Cell], None] = lambda _: None,
    made: Made | None = None,
) -> None:
    """Makes the runs of cells that are neither there yet nor `made`, as other items'.

    `devices` share the runs of a cell; `done` is called with each whose runs are there.

    Raises:
      SettingError: a folder holds runs of another protocol, or data files lack.
    """
    at = {(cell.row, cell.method): cell for cell in cells}
    for cell in cells:
        _finish_begun(cell, devices, progress)
        there = runs_of(cell, made)
        lack = [seed for seed in cell.configs if seed not in there]
        if cell.takes is None:
            _run(cell, [cell.configs[seed] for seed in lack], devices, progress)
        else:  # each has a run of its own to take them from
            key, method = cell.takes
            other = runs_of(at[cell.row, method], made)
            for seed in lack:
                folder = other.get(seed)
                if folder is None:  # it diverged: there is nothing to take
                    continue
                take = _with_steps if key == "steps_of" else _with_constants
                _run(cell, [take(cell.configs[seed], folder)], devices, progress)
        done(cell)


def made_below(folder: Path, scale: Scale) -> Made:
    """The finished runs of all items at a scale, below the folder of all reproductions."""
    made: dict[str, dict[int, Path | None]] = {}
    for begun in sorted(folder.glob(f"*/{scale}/*/*/*/{store.SUMMARY}")):
        for trial, whole in records.trials_in(begun.parent).items():
            config = read_config(trial / store.CONFIG)
            runs = made.setdefault(_settings_of(config), {})
            runs[config.seed] = trial if whole else None
    return made


def _settings_of(config: Config) -> str:
    """All that says which numbers a run will produce, but for its seed."""
    return json.dumps(identity(replace(config, seed=0)), default=str, sort_keys=True)


def runs_of(
    cell: Cell, made: Made | None = None, any_seed: bool = False
) -> dict[int, Path | None]:
    """The folder of each run of a cell that is over, by seed; None: it diverged.

    Those that were `made` for other items count, if they have the cell's settings; and with
    `any_seed` those of seeds that the cell was not asked for.
    """
    found: dict[int, Path | None] = {}
    if made and cell.takes is None:
        found |= made.get(_settings_of(cell.config), {})
    for begun in _sweeps(cell):
        if (begun / store.SUMMARY).exists():
            for trial, whole in records.trials_in(begun).items():
                seed = _checked_seed(cell, read_config(trial / store.CONFIG), begun)
                found[seed] = trial if whole else None
    wanted = sorted(found) if any_seed else cell.configs
    return {seed: found[seed] for seed in wanted if seed in found}


def _sweeps(cell: Cell) -> list[Path]:
    return sorted(path.parent for path in cell.folder.glob(f"*/{store.SWEEP}"))


def _finish_begun(cell: Cell, devices: Devices, progress: Report) -> None:
    """Goes on with sweeps that were interrupted."""
    for begun in _sweeps(cell):
        if not (begun / store.SUMMARY).exists():
            configs = [trial.config for trial in read_sweep(begun / store.SWEEP).trials]
            for config in configs:
                _checked_seed(cell, config, begun)
            data_dir = cell.config.data_dir
            configs = [replace(config, data_dir=data_dir) for config in configs]
            _sweep(begun, configs, devices, progress)


def _checked_seed(cell: Cell, config: Config, folder: Path) -> int:
    """The seed of a run that is one of the cell's but for it; else SettingError."""
    wanted = identity(replace(cell.config, seed=config.seed))
    ours = TAKES[cell.takes[0]] if cell.takes is not None else ()
    if change := first_difference(identity(config), wanted, ours):
        name, then, now = change
        raise SettingError(
            f"{folder} holds runs with {name}={then}, here {name}={now}; give another "
            "--folder.",
            setting="folder",
        )
    return config.seed


def _run(
    cell: Cell, configs: Sequence[Config], devices: Devices, progress: Report
) -> None:
    """Runs seeds of a cell, all as one sweep."""
    if configs:
        ends = dict.fromkeys(str(configs[at].seed) for at in (0, -1))
        name = f"seed-{'-'.join(ends)}"
        _sweep(cell.folder / name, configs, devices, progress)


def _sweep(
    folder: Path, configs: Sequence[Config], devices: Devices, progress: Report
) -> None:
    trials = [Trial(i, {"seed": c.seed}, c) for i, c in enumerate(configs)]
    grid = {"seed": [config.seed for config in configs]}
    # which an item has said, so that no hint says to write it
    given = {"partition_seed": configs[0].partition_seed}
    asked = Sweep(None, given, [grid], trials)
    whose = " of all seeds" if len(configs) > 1 else ""
    report = lambda now: progress(now._replace(whose=whose))
    sweep(asked, folder, resume=True, devices=devices, progress=report)


def _with_steps(config: Config, other: Path) -> Config:
    """The config with as many local steps in all as another run took.

    One client that holds all data takes their mean in each round, rounded.
    """
    if config.num_clients != 1:
        return replace(config, match=str(other.resolve()))
    total = store.read_summary(other)["local_steps"]  # pyright: ignore[reportOptionalSubscript]
    return replace(config, num_steps=max(round(total / config.rounds), 1))


def _with_constants(config: Config, trial: Path) -> Config:
    """The config with AFL's constants, as another run has estimated them."""
    table = records.read_run(trial).metrics
    shown = {name: table[name].to_numpy() for name in ("estimates", *CONSTANTS)}
    constants = {name: float(mean) for name, mean in means_of_trial(shown).items()}
    return replace(config, algorithm_options={**config.algorithm_options, **constants})
