"""What a run, a sweep or a search would do, and about how long it would take.

Nothing is trained and no folder is made. Times follow from the operations of local steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from ..engine.build import num_lanes_of
from ..engine.footprint import Footprint
from ..engine.memory import free_memory
from ..engine.round import checked
from ..models import MODELS, classification
from . import checkpoint, store
from .build import (
    AUTO,
    RULE,
    build,
    build_plan,
    without_effect,
)
from .config import Config, method_of, to_settings
from .estimates import (
    CORE,
    STEP,
    Rounds,
    gpu_seconds,
    rounds_of,
    seconds_of,
    sizes_of,
    tested_examples,
)
from .folder import as_begun, check_folder, run_folder
from .program import compile_seconds, group_sizes, trace_program
from .reproduce import Cell
from .sweeps.compiled_group import guessed_memory, layout_of
from .sweeps.grid import Sweep, seed_hint
from .sweeps.groups import Group
from .sweeps.space import Search, rungs, sweep_of
from .sweeps.sweep import check_begun, group_folder, groups_in, notes_of
from .sweeps.tune import check_folder as check_search
from .sweeps.tune import distinct, num_proposed, proposals
from .tracking import check_tracker
from .tuning import tries_lanes


@dataclass(frozen=True)
class Preview:
    """What a run would do."""

    folder: str  # where it would lie
    begins: int  # the rounds that are done and saved there
    method: str  # as in its summary
    data: str  # the name of the data set
    rounds: Rounds
    lanes: int  # clients side by side on a device
    devices: int  # that share a round
    memory: Footprint  # that is expected
    free: int | None  # bytes that are free now; None: that is not known
    programs: list[int]  # the rounds of each that would be compiled
    compile_seconds: float | None  # about; None: not known, as on a GPU
    train_seconds: float | None  # of the rounds left; None: their steps are not known
    notes: list[str]  # what a run would say besides


def preview(config: Config, resume: bool = False) -> Preview:
    """What `run(config, resume)` would do or raise; data are loaded and programs traced."""
    folder = run_folder(config)
    check_tracker(config.track)
    check_folder(folder, config, resume)
    config = as_begun(folder, config)
    federation = build(config)
    notes = without_effect(config, federation)
    if federation.source.validates:
        count = len(federation.source.y_test)
        notes.append(f"measured on {count} validation examples, which no client holds.")
    if tries_lanes(config, federation):
        notes.append("lanes are by rule here, and a run tries out which are fastest.")
    lanes = num_lanes_of(federation.setup, notes.append)
    rule = RULE if config.convolutions == AUTO else config.convolutions
    config = replace(config, lanes=lanes, convolutions=rule)
    federation = federation._replace(plan=build_plan(config))
    traced = trace_program(config, federation)
    saved = checkpoint.rounds(folder / store.CHECKPOINTS)
    done = saved[-1] if saved else 0
    rounds = rounds_of(config, federation, traced.round_fn.step.algorithm)
    at_once = lanes * traced.round_fn.num_devices
    return Preview(
        folder=str(folder),
        begins=done,
        method=method_of(config),
        data=config.dataset,
        rounds=rounds,
        lanes=lanes,
        devices=traced.round_fn.num_devices,
        memory=traced.footprint,
        free=free_memory(),
        programs=group_sizes(config),
        compile_seconds=compile_seconds(traced.groups.values()),
        train_seconds=seconds_of(config, federation, rounds, at_once, done),
        notes=notes,
    )


@dataclass(frozen=True)
class GroupPreview:
    """What the trials of a sweep would do that share a program."""

    name: str  # of the group
    trials: list[int]  # their numbers
    finished: bool  # over already, so that nothing would be done
    at_once: int  # how many run side by side, on all devices
    rounds: Rounds  # of the first trial; other partitions have other steps
    memory: int  # bytes besides the data, a guess where trials run side by side
    programs: list[int]  # the rounds of each that would be compiled
    train_seconds: float | None  # of all, about; None: their steps are not known
    notes: list[str]  # what a sweep would say of them besides


@dataclass(frozen=True)
class SweepPreview:
    """What a sweep would do."""

    folder: str  # where it would lie
    groups: list[GroupPreview]  # one after the other
    free: int | None  # bytes that are free now; None: that is not known
    note: str | None  # what the sweep would say besides


@dataclass(frozen=True)
class SearchPreview:
    """What a search would do."""

    folder: str  # where it would lie
    trials: int  # in all
    proposed: int  # of which so many have been already
    at_once: int  # how many are proposed at once
    # how many of these, without repeats, are trained up to each number of rounds
    rungs: dict[int, int]
    first: SweepPreview  # what the first of them come to, by all rounds


def as_dict(found: Preview | SweepPreview | SearchPreview) -> dict[str, Any]:
    """All of it, for JSON."""
    if not isinstance(found, Preview):
        return asdict(found)
    memory = found.memory._asdict() | {"peak": found.memory.peak}
    return asdict(found) | {"memory": memory}


def preview_search(search: Search, folder: Path, resume: bool = False) -> SearchPreview:
    """What `tune` would do with this, or raise; data are loaded and programs traced."""
    check_search(folder, search, resume)
    points = list(distinct(proposals(search, [])).values())
    left, counts = len(points), {}
    for rounds in rungs(search.rounds, left, search.halve):
        counts[rounds] = left
        left //= search.halve or 1
    first = sweep_of(search, points, search.rounds)
    return SearchPreview(
        folder=str(folder),
        trials=search.trials,
        proposed=num_proposed(folder),
        at_once=search.at_once,
        rungs=counts,
        first=preview_sweep(first, folder / "trials"),
    )


def preview_sweep(
    asked: Sweep,
    folder: Path,
    resume: bool = False,
    devices: int | Literal["auto"] | None = None,
    side_by_side: int | Literal["auto"] = "auto",
) -> SweepPreview:
    """What `sweep` would do with this, or raise; data are loaded and programs traced."""
    groups = groups_in(folder, asked, resume, devices, side_by_side)
    for group in groups:
        check_begun(folder, group)
    found = [_preview(folder, group, side_by_side) for group in groups]
    return SweepPreview(str(folder), found, free_memory(), seed_hint(asked))


def _preview(
    folder: Path, group: Group, side_by_side: int | Literal["auto"]
) -> GroupPreview:
    config, count = group.trials[0].config, len(group.trials)
    federation = build(config)
    if count == 1:  # compiled as a run is
        held, at_once = trace_program(config, federation).footprint, 1
        needed = held.total - held.data
    else:
        layout = layout_of(config, federation, count, side_by_side)
        at_once, needed = layout.width, guessed_memory(config, federation, layout)
    rounds = rounds_of(config, federation, checked(*federation[:4]))
    all_at_once = federation.data.num_clients
    seconds = seconds_of(config, federation, rounds, all_at_once)
    return GroupPreview(
        name=group.name,
        trials=[trial.number for trial in group.trials],
        finished=store.read_summary(group_folder(folder, group)) is not None,
        at_once=at_once,
        rounds=rounds,
        memory=needed,
        programs=group_sizes(config),
        train_seconds=None if seconds is None else count * seconds,
        notes=notes_of(group, federation),
    )


# seconds that a method of a row takes on a core to be traced and compiled, for all seeds:
# scale smoke of 36 items, whose rounds take none, took 6 to 10 s a method on an AMD EPYC
START = 7.0
DATA = {  # inputs, training and test examples, classes
    "digits": ((8, 8, 1), 1437, 360, 10),
    "mnist": ((28, 28, 1), 60_000, 10_000, 10),
    "emnist_letters": ((28, 28, 1), 48_000, 8_000, 10),
    "fashion_mnist": ((28, 28, 1), 60_000, 10_000, 10),
    "cifar10": ((32, 32, 3), 50_000, 10_000, 10),
    "cifar100": ((32, 32, 3), 50_000, 10_000, 100),
    "speech_commands": ((49, 40), 30_769, 4_074, 10),
    "gaussian_images": ((4, 4, 1), 50_000, 10_000, 2),  # as GIFT's Fig. 2 has them
}


class Cost(NamedTuple):
    """About how long the runs of some cells take, each seed counted."""

    core_hours: float
    gpu_minutes: float


def cost(
    cells: Sequence[Cell], runs: Callable[[Cell], int] = lambda cell: len(cell.configs)
) -> Cost | None:
    """An estimate from the operations of steps and tests; None: the data are not known.

    Methods that choose their steps count as if they stayed at the first number. The cells
    of an item come with those whose steps others take; `runs` is how many of one count.
    """
    core = gpu = 0.0
    at = {(cell.row, cell.method): cell.config for cell in cells}
    for cell in cells:
        config = cell.config
        if config.dataset not in DATA or config.num_clients is None:
            return None
        shape, examples, tests, classes = DATA[config.dataset]
        examples = min(config.train_examples or examples, examples)
        mine = examples / config.num_clients
        batch = min(config.batch_size or mine, mine)
        other = config
        if cell.takes is not None and cell.takes[0] == "steps_of":
            other = at[cell.row, cell.takes[1]]
        given = to_settings(other)
        names = ("algorithm.num_steps", "algorithm.initial_steps", "num_steps")
        fixed = [given[n] for n in names if isinstance(given.get(n), int)]
        steps = config.rounds * (fixed[0] if fixed else config.epochs * mine / batch)
        cohort = max(config.participation * config.num_clients, 1)
        model = (config.model, tuple(config.model_options.items()), shape, classes)
        ideal = config.rounds * (config.ideal_steps or 0) * examples
        seen = steps * cohort * batch + ideal
        forward, size = _sizes(*model)
        # a step goes forward once and back twice
        work = (3 * seen + tested_examples(config, config.rounds, tests)) * forward
        core += runs(cell) * max(work / CORE, steps * STEP) / 3600
        core += (runs(cell) > 0) * START / 3600
        gpu += runs(cell) * gpu_seconds(work, steps * cohort * size, steps) / 60
    return Cost(core, gpu)


@cache
def _sizes(
    model: str, options: tuple, shape: tuple[int, ...], classes: int
) -> tuple[float, int]:
    """As `sizes_of`, of a model by its name."""
    network = MODELS[model](shape, 2 if model == "svm" else classes, **dict(options))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    return sizes_of(classification(network, shape), x)
