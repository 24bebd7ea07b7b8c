"""From a config to the parts the engine takes: the one place that wires them."""

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..core import (
    Algorithm,
    Task,
    constant_steps,
    epochs,
    with_precision,
    with_steps,
)
from ..data import (
    FederatedDataset,
    PublicSet,
    Skew,
    Source,
    corrupt,
    feature_noise,
    load,
    skew,
    split,
)
from ..engine.averages import with_averages
from ..models import AUGMENTS, MODELS, classification, projected
from ..participation import bernoulli, earliest, uniform
from ..plan import Plan
from .clock import build_clock
from .config import Config, partition_seed
from .limits import is_set
from .match import matching_steps
from .options import Option, checked, find, options_of, registry
from .public import uses_public, with_public
from .schema import DERIVED, kind_options
from .ways import with_told_ways


class Federation(NamedTuple):
    """What `init_state` and `make_round` take, and how skewed the clients are."""

    algorithm: Algorithm
    task: Task
    data: FederatedDataset
    plan: Plan
    source: Source  # what the clients learn from, and what is tested on
    skew: Skew
    public: PublicSet | None = None  # set apart; data.public if the algorithm uses it
    labels: np.ndarray | None = None  # that the training examples were split by


def build(config: Config) -> Federation:
    """Loads the data, splits it among the clients and builds the rest.

    Raises:
      ValueError: one sentence on what does not fit: a missing or damaged file, more
        clients than examples, an option out of range.
    """
    algorithm, plan = build_algorithm(config), build_plan(config)
    source, public = with_public(config, load_source(config), algorithm)
    rows, labels = split_source(config, source), source.y_train
    measured = skew(rows, source.y_train, source.num_classes)
    if config.labels == "parity":  # of what was split by the labels themselves
        source, public = source.parity(), public and public.parity()
    seen = public if uses_public(algorithm) else None
    data = skewed(config, source, source.federated(rows, seen))
    task = build_task(config, source)
    task = with_told_ways(config.convolutions, task, data, plan)
    found = Federation(algorithm, task, data, plan, source, measured, public, labels)
    return found._replace(algorithm=completed(config, algorithm, found))


def completed(
    config: Config, algorithm: Algorithm, federation: Federation
) -> Algorithm:
    """The algorithm with what of the run hangs on the data, or is only measured."""
    if config.match is not None:
        sizes = np.asarray(federation.data.size)
        num_train = len(federation.source.y_train)
        policy = matching_steps(config, sizes, num_train, federation.public)
        algorithm = with_steps(algorithm, policy)
    if config.evaluate_also:
        keep = {"cohort": "sel", "clients": "all"}
        wanted = {name: model in config.evaluate_also for name, model in keep.items()}
        algorithm = with_averages(algorithm, **wanted)
    return algorithm


def split_source(config: Config, source: Source) -> list[np.ndarray]:
    """For each client the rows of the training set it holds."""
    return split(
        config.partition,
        source.y_train,
        config.num_clients,
        seed=partition_seed(config),
        clients=source.clients,
        **config.partition_options,
    )


def skewed(config: Config, source: Source, data: FederatedDataset) -> FederatedDataset:
    """The data set, with corrupted clients and noise on inputs if they are asked for."""
    if config.corrupt is not None:
        data = corrupt(
            data,
            config.corrupt,
            config.corrupt_clients,
            config.corrupt_strength,
            mean=source.mean,
            std=source.std,
            seed=partition_seed(config),
        )
    if config.feature_noise == 0:
        return data
    level, mask = config.feature_noise, config.feature_noise_mask
    noise = feature_noise(data.num_clients, level, source.x_train, mask)
    return replace(data, noise=noise)


def build_task(config: Config, source: Source) -> Task:
    """The model, with what the config puts on top of it and before it."""
    builder, augment = MODELS[config.model], AUGMENTS[config.augment]
    if config.projection is not None:
        builder = projected(builder, config.projection)
    model = builder(source.shape, source.num_classes, **config.model_options)
    task = classification(
        model,
        source.shape,
        mean=source.mean,
        std=source.std,
        augment=None if augment is None else augment(),
    )
    return with_precision(task, config.precision)


def build_algorithm(config: Config) -> Algorithm:
    """The algorithm, told of the run what it asks for.

    One that brings its own step policy keeps it; else `num_steps` or `epochs` decide.
    """
    flat = {
        own: name
        for own, (name, _) in kind_options("algorithm", config.algorithm).items()
    }
    try:
        algorithm = _construct(config, config.algorithm, config.algorithm_options)
    except ValueError as error:  # in the names that the user wrote
        own = lambda match: f"{flat.get(match[1], match[1])}="
        error.args = (re.sub(r"\b(\w+)=", own, str(error)),)
        raise
    if algorithm.policy is not Algorithm().policy:
        if config.match is not None:
            raise ValueError(
                f"match={config.match} sets the local steps of clients, but algorithm="
                f"{config.algorithm} chooses them itself; leave match out."
            )
        for name in ("num_steps", "epochs"):
            if is_set(config, name):
                steps = [
                    f"--{n.replace('_', '-')}" for n in flat.values() if "steps" in n
                ]
                raise ValueError(
                    f"{name}={getattr(config, name):g} sets the local steps of clients, "
                    f"but algorithm={config.algorithm} chooses them itself; leave {name} "
                    f"out and see its own options {', '.join(steps)}."
                )
        return algorithm
    if config.num_steps is not None:
        return with_steps(algorithm, constant_steps(config.num_steps))
    return with_steps(algorithm, epochs(config.epochs))


