"""How many clients a run trains side by side, and its ways of convolution, if "auto".

A long run tries what is fastest, once; what it finds is kept in a file, for this machine
and the same work. A short run goes by the rules of engine/lanes.py and models/ways.py,
and so does one of several processes, whose clocks differ, and, for its lanes, one that
refines on a public set.
"""

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax

from ..core import Task, precise
from ..engine import processes
from ..engine.build import num_lanes_of
from ..engine.calibrate import fastest_lanes
from ..engine.cohort import num_devices_of
from ..engine.memory import too_large
from ..engine.round import checked
from ..engine.xla import compiler_options
from ..models.timing import fastest, milliseconds, ways_to_try
from ..models.ways import Layer
from . import files, summary, user_functions
from .build import AUTO, RULE, Federation, listed, trained_layers, with_chosen_ways
from .config import Config, identity
from .estimates import rounds_of, seconds_of
from .schema import settings_that_are

TIMED = ("engine", "models")  # the folders of this package whose code is timed


def cache_folder() -> Path:
    """Where what one run keeps for others lies; nowhere if the user's folder is unknown."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    except RuntimeError:
        cache = Path(os.devnull)  # where no file can be made, which costs time
    return cache / "fedjax-adapt"


def read_cache(file: Path) -> dict[str, Any]:
    """What is known; nothing where the file is missing or damaged."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def add_to_cache(file: Path, found: dict[str, Any]) -> None:
    """Adds to what is known. A file that cannot be written costs time, nothing else.

    It appears whole or not at all. Of two processes that add at once one may go unheard:
    what it found is found again.
    """
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(file, json.dumps(read_cache(file) | found, indent=1))


@functools.cache
def hash_of_code() -> str:
    """The hash of the code that was timed, on which times depend."""
    package = Path(__file__).parents[1]
    timed = [file for name in TIMED for file in (package / name).rglob("*.py")]
    content = b"".join(file.read_bytes() for file in sorted(timed))
    return hashlib.sha256(content).hexdigest()[:12]


# rounds, and seconds of training by the estimate: in less, what is fastest is not tried,
# which takes some seconds itself
LONG, LONG_SECONDS = 100, 30


def lanes_for(
    config: Config,
    federation: Federation,
    show: Callable[..., None] = lambda **said: None,
) -> int:
    """The lanes of a run, as its config says or "auto" finds; shows what is tried."""
    if not tries_lanes(config, federation):
        fewer = lambda text: show(doing="compiling", note=text)
        return num_lanes_of(federation.setup, fewer)
    file, work = cache_folder() / "lanes.json", _work(config, federation)
    found = read_cache(file).get(work)
    if not isinstance(found, int) or found < 1:
        tried: list[str] = []
        show(doing="trying lanes")

        def tell(number: int, seconds: float) -> None:
            took = f"{1e3 * seconds:.3g} ms" if math.isfinite(seconds) else "no room"
            tried.append(f"{number} {took}")
            show(doing=f"trying lanes: {', '.join(tried)}")

        found = fastest_lanes(*federation[:4], tell)
        took = f"lanes={found}, the fastest of those tried on a short round"
        show(doing="compiling", note=f"{took} ({', '.join(tried)})")
        add_to_cache(file, {work: found})
    return found


def tries_lanes(config: Config, federation: Federation) -> bool:
    """Whether a run tries what number of lanes is fastest."""
    fixed = config.lanes != "auto" or federation.algorithm.refine is not None
    return not fixed and _is_long(config, federation)


def _is_long(config: Config, federation: Federation) -> bool:
    """Whether a run in one process is so long that trying what is fastest pays."""
    if config.rounds < LONG or processes.several():
        return False
    rounds = rounds_of(config, federation, checked(*federation[:4]))
    all_at_once = federation.data.num_clients
    seconds = seconds_of(config, federation, rounds, all_at_once)
    return seconds is None or seconds >= LONG_SECONDS


def _work(config: Config, federation: Federation) -> str:
    """What the fastest number depends on, in a few letters."""
    _, task, data, plan = federation[:4]
    params = jax.eval_shape(task.init, jax.random.key(0))
    arrays = [*jax.tree.leaves(params), data.x, data.y, data.index]
    untimed = settings_that_are("untimed")
    facts = [
        {name: v for name, v in identity(config).items() if name not in untimed},
        [(leaf.shape, str(leaf.dtype)) for leaf in arrays],
        *(num_devices_of(data, plan), plan.client_memory, config.convolutions),
        user_functions.origins([config]),
        *_here(),
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _here() -> list[str]:
    """The machine, versions, code and compiler flags on which times depend."""
    return [
        *map(str, summary.hardware().values()),
        platform.node(),
        *(f"{name} {version}" for name, version in summary.versions().items()),
        f"code {hash_of_code()}",
        f"XLA_FLAGS {os.environ.get('XLA_FLAGS', '')}",
    ]


TABLE = "conv.json"


def settle_convolutions(
    config: Config,
    federation: Federation,
    show: Callable[..., None] = lambda **said: None,
) -> tuple[Config, Task]:
    """The config and the task with ways in place of "auto"; as they are otherwise.

    The lanes of the plan are a number, those of the run.
    """
    task, data, plan = federation[1:4]
    if config.convolutions != AUTO:
        return config, task
    layers = trained_layers(task, data, plan) if _is_long(config, federation) else []
    if not layers:
        return replace(config, convolutions=RULE), task
    lanes, devices = int(plan.lanes), num_devices_of(data, plan)
    show(doing="timing convolutions")
    ways = [
        fastest(layer, times_of_ways(task, layer, lanes, devices, not i))
        for i, layer in enumerate(layers)
    ]
    show(doing="compiling")
    config = replace(config, convolutions=listed(ways))
    return config, with_chosen_ways(config.convolutions, task, data, plan)


def times_of_ways(
    task: Task, layer: Layer, lanes: int, devices: int, reads_examples: bool
) -> dict[str, float]:
    """Milliseconds of a step of a layer by way, kept or timed now; see `milliseconds`."""
    file = cache_folder() / TABLE
    what = f"{layer}{', of examples' if reads_examples else ''}"
    how = f"precision {task.precision}, lanes {lanes}, devices {devices}"
    key = f"{', '.join(_here())}: {what}; {how}"
    known, wanted = read_cache(file).get(key), set(ways_to_try(layer, lanes))
    if not (isinstance(known, dict) and set(known) == wanted and _are_times(known)):
        options = compiler_options(lanes)
        no_room = partial(too_large, num_devices=devices)
        with precise(task):
            known = milliseconds(
                layer, lanes, devices, options, reads_examples, too_large=no_room
            )
        add_to_cache(file, {key: known})
    return known


def _are_times(table: dict) -> bool:
    """Whether they could be milliseconds; infinite for a way that there is no room for."""
    number = lambda value: type(value) in (int, float) and not math.isnan(value)
    return all(number(value) and value > 0 for value in table.values())
