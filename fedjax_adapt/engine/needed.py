"""What a round needs, and how many clients side by side have room, before it is made."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax

from .. import check
from ..core import Algorithm, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import memory, processes
from .batches import batch_size
from .client_store import store_of
from .footprint import Footprint, footprint, readable
from .initial import federation_kinds, init_state
from .round import make_round
from .slots import each_of
from .trials import trial_bytes

# a round is traced unless so many times what is guessed of its lanes fit: on large images
# a deep network holds ten times as much
ROUGHLY = 30


def memory_needed(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Footprint:
    """What a round holds in memory, from its trace: nothing is compiled or allocated.

    Args:
      algorithm: as for `make_round`, like the rest.
      task: what is learnt.
      data: the federation.
      plan: how clients train.

    Raises:
      ValueError: as `make_round`.
    """
    check.kinds(
        "memory_needed(algorithm, task, data, plan)",
        **federation_kinds(algorithm, task, data, plan),
    )
    round_fn = make_round(algorithm, task, data, plan)
    init = partial(init_state, algorithm, task, data, plan)
    key = jax.random.key(0)
    state = store_of(plan).place(jax.eval_shape(init, key), round_fn.num_devices)
    # the caller's own round may donate its state, and so does this
    step = jax.jit(lambda state, round_fn, key: round_fn(state, key), donate_argnums=0)
    traced = step.trace(state, round_fn, key)
    return footprint(traced.jaxpr.jaxpr, state, round_fn.data, round_fn.num_devices)


def lanes_that_fit(
    algorithm: Algorithm,
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    most: int,
    tell: Callable[[str], object] = warnings.warn,
) -> int:
    """As many lanes, at most `most`, as the memory of an accelerator has room for.

    A round is traced for each number that is tried: for `most`, and for one or two more
    where that is too many. Clients that take turns are given out evenly: 500 where 212
    fit are three times 167.

    Args:
      algorithm: as for `make_round`, like the next three.
      task: what is learnt.
      data: the federation, on the device already.
      plan: how clients train; `plan.lanes` does not matter.
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
    if _at_most(algorithm, task, data, plan, most) <= room:
        return most
    lanes, asked = most, ""
    while lanes > 1:
        needed = memory_needed(algorithm, task, data, replace(plan, lanes=lanes))
        wanted, fixed = needed.total - needed.data, needed.clients + needed.models
        if wanted <= room:
            break
        asked = asked or readable(wanted)
        # too many still where part of the work is for all lanes together
        lanes = max(min(lanes * (room - fixed) // needed.work, lanes - 1), 1)
    if lanes < most == each_of(plan, data):
        lanes = -(-most // -(-most // lanes))
    if lanes < most:
        tell(
            f"lanes={lanes}, since {most} would take {asked} beside the data, more than "
            f"{memory.SHARE:.0%} of the {readable(free)} that are free."
        )
    return lanes


def _at_most(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan, lanes: int
) -> int:
    """What a round takes at most beside the data, by a guess."""
    init = partial(init_state, algorithm, task, data, plan)
    state = jax.eval_shape(init, jax.random.key(0))
    batch = batch_size(data, plan), 4 * math.prod(data.x.shape[1:])
    without = trial_bytes(state, 0, batch)
    return without + ROUGHLY * (trial_bytes(state, lanes, batch) - without)
