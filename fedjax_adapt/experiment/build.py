"""From a config to the parts the engine takes: the one place that wires them.

The algorithm, whose options may hold another, and the clock are read in algorithm.py. Of
the setting `convolutions` "auto" and "rule" leave the ways open, WAY is for all layers that
can, and WAY,WAY,... are for the kinds of layers that local training has, in their order.

Where the public set is the test set and the algorithm trains on it, accuracy is training
accuracy; on validation examples it is validation accuracy. It goes by that name wherever
it is written or shown, so that nothing that looks for a test accuracy finds it.
"""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import costs
from ..averaging import with_averages
from ..core import (
    Algorithm,
    Refinement,
    Task,
    as_refinement,
    logits_of,
    rows_are_like,
    with_precision,
    with_steps,
)
from ..data import (
    PROTOCOLS,
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
from ..data.examples import largest_pixel
from ..data.source import default_size
from ..data.sources import MADE_HERE
from ..diagnostics import show_distance, show_parameters
from ..engine.batches import batch_size
from ..engine.contract import guarded_task
from ..engine.initial import init_state
from ..engine.mesh import check_environment
from ..engine.setup import Setup
from ..errors import SettingError
from ..models import AUGMENTS, OF_PIXELS, classification, projected
from ..models.ways import Layer, can, layers_of, with_ways
from ..participation import bernoulli, earliest, uniform
from ..plan import Plan
from . import objects, user_functions
from .algorithm import build_algorithm, build_clock, cohort_size, matching_steps
from .config import Config, common_options, partition_seed, to_settings
from .objects import OBJECT
from .options import find
from .store import ACCURACY, TRAINED, VALIDATED
from .user_functions import is_own


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

    @property
    def setup(self) -> Setup:
        """What its rounds are made from."""
        return Setup(*self[:4])


ORIGIN = {
    "holdout": "held out of the training set",
    "split_test": "taken out of the test set",
    "published": "the test set itself",
    "given": "given with the data",
}


def uses_public(algorithm: Algorithm) -> bool:
    """Whether an algorithm asks for a public set; who does not, does not get to see one."""
    refine = as_refinement(algorithm.refine)
    return refine is not None and refine.needs_public


def validates(algorithm: Algorithm) -> bool:
    """Whether an algorithm asks for validation examples."""
    refine = as_refinement(algorithm.refine)
    return refine is not None and refine.needs_validation


def with_public(
    config: Config, source: Source, algorithm: Algorithm | None = None
) -> tuple[Source, PublicSet | None]:
    """What clients train on and what is tested on, and the public set besides it.

    Without a protocol in the config it is held out where the algorithm needs one; without
    an algorithm only what the config says counts.
    """
    needed = algorithm is not None and uses_public(algorithm)
    protocol = config.public or ("holdout" if needed else None)
    if protocol is None:
        for name in ("public_examples", "validation_examples"):
            if config.is_set(name):
                raise SettingError(
                    f"{name}={getattr(config, name)} needs a public set, and algorithm="
                    f"{config.algorithm} uses none; write public=holdout to take one out "
                    f"of the training set all the same, or leave {name} out.",
                    setting=name,
                )
        return source, None
    if source.validates and protocol != "holdout":
        raise SettingError(
            f"public={protocol} takes the test set, but evaluate_on=validation leaves it "
            "alone; write public=holdout.",
            setting="public",
        )
    validation = config.validation_examples
    if validation is None:
        chooses = algorithm is not None and validates(algorithm)
        validation = default_size(source.y_train) if chooses else 0
    seed = partition_seed(config)
    return PROTOCOLS[protocol](source, config.public_examples, validation, seed)


def accuracy_name(federation: Federation) -> str:
    """What the accuracy on what is tested on is to be called in tables."""
    seen = federation.data.public  # by the algorithm
    if seen is not None and seen.protocol == "published":
        return TRAINED
    return VALIDATED if federation.source.validates else ACCURACY


def without_effect(config: Config, federation: Federation) -> list[str]:
    """What to say of settings that do nothing in a run."""
    found, public = [], federation.public
    if public is not None and federation.data.public is None:
        found.append(
            f"{config.algorithm} uses no public set: public={public.protocol} "
            f"({public.num_examples} examples, {ORIGIN[public.protocol]}) only makes its "
            "run comparable with one that does; give both the same validation_examples."
        )
    if config.algorithm == "gift":
        given = to_settings(config)
        detector, warmup = given["algorithm.detector"], given["algorithm.warmup"]
        if detector == "patience" and warmup >= config.rounds:
            found.append(
                f"with warmup={warmup} gift changes no local steps in {config.rounds} "
                "rounds; give fewer, 0 for a short run."
            )
    return found


def broadcast_bytes(federation: Federation) -> int:
    """What all clients receive once if they train on the public set; 0 if they do not.

    A label takes a byte, as in FNR-FL's count of 3073 for an image of CIFAR-10.
    """
    public, refine = federation.data.public, as_refinement(federation.algorithm.refine)
    if public is None or refine is None or refine.clients is None:
        return 0
    labels = 0 if public.y is None else public.num_examples
    return federation.data.num_clients * (int(public.x.nbytes) + labels)


def broadcast_seconds(config: Config, federation: Federation) -> float:
    """Simulated seconds until the last client has it, which the first round waits for."""
    number = federation.data.num_clients
    each = broadcast_bytes(federation) // number
    return costs.broadcast_seconds(build_clock(config), each, number)


def public_summary(federation: Federation) -> dict[str, Any]:
    """The public set of a run, for its summary; empty if there is none."""
    public = federation.public
    if public is None:
        return {}
    return {
        "protocol": public.protocol,
        "origin": ORIGIN[public.protocol],
        "examples": public.num_examples,
        "validation": public.num_validation,
        "bytes": int(public.x.nbytes),
        "broadcast_bytes": broadcast_bytes(federation),
        "used": federation.data.public is not None,
    }


def auxiliary(federation: Federation) -> list[str]:
    """What a method is given besides the clients' own training, in words."""
    algorithm = federation.algorithm
    parts = (algorithm.server, as_refinement(algorithm.refine) or Refinement())
    given = list(dict.fromkeys(part.given for part in parts if part.given))
    public = federation.data.public
    if public is None:
        return given
    if not any("public" in text for text in given):
        given.append("public examples")
    whence = f"({public.num_examples}, {ORIGIN[public.protocol]})"
    given = [f"{text} {whence}" if "public" in text else text for text in given]
    if public.validation is not None and validates(federation.algorithm):
        whence = f"({public.num_validation}, {ORIGIN['holdout']})"
        given.append(f"labelled validation examples {whence}")
    return given


def build(config: Config) -> Federation:
    """Loads the data, splits it among the clients and builds the rest.

    Raises:
      SettingError: one sentence on what does not fit: a missing or damaged file, more
        clients than examples, an option out of range, models of clients' own that could
        not be read at the end.
    """
    check_environment()
    algorithm, plan = build_algorithm(config), build_plan(config)
    if config.dataset == OBJECT:  # clients are as they are
        data = objects.of("data")
        source, public = scaled(config, objects.source_of(data)), data.public
        labels = source.y_train
        measured = skew(data.rows(), labels, source.num_classes)
    else:
        source, public = with_public(config, load_source(config), algorithm)
        rows, labels = split_source(config, source), source.y_train
        if config.num_clients is None:  # as many as own rows
            config = replace(config, num_clients=len(rows))
            algorithm, plan = build_algorithm(config), build_plan(config)
        test_rows = source.tests_of(rows) if config.partition == "natural" else None
        measured = skew(rows, labels, source.num_classes)
        if config.labels == "parity":  # of what was split by the labels themselves
            source, public = source.parity(), public and public.parity()
        seen = public if uses_public(algorithm) else None
        data = skewed(config, source, source.federated(rows, seen, test_rows))
    task = with_chosen_ways(config.convolutions, build_task(config, source), data, plan)
    if config.model == OBJECT:
        _check_accuracy(task, source)
    found = Federation(algorithm, task, data, plan, source, measured, public, labels)
    found = found._replace(algorithm=completed(config, algorithm, found))
    if config.evaluate_clients:
        _check_own_models(found)
    return found


def _check_own_models(federation: Federation) -> None:
    """Raises SettingError where clients' own models could not be read at the end."""
    algorithm, task, data, plan = federation[:4]
    local, one_device = algorithm.local, replace(plan, devices=1)
    if local.personal is None:
        return
    init = partial(init_state, algorithm, task, data, one_device)
    state = jax.eval_shape(init, jax.random.key(0))
    kept = jax.eval_shape(local.init, state.params)
    if not jax.tree.leaves(kept):
        raise SettingError(
            "the algorithm's clients keep no state, of which LocalRule.personal could make "
            "models of their own; give LocalRule.init, or write evaluate_clients=false."
        )
    if not rows_are_like(state.clients, kept):
        raise SettingError(
            f"client_memory={plan.client_memory} keeps clients' states in a form of its "
            "own, from which their models cannot be read at the end; write "
            "client_memory=device, or evaluate_clients=false."
        )


def _check_accuracy(task: Task, source: Source) -> None:
    """Raises SettingError if no accuracy of the task is known, by which runs compare."""
    if task.accuracy is not None:
        return
    x, y = source.x_test[:1], source.y_test[:1]
    guarded = guarded_task(task)
    of = lambda key: logits_of(guarded.apply(guarded.init(key), x))
    logits = jax.eval_shape(of, jax.random.key(0))
    if logits.shape[:-1] == y.shape and logits.shape[-1] > 1:
        return
    raise SettingError(
        f"task has logits {list(logits.shape)} for labels {list(y.shape)}, of which no "
        "accuracy is known; write task._replace(accuracy=f) with f(logits, y) -> [batch], "
        "such as lambda logits, y: (logits[:, 0] > 0) == y.",
        setting="task",
    )


def completed(
    config: Config, algorithm: Algorithm, federation: Federation
) -> Algorithm:
    """The algorithm with what of the run hangs on the data, or is only measured."""
    if config.match is not None:
        sizes = np.asarray(federation.data.size)
        num_train = len(federation.source.y_train)
        policy = matching_steps(config, sizes, num_train, federation.public)
        algorithm = with_steps(algorithm, policy)
    if config.ideal_steps is not None:
        algorithm = show_distance(algorithm, config.ideal_steps)
    if config.watch is not None:
        algorithm = show_parameters(algorithm, config.watch)
    if config.evaluate_also:
        keep = {"cohort": "sel", "clients": "all"}
        wanted = {name: model in config.evaluate_also for name, model in keep.items()}
        algorithm = with_averages(algorithm, **wanted)
    return algorithm


def counted(config: Config) -> Config:
    """The config, with as many clients as own rows where the data say; see `build`."""
    if config.num_clients is not None:
        return config
    source, _ = with_public(config, load_source(config), build_algorithm(config))
    return replace(config, num_clients=len(split_source(config, source)))


def split_source(config: Config, source: Source) -> list[np.ndarray]:
    """For each client the rows of the training set it holds."""
    given = {"seed": partition_seed(config), "clients": source.clients}
    options, of = dict(config.partition_options), (source.y_train, config.num_clients)
    if not is_own("partition", config.partition):
        return split(config.partition, *of, **given, **options)
    function = find("partition", config.partition)
    partitioner = user_functions.called(f"partition={config.partition}", function)
    rows = partitioner(*of, **_accepted(function, given), **options)
    return user_functions.checked_rows(config, rows, len(source.y_train))


def _accepted(function: Callable, given: dict[str, Any]) -> dict[str, Any]:
    """What a function takes of what is given."""
    takes = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if name in takes}


