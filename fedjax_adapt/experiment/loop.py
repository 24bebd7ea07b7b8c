"""From the newest state of a folder to the last round, of a run or of trials at once."""

import signal
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from ..core import State
from ..engine import processes
from ..engine.train import Callback
from ..engine.xla import wait_for_shared_cpu_state
from ..errors import SettingError
from ..interrupts import finishing
from . import checkpoint, files, store
from .build import Federation, accuracy_name, broadcast_bytes, broadcast_seconds
from .config import Config
from .program import Program
from .rows import Log, Tally
from .tracking import trackers

SAVED = "the rounds so far are saved; resume=True goes on with them"  # after Ctrl-C
SHOWN = 3  # trials that a warning names
UPDATE = 0.7  # seconds between two reports of progress, about


class Stopped(KeyboardInterrupt):
    """Ctrl-C between two rounds, in this process or another; what is done is saved."""


def newest_state(folder: Path, abstract: State) -> tuple[State | None, int, str | None]:
    """The newest state in `folder`, its round and a warning; None, 0 and None without one.

    The rows in the folder are cut back to that round; where some are damaged it is a round
    before them. Every process must call it.
    """
    checkpoints = folder / store.CHECKPOINTS
    until, damaged, why = None, [], ""
    with processes.agreed():
        if processes.is_first():
            until, damaged, why = store.whole_until(folder)
            saved = checkpoint.rounds(checkpoints)
            if until is not None and saved and saved[0] > until:
                raise SettingError(
                    f"{why}, and no state from before it is left; put it back as it was, "
                    "or start again in another folder."
                )
    state, done = checkpoint.restore(checkpoints, abstract, until) or (None, 0)
    if not processes.is_first():
        return state, done, None
    unlisted = done and files.listed(checkpoints) is None
    said = [checkpoint.set_aside(checkpoints, done, why)]
    said += [files.unlisted(checkpoints)] if unlisted else []
    store.truncate(folder, done, damaged)
    return state, done, " ".join(text for text in said if text) or None


def new_log(
    folder: Path,
    federation: Federation,
    configs: Mapping[int | None, Config],
    callback: Callback | None,
    trials: Mapping[int, Mapping[str, Any]] | None = None,
    base: int = 0,
    place: Path | None = None,
    done: int = 0,
) -> Log:
    """The `Log` of a run, whose config is under None, or of trials, by their numbers.

    The first process writes it. Its trackers lie in `place`, that of the run or the sweep,
    and go on after `done` rounds.
    """
    first = processes.is_first()
    clips = next(iter(configs.values())).clip_norm is not None
    return Log(
        folder if first else None,
        federation.data.num_clients,
        accuracy_name(federation),
        broadcast_bytes(federation),
        callback,
        trials,
        base,
        took={n: broadcast_seconds(one, federation) for n, one in configs.items()},
        trackers=trackers(place or folder, configs if first else {}, done),
        advice=f"lower lr or {'' if clips else 'set '}clip_norm",
    )


def new_warning(
    configs: Mapping[int | None, Config],
    max_steps: int | None,
    log: Log,
    done: int,
    given: set[tuple[str, int | None]],
    shown: Callable[[Any], Any] = str,
) -> str | None:
    """The next warning after `done` rounds of a run or of trials; None: there is none.

    Args:
      configs: as `new_log` takes them.
      max_steps: of a client in a round, by the program.
      log: what the rounds so far came to.
      done: how many there were.
      given: the kinds of warnings that were given, each with a trial it was of; those of
        this one are added.
      shown: what a trial is called.
    """
    found: dict[str, dict[str, list[int | None]]] = {}
    for trial, config in configs.items():
        if trial in log.over:  # diverged, which its results say
            continue
        tally = log.tallies[trial]
        for kind, text in _warnings(config, max_steps, tally, done).items():
            if (kind, trial) not in given:
                found.setdefault(kind, {}).setdefault(text, []).append(trial)
    if not found:
        return None
    kind, of_kind = next(iter(found.items()))
    (text, first), *others = of_kind.items()
    also = sum((trials for _, trials in others), [])
    given.update((kind, trial) for trial in first + also)
    return text if None in first else of_trials(text, map(shown, first), len(also))


def of_trials(text: str, trials: Iterable[Any], also: int = 0) -> str:
    """A warning of trials of a sweep, which are named; `also` of so many that are not."""
    names = list(map(str, trials))
    if len(names) > SHOWN:
        names, also = names[:SHOWN], also + len(names) - SHOWN
    more = [f"{also} more"] * (also > 0)
    *before, last = names + more
    listed = f"{', '.join(before)} and {last}" if before else last
    return f"trial{'s' * (len(names) + also > 1)} {listed}: {text}"


