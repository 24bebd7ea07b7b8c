"""Tables and figures of the papers: a file each, whose runs are made where they lack.

    papers/fedssg/table1.toml is the item fedssg-table1

    title = "..."                what the table or figure shows
    place = "Table 1"            where in the paper
    of = "table1"                its runs are those of that item
    only = {rows = [...], methods = [...]}               some of these
    figures = ["last_mean"]      of a run's summary: the columns; else those that it draws
    draw = ["accuracy"]          columns of its metrics, or clients.COLUMN: the picture
    against = "round"
    chosen = ["..."]             what the paper does not state
    [run]                        settings of every run
    [rows.ROW], [methods.METHOD], [cells.ROW.METHOD]     settings of some of them
    [scales.cpu]                 rows, methods, seeds and [scales.cpu.run] of that scale
    [published.ROW.METHOD]       the paper's figures

A method with `steps_of = "METHOD"` takes as many local steps in all as that method's run of
the same row and seed. Runs lie in FOLDER/ITEM/SCALE/ROW/METHOD, a sweep for the seeds that
were asked for together; one that is there is not made again.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp

from .. import check
from ..errors import SettingError
from ..models import MODELS, classification
from . import store
from .config import Config, from_settings, identity, read_config
from .objects import KINDS
from .reading import check_settings
from .run import Report, silent
from .schema import kind_options
from .spelling import canonical, flattened
from .sweeps.grid import Sweep, Trial, read_sweep
from .sweeps.sweep import sweep

PAPERS = Path(__file__).parents[1] / "papers"
Devices = int | Literal["auto"]
Scale = Literal["smoke", "cpu", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)
SHARED = ("run", "rows", "methods", "cells", "scales")  # what `of` brings
KEYS = (
    *("title", "place", "of", "figures", "draw", "against", "chosen"),
    *("only", "published", *SHARED),
)
# a run of the same code that takes seconds; what a data set or a model is told goes with it
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


class Item(NamedTuple):
    """A table or a figure of a paper."""

    name: str  # PAPER-FILE
    title: str
    place: str  # in the paper
    origin: str  # the item that its runs lie under
    run: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    methods: dict[str, dict[str, Any]]
    cells: dict[str, dict[str, dict[str, Any]]]
    scales: dict[str, dict[str, Any]]
    figures: list[str]
    draw: list[str]
    against: str
    chosen: list[str]
    published: dict[str, dict[str, dict[str, Any]]]

    @property
    def base(self) -> str:
        """The method that speed-ups are over: the first."""
        return next(iter(self.methods))


class Cell(NamedTuple):
    """The runs of a row and a method, one for each seed."""

    row: str
    method: str
    folder: Path
    configs: dict[int, Config]  # by seed
    steps: str | None  # the method whose local steps these runs take


def names() -> list[str]:
    """Every item, paper by paper."""
    files = sorted(
        PAPERS.glob("*/*.toml"), key=lambda f: (f.parent.name, _order(f.stem))
    )
    return [f"{file.parent.name}-{file.stem}" for file in files]


def _order(stem: str) -> tuple[str, int]:
    word = stem.rstrip("0123456789")
    return word != "table", word, int(stem[len(word) :] or 0)  # pyright: ignore[reportReturnType]


@cache
def read_item(name: str) -> Item:
    """An item by its name, as in fedssg-table1.

    Raises:
      SettingError: there is none of that name.
    """
    if name not in names():
        raise SettingError(
            f"item {name!r} is unknown; {check.nearest(name, names())}", setting="item"
        )
    paper, _, stem = name.partition("-")
    path = PAPERS / paper / f"{stem}.toml"
    told = tomllib.loads(path.read_text(encoding="utf-8"))
    unknown = [key for key in told if key not in KEYS]
    if unknown:
        raise SettingError(f"{path.name} has {unknown[0]}, which is no part of an item")
    shared: Mapping[str, Any] = told
    origin = name
    tables = {"only": told.get("only", {}), **told.get("scales", {})}
    keys = {"only": ("rows", "methods")}
    for table, given in tables.items():
        wrong = set(given) - {*keys.get(table, ("rows", "methods", "seeds", "run"))}
        if wrong or table not in ("only", *SCALES):
            raise SettingError(
                f"{path} has {table}.{min(wrong, default='')}, which means "
                "nothing; see experiment/reproduce.py for what does."
            )
    if "of" in told and any(key in told for key in SHARED):
        raise SettingError(
            f"{path} has settings of runs, which are those of {told['of']}."
        )
    if "of" in told:
        other = read_item(f"{paper}-{told['of']}")
        shared, origin = other._asdict(), other.name
    rows, methods = dict(shared["rows"]), dict(shared["methods"])
    only, drawn = told.get("only", {}), told.get("draw", [])
    for table in (shared.get("cells", {}), told.get("published", {})):
        for row, of in table.items():
            lost = [row] if row not in rows else [m for m in of if m not in methods]
            if lost:
                raise SettingError(
                    f"{path} says something of {lost[0]}, which it has not."
                )
    return Item(
        name=name,
        title=told["title"],
        place=told["place"],
        origin=origin,
        run=shared.get("run", {}),
        rows={row: rows[row] for row in only.get("rows", rows)},
        methods={method: methods[method] for method in only.get("methods", methods)},
        cells=shared.get("cells", {}),
        scales=shared.get("scales", {}),
        figures=told.get("figures", [x for x in drawn if x in ("accuracy", "loss")]),
        draw=drawn,
        against=told.get("against", "round"),
        chosen=told.get("chosen", []),
        published=told.get("published", {}),
    )


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
      scale: "full" is the paper's; "cpu" what the item's file says of one; "smoke" the
        first row on the digits, two rounds, to try it out.
      rows: of the item; empty: those of the scale.
      methods: likewise. A method whose steps another takes comes with it, and so does the
        first of the item where speed-ups over it are shown.
      seeds: how many, from 0; None: as the scale has it, else 1.
      data_dir: where data files are.

    Raises:
      SettingError: a row or method is unknown, the scale has none of the item's, or seeds
        is no number of seeds.
    """
    rows = _chosen(item, scale, "rows", rows)
    rows = rows[:1] if scale == "smoke" else rows
    methods = _chosen(item, scale, "methods", methods)
    first = [item.methods[m].get("steps_of") for m in methods]
    if any(figure.startswith("speed_up.") for figure in item.figures):
        first.append(item.base)
    methods = list(dict.fromkeys([*(m for m in first if m is not None), *methods]))
    count = item.scales.get(scale, {}).get("seeds", 1) if seeds is None else seeds
    check.at_least("seeds", count, 1)
    place = folder / item.origin / scale
    cells = []
    for row in rows:
        for method in methods:
            settings = _settings(item.origin, scale, row, method)
            given = lambda seed, s=settings: {**s, "seed": seed, "data_dir": data_dir}
            configs = {seed: from_settings(given(seed)) for seed in range(count)}
            steps = item.methods[method].get("steps_of")
            cells.append(Cell(row, method, place / row / method, configs, steps))
    return cells


