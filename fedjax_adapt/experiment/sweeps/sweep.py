"""A sweep: many runs, and one program for as many of them as it will do for.

Trials that agree in all but seeds, numbers that JAX may trace and who holds which examples
form a group: its examples are loaded once, its program is compiled once, and as many
trials as fit run side by side.
Groups come one after the other, and so do the trials of a group that do not fit. What is
done is never done again: a sweep that was killed goes on from the newest checkpoint.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from ... import check
from ...core import Algorithm, State, Task
from ...data import FederatedDataset
from ...engine import mesh, processes
from ...engine.train import Callback, check_callback
from ...errors import SettingError
from ...plan import SCALARS
from .. import files, objects, records, store, summary, toml, user_functions
from ..build import Federation, auxiliary, build, counted, without_effect
from ..config import identity
from ..files import locked
from ..folder import create
from ..loop import new_log, new_warning, newest_state, of_trials, train_in
from ..records import Swept
from ..run import Progress, Report, silent
from ..tracking import check_tracker
from ..user_functions import origins
from . import results
from .compiled_group import CompiledGroup, Layout, compile_group, layout_of
from .grid import Sweep, Trial, read_sweep, seed_hint
from .groups import Group, groups_of
from .results import write_last, write_trials

# settings that often vary, and that do not decide how many clients there are
TRAINING = (*SCALARS, "epochs", "seed")
GROUP = "group.toml"  # of a group
WHOSE = " of all trials"  # are the rounds of `Progress`


def sweep(
    source: str | Path | Mapping[str, Any] | Sweep,
    folder: str | Path | None = None,
    resume: bool = False,
    devices: int | Literal["auto"] | None = None,
    side_by_side: int | Literal["auto"] = "auto",
    progress: Report = silent,
    *,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    data: FederatedDataset | None = None,
    callback: Callback | None = None,
) -> Swept:
    """Runs every trial of a sweep, or goes on with it, and leaves a folder behind.

    Args:
      source: a TOML file, or what one would hold, as in
        {"run": {"algorithm": "fedavg"}, "grid": {"lr": [0.1, 0.03], "seed": [0, 1]}}.
      folder: where it goes; None: as `source` says, else runs/sweep-HASH.
      resume: go on with the sweep that lies in the folder, if there is one; of one that
        is finished it returns the results, and runs nothing.
      devices: that share the trials, each trial on one of them; a trial that is alone in
        its group has them all; None: as `source` says, else "auto".
      side_by_side: trials at once on a device, fewer where the program does not fit into
        its memory; "auto": all that fit on an accelerator, what is fast on a CPU.
      progress: called about every second. Its rounds are those of all trials, its figures
        means over the trials under way. If it raises KeyboardInterrupt the rounds so far
        are saved.
      algorithm: of all trials, in place of a name, as for `run`. A constructor whose
        numbers a grid varies is registered, see `register`.
      task: likewise.
      data: likewise.
      callback: as for `run`, of every trial, with its number as trial and what the grid
        says of it as settings, besides. If it returns True that trial is stopped after
        the evaluation that follows the round: it ends there in the results, whose
        stopped_round says so, and its client_accuracy is known only where no other trial
        of its program goes on. The others go on, and a program all of whose trials are
        over ends.

    Returns:
      What results.parquet holds; trials that diverged are named there.

    Raises:
      SettingError: a setting, a data file or the folder is not as it must be; nothing has
        been written.
    """
    processes.check_alone("a sweep")
    call = "sweep(source, folder, resume=True, progress=progress)"
    check.kinds(call, resume=(resume, bool), progress=(progress, callable))
    check_callback("sweep(source, callback=callback)", callback)
    user_functions.forget_changed()
    with objects.given(algorithm, task, data):
        asked, commit = read_sweep(source), summary.commit()
        place = results.sweep_folder(asked, folder)
        if resume and results.is_finished(place, asked):
            return records.read_swept(place)
        groups = groups_in(place, asked, resume, devices, side_by_side)
        create(place)
        with locked(place):
            results.check_folder(place, asked, resume)
            _run(asked, groups, place, commit, side_by_side, progress, callback)
    return records.read_swept(place)


def _run(
    asked: Sweep,
    groups: Sequence[Group],
    place: Path,
    commit: str | None,
    side_by_side: int | Literal["auto"],
    progress: Report,
    callback: Callback | None,
) -> None:
    """Runs group after group, and writes the folder of the sweep, which is held."""
    for group in groups:
        check_begun(place, group)
    found_origins = origins(trial.config for trial in asked.trials)
    if not (place / store.SWEEP).exists():
        store.write_origins(place, found_origins)
        files.write_listed(place / store.SWEEP, results.to_toml(asked))
    files.begin(place)
    total = sum(trial.config.rounds for trial in asked.trials)
    progress(Progress(0, total, warning=seed_hint(asked)))
    rows, before = [], 0
    for group in groups:
        path = group_folder(place, group)
        runner = _Runner(path, group, before, total, progress, callback)
        if store.read_summary(runner.path) is None:
            runner.run(place, side_by_side, commit)
        # the trials have what is in them
        for name in (store.CHECKPOINTS, "clients", results.LAST):
            store.drop(runner.path, name)
        done = [place / records.trial_folder(trial.number) for trial in group.trials]
        files.enter_lists(place, [runner.path, *done])
        before += sum(trial.config.rounds for trial in group.trials)
        rows += results.rows_of(place, runner.path, group.trials, asked.names)
        rows.sort(key=lambda row: row["trial"])
        table = results.table_of(rows, asked.names)
        store.write_table(place, place / store.RESULTS, table)
    written = {"trials": len(asked.trials), "groups": len(groups), "own": found_origins}
    store.finish(place, written | summary.evidence(commit))


def groups_in(
    place: Path,
    asked: Sweep,
    resume: bool,
    devices: int | Literal["auto"] | None,
    side_by_side: int | Literal["auto"],
) -> list[Group]:
    """The groups of a sweep that may begin, or go on, in a folder; raises as `sweep`."""
    check.at_least("side_by_side", side_by_side, 1, auto=True)
    check.at_least("devices", devices, 1, none="those of the sweep", auto=True)
    check_tracker(asked.run.get("track"))
    results.check_folder(place, asked, resume)
    trials = counted_trials(asked.trials)
    if devices is not None:
        on = lambda trial: replace(trial.config, devices=devices)
        trials = [trial._replace(config=on(trial)) for trial in trials]
    return groups_of(trials, side_by_side)


def notes_of(group: Group, federation: Federation) -> list[str]:
    """What to say of settings that do nothing in trials of a group."""
    found: dict[str, list[int]] = {}
    for trial in group.trials:
        for text in without_effect(trial.config, federation):
            found.setdefault(text, []).append(trial.shown)
    return [of_trials(text, trials) for text, trials in found.items()]


def group_folder(folder: Path, group: Group) -> Path:
    """Where a group lies in the folder of its sweep."""
    return folder / store.GROUPS / group.name


def check_begun(folder: Path, group: Group) -> None:
    """Raises SettingError if the group was begun with other trials."""
    begun = group_folder(folder, group) / GROUP
    numbers = [trial.number for trial in group.trials]
    mine, its = files.listed(folder), files.listed(begun.parent)
    if mine is not None and its is not None and its.of != mine.of:
        raise SettingError(
            f"{begun.parent} is of another sweep; put back what was there, or give another "
            "folder."
        )
    if begun.exists() and toml.read(begun)["trials"] != numbers:
        raise SettingError(
            f"folder={folder} was begun by a fedjax-adapt that put other trials into one "
            "program; give another folder."
        )
    # a table that an earlier version wrote
    of_before = group.trials[0].config.evaluate_clients and os.path.lexists(
        begun.with_name("trials")
    )
    if of_before and store.read_summary(begun.parent) is None:
        raise SettingError(
            f"folder={folder} was begun by a fedjax-adapt that kept the accuracy on "
            "clients elsewhere; go on in the version it was, or give another folder."
        )


def counted_trials(trials: Sequence[Trial]) -> list[Trial]:
    """The trials with as many clients as own rows, where that is left to the data."""
    known: dict[str, int | None] = {}
    found = []
    for trial in trials:
        config = trial.config
        if config.num_clients is None:
            data = {k: v for k, v in identity(config).items() if k not in TRAINING}
            text = json.dumps(data, sort_keys=True)
            if text not in known:
                known[text] = counted(config).num_clients
            config = replace(config, num_clients=known[text])
        found.append(trial._replace(config=config))
    return found


@dataclass(frozen=True)
class _Runner:
    """Runs one group."""

    path: Path
    group: Group
    before: int  # rounds of the trials of earlier groups
    total: int  # rounds of all trials
    progress: Report
    callback: Callback | None

    def run(self, place: Path, side_by_side: int | str, commit: str | None) -> None:
        """Runs its trials, or goes on with them, as many at once as fit."""
        configs = [trial.config for trial in self.group.trials]
        numbers = [trial.number for trial in self.group.trials]
        federation = build(configs[0])
        layout, fixed = self.layout(federation, side_by_side)

        def tell(doing: str) -> None:
            doing = f"{self.group.name}: {doing}"
            self.progress(Progress(self.before, self.total, doing=doing))

        tell("tracing")
        traced = self.group.traced
        compiled = compile_group(configs, federation, traced, layout, fixed, tell=tell)
        files.make(self.path)
        store.begin_list(self.path, files.begin(place))
        if not fixed:
            written = {"trials": numbers, "traced": traced}
            written["at_once"] = compiled.width
            files.write_listed(self.path / GROUP, toml.dumps(written))
        rounds = configs[0].rounds
        state, done, aside = newest_state(self.path, compiled.abstract)
        self.warn(aside)
        for text in notes_of(self.group, federation):
            self.warn(text)
        width = compiled.width
        for first in range(done // rounds * width, len(configs), width):
            rows = range(first, min(first + width, len(configs)))
            self.run_at_once(place, federation, compiled, rows, state, done)
            state, done = None, (first // width + 1) * rounds
        write_trials(place, self.path, self.group.trials, federation, compiled, commit)
        written = {
            "trials": numbers,
            "test_examples": len(federation.source.y_test),
            "auxiliary": auxiliary(federation),
            "seconds": store.read_table(self.path, "metrics")["seconds"][-1].as_py(),
            "compile_seconds": compiled.program_of([0]).seconds,
        }
        store.finish(self.path, written | summary.evidence(commit))

    def warn(self, text: str | None) -> None:
        """Says something once; None: nothing."""
        if text is not None:
            self.progress(Progress(self.before, self.total, warning=text))

    def layout(
        self, federation: Federation, side_by_side: int | str
    ) -> tuple[Layout, bool]:
        """How the trials are laid out, and whether this was settled before."""
        config, count = self.group.trials[0].config, len(self.group.trials)
        if not (self.path / GROUP).exists():
            return layout_of(config, federation, count, side_by_side), False
        width = toml.read(self.path / GROUP)["at_once"]
        if side_by_side != "auto":
            asked = layout_of(config, federation, count, side_by_side).width
            if asked != width:
                text = (
                    f"{self.group.name} was begun with {width} trials at once and goes on "
                    f"so, whatever side_by_side={side_by_side} says: its state is of "
                    f"{width}."
                )
                self.warn(text)
        most = mesh.count(config.devices, width)
        devices = next(d for d in range(most, 0, -1) if width % d == 0)
        return Layout(devices, width // devices), True

    def run_at_once(
        self,
        place: Path,
        federation: Federation,
        compiled: CompiledGroup,
        rows: range,
        state: State | None,
        done: int,
    ) -> None:
        """Runs the trials of the group that `rows` numbers, all at once.

        The rounds of a group count on from some trials to the next; `done` are those of
        `state`, if it is one of these trials.
        """
        config = self.group.trials[0].config
        base = rows.start // compiled.width * config.rounds
        program = compiled.program_of(rows)
        if state is None or done == base:
            state, done = program.init(), base
        members = [self.group.trials[row] for row in rows]
        trials = {trial.number: trial.point for trial in members}
        configs = {trial.number: trial.config for trial in members}
        names = {trial.number: trial.shown for trial in members}
        given: set[tuple[str, int | None]] = set()  # kinds of warnings, of trials
        log = new_log(
            *(self.path, federation, configs, self.callback),
            *(trials, base, place, done - base),
        )
        if log.all_over:
            return  # and what they came to is written
        accuracy = f"{_shown(members)} {log.accuracy.replace('_', ' ')}"
        shown = f"{self.group.name}, {accuracy}"

        def report(done: int, latest: tuple[float, float], rate: float) -> None:
            rounds = self.before + rows.start * config.rounds + done * len(rows)
            rate *= len(rows)
            so_far = program.max_steps, log, done, given
            warning = new_warning(configs, *so_far, names.__getitem__)
            figures = (*latest, rate, warning, shown)
            self.progress(Progress(rounds, self.total, *figures, whose=WHOSE))

        def at_end(state: State, done: int) -> None:
            devices, shared = compiled.num_devices, federation.data
            if config.evaluate_clients:
                shared = mesh.to_read(shared, devices)
            for i, (trial, row) in enumerate(zip(members, rows, strict=True)):
                folder = place / records.trial_folder(trial.number)
                by_client = self.path, f"{results.LAST}/{trial.number}"
                if log.has_state(trial.number, done):
                    data = compiled.partitions.put_into(shared, row)
                    whose = trial.config, config, federation, data, devices
                    write_last(folder, by_client, compiled.of_trial(state, i), *whose)
                else:  # what a try has left that was killed here and ended otherwise
                    store.drop(folder, store.CHECKPOINTS)
                    store.drop(*by_client)

        at = done - base
        train_in(self.path, config, program, state, at, log, report, at_end)


def _shown(trials: Sequence[Trial]) -> str:
    """Of which trials the figures are that are shown while they run."""
    if len(trials) == 1:
        return f"trial {trials[0].shown}:"
    inner = "" if len(trials) == 2 else "... "
    return f"trials {trials[0].shown}, {inner}{trials[-1].shown}: mean"
