"""What a run, a sweep or a search would do, and about how long it would take.

Nothing is trained and no folder is made. Times follow from the operations of local steps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Algorithm, Task, Traffic, as_refinement, tree_bytes
from ..costs import messages, refined_traffic, round_bytes
from ..data import FederatedDataset
from ..engine import step_time
from ..engine.batches import batch_size
from ..engine.build import num_lanes_of
from ..engine.cohort import (
    eligible_clients,
    expected_share,
    gather_cohort,
    most_steps,
    num_slots,
    participation_of,
    rows_of,
)
from ..engine.footprint import Footprint
from ..engine.lanes import client_steps
from ..engine.memory import free_memory
from ..engine.mesh import num_cores
from ..engine.round import checked
from ..models import MODELS, classification
from ..plan import Plan
from . import checkpoint, store
from .build import (
    AUTO,
    RULE,
    Federation,
    broadcast_bytes,
    build,
    build_plan,
    without_effect,
)
from .config import Config, method_of, to_settings
from .folder import as_begun, check_folder, run_folder
from .program import compile_seconds, group_sizes, trace_program
from .reproduce import Cell
from .sweeps.compiled_group import guessed_memory, layout_of
from .sweeps.grid import Sweep, seed_hint
from .sweeps.groups import Group
from .sweeps.space import Search, rungs, sweep_of
from .sweeps.sweep import check_begun, group_folder, groups_in
from .sweeps.tune import check_folder as check_search
from .sweeps.tune import distinct, num_proposed, proposals
from .tracking import check_tracker
from .tuning import LONG, tries_lanes


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a run come to, as far as its settings and its data say."""

    rounds: int
    clients: int  # in all
    cohort: float  # clients that are expected in a round
    # local steps of a client in the first round, a mean over those that hold examples, and
    # of the client that takes most; None: they follow from what clients measure or lose
    mean_steps: float | None
    most_steps: int | None
    steps_cap: int | None  # that a client takes at most; None: there is no cap
    # of all clients in the first round, expected: one on a batch for each local step;
    # None: as `mean_steps`, or they hang on who ends first
    gradients: float | None
    # expected of the clients of a round, but for `bytes_refined`
    bytes_down: float
    bytes_up: float
    bytes_refined: int  # that each client moves besides which refines on a public set
    broadcast_bytes: int  # of a public set, that clients receive before the first round


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
    if tries_lanes(config, federation.algorithm):
        notes.append(
            f"lanes are by rule here, and a run of {LONG} rounds or more tries out which "
            "number is fastest."
        )
    lanes = num_lanes_of(*federation[:4], notes.append)
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


def seconds_of(
    config: Config, federation: Federation, rounds: Rounds, at_once: int, done: int = 0
) -> float | None:
    """About how long the rounds after `done` take; None: their steps are not known.

    So many clients train at once. Steps on a public set, and what a method computes
    besides gradients on batches, are in no estimate.
    """
    if rounds.gradients is None or rounds.most_steps is None:
        return None
    task, data, plan = federation[1:4]
    left = rounds.rounds - done
    gradients = float(left * rounds.gradients)
    tests = 0 if data.test is None else len(data.test[1])
    evaluated = tested_examples(config, left, tests)
    after = left * math.ceil(rounds.cohort / at_once) * rounds.most_steps
    return train_seconds(task, data, plan, gradients, evaluated, after)


def tested_examples(config: Config, rounds: int, tests: int) -> float:
    """The examples that the tests of so many rounds see, once for each model."""
    models = 1 + len(config.evaluate_also)
    return rounds / config.evaluate_every * models * tests


