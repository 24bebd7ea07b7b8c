"""From a config to the parts the engine takes: the one place that wires them.

The algorithm, whose options may hold another, and the clock are read in algorithm.py. Of
the setting `convolutions` "auto" and "rule" leave the ways open, WAY is for all layers that
can, and WAY,WAY,... are for the kinds of layers that local training has, in their order.
"""

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ..averaging import with_averages
from ..core import Algorithm, Task, with_precision, with_steps
from ..data import (
    SOURCES,
    FederatedDataset,
    Source,
    corrupt,
    feature_noise,
    load,
    skew,
    split,
)
from ..diagnostics import show_distance, show_parameters
from ..engine.batches import batch_size
from ..errors import SettingError
from ..models import AUGMENTS, OF_PIXELS, classification, projected
from ..models.ways import Layer, can, layers_of, with_ways
from ..participation import bernoulli, earliest, uniform
from ..plan import Plan
from . import objects, user_functions
from .algorithm import build_algorithm, build_clock, cohort_size
from .config import Config, partition_seed
from .federation import Federation, uses_public, with_public
from .match import matching_steps
from .objects import OBJECT
from .options import find
from .user_functions import is_own


def build(config: Config) -> Federation:
    """Loads the data, splits it among the clients and builds the rest.

    Raises:
      ValueError: one sentence on what does not fit: a missing or damaged file, more
        clients than examples, an option out of range.
    """
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
    task = with_told_ways(config.convolutions, build_task(config, source), data, plan)
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
    own = user_functions.called(f"partition={config.partition}", function)
    rows = own(*of, **_accepted(function, given), **options)
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
    same = ("batch_size", "lr", "lr_decay", "momentum", "weight_decay", "clip_norm")
    same += ("shuffle", "lanes", "devices", "client_memory", "nonfinite_updates")
    return Plan(
        **{name: getattr(config, name) for name in same},
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
        own = user_functions.called(f"dataset={config.dataset}", loader)
        source = own(config.data_dir, **options)
        user_functions.check_made(f"dataset={config.dataset}", source, Source)
    else:
        spec = SOURCES.get(config.dataset)
        if config.data_dir is not None and spec and not spec.from_files:
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


def with_told_ways(
    convolutions: str, task: Task, data: FederatedDataset, plan: Plan
) -> Task:
    """The task, its convolutions computed as the setting says.

    Raises:
      ValueError: it names more or fewer ways than there are kinds of layers, or one that
        a layer cannot be computed in.
    """
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
    except ValueError as error:
        raise SettingError(
            f"convolutions={convolutions}: {error}", setting="convolutions"
        ) from None


def trained_layers(task: Task, data: FederatedDataset, plan: Plan) -> list[Layer]:
    """The kinds of convolutions of a local step, in their order."""
    shape = (batch_size(data, plan), *data.x.shape[1:])
    return layers_of(task, jax.ShapeDtypeStruct(shape, data.x.dtype))
