"""In what trials of one program may differ: numbers that JAX may trace, and partitions.

A partition, its options and its seed distribute examples; they do not change them. Trials
that differ in nothing else of their data share the examples, and each brings tables of
its own of who holds what. Those of a group are stacked, the index as wide as the largest
client of all, which no batch sees: a batch stays below the client's own size.
"""

import copy
import inspect
import json
import types
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from ...core import Array
from ...data import FederatedDataset
from ...data.rows import count_labels, table_of
from ...engine.batches import batch_size
from ...plan import SCALARS
from ..build import Federation, build_algorithm, split_source, uses_public
from ..config import Config, partition_seed
from ..objects import OBJECT
from ..options import find
from ..schema import kind_options


def traced_names(config: Config) -> list[str]:
    """The settings of a trial that may be traced: numbers, none of them None."""
    given = [name for name in SCALARS if getattr(config, name) is not None]
    return [*given, *_numeric_options(config)]


def _numeric_options(config: Config) -> dict[str, float]:
    """The options of the algorithm that are numbers, by their full names."""
    given, known = config.algorithm_options, kind_options("algorithm", config.algorithm)
    values = {name: given.get(name, known[name].default) for name in known}
    return {f"algorithm.{n}": v for n, v in values.items() if isinstance(v, float)}


def value_of(config: Config, name: str) -> float:
    """The value of a setting that may be traced."""
    return getattr(config, name) if name in SCALARS else _numeric_options(config)[name]


def with_traced(config: Config, traced: Mapping[str, Any]) -> Config:
    """The config with values that JAX may be tracing, which cannot be checked."""
    changed = copy.copy(config)
    put = partial(object.__setattr__, changed)
    options = dict(config.algorithm_options)
    for name, value in traced.items():
        if name in SCALARS:
            put(name, value)
        else:
            options[name.removeprefix("algorithm.")] = value
    put("algorithm_options", types.MappingProxyType(options))
    return changed


class PartitionTables(NamedTuple):
    """Fields of `FederatedDataset` that a partition decides, on the host."""

    index: np.ndarray | Array  # [clients, longest]
    size: np.ndarray | Array  # [clients]
    holders: np.ndarray | Array  # [those with examples]
    label_counts: np.ndarray | Array | None  # [clients, classes]
    # of `client_tests`, None where clients have none
    test_index: np.ndarray | Array | None = None  # [clients, longest]
    test_size: np.ndarray | Array | None = None  # [clients]

    def put_into(self, data: FederatedDataset) -> FederatedDataset:
        """The same examples in these hands."""
        fields = self._asdict()
        index, size = fields.pop("test_index"), fields.pop("test_size")
        if data.client_tests is not None:
            fields["client_tests"] = replace(data.client_tests, index=index, size=size)
        return replace(data, **fields)


class TrialPartitions(NamedTuple):
    """The tables of the trials of a group."""

    # [partitions, ...]; () where all trials have that of the data
    partitions: PartitionTables | tuple[()]
    which: np.ndarray  # of the partitions each trial has, [trials]

    def of(self, trials: np.ndarray) -> PartitionTables | tuple[()]:
        """Those of some trials, [some, ...]."""
        return jax.tree.map(lambda leaf: leaf[self.which[trials]], self.partitions)

    def put_into(self, data: FederatedDataset, trial: int) -> FederatedDataset:
        """The data of one trial; `data`: of the first."""
        tables = self.of(np.array(trial))
        return tables.put_into(data) if tables else data


def what_follows(config: Config) -> str | None:
    """What of a run's examples its `partition_seed` changes, in words; None: nothing.

    Then it decides who holds them, and no more.
    """
    if config.dataset == OBJECT:
        return None
    if "seed" in inspect.signature(find("dataset", config.dataset)).parameters:
        return f"generates the data of dataset={config.dataset} anew"
    if config.corrupt is not None:
        return "corrupts other examples"
    if config.public is not None or uses_public(build_algorithm(config)):
        return "sets other public examples apart"
    return None


def settings_of(config: Config) -> list[str]:
    """The settings that decide who holds which examples, and no more.

    None of them does where the seed changes examples as well, or where the steps of
    clients were taken from a run of one partition.
    """
    if config.match is not None or what_follows(config) is not None:
        return []
    options = kind_options("partition", config.partition)
    return ["partition_seed", *(f"partition.{name}" for name in options)]


def partition_tables(config: Config, federation: Federation) -> PartitionTables:
    """Who holds which examples in a run, by a federation that differs in `settings_of`.

    Raises:
      SettingError: the examples cannot be split so.
    """
    source = federation.source
    assert federation.labels is not None
    rows = split_source(config, source._replace(y_train=federation.labels))
    index, size = table_of(rows)
    counts = count_labels(source.y_train, rows, source.num_classes)
    counts = None if counts is None else np.asarray(counts)
    holders, tests = np.flatnonzero(size).astype(np.int32), (None, None)
    if federation.data.client_tests is not None:
        owned = source.tests_of(rows) or []
        empty = np.zeros((len(rows), 1), np.int32), np.zeros(len(rows), np.int32)
        tests = table_of(owned) if any(map(len, owned)) else empty
    return PartitionTables(index, size, holders, counts, *tests)


def partition_of(config: Config) -> str:
    """What the partition of a run follows from; equal texts are equal tables."""
    if config.partition == OBJECT:
        return OBJECT
    options = dict(config.partition_options)
    return json.dumps([config.partition, options, partition_seed(config)])


def shape_of(federation: Federation) -> tuple[int, int]:
    """What a program must know of a partition: examples of a local step, and holders."""
    data = federation.data
    return batch_size(data, federation.plan), data.num_holders


def trial_partitions(
    configs: Sequence[Config], federation: Federation
) -> TrialPartitions:
    """The tables of trials, which agree in their `shape_of`; the first's federation."""
    texts = list(map(partition_of, configs))
    first = {text: texts.index(text) for text in texts}
    which = np.array([list(first).index(text) for text in texts])
    if len(first) == 1:
        return TrialPartitions((), which)
    found = [partition_tables(configs[i], federation) for i in first.values()]

    def stacked(*tables: np.ndarray) -> np.ndarray:
        if len({table.shape for table in tables}) == 1:
            return np.stack(tables)
        widest = max(table.shape[1] for table in tables)
        more = lambda table: ((0, 0), (0, widest - table.shape[1]))
        return np.stack([np.pad(table, more(table), mode="edge") for table in tables])

    return TrialPartitions(jax.tree.map(stacked, *found), which)
