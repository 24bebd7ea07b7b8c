"""How many clients side by side are fastest here, by trying.

A few steps of a round are timed, of as many clients as a real round has on its devices,
beginning with the number that `lanes.choose` gives by rule. From there the candidates
are climbed, up and then down, as long as each is faster than the one before.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import numpy as np

from ..core import Algorithm, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import mesh
from .cohort import num_slots
from .lanes import compiler_options
from .round import init_state, make_round
from .slots import num_devices_of, num_lanes_of

CANDIDATES = (1, 2, 5, 10, 25, 50, 100, 250, 500)
STEPS = 3  # of each client
LEAST = 3  # rounds timed, the fastest of which counts
SECONDS = 0.3  # and at least so long


def fastest_lanes(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> int:
    """The number of lanes to write into a `Plan` for this work on this machine.

    It compiles and times two to four short rounds. Numbers of a run change by rounding
    only, whatever the number of lanes.

    Args:
      algorithm: what is trained by; its refinement on a public set is not timed.
      task: what is learnt.
      data: the federation; its first clients are timed.
      plan: how clients train; `plan.lanes` does not matter.

    Raises:
      ValueError: as `init_state` and `make_round` do.
    """
    algorithm = algorithm._replace(refine=None)
    data, plan = _small(data, plan)
    each = -(-num_slots(plan, data) // num_devices_of(plan, data))
    params = jax.eval_shape(task.init, jax.random.key(0))
    auto = replace(plan, lanes="auto")
    return climb(
        lambda lanes: _seconds(algorithm, task, data, replace(plan, lanes=lanes)),
        sorted({*(n for n in CANDIDATES if n < each), each}),
        num_lanes_of(auto, data, params),
    )


def climb(seconds: Callable[[int], float], candidates: list[int], first: int) -> int:
    """The candidate from which neither neighbour is faster.

    Args:
      seconds: of a candidate; asked once for each.
      candidates: in order.
      first: where to begin: the candidate nearest to it.
    """
    at = min(range(len(candidates)), key=lambda i: abs(math.log(candidates[i] / first)))
    best = seconds(candidates[at])
    for way in (1, -1):
        begun = at
        while 0 <= at + way < len(candidates):
            found = seconds(candidates[at + way])
            if found >= best:
                break
            at, best = at + way, found
        if at != begun:  # the other way lies what was slower
            break
    return candidates[at]


def _small(data: FederatedDataset, plan: Plan) -> tuple[FederatedDataset, Plan]:
    """As many clients as a round has, all of them, for a few steps."""
    some = np.arange(data.num_clients)
    if data.holders is not None:
        some = np.asarray(data.holders)
    some = some[: num_slots(plan, data)]
    data = data.with_changed(index=data.index[some], size=data.size[some])
    data = replace(data, test=None, public=None, noise=None)
    steps = STEPS if plan.max_steps is None else min(STEPS, plan.max_steps)
    plan = replace(
        plan, cohort_size=None, participation=None, clock=None, max_steps=steps
    )
    return data, replace(plan, devices=mesh.count(plan.devices, len(some)))


def _seconds(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> float:
    """The fastest of some rounds."""
    state = init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = make_round(algorithm, task, data, plan)
    step = jax.jit(lambda state, f, key: f(state, key), donate_argnums=0)
    options = compiler_options(num_lanes_of(plan, data, state.params))
    key = jax.random.key(1)
    program = step.lower(state, round_fn, key).compile(options)
    taken: list[float] = []
    state, _ = jax.block_until_ready(program(state, round_fn, key))
    while len(taken) < LEAST or sum(taken) < SECONDS:
        began = time.perf_counter()
        state, _ = jax.block_until_ready(program(state, round_fn, key))
        taken.append(time.perf_counter() - began)
    return min(taken)
