"""The algorithm of a run: its options, its local steps, and its simulated clock."""

import ast
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .. import check
from ..core import (
    Algorithm,
    StepPolicy,
    constant_steps,
    epochs,
    matched_steps,
    scheduled_steps,
    with_steps,
)
from ..costs import LAWS, Clock, Law
from ..data import PublicSet
from ..errors import SettingError
from ..participation import earliest
from . import records, store
from .config import (
    Config,
    all_options,
    choices_of,
    partition_seed,
    read_config,
    to_settings,
)
from .objects import registry
from .options import Option, find, options_of
from .schema import CLIENTS, DERIVED, common_options, kind_options, settings_that_are
from .spelling import shortest
from .toml import checked
from .user_functions import called, check_made, is_own

# what Python raises on a text that is none of its expressions, or too long a one
UNREADABLE = (SyntaxError, TypeError, ValueError, RecursionError, MemoryError)


def build_algorithm(config: Config) -> Algorithm:
    """The algorithm, with what it needs to know of the run.

    One that brings its own step policy keeps it; else `num_steps` or `epochs` decide.
    """
    known = kind_options("algorithm", config.algorithm)
    try:
        algorithm = _construct(config, config.algorithm, config.algorithm_options)
    except SettingError as error:
        option, sentence = error.setting, str(error)
        if option not in known:
            raise
        if option in common_options():  # which is another setting
            sentence = f"algorithm.{sentence}"
        raise SettingError(sentence, f"algorithm.{option}") from None
    if algorithm.server.busy is not None:
        _check_asynchronous(config)
    if algorithm.policy is not Algorithm().policy:
        if config.match is not None:
            raise SettingError(
                f"match={config.match} sets the local steps of clients, but algorithm="
                f"{config.algorithm} chooses them itself; leave match out.",
                setting="match",
            )
        for name in ("num_steps", "epochs"):
            if config.is_set(name):
                steps = [
                    f"--{shown.replace('_', '-')}"
                    for full, shown in shortest(all_options(choices_of(config))).items()
                    if full.startswith("algorithm.") and "steps" in full
                ]
                see = f" and see its own options {', '.join(steps)}" if steps else ""
                raise SettingError(
                    f"{name}={getattr(config, name):g} sets the local steps of clients, "
                    f"but algorithm={config.algorithm} chooses them itself; leave {name} "
                    f"out{see}.",
                    setting=name,
                )
        return algorithm
    if config.num_steps is None:
        return with_steps(algorithm, epochs(config.epochs))
    if not config.later_steps:
        return with_steps(algorithm, constant_steps(config.num_steps))
    table = np.full(config.rounds, config.num_steps, np.int32)
    later = config.later_steps
    for begin, steps in zip(later[::2], later[1::2], strict=True):
        table[begin:] = steps
    return with_steps(algorithm, scheduled_steps(table))


def _check_asynchronous(config: Config) -> None:
    """Raises SettingError unless a server that does not wait is given what it needs."""
    needed = {
        "step_seconds (the simulated seconds of a local step, as in 0.05)": (
            config.step_seconds is not None
        ),
        "sampler=uniform": config.sampler == "uniform",
        "participation below 1": config.participation < 1,
    }
    if lacking := [what for what, given in needed.items() if not given]:
        raise SettingError(
            f"algorithm={config.algorithm} goes by who ends first, and sends off as many "
            "clients each round, and none that is still training; set "
            f"{' and '.join(lacking)}."
        )


def _construct(config: Config, name: str, options: Mapping[str, Any]) -> Algorithm:
    """An algorithm by name; `base` may name another, see `_parse_base`."""
    constructor = find("algorithm", name)
    known = options_of("algorithm", constructor)
    of_run = {
        option: getattr(config, ours)
        for option, ours in DERIVED.items()
        if option in known and _follows(name, option, known[option])
    }
    coins = config.sampler == "bernoulli" and not is_own("algorithm", name)
    if coins or config.sampler == "earliest":
        # the plan knows, of those that hold examples and of coins that are thrown again
        of_run.pop("participation", None)
    if "participation" in of_run and config.sampler != "bernoulli":
        clients = config.num_clients or CLIENTS
        of_run["participation"] = cohort_size(config) / clients
    # elsewhere None is the default, or what the run says
    nullable = {n for n in known if n not in DERIVED and known[n].default is not None}
    given = {n: v for n, v in options.items() if v is not None or n in nullable}
    if config.max_local_steps is not None and "max_steps" in known:
        # a policy that learns must know what its clients really take
        for option in {"max_steps", "initial_steps"} & set(known):
            most = config.max_local_steps
            of_run[option] = min(known[option].default or most, most)
        if (given.get("initial_steps") or 0) > config.max_local_steps:
            raise SettingError(
                f"initial_steps={given['initial_steps']} is above max_local_steps="
                f"{config.max_local_steps}; write a smaller one.",
                setting="initial_steps",
            )
        if "max_steps" in given:
            given["max_steps"] = min(given["max_steps"], config.max_local_steps)
    if given.get("every_seconds") is not None and config.step_seconds is None:
        raise SettingError(
            f"every_seconds={given['every_seconds']:g} needs a simulated clock; set "
            "step_seconds, or every_rounds in place of every_seconds.",
            setting="every_seconds",
        )
    if "base" not in given:
        return _made(name, constructor, of_run | given)
    parsed = _parse_base(given["base"])
    try:
        base = _construct(config, *parsed)
    except SettingError as error:
        sentence = f"base={given['base']}: {error}"
        raise SettingError(sentence, setting="base") from None
    algorithm = _made(name, constructor, of_run | given | {"base": base})
    replaced = base.policy.steps is not algorithm.policy.steps
    if replaced and base.policy is not Algorithm().policy:
        raise SettingError(
            f"base={given['base']} chooses the local steps of clients, and so does "
            f"algorithm={name}; write one of them.",
            setting="base",
        )
    return algorithm


