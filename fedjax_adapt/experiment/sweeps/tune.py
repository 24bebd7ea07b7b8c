"""Settings chosen by validation accuracy: Optuna proposes them, and sweeps try them.

folder = "runs/tuned"           # optional
[run]                           # settings of every run, as in its config.toml
algorithm = "fedprox"
[space]                         # what is to be chosen
lr = { low = 0.001, high = 1, log = true }
num_steps = { low = 1, high = 20 }
algorithm.mu = [0, 0.01, 0.1]   # one of these
[tune]                          # optional, as the options of `tune`
trials = 64

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
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import check
from ...core import Algorithm, Task
from ...data import FederatedDataset
from ...errors import SettingError
from .. import config, files, objects, store, toml
from ..folder import check_can_write, create
from ..lock import LOCK, locked
from ..options import check_path
from ..run import Progress, Report, silent
from ..schema import settings_that_are
from ..spelling import flat_name, flattened, nested
from .grid import Sweep, read_sweep
from .results import is_finished, setting_columns, table_of
from .sweep import groups_in, sweep

if TYPE_CHECKING:
    import optuna
    import pyarrow

TUNE, BEST = "tune.toml", "best.toml"
FOLDER = "runs/tuned"  # where none is given
TABLES = ("folder", "run", "space", "tune")  # of a file
RANGE = ("low", "high", "log", "step")  # of a setting in [space]
FINISHED, PRUNED, DIVERGED = "finished", "pruned", "diverged"
LUCK = ("seed", "partition_seed")
REMEDY = "leave it out, or tune what has it by itself"


class Search(NamedTuple):
    """What a file says, and the options."""

    folder: str | None
    run: dict[str, Any]
    space: dict[str, Any]  # by full names: the distribution of each setting
    written: dict[str, Any]  # the space as the file has it, by full names
    ends: Sweep  # of trials that have each value of a list, and both ends of a range
    trials: int = 32
    at_once: int = 8
    halve: int | None = None
    seed: int = 0

    @property
    def rounds(self) -> int:
        """The rounds of a trial that is not pruned."""
        return self.run.get("rounds", config.common_options()["rounds"].default)


OPTIONS = ("trials", "at_once", "halve", "seed")  # of a search
MOST = 10_000  # trials
LIMITS = dict(
    zip(OPTIONS, ((1, MOST), (1, MOST), (2, MOST), (0, check.MOST)), strict=True)
)


class Tuned(NamedTuple):
    """What a search has found.

    `trials` has one row per trial: trial, the settings that were chosen, rounds,
    validation_accuracy (after these rounds; null where training diverged) and outcome:
    "finished", "pruned" or "diverged". `best` are the settings of the best that finished,
    by full names, and `accuracy` its accuracy; None: all diverged.
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
        again and again, see `rungs`; all have all rounds.
      seed: of the sampler; 0.

    Returns:
      The trials, and the best.

    Raises:
      ValueError: a setting, an option or the folder is not as it must be.
    """
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
            return _tune(search, place, progress, (algorithm, task, data))


def read_search(
    source: str | Path | Mapping[str, Any] | Search, **options: int | None
) -> Search:
    """A search, its settings checked as those of runs are before their data are read.

    Args:
      source: as for `tune`.
      **options: trials, at_once, halve and seed, likewise.

    Raises:
      ValueError: one sentence on the first mistake.
    """
    given = {name: value for name, value in options.items() if value is not None}
    _check_options(given)
    if isinstance(source, Search):
        return source._replace(**given)
    if not isinstance(source, str | Path | Mapping):
        raise SettingError(
            f"tune={source!r} is no search; write the path of a TOML file, or a dict as in "
            "{'run': {'rounds': 40}, 'space': {'lr': {'low': 0.01, 'high': 1}}}."
        )
    path = None if isinstance(source, Mapping) else check.expanded("tune=", source)
    tables = dict(source) if isinstance(source, Mapping) else toml.read(path, "tune")
    try:
        return _checked(tables, given)
    except SettingError as error:
        said = str(error).removeprefix("sweep: ").replace("[grid]", "[space]")
        raise SettingError(said if path is None else f"{path}: {said}") from None


def _checked(tables: Mapping[str, Any], options: Mapping[str, Any]) -> Search:
    for name in tables:
        check.one_of("the table", name, TABLES)
    for name in TABLES[1:]:
        if not isinstance(tables.get(name, {}), Mapping):
            raise SettingError(
                f"{name} is no table; write [{name}] above its settings."
            )
    run, space, own = (dict(tables.get(name, {})) for name in TABLES[1:])
    for name in own:
        check.one_of("the option", name, OPTIONS)
    _check_options(own)
    if run.get("evaluate_on", "validation") != "validation":
        raise SettingError(
            f"evaluate_on={run['evaluate_on']} would choose settings by test accuracy, "
            "which makes it too high; leave it out, as a search is on validation examples."
        )
    run["evaluate_on"] = "validation"
    flat = _flat(space)
    if not flat:
        raise SettingError(
            "there is no space; write [space] and below it what is to be chosen, as in "
            "lr = { low = 0.001, high = 1, log = true }."
        )
    for name, values in flat.items():
        _check_values(name, values)
    chosen = {**own, **options}
    if "rounds" in flat and "halve" in chosen:
        raise SettingError(
            "halve is about the rounds of trials, so rounds is no setting to choose with "
            "it; write rounds below [run]."
        )
    tried = [_tried(values) for values in flat.values()]
    grids = [
        {
            name: [values[i % len(values)]]
            for name, values in zip(flat, tried, strict=True)
        }
        for i in range(max(map(len, tried)))
    ]
    asked = {"folder": tables.get("folder"), "run": run, "grid": grids}
    asked = read_sweep(asked, REMEDY)
    # in an order that a file keeps, as proposals depend on it
    values = [v if isinstance(v, Mapping) else list(v) for v in flat.values()]
    written = dict(sorted(zip(asked.names, values, strict=True)))
    settings = [config.to_settings(trial.config) for trial in asked.trials]
    known = {
        full: _distribution(full, values, [own[full] for own in settings])
        for full, values in written.items()
    }
    found = Search(asked.folder, asked.run, known, written, asked, **chosen)
    if found.halve and rungs(found.rounds, found.at_once, found.halve) == [
        found.rounds
    ]:
        raise SettingError(
            f"halve={found.halve} leaves no trial of at_once={found.at_once}, or no round "
            f"of rounds={found.rounds}; write a smaller halve."
        )
    for rounds in rungs(found.rounds, found.at_once, found.halve)[:-1]:
        try:
            _asked(found, [trial.point for trial in asked.trials], rounds)
        except SettingError as error:
            raise SettingError(
                f"with halve={found.halve} trials first have {rounds} rounds: {error}"
            ) from None
    return found


def _check_options(options: Mapping[str, Any]) -> None:
    """Raises SettingError unless the options of a search are in range."""
    for name, value in options.items():
        low, most = LIMITS[name]
        check.at_least(name, value, low, most=most)


def _flat(space: Mapping[str, Any]) -> dict[str, Any]:
    """The space without the tables of kinds."""
    is_range = lambda value: isinstance(value, Mapping) and "low" in value
    hidden = {name: [v] if is_range(v) else v for name, v in space.items()}
    found = flattened(hidden)
    return {
        n: v[0] if n in space and is_range(space[n]) else v for n, v in found.items()
    }


def _check_values(name: str, values: Any) -> None:
    """Raises SettingError unless these are a range or a list of values."""
    if name == "evaluate_on":
        raise SettingError(
            "evaluate_on is no setting to choose; leave it out, as a search is on "
            "validation examples."
        )
    if name in LUCK:
        raise SettingError(
            f"{name} is no setting to choose, as the best would be luck; write it below "
            "[run]."
        )
    if isinstance(values, Mapping):
        for key in values:
            check.one_of(f"{name}: the key", key, RANGE)
        numbers = [values.get(key) for key in ("low", "high")]
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise SettingError(
                f"{name}={dict(values)} is no range; write two numbers, as in "
                f"{name} = {{ low = 1, high = 10 }}."
            )
        low, high = values["low"], values["high"]
        if not low < high:
            raise SettingError(f"{name}: low={low} must be below high={high}.")
        if not isinstance(values.get("log", False), bool):
            raise SettingError(
                f"{name}: log={values['log']!r}; write log = true, or leave it out."
            )
        if values.get("log") and (low <= 0 or "step" in values):
            raise SettingError(
                f"{name}: log is of numbers above 0 without steps; leave it out, or write "
                "another low and no step."
            )
        if "step" in values:
            check.positive(f"{name}: step", values["step"])
            steps = (high - low) / values["step"]
            if abs(steps - round(steps)) > 1e-6 or round(steps) < 1:
                raise SettingError(
                    f"{name}: step={values['step']} does not lead from low={low} to "
                    f"high={high}; write a step that does."
                )
        return
    plain = isinstance(values, list | tuple) and all(
        isinstance(value, bool | int | float | str) for value in values
    )
    if not plain or len(values) < 2 or len(set(map(repr, values))) < len(values):
        raise SettingError(
            f"{name}={values!r} is nothing to choose from; write two values or more, as in "
            f"{name} = [1, 2], or a range, as in {name} = {{ low = 1, high = 10 }}."
        )


def _tried(values: Any) -> list[Any]:
    """What of a setting is checked: all values, or the ends of a range."""
    if isinstance(values, Mapping):
        return [values["low"], values["high"]]
    return list(values)


def _distribution(name: str, values: Any, settings: Sequence[Any]) -> Any:
    """Optuna's distribution of a setting.

    Args:
      name: the full one.
      values: a range, or a list.
      settings: the values that were tried, of the type that they have in a run.
    """
    _check_optuna()
    from optuna import distributions

    if not isinstance(values, Mapping):
        return distributions.CategoricalDistribution(list(values))
    log, step = bool(values.get("log", False)), values.get("step")
    low, high = settings[0], settings[1]
    if isinstance(low, float):
        return distributions.FloatDistribution(low, high, log=log, step=step)
    if (
        isinstance(low, bool)
        or not isinstance(low, int)
        or step not in (None, int(step or 1))
    ):
        raise SettingError(
            f"{flat_name(name)}={dict(values)} is no range of whole numbers; write one, or "
            "a list of values."
        )
    return distributions.IntDistribution(low, high, log=log, step=int(step or 1))


def _check_optuna() -> None:
    if find_spec("optuna") is None:
        raise SettingError(
            "tune needs the package optuna; write pip install 'fedjax-adapt[tune]'."
        )


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
    if not folder.exists():
        return
    if not (folder / TUNE).exists():
        ours = (LOCK, files.SUMS)
        others = [path for path in folder.iterdir() if path.name not in ours]
        if not all(files.is_left_over(path, (TUNE, *ours)) for path in others):
            raise SettingError(
                f"folder={folder} holds files that are no search; give a new folder.",
                setting="folder",
            )
        return
    begun = read_search(folder / TUNE)
    then, now = _identity(begun), _identity(search)
    for name in {**then, **now}:
        if then.get(name) != now.get(name):
            raise SettingError(
                f"folder={folder} holds a search with {name}={then.get(name)}, here "
                f"{name}={now.get(name)}; write what it has, or give another folder.",
                setting="folder",
            )
    tried = _tried_in(folder)
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


def _tried_in(folder: Path) -> int:
    """How many trials have been proposed in the folder of a search."""
    proposed = [
        path.stem.removeprefix("trials-") for path in folder.glob("trials-*.json")
    ]
    first = max((int(number) for number in proposed if number.isdecimal()), default=0)
    written = store.read_json(folder / f"trials-{first:04d}.json")
    return first + len(written["proposed"]) if written else 0


def _identity(search: Search) -> dict[str, Any]:
    """All that decides which trials there are, but how many."""
    options = {name: getattr(search, name) for name in OPTIONS if name != "trials"}
    settings = {**_with_none(search.run), **search.written, **options}
    gone = (*settings_that_are("incidental"), "data_dir")
    return {name: v for name, v in settings.items() if name not in gone}


def _with_none(run: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a file has them, which has a word for None."""
    return {name: "none" if value is None else value for name, value in run.items()}