def rounds_of(config: Config, federation: Federation, algorithm: Algorithm) -> Rounds:
    """What the rounds of a run come to; `algorithm` is `checked`."""
    task, data, plan = federation[1:4]
    ids, who = np.asarray(eligible_clients(data, plan)), participation_of(plan)
    share = expected_share(data, plan)
    batch = batch_size(data, plan)
    everyone = gather_cohort(data, jnp.asarray(ids), jnp.int32(0), batch)
    steps = client_steps(algorithm.policy, task, data, plan)
    if steps is not None:
        everyone = everyone._replace(active=jnp.asarray(steps[ids] > 0))
    holders = np.asarray(everyone.num_examples) > 0
    params = jax.eval_shape(task.init, jax.random.key(0))
    cohort, drawn = everyone, share
    if who.first_to_end:  # all begin, and these are waited for
        cohort, drawn = rows_of(everyone, slice(num_slots(data, plan))), 1.0
    down, up = round_bytes(algorithm, params, cohort, everyone)
    refine = as_refinement(algorithm.refine)
    more = Traffic() if refine is None else refined_traffic(algorithm)
    mean = most = gradients = None
    if steps is not None:
        mean, most = float(steps[ids][holders].mean()), int(steps.max())
        gradients = None if who.first_to_end else share * float(steps[ids].sum())
    return Rounds(
        rounds=config.rounds,
        clients=data.num_clients,
        cohort=share * len(ids),
        mean_steps=mean,
        most_steps=most,
        steps_cap=most_steps(plan, algorithm.policy),
        gradients=gradients,
        bytes_down=drawn * float(down),
        bytes_up=drawn * float(up),
        bytes_refined=sum(messages(more, params)),
        broadcast_bytes=broadcast_bytes(federation),
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
    )


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
# operations a second of a core: the rounds of benchmarks/rounds.py on two cores of an AMD
# EPYC without AVX-512, commit 0928c17, 2026-11-23, n = 1 (W1 75e9, W2 55e9)
CORE = 6e10
STEP = 1e-4  # seconds that a local step takes there at the least, all clients at once
# of the peak of a GPU in float32: a round of W1, which is work, took 24 ms on an H200. One
# of W2, which moves models, took the 1.3 ms that follow from step_time.py alone
REACHED = 0.28


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
        gpu += runs(cell) * _gpu_seconds(work, steps * cohort * size, steps) / 60
    return Cost(core, gpu)


def _gpu_seconds(work: float, trained: float, steps: float) -> float:
    """What rounds of `work` operations take on a GPU, by the rule of step_time.py.

    The models that take a step are `trained` bytes over all steps, of which `steps` follow
    one another.
    """
    moving = step_time.MOVED * trained / step_time.BANDWIDTH
    return steps * step_time.STEP + max(work / (REACHED * step_time.PEAK), moving)


@cache
def _sizes(
    model: str, options: tuple, shape: tuple[int, ...], classes: int
) -> tuple[float, int]:
    """As `_sizes_of`, of a model by its name."""
    network = MODELS[model](shape, 2 if model == "svm" else classes, **dict(options))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    return _sizes_of(classification(network, shape), x)


def _sizes_of(task: Task, x: jax.ShapeDtypeStruct) -> tuple[float, int]:
    """Operations of a forward pass of one example [1, ...], and bytes of the model."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    forward = step_time.operations(jax.make_jaxpr(task.apply)(params, x).jaxpr)
    return forward, tree_bytes(params)


def train_seconds(
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    gradients: float,
    evaluated: float,
    steps: float,
) -> float:
    """About how long rounds take on the devices here, once they are compiled.

    `gradients` are those of all clients, each on a batch, `evaluated` the examples that
    models are evaluated on, and `steps` the local ones that follow one another.
    """
    x = jax.ShapeDtypeStruct((1, *data.x.shape[1:]), data.x.dtype)
    forward, size = _sizes_of(task, x)
    work = (3 * gradients * batch_size(data, plan) + evaluated) * forward
    if jax.default_backend() == "cpu":
        return max(work / (CORE * num_cores()), steps * STEP)
    return _gpu_seconds(work, gradients * size, steps)