def _made(name: str, constructor: Callable, options: dict[str, Any]) -> Algorithm:
    if is_own("algorithm", name):
        constructor = called(f"algorithm={name}", constructor)
    algorithm = constructor(**options)
    check_made(f"algorithm={name}", algorithm, Algorithm)
    return algorithm


def _follows(name: str, argument: str, option: Option) -> bool:
    """Whether an argument is given what the run says, where no other is given.

    Of a user's own function only one that is None by default.
    """
    if is_own("algorithm", name):
        return option.default is None
    return argument != "lr" or option.default is not None


def _parse_base(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of "feddyn" or "feddyn(alpha=0.1)"."""
    try:
        node = ast.parse(text, mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        named = all(keyword.arg for keyword in call.keywords)
        if not isinstance(call.func, ast.Name) or call.args or not named:
            raise TypeError("no name, or options without theirs")
    except UNREADABLE:
        raise SettingError(
            f"base={text!r} is not an algorithm; write its name, or its name "
            "and options as "
            "in feddyn(alpha=0.1).",
            setting="base",
        ) from None
    try:
        values = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except UNREADABLE:
        raise SettingError(
            f"base={text!r} has an option that is not a value; write a number, "
            "True, False or "
            "text in quotes, as in feddyn(alpha=0.1).",
            setting="base",
        ) from None
    name = call.func.id
    check.one_of("base", name, registry("algorithm"))
    if name == "public_only":
        raise SettingError(
            "base=public_only trains no client, so that there is nothing to build on; give "
            "a method whose clients train, as in base=fedavg.",
            setting="base",
        )
    known = options_of("algorithm", find("algorithm", name))
    for option, value in values.items():
        if option not in known:
            raise SettingError(
                f"base={text} has no option {option}; {check.nearest(option, known)}",
                setting="base",
            )
        sentence = f"{option}={value!r} of base {name}"
        values[option] = checked(sentence, known[option].annotation, value)
    return name, values


def cohort_size(config: Config) -> int:
    """Clients per round of a sampler of so many."""
    clients = config.num_clients or CLIENTS  # where the data are not yet loaded
    if config.sampler == "earliest":
        return earliest(config.participation).slots(clients)
    return max(round(config.participation * clients), 1)


def build_clock(config: Config) -> Clock | None:
    """What a round takes; None without `step_seconds`. It raises as `quantity`."""
    if config.step_seconds is None:
        return None
    laws = ("step_seconds", "bandwidth", "download_bandwidth", "delay")
    return Clock(
        **{name: quantity(name, getattr(config, name)) for name in laws},
        latency=config.latency,
        delay_persists=config.delay_persists,
        seed=clock_seed(config),
    )


def clock_seed(config: Config) -> int:
    """The seed of the clock: that of the partition, unless another is given."""
    return partition_seed(config) if config.clock_seed is None else config.clock_seed


def quantity(name: str, value: float | str | None) -> float | Law | None:
    """A number or None as it is, a text as in "lognormal(0.05, 0.5)" as the law."""
    if not isinstance(value, str):
        return value
    try:
        call = ast.parse(value, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise TypeError("no law")
        law = LAWS[call.func.id]
        arguments = [float(ast.literal_eval(node)) for node in call.args]
        options = {str(k.arg): float(ast.literal_eval(k.value)) for k in call.keywords}
        inspect.signature(law).bind(*arguments, **options)
    except (*UNREADABLE, KeyError, OverflowError):
        arguments = lambda law: ", ".join(inspect.signature(law).parameters)
        known = ", ".join(f"{name}({arguments(law)})" for name, law in LAWS.items())
        raise SettingError(
            f"{name}={value!r} is neither a number nor a law; write one of {known}.",
            setting=name,
        ) from None
    try:
        return law(*arguments, **options)
    except SettingError as error:  # out of range
        raise SettingError(f"{name}={value!r}: {error}", setting=name) from None


def matching_steps(
    config: Config, sizes: np.ndarray, num_train: int, public: PublicSet | None = None
) -> StepPolicy:
    """The policy that gives this run the total of the run in `config.match`.

    By "epochs" every client takes floor(E_avg n_i / B) local steps, E_avg = tau_all B
    over the examples of the clients of all rounds of that run (with full participation
    K n): FedVeca's protocol. By "steps" all clients of a round take equally many, the
    mean rounded down or up so that the total over all rounds differs by at most half the
    largest cohort: FedGSNR's protocol. A mean below 1 leaves some rounds idle.
    Totals are those of equal cohorts: with coins, of the same seed. Steps on a public set
    are not matched: neither those of the other run nor those of this one count.

    Clients hold `sizes` [clients] of the `num_train` examples that were split among them,
    of which the public set is no part.

    Raises:
      SettingError: there is no finished run of the same federation and rounds.
    """
    record = _record(config)
    _check_examples(config, record, num_train, public)
    rounds, clients, num_steps = _columns(config, record)
    visits = sizes[clients]
    total = int(num_steps.sum(dtype=np.int64))
    if total == 0:
        raise SettingError(f"match={config.match} holds a run that took no local step.")
    if config.match_by == "steps":
        holders = rounds[visits > 0]
        cohorts = np.bincount(holders - 1, minlength=config.rounds)
        return scheduled_steps(schedule(total, cohorts))
    longest = int(sizes.max())
    batch = longest if config.batch_size is None else min(config.batch_size, longest)
    return matched_steps(total * batch / int(visits.sum(dtype=np.int64)))


def schedule(total: int, cohorts: np.ndarray) -> np.ndarray:
    """The same whole number of steps for all clients of a round, [rounds] int32.

    Each is the mean rounded down or up, whatever leaves the total so far nearer to the
    mean's: the last total is off by at most half the largest cohort. `cohorts` are how many
    clients train in each round, [rounds].
    """
    visits, given, due, steps = int(cohorts.sum()), 0, 0, []
    few = total // visits
    for cohort in map(int, cohorts):
        due += cohort * total  # in units of 1 / visits
        more = 2 * (due - (given + cohort * few) * visits) > cohort * visits
        steps.append(few + more)
        given += cohort * steps[-1]
    return np.array(steps, np.int32)


def _check_examples(
    config: Config, record: records.Record, num_train: int, public: PublicSet | None
) -> None:
    """Raises SettingError unless the clients of both runs hold as many examples in all."""
    assert record.summary is not None
    theirs = record.summary["data"]["train"]
    if theirs == num_train:
        return
    there = record.summary.get("public", {})  # a run of an earlier version had none
    names = [there[x] for x in ("protocol", "examples", "validation")] if there else []
    here = []
    if public is not None:
        here = [public.protocol, public.num_examples, public.num_validation]
    settings = "public={}, public_examples={}, validation_examples={}"
    said = lambda given: settings.format(*given) if given else "no public set"
    raise SettingError(
        f"match={config.match} holds a run whose clients share {theirs} examples ("
        f"{said(names)}), but here they share {num_train} ({said(here)}); only runs of one "
        "federation can be matched, so take as many examples out of the training set in "
        "both."
    )


def _columns(
    config: Config, record: records.Record
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Round (1 is the first), client and local steps of each visit, [visits]."""
    table, names = record.clients, ("round", "client", "num_steps")
    lacks = "is gone"
    if set(names) <= set(table.column_names):
        rounds, clients, num_steps = (table[name].to_numpy() for name in names)
        if set(rounds.tolist()) == set(range(1, config.rounds + 1)):
            return rounds, clients, num_steps
        lacks = "lacks rounds"
    raise SettingError(
        f"match={config.match} holds a run whose table of clients {lacks}; give the folder "
        "of a whole one."
    )


def _record(config: Config) -> records.Record:
    """The finished run to be matched."""
    folder = check.expanded("match=", str(config.match))
    if not (folder / store.CONFIG).is_file():
        raise SettingError(
            f"match={config.match} holds no run; write the folder of a finished one."
        )
    record, _ = records.read_finished(folder, f"match={config.match}")
    theirs = to_settings(read_config(folder / store.CONFIG))
    ours = to_settings(config)
    options = [name for name in ours if name.startswith(("partition.", "dataset."))]
    for name in (*settings_that_are("matched"), *options):
        if ours[name] != theirs.get(name):
            raise SettingError(
                f"match={config.match} holds a run with {name}={theirs.get(name)}, not "
                f"{name}={ours[name]}; only runs of one federation can be matched, so "
                f"write {name}={theirs.get(name)}."
            )
    return record