def to_toml(search: Search) -> str:
    """The search as a file that `read_search` reads back."""
    run = _with_none(search.run)
    run.pop("data_dir", None)
    options = {name: getattr(search, name) for name in OPTIONS}
    return toml.dumps({"run": nested(run), "space": search.written, "tune": options})


def _tune(search: Search, place: Path, progress: Report, given: tuple) -> Tuned:
    """Goes through the batches of trials, of which those that are done are only read."""
    known = files.listed(place) or {}
    for path in (place / name for name in known):
        # what else is missing is made again, to the same bytes
        if path.name == files.SUMS or os.path.lexists(path):
            files.check(place, path, known)
    rows: list[_Row] = []
    while len(rows) < search.trials:
        rows += _batch(search, place, rows, progress, given)
    columns = setting_columns(search.space)
    named = [
        {"trial": i, **{c: row.point[n] for n, c in columns.items()}, **row.came}
        for i, row in enumerate(rows)
    ]
    table = table_of(named, list(search.space))
    store.write_table(place, place / store.RESULTS, table)
    whole = [row for row in rows if row.came["outcome"] == FINISHED]
    if not whole:
        return Tuned(place, table, None, None)
    best = max(whole, key=lambda row: row.came[store.VALIDATED])  # of equals the first
    (trial,) = _asked(search, [best.point], search.rounds).trials
    chosen = config.to_toml(replace(trial.config, evaluate_on="test"))
    with files.listing(place, place / BEST) as temporary:
        temporary.write_text(chosen, encoding="utf-8")
    return Tuned(place, table, best.point, best.came[store.VALIDATED])


