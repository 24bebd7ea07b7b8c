"""A run: build, train on the device, write down what happens, end with a summary.

The device runs groups: the rounds from one evaluation to the next, and the evaluation,
in one compiled program. Rows are written before each checkpoint, and a resumed run goes
on from the newest checkpoint with the rows cut back to it. Round t's key is folded in
from the seed by t, and every group is the same program, so a resumed run gives the
numbers of one that was never interrupted, to the bit.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import jax

from ..core import State
from ..engine.evaluate import evaluate_clients
from ..engine.lanes import num_bytes
from . import checkpoint, figures, public, store, summary
from .build import Federation, build
from .config import Config, config_hash, method_of, partition_seed, to_toml
from .folder import check_folder, create, devices_of, run_folder
from .program import Program, compile_program
from .rows import Log
from .summary import Summary

UPDATE = 0.7  # seconds between two reports of progress, about


class Progress(NamedTuple):
    """How far a run is; the figures are None until the first evaluation."""

    round: int
    rounds: int
    accuracy: float | None = None
    loss: float | None = None
    rounds_per_second: float | None = None
    warning: str | None = None  # said once
    accuracy_name: str = "accuracy"  # what it is


Report = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """Reports nothing."""
    del progress


def run(config: Config, resume: bool = False, progress: Report = silent) -> Summary:
    """Trains, or goes on training, and leaves a run folder behind.

    Args:
      config: every setting.
      resume: go on with the run that lies in the folder, if there is one.
      progress: called about every second, between rounds; if it raises KeyboardInterrupt
        the rounds so far are saved.

    Returns:
      What summary.json holds.

    Raises:
      ValueError: a setting, a data file or the folder is not as it must be; nothing has
        been written.
      Diverged: the server's model is no longer finite, or its loss; the rows so far are
        written.
    """
    commit = summary.commit()  # now: the checkout may move on while the run goes on
    folder = run_folder(config)
    check_folder(folder, config, resume)
    config = replace(config, devices=devices_of(folder, config))
    federation = build(config)
    program = compile_program(config, federation)
    create(folder)
    with store.locked(folder):
        check_folder(folder, config, resume)
        if not (folder / store.CONFIG).exists():
            used = replace(config, devices=program.num_devices)
            store.write_text(folder / store.CONFIG, to_toml(used))
        state = _train(config, federation, program, folder, progress)
        result = _summarise(config, federation, program, folder, commit, state)
        store.finish(folder, result.to_dict())
    return result


def _train(
    config: Config,
    federation: Federation,
    program: Program,
    folder: Path,
    progress: Report,
) -> State:
    """From the newest checkpoint to the last round; returns the state after it."""
    accuracy = public.accuracy_name(federation)
    shown = accuracy.replace("_", " ")
    checkpoints = folder / "checkpoints"
    restored = checkpoint.restore(checkpoints, program.abstract)
    state, done = restored if restored is not None else (program.init(), 0)
    store.truncate(folder, done)
    broadcast = public.broadcast_bytes(federation)
    log = Log(folder, config.num_clients, accuracy, broadcast)
    schedule = Schedule(config, done)
    told = set()
    unused = public.unused(config, federation)
    progress(Progress(done, config.rounds, warning=unused, accuracy_name=shown))
    first, seconds, groups = done, 0.0, 1
    while done < config.rounds:
        began = time.perf_counter()
        stop = schedule.next_stop()
        state, parts = _dispatch(config, program, state, done, stop, groups)
        spent = time.perf_counter() - began
        done, latest = log.add(done, parts, spent)
        seconds += spent
        # as many groups as fit between two reports, found by trying
        groups = max(1, min(int(len(parts) * UPDATE / spent), 4 * len(parts)))
        rate = (done - first) / seconds
        warning = _warning(config, program, log, done, told)
        try:
            progress(Progress(done, config.rounds, *latest, rate, warning, shown))
        except KeyboardInterrupt:  # nothing is under way, so nothing need be lost
            log.write(done)
            checkpoint.save(checkpoints, state, done)
            raise
        if schedule.due(done):
            began = time.perf_counter()
            log.write(done)
            checkpoint.save(checkpoints, state, done)
            schedule.saved(done, time.perf_counter() - began)
    return state


def _warning(
    config: Config, program: Program, log: Log, done: int, told: set[str]
) -> str | None:
    """What the user should know and has not been told; once each."""
    if log.broken and "broken" not in told:
        told.add("broken")
        return (
            f"a client's loss was not finite in the rounds up to {log.broken}, and the "
            "server refused what came of it; lower lr if that is not what you wanted."
        )
    if log.idle and "idle" not in told:
        told.add("idle")
        return (
            f"nobody trained in round {log.idle}: {config.algorithm} gave every client 0 "
            "local steps, and the model stayed as it was; give more budget if it has one."
        )
    if log.cut and "cut" not in told:
        told.add("cut")
        ours = config.max_local_steps == program.max_steps
        name = "max_local_steps" if ours else "max_steps"
        return (
            f"{name}={program.max_steps} cut {log.cut} of {log.asked} local steps that "
            f"{config.algorithm} asked for up to round {done}; the column cut of the "
            "metrics counts on."
        )
    return None


def _dispatch(
    config: Config, program: Program, state: State, done: int, stop: int, groups: int
) -> tuple[State, list]:
    """Runs up to `groups` groups, not beyond `stop`, without waiting for each."""
    parts = []
    while len(parts) < groups and done < stop:
        whole = config.rounds - done >= config.evaluate_every
        group = program.group if whole else program.last
        assert group is not None
        state, *part = group(state)
        parts.append(part)
        done += config.evaluate_every
    return state, jax.device_get(parts)


@dataclass
class Schedule:
    """When to take a checkpoint: every so many rounds, or by the clock."""

    config: Config
    last: int  # the round of the newest checkpoint
    cost: float = 0.0  # seconds the newest took
    since: float = field(default_factory=time.monotonic)

    # Without checkpoint_every: every 20 s, or less often where writing takes more than
    # a twentieth of the time.
    SECONDS, SHARE = 20.0, 0.05

    def next_stop(self) -> int:
        """The round at which the device must hand back its state, at the latest."""
        every = self.config.checkpoint_every
        end = self.config.rounds
        return end if every is None else min(self.last + every, end)

    def due(self, done: int) -> bool:
        """Whether a checkpoint is due after `done` rounds."""
        waited = time.monotonic() - self.since
        by_clock = waited > max(self.SECONDS, self.cost / self.SHARE)
        clocked = self.config.checkpoint_every is None and by_clock
        return clocked or done >= self.next_stop()

    def saved(self, done: int, cost: float) -> None:
        """Takes note of a checkpoint."""
        self.last, self.cost, self.since = done, cost, time.monotonic()


def _summarise(
    config: Config,
    federation: Federation,
    program: Program,
    folder: Path,
    commit: str | None,
    state: State,
) -> Summary:
    source, sizes = federation.source, federation.skew.sizes
    metrics = store.read_table(folder, "metrics")
    named = store.accuracy_in(metrics.column_names)
    by_class = metrics[f"class_{named}"][-1].as_py()
    spread = {}
    if config.evaluate_clients:
        own = evaluate_clients(
            federation.task, state.params, federation.data, devices=program.num_devices
        )
        spread = figures.spread_over_clients(own.accuracy, sizes)
    return Summary(
        folder=str(folder),
        method=method_of(config),
        compile_seconds=program.seconds,
        config_hash=config_hash(config),
        seeds={"seed": config.seed, "partition_seed": partition_seed(config)},
        data={
            "name": config.dataset,
            "train": len(source.y_train),
            "test": len(source.y_test),
            "classes": source.num_classes,
            "clients": len(sizes),
            "smallest_client": int(sizes.min()),
            "largest_client": int(sizes.max()),
            "label_entropy": float(federation.skew.label_entropy.mean()),
        },
        hardware=summary.hardware() | {"devices": program.num_devices},
        versions=summary.versions(),
        commit=commit,
        class_accuracy=figures.per_class(by_class, source.y_test),
        client_accuracy=spread,
        client_state_bytes=num_bytes(program.abstract.clients),
        public=public.described(federation),
        auxiliary=public.auxiliary(config, federation),
        **summary.results(metrics, config.targets),
    )