def skewed(config: Config, source: Source, data: FederatedDataset) -> FederatedDataset:
    """The data set, with corrupted clients and noise on inputs if they are asked for."""
    if config.corrupt is not None:
        what = config.corrupt, config.corrupt_clients, config.corrupt_strength
        moments = {"mean": source.mean, "std": source.std}
        data = corrupt(data, *what, **moments, seed=partition_seed(config))
    if config.feature_noise == 0:
        return data
    level, mask = config.feature_noise, config.feature_noise_mask
    noise = feature_noise(data.num_clients, level, source.x_train, mask)
    return replace(data, noise=noise)


def seen_by_clients(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """The first training picture as each client sees it, and the noise of each.

    Pictures are [clients, height, width, 3], in [0, 1] and cut off there; the deviations
    of the noise are [clients], in the same units.

    Raises:
      SettingError: as `build`, or inputs are no pictures.
    """
    source, _ = with_public(config, load_source(config))
    rows = split_source(config, source)
    noise = skewed(config, source, source.federated(rows)).noise
    x = jax.numpy.asarray(source.x_train[:1])
    if x.ndim != 4 or x.shape[-1] not in (1, 3):
        raise SettingError(
            f"dataset={config.dataset} has inputs {list(x.shape[1:])}, which are no "
            "pictures; write dataset=cifar10 or another one of pictures.",
            setting="dataset",
        )
    most, key = largest_pixel(source.x_train), jax.random.key(partition_seed(config))
    seen = lambda k: x if noise is None else noise.add(x, k, key)
    shown = np.stack([np.asarray(seen(k))[0] for k in range(len(rows))]) / most
    shown = np.broadcast_to(shown.clip(0, 1), (*shown.shape[:-1], 3))
    std = np.zeros(len(rows)) if noise is None else np.asarray(noise.std) / most
    return shown, std


def build_task(config: Config, source: Source) -> Task:
    """The model, with what the config puts on top of it and before it."""
    if config.model == OBJECT:
        return with_precision(objects.of("task"), config.precision)
    builder, augment = find("model", config.model), AUGMENTS[config.augment]
    if is_own("model", config.model):
        builder = user_functions.called(f"model={config.model}", builder)
    if config.projection is not None:
        builder = projected(builder, config.projection)
    model = builder(source.shape, source.num_classes, **config.model_options)
    if model is None:  # of a function without return
        raise SettingError(
            f"model={config.model} returned None; its function must return a model."
        )
    moments = {"mean": source.mean, "std": source.std}
    augmented = None if augment is None else augment()
    task = classification(model, source.shape, **moments, augment=augmented)
    return with_precision(task, config.precision)


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
    same = {field.name for field in fields(Plan)} & common_options().keys()
    return Plan(
        **{name: getattr(config, name) for name in same - {"participation", "rounds"}},
        max_steps=config.max_local_steps,
        participation=participation,
        clock=build_clock(config),
    )


def load_source(config: Config) -> Source:
    """What there is to learn from; a generated set gets the run's clients and seed."""
    loader = find("dataset", config.dataset)
    of_run = {"seed": partition_seed(config), "num_clients": config.num_clients}
    options = dict(config.dataset_options) | _accepted(loader, of_run)
    if is_own("dataset", config.dataset):
        reader = user_functions.called(f"dataset={config.dataset}", loader)
        source = reader(config.data_dir, **options)
        user_functions.check_made(f"dataset={config.dataset}", source, Source)
    else:
        if config.data_dir is not None and config.dataset in MADE_HERE:
            warnings.warn(
                f"data_dir={config.data_dir} does nothing: dataset={config.dataset} reads "
                "no files.",
                UserWarning,
                stacklevel=2,
            )
        source = load(config.dataset, config.data_dir, **options)
    source = scaled(config, source)
    if config.evaluate_on == "validation":  # the same examples for all train_examples
        source = source.validating()
    if config.train_examples is not None:
        source = source.first(config.train_examples)
    return source


def scaled(config: Config, source: Source) -> Source:
    """The source with the moments that its inputs are standardised by for the model."""
    return source.of_pixels() if config.model in OF_PIXELS else source


AUTO, RULE = "auto", "rule"


def listed(ways: list[str]) -> str:
    """The setting that gives each layer its way."""
    return ",".join(ways) if len(ways) > 1 else f"{ways[0]},"


def with_chosen_ways(
    convolutions: str, task: Task, data: FederatedDataset, plan: Plan
) -> Task:
    """The task, its convolutions computed as the setting says."""
    if convolutions in (AUTO, RULE):
        return task
    layers = trained_layers(task, data, plan)
    if "," not in convolutions:
        if not any(can(convolutions, layer) for layer in layers):
            none = "that can be computed so" if layers else "of this package's"
            warnings.warn(
                f"convolutions={convolutions} does nothing: the model has no convolutions "
                f"{none}.",
                UserWarning,
                stacklevel=2,
            )
        return with_ways(task, convolutions)
    ways = [way.strip() for way in convolutions.split(",") if way.strip()]
    if len(ways) != len(layers):
        raise SettingError(
            f"convolutions={convolutions} names {len(ways)} ways, but the model has "
            f"{len(layers)} kinds of convolutions; write one for each, or one for all.",
            setting="convolutions",
        )
    try:
        return with_ways(task, dict(zip(layers, ways, strict=True)))
    except SettingError as error:
        raise SettingError(
            f"convolutions={convolutions}: {error}", setting="convolutions"
        ) from None


def trained_layers(task: Task, data: FederatedDataset, plan: Plan) -> list[Layer]:
    """The kinds of convolutions of a local step, in their order."""
    shape = (batch_size(data, plan), *data.x.shape[1:])
    return layers_of(task, jax.ShapeDtypeStruct(shape, data.x.dtype))