class _Row(NamedTuple):
    """A trial."""

    point: dict[str, Any]  # what was proposed, by full names
    came: dict[str, Any]  # of it: rounds, validation_accuracy and outcome


def _batch(
    search: Search,
    place: Path,
    before: Sequence[_Row],
    progress: Report,
    given: tuple,
) -> list[_Row]:
    """The next trials; those that equal an earlier one are not trained again."""
    first = len(before)
    points = _proposed(search, place, before)
    known = {_text(row.point): row.came for row in before}
    fresh = {_text(point): point for point in points if _text(point) not in known}
    if fresh:
        last = first + len(points) - 1
        doing = f"trials {first} to {last}" if len(points) > 1 else f"trial {first}"
        folder = place / f"trials-{first:04d}"
        found = _train(search, folder, list(fresh.values()), doing, progress, given)
        files.enter_lists(place, sorted(folder.glob("rounds-*")))
        known |= dict(zip(fresh, found, strict=True))
    return [_Row(point, known[_text(point)]) for point in points]


def _text(point: Mapping[str, Any]) -> str:
    return json.dumps(point, sort_keys=True)


def _proposed(
    search: Search, place: Path, before: Sequence[_Row]
) -> list[dict[str, Any]]:
    """What is tried next, as it was written down or is proposed now."""
    first = len(before)
    file = place / f"trials-{first:04d}.json"
    written = store.read_json(file)
    if written is not None:
        return written["proposed"]
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        points = _proposals(search, before)
    finally:
        optuna.logging.set_verbosity(verbosity)
    files.write_listed(file, json.dumps({"proposed": points}, indent=2) + "\n")
    return points