def _chosen(
    item: Item, scale: Scale, name: Literal["rows", "methods"], given: Sequence[str]
) -> list[str]:
    """The rows or methods that were asked for, else those of the scale."""
    known = getattr(item, name)
    for one in given:
        check.one_of(name, one, known)
    wanted = given or item.scales.get(scale, {}).get(name, known)
    found = [one for one in known if one in wanted]
    if not found:
        raise SettingError(
            f"scale={scale} has none of the {name} of {item.name}; give some of "
            f"{', '.join(known)} by --{name}, or write --scale full.",
            setting=name,
        )
    return found


@cache
def _settings(name: str, scale: Scale, row: str, method: str) -> Mapping[str, Any]:
    """The settings of the runs of a cell of the item of this name, but for their seed."""
    item = read_item(name)
    at = lambda key: f"{item.name}, {row}, {method}: {key}"
    settings: dict[str, Any] = {}
    for table in (
        item.run,
        item.rows[row],
        {name: v for name, v in item.methods[method].items() if name != "steps_of"},
        item.cells.get(row, {}).get(method, {}),
        item.scales.get(scale, {}).get("run", {}),
    ):
        settings = _told(settings, flattened(table))
    settings = check_settings(settings, at)
    return _smoke(settings) if scale == "smoke" else settings


