"""Rounds are built here: how many lanes they have, and what memory they need."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax

from ..core import Algorithm, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import memory, processes
from .batches import batch_size
from .client_store import store_of
from .cohort import num_devices_of, slots_per_device
from .footprint import Footprint, footprint, readable
from .initial import init_state
from .lanes import choose, cohort_steps
from .round import Round, checked, round_of
from .setup import Setup, check_kinds
from .step_time import work_of
from .xla import arrays_of

# a round is traced unless so many times what is guessed of its lanes fit: on large images
# a deep network holds ten times as much
ROUGHLY = 30


def make_round(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Round:
    """Builds the round function: pure, so jit, vmap and scan it as you like.

    Called by itself, without `jax.jit` or `train`, it computes one operation after the
    other, which is slow.

    Raises:
      SettingError: the plan asks for more clients than the data set has, or for more
        devices than there are, or the model has fewer outputs than there are labels; or
        a refinement finds no public set, or nothing to refine; or an argument is not of
        its kind; or a part of the algorithm does not return what it must.
    """
    call = "make_round(algorithm, task, data, plan)"
    setup = Setup(algorithm, task, data, plan)
    check_kinds(call, setup)
    setup = setup._replace(algorithm=checked(algorithm, task, data, plan))
    return round_of(with_lanes(setup))


def with_lanes(setup: Setup) -> Setup:
    """The setup, the lanes of its plan as a number, of an algorithm that is `checked`."""
    return setup._replace(plan=replace(setup.plan, lanes=num_lanes_of(setup)))


def num_lanes_of(setup: Setup, tell: Callable[[str], object] = warnings.warn) -> int:
    """The number of lanes of a round on one device.

    `tell` is called with a sentence where "auto" finds no room for as many as would be
    fastest.
    """
    task, data, plan = setup[1:4]
    fastest = choose(
        plan.lanes,
        slots_per_device(data, plan),
        jax.eval_shape(task.init, jax.random.key(0)),
        batch_size(data, plan),
        num_devices_of(data, plan),
        partial(cohort_steps, setup),
        partial(work_of, setup),
    )
    return fastest if plan.lanes != "auto" else lanes_that_fit(setup, fastest, tell)


def memory_needed(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Footprint:
    """The memory of a round, from its trace: nothing is compiled or allocated.

    Args:
      algorithm: as for `make_round`, like the rest.
      task: what is learnt.
      data: the federation.
      plan: how clients train.

    Raises:
      SettingError: as `make_round`.
    """
    call = "memory_needed(algorithm, task, data, plan)"
    check_kinds(call, Setup(algorithm, task, data, plan))
    round_fn = make_round(algorithm, task, data, plan)
    init = partial(init_state, algorithm, task, data, plan)
    key = jax.random.key(0)
    state = store_of(plan).place(jax.eval_shape(init, key), round_fn.num_devices)
    # the caller's own round may donate its state, and so does this
    arrays, rebuild = arrays_of(round_fn)
    step = jax.jit(lambda state, of, key: rebuild(of)(state, key), donate_argnums=0)
    traced = step.trace(state, arrays, key)
    return footprint(traced.jaxpr.jaxpr, state, round_fn.data, round_fn.num_devices)


def lanes_that_fit(
    setup: Setup, most: int, tell: Callable[[str], object] = warnings.warn
) -> int:
    """The most lanes, up to `most`, that the memory of an accelerator has room for.

    A round is traced for each number that is tried: for `most`, and for one or two more
    where that is too many. Clients that take turns are given out evenly: 500 where 212
    fit are three times 167.

    Args:
      setup: its data on the device already; `plan.lanes` does not matter.
      most: lanes that are fastest where there is room.
      tell: called with a sentence where fewer are taken.
    """
    if most == 1 or jax.default_backend() == "cpu":
        return most
    with jax.ensure_compile_time_eval():  # all processes have as many lanes
        frees = processes.of_all(memory.free_memory())
    if None in frees:
        return most
    free = min(frees)
    room = int(memory.SHARE * free)
    if _at_most(setup, most) <= room:
        return most
    algorithm, task, data, plan = setup[:4]
    lanes, asked = most, ""
    while lanes > 1:
        needed = memory_needed(algorithm, task, data, replace(plan, lanes=lanes))
        wanted, fixed = needed.total - needed.data, needed.clients + needed.models
        if wanted <= room:
            break
        asked = asked or readable(wanted)
        # too many still where part of the work is for all lanes together
        lanes = max(min(lanes * (room - fixed) // needed.work, lanes - 1), 1)
    if lanes < most == slots_per_device(data, plan):
        lanes = -(-most // -(-most // lanes))
    if lanes < most:
        tell(
            f"lanes={lanes}, since {most} would take {asked} besides the data, more than "
            f"{memory.SHARE:.0%} of the {readable(free)} that are free."
        )
    return lanes


def _at_most(setup: Setup, lanes: int) -> int:
    """The most memory that a round takes besides the data, by a guess."""
    algorithm, task, data, plan = setup[:4]
    init = partial(init_state, algorithm, task, data, plan)
    state = jax.eval_shape(init, jax.random.key(0))
    batch = batch_size(data, plan), 4 * math.prod(data.x.shape[1:])
    without = memory.guessed_bytes(state, 0, batch)
    return without + ROUGHLY * (memory.guessed_bytes(state, lanes, batch) - without)
