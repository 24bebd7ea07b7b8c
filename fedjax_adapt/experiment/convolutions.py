"""How a run computes its convolutions where it says convolutions="auto".

A long run times every way of every kind of layer, forward and both gradients, and takes
the fastest. The times are kept in a table, conv.json, by machine, layer, lanes and devices:
what was timed once is not timed again. A short run goes by the rule of models/ways.py, and
so does one of several processes, whose clocks differ.
"""

import math
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from ..core import Task, precise
from ..data import FederatedDataset
from ..engine import processes
from ..engine.cohort import num_devices_of
from ..engine.memory import too_large
from ..engine.xla import compiler_options
from ..models.timing import fastest, milliseconds, ways_to_try
from ..models.ways import Layer
from ..plan import Plan
from . import summary, tuned_lanes, tuning_cache
from .config import Config
from .folder import cache_home
from .tuned_lanes import show_nothing
from .ways import AUTO, RULE, listed, trained_layers, with_told_ways

TABLE = "conv.json"


def settled(
    config: Config,
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    show: Callable[..., None] = show_nothing,
) -> tuple[Config, Task]:
    """The config and the task with ways in place of "auto"; as they are otherwise.

    Args:
      config: of the run.
      task: what is learnt.
      data: the federation.
      plan: its lanes are a number, those of the run.
      show: called before layers are timed or looked up, and after, with `doing`.
    """
    if config.convolutions != AUTO:
        return config, task
    short = config.rounds < tuned_lanes.LONG or processes.several()
    layers = [] if short else trained_layers(task, data, plan)
    if not layers:
        return replace(config, convolutions=RULE), task
    lanes, devices = int(plan.lanes), num_devices_of(data, plan)
    show(doing="timing convolutions")
    ways = [
        fastest(layer, table_of(task, layer, lanes, devices, not i))
        for i, layer in enumerate(layers)
    ]
    show(doing="compiling")
    config = replace(config, convolutions=listed(ways))
    return config, with_told_ways(config.convolutions, task, data, plan)


def table_of(
    task: Task, layer: Layer, lanes: int, devices: int, reads_examples: bool
) -> dict[str, float]:
    """Milliseconds of a step of a layer by way, kept or timed now; see `milliseconds`."""
    file = cache_home() / TABLE
    where = [*summary.hardware().values(), platform.node()]
    where += [f"{name} {version}" for name, version in summary.versions().items()]
    where += [
        f"code {tuning_cache.code()}",
        f"XLA_FLAGS {os.environ.get('XLA_FLAGS', '')}",
    ]
    what = f"{layer}{', of examples' if reads_examples else ''}"
    how = f"precision {task.precision}, lanes {lanes}, devices {devices}"
    key = f"{', '.join(map(str, where))}: {what}; {how}"
    known, wanted = tuning_cache.read(file).get(key), set(ways_to_try(layer, lanes))
    if not (isinstance(known, dict) and set(known) == wanted and _are_times(known)):
        options = compiler_options(lanes)
        with precise(task):
            known = milliseconds(
                layer,
                lanes,
                devices,
                options,
                reads_examples,
                too_large=partial(too_large, num_devices=devices),
            )
        tuning_cache.add(file, {key: known})
    return known


def _are_times(table: dict) -> bool:
    """Whether they could be milliseconds; infinite for a way that there is no room for."""
    number = lambda value: type(value) in (int, float) and not math.isnan(value)
    return all(number(value) and value > 0 for value in table.values())