def _construct(config: Config, name: str, options: Mapping[str, Any]) -> Algorithm:
    """An algorithm by name; `base` may name another, see `_parse_base`."""
    constructor = find("algorithm", name)
    known = options_of("algorithm", constructor)
    told = {
        own: getattr(config, ours)
        for own, ours in DERIVED.items()
        if own in known and known[own].default is not None
    }
    if "participation" in told and config.sampler != "bernoulli":
        told["participation"] = cohort_size(config) / config.num_clients
    given: dict[str, Any] = {
        n: v for n, v in options.items() if v is not None or _says_none(n, known)
    }
    if config.max_local_steps is not None and "max_steps" in known:
        # a policy that learns must know what its clients really take
        for own in {"max_steps", "initial_steps"} & set(known):
            most = config.max_local_steps
            told[own] = min(known[own].default or most, most)
        if (given.get("initial_steps") or 0) > config.max_local_steps:
            raise ValueError(
                f"initial_steps={given['initial_steps']} is above max_local_steps="
                f"{config.max_local_steps}; write a smaller one."
            )
        if "max_steps" in given:
            given["max_steps"] = min(given["max_steps"], config.max_local_steps)
    if given.get("every_seconds") is not None and config.step_seconds is None:
        raise ValueError(
            f"every_seconds={given['every_seconds']:g} needs a simulated clock; set "
            "step_seconds, or every_rounds in place of every_seconds."
        )
    if "base" not in given:
        return constructor(**told | given)
    base = _construct(config, *_parse_base(given["base"]))
    algorithm = constructor(**told | given | {"base": base})
    replaced = base.policy.steps is not algorithm.policy.steps
    if replaced and base.policy is not Algorithm().policy:
        raise ValueError(
            f"base={given['base']} chooses the local steps of clients, and so does "
            f"algorithm={name}; write one of them."
        )
    return algorithm


def _says_none(name: str, known: Mapping[str, Option]) -> bool:
    """Whether None is a value of its own: neither the default nor what the run says."""
    return name not in DERIVED and known[name].default is not None


def _parse_base(text: str) -> tuple[str, dict[str, Any]]:
    """Name and options of "feddyn" or "feddyn(alpha=0.1)"."""
    try:
        node = ast.parse(text, mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        named = all(keyword.arg for keyword in call.keywords)
        if not isinstance(call.func, ast.Name) or call.args or not named:
            raise ValueError("no name, or options without theirs")
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f"base={text!r} is no algorithm; write its name, or its name and options as "
            "in feddyn(alpha=0.1)."
        ) from None
    try:
        values = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (TypeError, ValueError, RecursionError, MemoryError):
        raise ValueError(
            f"base={text!r} has an option that is no value; write a number, True, False or "
            "text in quotes, as in feddyn(alpha=0.1)."
        ) from None
    name = call.func.id
    check.one_of("base", name, registry("algorithm"))
    known = options_of("algorithm", find("algorithm", name))
    for option, value in values.items():
        if option not in known:
            raise ValueError(
                f"base={text} has no option {option}; {check.nearest(option, known)}"
            )
        sentence = f"{option}={value!r} of base {name}"
        values[option] = checked(sentence, known[option].annotation, value)
    return name, values


def cohort_size(config: Config) -> int:
    """Clients per round of a sampler of so many."""
    if config.sampler == "earliest":
        return earliest(config.participation).slots(config.num_clients)
    return max(round(config.participation * config.num_clients), 1)


def build_plan(config: Config) -> Plan:
    """How the clients of a round train, and who they are."""
    if config.participation == 1:
        participation = None  # everyone, in client order
    elif config.sampler == "bernoulli":
        participation = bernoulli(config.participation)
    elif config.sampler == "earliest":
        participation = earliest(config.participation)
    else:
        participation = uniform(cohort_size(config))
    return Plan(
        batch_size=config.batch_size,
        lr=config.lr,
        lr_decay=config.lr_decay,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
        max_steps=config.max_local_steps,
        shuffle=config.shuffle,
        lanes=config.lanes,
        devices=config.devices,
        client_memory=config.client_memory,
        participation=participation,
        clock=build_clock(config),
    )


def load_source(config: Config) -> Source:
    """What there is to learn from; a generated set gets the run's clients and seed."""
    options = dict(config.dataset_options)
    told = {"seed": partition_seed(config), "num_clients": config.num_clients}
    accepted = inspect.signature(find("dataset", config.dataset)).parameters
    options.update({name: v for name, v in told.items() if name in accepted})
    source = load(config.dataset, config.data_dir, **options)
    return (
        source if config.train_examples is None else source.first(config.train_examples)
    )
