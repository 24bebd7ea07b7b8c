"""Settings chosen by validation accuracy: Optuna proposes them, and sweeps try them.

What lies in the folder:

tune.toml             the file, with the options
trials-0000.json      what was proposed at once, from trial 0 on
trials-0000/          a sweep of those for each number of rounds: rounds-40/
results.parquet       one row per trial of the batches that are done
best.toml             the settings of the best, to train with new seeds

Each proposal follows from its number, the seed and the trials of earlier batches, whose
accuracies are in their sweeps. So a search that was killed goes on as it would have.
"""

import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import check
from ...core import Algorithm, Task
from ...data import FederatedDataset
from ...errors import SettingError
from .. import config, files, objects, records, store
from ..files import locked
from ..folder import check_can_write, create, holds
from ..run import Progress, Report, silent
from ..schema import check_path
from .grid import Sweep
from .results import is_finished, setting_columns, table_of
from .space import Search, identity, read_search, rungs, sweep_of, to_toml
from .sweep import groups_in, sweep

if TYPE_CHECKING:
    import optuna
    import pyarrow

TUNE, BEST = store.TUNE, "best.toml"
FOLDER = "runs/tuned"  # where none is given
ATTEMPTS = 100  # to propose what is allowed
FINISHED, PRUNED, DIVERGED = "finished", "pruned", "diverged"


class Tuned(NamedTuple):
    """What a search has found.

    `trials` has one row per trial: trial, the settings that were chosen, rounds,
    validation_accuracy (after these rounds; null where it is NaN or training diverged) and
    outcome: "finished", "pruned" or "diverged". `best` are the settings of the best that
    finished, by full names, and `accuracy` its accuracy; None: no trial has one.
    """

    folder: Path
    trials: "pyarrow.Table"
    best: dict[str, Any] | None
    accuracy: float | None


def tune(
    source: str | Path | Mapping[str, Any] | Search,
    folder: str | Path | None = None,
    resume: bool = False,
    progress: Report = silent,
    *,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    data: FederatedDataset | None = None,
    trials: int | None = None,
    at_once: int | None = None,
    halve: int | None = None,
    seed: int | None = None,
) -> Tuned:
    """Chooses settings by validation accuracy, or goes on with it.

    Optuna's TPE sampler proposes `at_once` trials, which a sweep trains at once, and then
    the next ones from what came of all before.

    Args:
      source: a TOML file, or what one would hold, as in
        {"run": {"rounds": 40}, "space": {"lr": {"low": 0.01, "high": 1, "log": True}}}.
      folder: where it goes; None: as `source` says, else runs/tuned.
      resume: go on with the search that lies in the folder, if there is one; it may be
        for more trials.
      progress: as of `sweep`, of one sweep after another.
      algorithm: of all trials, in place of a name, as for `run`; likewise the next two.
      task: see there.
      data: see there.
      trials: how many in all; None, here and below: as `source` says, else 32.
      at_once: how many are proposed at once; 8.
      halve: the best 1/halve of the trials at once go on to `halve` times the rounds,
        again and again; None: all have all rounds.
      seed: of the sampler; 0.

    Returns:
      The trials, and the best.

    Raises:
      SettingError: a setting, an option or the folder is not as it must be.
    """
    call = "tune(source, folder, resume=True, progress=progress)"
    check.kinds(call, resume=(resume, bool), progress=(progress, callable))
    options = {"trials": trials, "at_once": at_once, "halve": halve, "seed": seed}
    with objects.given(algorithm, task, data):
        search = read_search(source, **options)
        place = tune_folder(search, folder)
        check_folder(place, search, resume)
        if not (place / TUNE).exists():
            # what data and memory do not allow is found before anything is written
            groups_in(place / "trials", search.ends, False, None, "auto")
        create(place)
        with locked(place):
            check_folder(place, search, resume)
            if not (place / TUNE).exists():
                files.write_listed(place / TUNE, to_toml(search))
            return _tune(search, place, progress)


def tune_folder(search: Search, folder: str | Path | None) -> Path:
    """Where a search lies: as given, as its file says, or runs/tuned."""
    check_path("folder", folder)
    given = folder if folder is not None else search.folder
    return check.expanded("folder=", FOLDER if given is None else given)


