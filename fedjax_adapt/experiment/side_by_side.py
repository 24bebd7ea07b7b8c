"""How many clients a run trains side by side where it says lanes="auto".

A long run tries what is fastest, once: what it finds is kept in a file, for this machine
and work of the same shapes. A short run, one that refines on a public set, and one of
several processes, whose clocks differ, goes by the rule of `engine.lanes.choose`.
"""

import hashlib
import json
import platform
from pathlib import Path

import jax

from ..engine import processes
from ..engine.calibrate import fastest_lanes
from ..engine.cohort import num_slots
from ..engine.slots import num_devices_of, num_lanes_of
from . import store, summary
from .build import Federation
from .config import Config
from .folder import cache_home

LONG = 100  # rounds


def lanes_for(config: Config, federation: Federation) -> int:
    """The lanes of a run; `config.lanes` unless that is "auto"."""
    algorithm, task, data, plan = federation[:4]
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    by_rule = lambda: num_lanes_of(algorithm, task, data, plan)
    if config.lanes != "auto" or config.rounds < LONG or algorithm.refine is not None:
        return by_rule()
    if processes.several():
        return by_rule()
    file, work = cache_home() / "lanes.json", _work(config, federation, shapes)
    found = _read(file).get(work)
    if not isinstance(found, int) or found < 1:
        found = fastest_lanes(algorithm, task, data, plan)
        _keep(file, work, found)
    return found


def _work(config: Config, federation: Federation, shapes) -> str:
    """What the fastest number hangs on, in a few letters."""
    data, plan = federation.data, federation.plan
    leaves = [(leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(shapes)]
    slots, devices = num_slots(plan, data), num_devices_of(plan, data)
    told = [
        *(config.algorithm, dict(config.algorithm_options), config.model, leaves),
        *(data.x.shape[1:], str(data.x.dtype), plan.batch_size, config.augment),
        # how unequal the steps are
        *(config.partition, dict(config.partition_options), config.num_clients),
        *(config.epochs, config.num_steps, config.max_local_steps, config.match),
        *(-(-slots // devices), devices, plan.client_memory, plan.momentum == 0),
        *(summary.hardware(), platform.node(), jax.__version__),
    ]
    text = json.dumps(told, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _read(file: Path) -> dict:
    """What is known; nothing where the file is missing or damaged."""
    try:
        known = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _keep(file: Path, work: str, lanes: int) -> None:
    """Adds a line. A file that cannot be written costs time, nothing else."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        store.write_text(file, json.dumps(_read(file) | {work: lanes}, indent=1))
    except OSError:
        return