def _proposals(search: Search, before: Sequence[_Row]) -> list[dict[str, Any]]:
    """As many as are tried at once, by all that came of those before."""
    import optuna

    first, points = len(before), []
    with warnings.catch_warnings():  # constant_liar was long an experiment
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study = optuna.create_study(direction="maximize")
        study.add_trials([_told(search, row) for row in before])
        for number in range(first, min(first + search.at_once, search.trials)):
            seed = np.random.SeedSequence([search.seed, number]).generate_state(1)[0]
            study.sampler = optuna.samplers.TPESampler(
                seed=int(seed), constant_liar=True
            )
            points.append(study.ask(search.space).params)
    return points


def _told(search: Search, row: _Row) -> "optuna.trial.FrozenTrial":
    """A trial as Optuna knows it; one that diverged is as bad as can be."""
    from optuna.trial import TrialState, create_trial

    value = row.came[store.VALIDATED] or 0.0
    pruned = row.came["outcome"] == PRUNED
    return create_trial(
        state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
        value=None if pruned else value,
        params=row.point,
        distributions=search.space,
        intermediate_values={row.came["rounds"]: value},
    )


def rungs(rounds: int, trials: int, halve: int | None) -> list[int]:
    """The rounds of trials by successive halving, until only the best are left.

    Each rung has 1/halve of the rounds of the next, which the best 1/halve reach. Every one
    is trained from the start: a trial that is left out of a compiled program would be
    computed all the same, and schedules depend on the number of rounds.

    Args:
      rounds: of the last.
      trials: in the first; there is no rung of less than one trial or one round.
      halve: None: there is one rung.
    """
    found = [rounds]
    while halve and trials >= halve ** len(found) and rounds >= halve ** len(found):
        found.append(rounds // halve ** len(found))
    return found[::-1]


def _train(
    search: Search,
    folder: Path,
    points: Sequence[dict[str, Any]],
    doing: str,
    progress: Report,
    given: tuple,
) -> list[dict[str, Any]]:
    """What came of some proposals, which are trained as one sweep for each rung."""
    came: dict[int, dict[str, Any]] = {}
    left = list(range(len(points)))
    for rounds in rungs(search.rounds, len(points), search.halve):
        last = rounds == search.rounds
        asked = _asked(search, [points[i] for i in left], rounds)
        place = folder / f"rounds-{rounds}"
        note = f"{doing}: {len(left)} of them, up to round {rounds}"
        found = _swept(asked, place, note, progress, given)
        for i, row in zip(left, found.to_pylist(), strict=True):
            diverged = row["diverged_round"] is not None
            came[i] = {
                "rounds": asked.trials[left.index(i)].config.rounds,
                store.VALIDATED: None if diverged else row[store.VALIDATED],
                "outcome": DIVERGED if diverged else FINISHED if last else PRUNED,
            }
        if not last:
            worth = lambda i: came[i][store.VALIDATED]
            alive = sorted(
                (i for i in left if worth(i) is not None), key=lambda i: -worth(i)
            )
            left = sorted(alive[: max(1, len(left) // (search.halve or 1))])
        if not left:
            break
    return [came[i] for i in range(len(points))]


def _asked(search: Search, points: Sequence[Mapping[str, Any]], rounds: int) -> Sweep:
    """The sweep of some proposals."""
    run = search.run if "rounds" in search.space else search.run | {"rounds": rounds}
    grids = [{name: [value] for name, value in point.items()} for point in points]
    return read_sweep({"run": run, "grid": grids}, REMEDY)


def _swept(
    asked: Sweep, place: Path, note: str, progress: Report, given: tuple
) -> "pyarrow.Table":
    """The results of a sweep, which is run, and `note` said, unless it is finished."""
    if is_finished(place, asked):
        return store.read_swept(place).results
    progress(Progress(0, 1, note=note))
    algorithm, task, data = given
    return sweep(
        asked, place, True, progress=progress, algorithm=algorithm, task=task, data=data
    ).results
