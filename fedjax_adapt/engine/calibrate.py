"""How many clients side by side are fastest here, by trying.

A few steps of a round are timed, of as many clients as a real round has, the longest of
them as many times longer as there: side by side they wait for it, packed they do not. It
begins with the number that `lanes.choose` gives by rule. From there the candidates are
climbed, up and then down, as long as each is faster than the one before.
"""

import math
import time
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Algorithm, Task, as_refinement
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import memory, mesh
from .batches import batch_size
from .cohort import gather_cohort, num_slots
from .footprint import footprint
from .lanes import compiler_options
from .round import federation_kinds, init_state, make_round
from .slots import num_devices_of, num_lanes_of

CANDIDATES = (1, 2, 5, 10, 25, 50, 100, 250, 500)
STEPS = 3  # of a client, in the mean
LEAST = 3  # rounds timed, the fastest of which counts
SECONDS = 0.3  # and at least so long


def fastest_lanes(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> int:
    """The number of lanes to write into a `Plan` for this work on this machine.

    It compiles and times some short rounds, but for those without room. Numbers of a run
    change by rounding only, whatever the number of lanes.

    Args:
      algorithm: what is trained by; its refinement on a public set is not timed.
      task: what is learnt.
      data: the federation; some of its clients are timed.
      plan: how clients train; `plan.lanes` does not matter.

    Raises:
      ValueError: as `init_state` and `make_round` do.
    """
    check.kinds(
        "fastest_lanes(algorithm, task, data, plan)",
        **federation_kinds(algorithm, task, data, plan),
    )
    data, plan = _some_clients(data, plan)
    refine = as_refinement(algorithm.refine)
    if refine is not None:  # what it begins with, clients may read
        refine = refine._replace(clients=None, server=None)
    algorithm = _few_steps(algorithm._replace(refine=refine), task, data, plan)
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
      seconds: of a candidate; asked once for each. Infinite where there is no room for
        it: then fewer lanes are tried, and if none fit it is the first.
      candidates: in order.
      first: where to begin: the candidate nearest to it.
    """
    at = min(range(len(candidates)), key=lambda i: abs(math.log(candidates[i] / first)))
    start, best = at, seconds(candidates[at])
    while best == math.inf and at > 0:  # no room
        at -= 1
        best = seconds(candidates[at])
    if best == math.inf:
        return candidates[start]
    for way in (1, -1) if at == start else (-1,):
        begun = at
        while 0 <= at + way < len(candidates):
            found = seconds(candidates[at + way])
            if found >= best:
                break
            at, best = at + way, found
        if at != begun:  # the other way lies what was slower
            break
    return candidates[at]


def _some_clients(data: FederatedDataset, plan: Plan) -> tuple[FederatedDataset, Plan]:
    """As many clients as a round has, drawn once, all of whom take part."""
    all_ = np.arange(data.num_clients) if data.holders is None else data.holders
    rng = np.random.default_rng(0)
    some = np.sort(rng.choice(np.asarray(all_), num_slots(plan, data), replace=False))
    data = data.with_changed(index=data.index[some], size=data.size[some])
    data = replace(data, test=None, public=None, noise=None)
    plan = replace(plan, cohort_size=None, participation=None, clock=None)
    return data, replace(plan, devices=mesh.count(plan.devices, len(some)))


def _few_steps(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Algorithm:
    """The algorithm, whose clients take fewer steps in the proportions of its policy.

    A policy that measures first cannot say so: then all take as many.
    """
    policy, size = algorithm.policy, np.arange(data.num_clients)
    steps = np.ones(len(size))
    if policy.measure is None:
        params = jax.eval_shape(task.init, jax.random.key(0))
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
        width = batch_size(data, plan)
        cohort = gather_cohort(data, jnp.asarray(size), jnp.zeros((), jnp.int32), width)
        steps = policy.steps(policy.init(zeros, data.num_clients), cohort, ())
        steps = np.maximum(steps, 1)
    few = jnp.ceil(STEPS * steps / steps.mean()).astype(jnp.int32)
    return algorithm._replace(policy=policy._replace(steps=lambda *_: few))


def _seconds(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> float:
    """The fastest of some rounds; infinite where they do not fit into memory."""
    state = init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = make_round(algorithm, task, data, plan)
    step = jax.jit(lambda state, f, key: f(state, key), donate_argnums=0)
    options = compiler_options(round_fn.num_lanes)
    key = jax.random.key(1)
    traced = step.trace(state, round_fn, key)
    devices = num_devices_of(plan, data)
    try:
        memory.check_room(footprint(traced.jaxpr.jaxpr, state, round_fn.data, devices))
    except ValueError:
        return math.inf
    taken: list[float] = []
    try:
        program = traced.lower().compile(options)
        state, _ = jax.block_until_ready(program(state, round_fn, key))
        while len(taken) < LEAST or sum(taken) < SECONDS:
            began = time.perf_counter()
            state, _ = jax.block_until_ready(program(state, round_fn, key))
            taken.append(time.perf_counter() - began)
    except jax.errors.JaxRuntimeError as error:
        if memory.is_exhausted(error):  # more than the footprint told
            return math.inf
        raise
    return min(taken)
