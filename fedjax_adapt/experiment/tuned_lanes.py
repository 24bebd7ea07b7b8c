"""How many clients a run trains side by side where it says lanes="auto".

A long run tries what is fastest, once: what it finds is kept in a file, for this machine
and the same work. A short run goes by the rule of `engine.lanes.choose`, and so do one
that refines on a public set and one of several processes, whose clocks differ.
"""

import hashlib
import json
import math
import os
import platform
from collections.abc import Callable

import jax

from ..engine import processes
from ..engine.build import num_lanes_of
from ..engine.calibrate import fastest_lanes
from ..engine.cohort import num_devices_of
from . import summary, tuning_cache
from .config import Config, identity
from .federation import Federation
from .folder import cache_home
from .schema import settings_that_are

LONG = 100  # rounds


def show_nothing(doing: str, note: str | None = None) -> None:
    """Keeps it to itself."""
    del doing, note


def lanes_for(
    config: Config, federation: Federation, show: Callable[..., None] = show_nothing
) -> int:
    """The lanes of a run; `config.lanes` unless that is "auto".

    Args:
      config: of the run.
      federation: of the run.
      show: called where numbers are tried, with `doing`, what was tried so far, and at
        the end with `note`, what has come of it.
    """
    algorithm, task, data, plan = federation[:4]
    fewer = lambda text: show(doing="compiling", note=text)
    by_rule = lambda: num_lanes_of(algorithm, task, data, plan, fewer)
    if config.lanes != "auto" or config.rounds < LONG or algorithm.refine is not None:
        return by_rule()
    if processes.several():
        return by_rule()
    file, work = cache_home() / "lanes.json", _work(config, federation)
    found = tuning_cache.read(file).get(work)
    if not isinstance(found, int) or found < 1:
        tried: list[str] = []
        show(doing="trying lanes")

        def tell(number: int, seconds: float) -> None:
            took = f"{1e3 * seconds:.3g} ms" if math.isfinite(seconds) else "no room"
            tried.append(f"{number} {took}")
            show(doing=f"trying lanes: {', '.join(tried)}")

        found = fastest_lanes(algorithm, task, data, plan, tell)
        took = f"lanes={found}, the fastest of those tried on a short round"
        show(doing="compiling", note=f"{took} ({', '.join(tried)})")
        tuning_cache.add(file, {work: found})
    return found


def _work(config: Config, federation: Federation) -> str:
    """What the fastest number depends on, in a few letters."""
    _, task, data, plan = federation[:4]
    params = jax.eval_shape(task.init, jax.random.key(0))
    arrays = [*jax.tree.leaves(params), data.x, data.y, data.index]
    untimed = settings_that_are("untimed")
    facts = [
        {
            name: value
            for name, value in identity(config).items()
            if name not in untimed
        },
        [(leaf.shape, str(leaf.dtype)) for leaf in arrays],
        *(num_devices_of(data, plan), plan.client_memory, config.convolutions),
        *(summary.hardware(), platform.node(), summary.versions(), tuning_cache.code()),
        os.environ.get("XLA_FLAGS", ""),
    ]
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