def check_folder(folder: Path, search: Search, resume: bool) -> None:
    """Raises SettingError unless this search may start, or go on, in `folder`."""
    check_can_write(folder)
    above = (path for path in folder.absolute().parents if (path / TUNE).exists())
    if (other := next(above, None)) is not None:
        raise SettingError(
            f"folder={folder} lies in {other}, which holds a search; give another folder.",
            setting="folder",
        )
    if not holds(folder, TUNE, "search"):
        return
    begun = read_search(folder / TUNE)
    if change := config.first_difference(identity(begun), identity(search)):
        name, then, now = change
        raise SettingError(
            f"folder={folder} holds a search with {name}={then}, here {name}={now}; write "
            "what it has, or give another folder.",
            setting="folder",
        )
    tried = num_proposed(folder)
    if search.trials < tried:
        raise SettingError(
            f"folder={folder} holds a search of {tried} trials; write trials={tried} or "
            "more.",
            setting="folder",
        )
    if not resume:
        raise SettingError(
            f"folder={folder} holds this search; write --resume (tune(..., resume=True) in "
            "Python) to go on with it, or give another folder.",
            setting="folder",
        )


def num_proposed(folder: Path) -> int:
    """How many trials have been proposed in the folder of a search."""
    numbers = (x.stem.removeprefix("trials-") for x in folder.glob("trials-*.json"))
    first = max(map(int, filter(str.isdecimal, numbers)), default=0)
    return first + len(_written(folder, first) or ())


def _written(folder: Path, first: int) -> list[dict[str, Any]] | None:
    """What was proposed from a trial on; None: nothing."""
    file = folder / f"trials-{first:04d}.json"
    written = store.read_json(file)
    if written is not None and not isinstance(written.get("proposed"), list):
        raise SettingError(
            f"{file} is damaged: it holds no proposals; put back what was there, or begin "
            "a search in another folder."
        )
    return written and written["proposed"]


def _tune(search: Search, place: Path, progress: Report) -> Tuned:
    """Goes through the batches of trials, of which those that are done are only read."""
    known = files.listed(place) or {}
    for path in (place / name for name in known):
        # what else is missing is made again, to the same bytes
        if path.name == files.SUMS or os.path.lexists(path):
            files.check(place, path, known)
    rows: list[_Row] = []
    while len(rows) < search.trials:
        rows += _batch(search, place, rows, progress)
    columns = setting_columns(search.space)
    named = [
        {"trial": i, **{c: row.point[n] for n, c in columns.items()}, **row.result}
        for i, row in enumerate(rows)
    ]
    table = table_of(named, list(search.space))
    store.write_table(place, place / store.RESULTS, table)
    is_whole = lambda of: of["outcome"] == FINISHED and of[store.VALIDATED] is not None
    whole = [row for row in rows if is_whole(row.result)]
    if not whole:
        return Tuned(place, table, None, None)
    # of equals the first
    best = max(whole, key=lambda row: row.result[store.VALIDATED])
    (trial,) = sweep_of(search, [best.point], search.rounds).trials
    chosen = config.to_toml(replace(trial.config, evaluate_on="test"))
    with files.listing(place, place / BEST) as temporary:
        temporary.write_text(chosen, encoding="utf-8")
    return Tuned(place, table, best.point, best.result[store.VALIDATED])


class _Row(NamedTuple):
    """A trial."""

    point: dict[str, Any]  # what was proposed, by full names
    result: dict[str, Any]  # rounds, validation_accuracy and outcome


def _batch(
    search: Search, place: Path, before: Sequence[_Row], progress: Report
) -> list[_Row]:
    """The next trials; those that equal an earlier one are not trained again."""
    first = len(before)
    points, file = _written(place, first), place / f"trials-{first:04d}.json"
    if points is None:
        points = proposals(search, before)
        files.write_listed(file, json.dumps({"proposed": points}, indent=2) + "\n")
    known = {_text(row.point): row.result for row in before}
    fresh = {text: x for text, x in distinct(points).items() if text not in known}
    if fresh:
        last = first + len(points) - 1
        doing = f"trials {first} to {last}" if len(points) > 1 else f"trial {first}"
        folder = place / f"trials-{first:04d}"
        texts = [_text(point) for point in points]
        asked = {first + texts.index(text): point for text, point in fresh.items()}
        found = _train(search, folder, asked, doing, progress)
        files.enter_lists(place, sorted(folder.glob("rounds-*")))
        known |= dict(zip(fresh, found, strict=True))
    return [_Row(point, known[_text(point)]) for point in points]