def _warnings(
    config: Config, max_steps: int | None, tally: Tally, done: int
) -> dict[str, str]:
    """What a user should know of a run after `done` rounds, by kind."""
    found = {}
    if tally.broken:
        found["broken"] = (
            f"a client's loss was not finite in the rounds up to {tally.broken}, and the "
            "server refused what came of it; lower lr if that is not what you wanted."
        )
    if tally.left_out:
        round, clients = tally.left_out
        who = f"{len(clients)} clients" if len(clients) > 1 else f"client {clients[0]}"
        found["left_out"] = (
            f"what {who} sent in round {round} was not finite, and was left out; the "
            "column left_out of the metrics counts on, and that of the clients says who."
        )
    if tally.idle:
        found["idle"] = (
            f"nobody trained in round {tally.idle}: {config.algorithm} gave every client 0 "
            "local steps, and the model stayed as it was; give more budget if it has one."
        )
    if tally.broadcast and done == config.rounds and not tally.totals["public_steps"]:
        found["broadcast"] = (
            f"{config.algorithm} trained no client on the public set in any round; give a "
            "larger fraction of the cohort, or more rounds."
        )
    if tally.cut:
        ours = config.max_local_steps == max_steps
        name = "max_local_steps" if ours else "max_steps"
        found["cut"] = (
            f"{name}={max_steps} cut {tally.cut} of {tally.asked} local steps that "
            f"{config.algorithm} asked for up to round {done}; the column cut of the "
            "metrics counts on."
        )
    return found


def train_in(
    folder: Path,
    config: Config,
    program: Program,
    state: State,
    done: int,
    log: Log,
    report: Callable[[int, tuple[float, float], float], None],
    at_end: Callable[[State, int], None] | None = None,
) -> State:
    """As `train`, saving rows and states in `folder`, the rows of a round before its state.

    `at_end` is called with the last state and its round, when its rows are written and
    before it is. Ctrl-C is raised between rounds.
    """
    saver = checkpoint.saver(folder / store.CHECKPOINTS)
    # the command line handles Ctrl-C itself
    unhandled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupts = finishing() if unhandled else nullcontext(lambda: None)
    with interrupts as stop_if_asked, log.trackers, saver as writes:

        def save(state: State, done: int) -> float:
            stopped = log.callback is not None and log.all_over
            log.write(done)
            if at_end is not None and (stopped or done == config.rounds):
                at_end(state, done)
            return writes.save(state, log.base + done)

        def report_or_stop(*figures) -> None:
            report(*figures)
            stop_if_asked()

        state = train(config, program, state, done, log, save, report_or_stop)
    stop_if_asked()  # where it came after the last round
    return state


def train(
    config: Config,
    program: Program,
    state: State,
    done: int,
    log: Log,
    save: Callable[[Any, int], float],
    report: Callable[[int, tuple[float, float], float], None],
) -> State:
    """Goes on from `state`, after `done` rounds, to the last; returns the state then.

    `state` gives up its memory. `save` writes down the rows so far and a state, with the
    rounds done; it may still be at it when it returns, and says how many seconds it took
    the last time. `report` is called about every second with the rounds done, the last
    figures and the rounds per second.

    Where there is a callback it is called for each group before the next begins, and what
    it raises is raised once the rounds so far are saved. So is `Stopped`, where it or
    `report` raises KeyboardInterrupt in any process.
    """
    schedule = Schedule(config, done)
    first, seconds, groups, ended = done, 0.0, 1, False
    while done < config.rounds and not ended:
        began = time.perf_counter()
        stop = schedule.next_stop()
        state, parts = _dispatch(config, program, state, done, stop, groups)
        spent = time.perf_counter() - began
        done, latest = log.add(done, parts, spent)
        seconds += spent
        # as many groups as fit between two reports, found by trying
        groups = max(1, min(int(len(parts) * UPDATE / spent), 4 * len(parts)))
        if log.callback is not None:
            groups = 1
        stopped, failed = False, None
        try:
            ended = log.ends()
        except KeyboardInterrupt:
            stopped = True
        except Exception as error:
            failed = error
        try:
            report(done, latest, (done - first) / seconds)
        except KeyboardInterrupt:
            stopped = True
        stopped = stopped or failed is not None
        # by the clock and the callback of the first process, and by anybody's Ctrl-C
        votes = processes.of_all([groups, schedule.due(done), stopped, ended])
        groups, due, _, ended = votes[0]
        stopped = any(vote[2] for vote in votes)
        if stopped:  # nothing is under way, so nothing need be lost
            raised = Stopped(SAVED) if failed is None else failed
            with checkpoint.noted(raised):
                save(state, done)
            raise raised
        if due or ended:
            began = time.perf_counter()
            spent = save(state, done)
            schedule.saved(done, max(spent, time.perf_counter() - began))
    return state


def _dispatch(
    config: Config, program: Program, state: State, done: int, stop: int, groups: int
) -> tuple[State, list]:
    """Runs up to `groups` groups, not beyond `stop`, waiting for each where it must."""
    parts = []
    while len(parts) < groups and done < stop:
        whole = config.rounds - done >= config.evaluate_every
        group = program.group if whole else program.last
        assert group is not None
        state, *part = group(state)
        wait_for_shared_cpu_state(state)
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