def _told(settings: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by full names with more of them; a new choice drops the old one's."""
    choices = {kind: settings[kind] for kind in KINDS if kind in settings}
    more = canonical({**choices, **more})
    gone = tuple(f"{k}." for k in KINDS if more.get(k) != settings.get(k, more.get(k)))
    kept = {n: v for n, v in settings.items() if not n.startswith(gone)}
    return {**kept, **more}


def _smoke(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings of the same code on tiny data, for seconds."""
    small = {
        name: value
        for name, value in settings.items()
        if not name.startswith(("dataset.", "model."))
    } | SMOKE
    if settings.get("num_clients") == 1:  # that holds all data
        small["num_clients"] = 1
    if settings.get("labels") == "parity":  # two classes, of which the SVM knows
        small["model"] = settings["model"]
        del small["model.widths"]
    for name, most in {"public_examples": 30, "batch_size": 20, "epochs": 1}.items():
        if isinstance(small.get(name), int | float):
            small[name] = min(small[name], most)
    for name, value in small.items():
        if name.endswith(("num_steps", "initial_steps")) and isinstance(value, int):
            small[name] = min(value, 3)
    return small


def make_runs(
    cells: Sequence[Cell],
    devices: Devices = "auto",
    progress: Report = silent,
    done: Callable[[Cell], None] = lambda _: None,
) -> None:
    """Makes the runs that lack, cell by cell.

    Args:
      cells: of an item, see `cells_of`.
      devices: that share the runs of a cell.
      progress: as of a sweep.
      done: called with each cell whose runs are all there.

    Raises:
      SettingError: a folder holds runs of another protocol, or data files lack.
    """
    at = {(cell.row, cell.method): cell for cell in cells}
    for cell in cells:
        _finish_begun(cell, devices, progress)
        lack = [seed for seed in cell.configs if seed not in runs_of(cell)]
        if cell.steps is None:
            _run(cell, [cell.configs[seed] for seed in lack], devices, progress)
        else:  # each has a run of its own to take them from
            other = runs_of(at[cell.row, cell.steps])
            for seed in lack:
                folder = other.get(seed)
                if (
                    folder is not None
                ):  # else it diverged, and there are no steps to take
                    config = _with_steps(cell.configs[seed], folder)
                    _run(cell, [config], devices, progress)
        done(cell)


def runs_of(cell: Cell, any_seed: bool = False) -> dict[int, Path | None]:
    """The folder of each run of a cell that is over, by seed; None: it diverged.

    Args:
      cell: of an item.
      any_seed: those of seeds that the cell was not asked for, too.

    Raises:
      SettingError: they are of another protocol.
    """
    found = {}
    for begun in _sweeps(cell):
        if (begun / store.SUMMARY).exists():
            for trial in sorted((begun / store.TRIALS).iterdir()):
                whole = (trial / store.SUMMARY).exists()
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
            data_dir = next(iter(cell.configs.values())).data_dir
            for config in configs:
                _checked_seed(cell, config, begun)
            configs = [replace(config, data_dir=data_dir) for config in configs]
            _sweep(begun, configs, devices, progress)


def _checked_seed(cell: Cell, config: Config, folder: Path) -> int:
    """The seed of a run that is one of the cell's but for it.

    Raises:
      SettingError: it is not.
    """
    then = identity(config)
    now = identity(replace(next(iter(cell.configs.values())), seed=config.seed))
    ours = ("match", "num_steps") if cell.steps is not None else ()
    for name in {**now, **then}:
        if then.get(name) != now.get(name) and name not in ours:
            raise SettingError(
                f"{folder} holds runs with {name}={then.get(name)}, here "
                f"{name}={now.get(name)}; give another --folder.",
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
    asked = Sweep(None, {}, [grid], trials)
    sweep(asked, folder, resume=True, devices=devices, progress=progress)


def _with_steps(config: Config, other: Path) -> Config:
    """The config with as many local steps in all as another run took.

    One client that holds all data takes their mean in each round, rounded.
    """
    if config.num_clients != 1:
        return replace(config, match=str(other.resolve()))
    total = store.read_summary(other)["local_steps"]  # pyright: ignore[reportOptionalSubscript]
    return replace(config, num_steps=max(round(total / config.rounds), 1))


# what the estimates of costs rest on
DATA = {  # inputs, training examples, classes
    "digits": ((8, 8, 1), 1437, 10),
    "mnist": ((28, 28, 1), 60_000, 10),
    "emnist_letters": ((28, 28, 1), 48_000, 10),
    "fashion_mnist": ((28, 28, 1), 60_000, 10),
    "cifar10": ((32, 32, 3), 50_000, 10),
    "cifar100": ((32, 32, 3), 50_000, 100),
    "speech_commands": ((49, 40), 30_769, 10),
}
# operations a second of a core: the rounds of benchmarks/rounds.py on two cores of an AMD
# EPYC without AVX-512, commit 0928c17, 2026-11-23, n = 1 (W1 75e9, W2 55e9)
CORE = 6e10
GPU = 2e13  # of an H100 in float32; a guess, like the next, that none has confirmed
STEP = 1e-4  # seconds that a local step takes at the least, all clients at once


class Cost(NamedTuple):
    """About how long the runs of some cells take, each seed counted."""

    core_hours: float
    gpu_minutes: float


def cost(
    cells: Sequence[Cell], runs: Callable[[Cell], int] = lambda cell: len(cell.configs)
) -> Cost | None:
    """An estimate from the operations of the local steps; None: the data are not known.

    Methods that choose their steps count as if they stayed at the first number.

    Args:
      cells: of an item, with those whose steps others take.
      runs: how many of a cell count.
    """
    core = gpu = 0.0
    at = {(cell.row, cell.method): next(iter(cell.configs.values())) for cell in cells}
    for cell in cells:
        config = at[cell.row, cell.method]
        if config.dataset not in DATA or config.num_clients is None:
            return None
        shape, examples, classes = DATA[config.dataset]
        examples = min(config.train_examples or examples, examples)
        mine = examples / config.num_clients
        batch = min(config.batch_size or mine, mine)
        other = config if cell.steps is None else at[cell.row, cell.steps]
        known = kind_options("algorithm", other.algorithm)
        defaults = {name: option.default for name, option in known.items()}
        told = defaults | dict(other.algorithm_options)
        fixed = [told.get("num_steps"), told.get("initial_steps"), other.num_steps]
        fixed = [number for number in fixed if isinstance(number, int)]
        steps = config.rounds * (fixed[0] if fixed else config.epochs * mine / batch)
        cohort = max(config.participation * config.num_clients, 1)
        model = (config.model, tuple(config.model_options.items()), shape, classes)
        work = 3 * steps * cohort * batch * _operations(*model)  # forward, twice back
        core += runs(cell) * max(work / CORE, steps * STEP) / 3600
        gpu += runs(cell) * max(work / GPU, steps * STEP) / 60
    return Cost(core, gpu)


@cache
def _operations(
    model: str, options: tuple, shape: tuple[int, ...], classes: int
) -> float:
    """Floating-point operations of a forward pass of one example, as XLA counts them."""
    network = MODELS[model](shape, 2 if model == "svm" else classes, **dict(options))
    task = classification(network, shape)
    params = jax.eval_shape(task.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    found = jax.jit(task.apply).lower(params, x).cost_analysis()
    assert found is not None
    return found["flops"]