def distinct(points: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The proposals without repeats, each by its text."""
    return {_text(point): point for point in points}


def _text(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


def proposals(search: Search, before: Sequence[_Row]) -> list[dict[str, Any]]:
    """What is tried at once: settings by full names, by all that came of those before."""
    import optuna

    first = len(before)
    numbers = range(first, min(first + search.at_once, search.trials))
    # constant_liar was long an experiment
    kind = optuna.exceptions.ExperimentalWarning
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings(action="ignore", category=kind):
            study = optuna.create_study(direction="maximize")
            study.add_trials([_frozen(search, row) for row in before])
            return [_allowed(search, study, number) for number in numbers]
    finally:
        optuna.logging.set_verbosity(verbosity)


def _allowed(
    search: Search, study: "optuna.study.Study", number: int
) -> dict[str, Any]:
    """The next proposal that a run may have; those that it may not are passed over."""
    import optuna

    error = None
    for attempt in range(ATTEMPTS):
        seeds = [search.seed, number] + [attempt] * (attempt > 0)
        seed = np.random.SeedSequence(seeds).generate_state(1)[0]
        study.sampler = optuna.samplers.TPESampler(seed=int(seed), constant_liar=True)
        trial = study.ask(search.space)
        try:
            for rounds in rungs(search.rounds, search.at_once, search.halve):
                sweep_of(search, [trial.params], rounds)
            return trial.params
        except SettingError as refused:
            error = refused
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    raise SettingError(
        f"write a smaller space: none of {ATTEMPTS} proposals for trial {number} is "
        f"allowed, the last for this reason: {error}"
    )


def _frozen(search: Search, row: _Row) -> "optuna.trial.FrozenTrial":
    """A trial as Optuna knows it; one that diverged is as bad as can be."""
    from optuna.trial import TrialState, create_trial

    value = row.result[store.VALIDATED] or 0.0
    pruned = row.result["outcome"] == PRUNED
    return create_trial(
        state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
        value=None if pruned else value,
        params=row.point,
        distributions=search.space,
        intermediate_values={row.result["rounds"]: value},
    )


def _train(
    search: Search,
    folder: Path,
    points: Mapping[int, dict[str, Any]],
    doing: str,
    progress: Report,
) -> list[dict[str, Any]]:
    """What came of proposals, by their numbers, trained as one sweep for each rung."""
    results: dict[int, dict[str, Any]] = {}
    left = list(points)
    for rounds in rungs(search.rounds, len(points), search.halve):
        last = rounds == search.rounds
        asked = sweep_of(search, [points[i] for i in left], rounds)
        pairs = zip(asked.trials, left, strict=True)
        trials = [trial._replace(in_search=i) for trial, i in pairs]
        asked = asked._replace(trials=trials)
        place = folder / f"rounds-{rounds}"
        note = f"{doing}: {len(left)} of them, up to round {rounds}"
        found = _swept(asked, place, note, progress)
        for i, trial, row in zip(left, trials, found.to_pylist(), strict=True):
            diverged = row["diverged_round"] is not None
            unknown = diverged or math.isnan(row[store.VALIDATED])  # as of an own task
            results[i] = {
                "rounds": trial.config.rounds,
                store.VALIDATED: None if unknown else row[store.VALIDATED],
                "outcome": DIVERGED if diverged else FINISHED if last else PRUNED,
            }
        if not last:
            worth = {i: results[i][store.VALIDATED] for i in left}
            alive = [i for i in left if worth[i] is not None]
            alive.sort(key=lambda i: -worth[i])
            left = sorted(alive[: max(1, len(left) // (search.halve or 1))])
        if not left:
            break
    return [results[i] for i in points]


def _swept(asked: Sweep, place: Path, note: str, progress: Report) -> "pyarrow.Table":
    """The results of a sweep, which is run, and `note` said, unless it is finished."""
    if is_finished(place, asked):
        return records.read_swept(place).results
    progress(Progress(0, 1, note=note))
    given = {name: objects.of(name) for name in objects.TYPES}
    return sweep(asked, place, True, progress=progress, **given).results
