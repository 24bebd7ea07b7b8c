"""What a search is: the settings of every run, and the space of those to be chosen.

folder = "runs/tuned"           # optional
[run]                           # settings of every run, as in its config.toml
algorithm = "fedprox"
[space]                         # what is to be chosen
lr = { low = 0.001, high = 1, log = true }
num_steps = { low = 1, high = 20 }
"algorithm.mu" = [0, 0.01, 0.1] # one of these
[tune]                          # optional, as the options of `tune`
trials = 64
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ... import check
from ...errors import SettingError
from .. import config, toml
from ..schema import settings_that_are
from ..spelling import flat_name, flattened, nested
from .grid import Sweep, read_sweep

TABLES = ("folder", "run", "space", "tune")  # of a file
RANGE = ("low", "high", "log", "step")  # of a setting in [space]
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
        return config.setting_of(self.run, "rounds")


OPTIONS = ("trials", "at_once", "halve", "seed")  # of a search
MOST = 10_000  # trials
LIMITS = dict(
    trials=(1, MOST), at_once=(1, MOST), halve=(2, MOST), seed=(0, check.MOST)
)


def read_search(
    source: str | Path | Mapping[str, Any] | Search, **options: int | None
) -> Search:
    """A search, its settings checked as those of runs are before their data are read.

    Args:
      source: as for `tune`.
      **options: trials, at_once, halve and seed, likewise.

    Raises:
      SettingError: one sentence on the first mistake.
    """
    given = toml.python_values({n: v for n, v in options.items() if v is not None})
    _check_options(given)
    if isinstance(source, Search):
        return source._replace(**given)
    if not isinstance(source, str | Path | Mapping):
        raise SettingError(
            f"tune={source!r} is not a search; write the path of a TOML file, "
            "or a dict as in "
            "{'run': {'rounds': 40}, 'space': {'lr': {'low': 0.01, 'high': 1}}}."
        )
    path = None if isinstance(source, Mapping) else check.expanded("tune=", source)
    tables = toml.read(path, "tune") if path else toml.python_values(source)
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
                f"{name} is not a table; write [{name}] above its settings."
            )
    run, space, in_file = (dict(tables.get(name, {})) for name in TABLES[1:])
    for name in in_file:
        check.one_of("the option", name, OPTIONS)
    _check_options(in_file)
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
    chosen = {**in_file, **options}
    if "rounds" in flat and "halve" in chosen:
        raise SettingError(
            "halve is about the rounds of trials, so rounds is not a setting to "
            "choose with "
            "it; write rounds below [run]."
        )
    # all values, or the ends of a range
    ends = lambda v: [v["low"], v["high"]] if isinstance(v, Mapping) else list(v)
    tried = {name: ends(values) for name, values in flat.items()}
    grids = [
        {name: [values[i % len(values)]] for name, values in tried.items()}
        for i in range(max(map(len, tried.values())))
    ]
    written = {"folder": tables.get("folder"), "run": run, "grid": grids}
    sweep = read_sweep(written, REMEDY)
    # in an order that a file keeps, as proposals depend on it
    values = [v if isinstance(v, Mapping) else list(v) for v in flat.values()]
    space = dict(sorted(zip(sweep.names, values, strict=True)))
    settings = [config.to_settings(trial.config) for trial in sweep.trials]
    known = {
        full: _distribution(full, values, [one[full] for one in settings])
        for full, values in space.items()
    }
    found = Search(sweep.folder, sweep.run, known, space, sweep, **chosen)
    first = rungs(found.rounds, found.at_once, found.halve)[:-1]
    if found.halve and not first:
        raise SettingError(
            f"halve={found.halve} leaves no trial of at_once={found.at_once}, or no round "
            f"of rounds={found.rounds}; write a smaller halve."
        )
    for rounds in first:
        try:
            sweep_of(found, [trial.point for trial in sweep.trials], rounds)
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
    ranges = {n for n, v in space.items() if isinstance(v, Mapping) and "low" in v}
    hidden = {name: [v] if name in ranges else v for name, v in space.items()}
    return {n: v[0] if n in ranges else v for n, v in flattened(hidden).items()}


def _check_values(name: str, values: Any) -> None:
    """Raises SettingError unless these are a range or a list of values."""
    if name == "evaluate_on":
        raise SettingError(
            "evaluate_on is not a setting to choose; leave it out, as a search is on "
            "validation examples."
        )
    if name in LUCK:
        raise SettingError(
            f"{name} is not a setting to choose, as the best would be luck; write it below "
            "[run]."
        )
    if isinstance(values, Mapping):
        for key in values:
            check.one_of(f"{name}: the key", key, RANGE)
        numbers = [values.get(key) for key in ("low", "high")]
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
            raise SettingError(
                f"{name}={dict(values)} is not a range; write two numbers, as in "
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


def _distribution(name: str, values: Any, settings: Sequence[Any]) -> Any:
    """Optuna's distribution of a setting; `settings`: those tried, of a run's type."""
    if find_spec("optuna") is None:
        raise SettingError(
            "tune needs the package optuna; write pip install 'fedjax-adapt[tune]'."
        )
    from optuna import distributions

    if not isinstance(values, Mapping):
        return distributions.CategoricalDistribution(list(values))
    log, step = bool(values.get("log", False)), values.get("step")
    low, high = settings[0], settings[1]
    if isinstance(low, float):
        return distributions.FloatDistribution(low, high, log=log, step=step)
    if type(low) is not int or step not in (None, int(step or 1)):
        raise SettingError(
            f"{flat_name(name)}={dict(values)} is not a range of whole numbers; "
            "write one, or "
            "a list of values."
        )
    return distributions.IntDistribution(low, high, log=log, step=int(step or 1))


def identity(search: Search) -> dict[str, Any]:
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


def rungs(rounds: int, trials: int, halve: int | None) -> list[int]:
    """The rounds of trials by successive halving, until only the best are left.

    Each rung has 1/halve of the rounds of the next, which the best 1/halve reach. Every one
    is trained from the start: a trial that is left out of a compiled program would be
    computed all the same, and schedules depend on the number of rounds. The first has so
    many trials; no rung has less than one trial or one round.
    """
    found = [rounds]
    while halve and trials >= halve ** len(found) and rounds >= halve ** len(found):
        found.append(rounds // halve ** len(found))
    return found[::-1]


def sweep_of(search: Search, points: Sequence[Mapping[str, Any]], rounds: int) -> Sweep:
    """The sweep of some proposals."""
    run = search.run if "rounds" in search.space else search.run | {"rounds": rounds}
    grids = [{name: [value] for name, value in point.items()} for point in points]
    return read_sweep({"run": run, "grid": grids}, REMEDY)
