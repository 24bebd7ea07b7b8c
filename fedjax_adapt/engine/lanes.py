"""The number of lanes of a round, and its step counts as far as the host knows.

Who takes part is drawn as rounds draw it, with keys of its own. How many local steps each
client takes a policy can say before anybody has trained, unless it goes by what clients
measure; one that learns is asked about the first round.
"""

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from .. import check
from ..core import Algorithm, Params, measure_of, tree_bytes
from ..data.dataset import FederatedDataset
from ..plan import Plan
from .batches import batch_size
from .cohort import (
    expected_share,
    gather_cohort,
    most_steps,
    num_slots,
    sample_cohort,
    setting_of,
    slots_per_device,
    with_num_steps,
)
from .setup import Setup
from .step_time import ROOM, STEP, WAIT, Work, work_of
from .steps import BLOCK, Pace, known_blocks

# Measured on two cores, see benchmarks/README.md. Where batches are small a product of
# one client waits for its weights, and ten clients side by side are faster as long as
# their models stay in the cache; at 50 examples a single client fills the cores.
CPU_BYTES = 8 * 2**20
CPU_LANES = 10
CPU_SMALL_BATCH = 20
CPU_SMALL_MODEL = 2 * 2**20

MOST_BLOCK = 64
DRAWS = 16  # rounds looked at


class _LossUnknown(Exception):
    """A policy has asked for a loss that is not known yet."""


def choose(
    lanes: int | str,
    cohort_size: int,
    params: Params,
    batch_size: int,
    num_devices: int = 1,
    steps: Callable[[], np.ndarray | None] = lambda: None,
    work: Callable[[], Work] = Work,
) -> int:
    """The number of clients trained side by side under `vmap` on one device.

    "auto" takes on an accelerator all, or as many as unequal clients of a large model
    keep busy, see `kept_busy` (build.py asks whether they fit), and on a CPU what was
    measured to be fast: several clients for small models on small batches, one otherwise
    and wherever cores are devices, each with a client in its own cache.

    Args:
      lanes: a number, or "auto".
      cohort_size: clients of the round on this device.
      params: of one model; shapes are enough.
      batch_size: examples per local step.
      num_devices: how many devices share the round.
      steps: asked for the local steps of the clients of some rounds, see `kept_busy`.
      work: asked for what a client adds to a step, likewise.
    """
    if lanes != "auto":
        return min(int(lanes), cohort_size)
    if jax.default_backend() != "cpu":
        return kept_busy(cohort_size, steps(), work())
    size = tree_bytes(params)
    if num_devices > 1 or size > CPU_SMALL_MODEL or batch_size > CPU_SMALL_BATCH:
        return 1
    most = max(1, min(CPU_LANES, CPU_BYTES // max(size, 1), cohort_size))
    groups = -(-cohort_size // most)
    return -(-cohort_size // groups)  # 12 clients are 2 x 6, not 10 and 2 idle lanes


def kept_busy(cohort_size: int, steps: np.ndarray | None, work: Work) -> int:
    """Lanes for clients of unequal steps on a device where all have room.

    A lane for each client, or as many as the steps of all hold those of the longest: with
    more, some lane waits for that client whatever is done. What takes less time by
    `paced`: fewer lanes have more trips, at each of which the host waits and room is made,
    and leave the last turn half empty. That pays where the work of the lanes is most of a
    step.

    Args:
      cohort_size: clients of the round on this device.
      steps: local steps of the clients of some rounds, [rounds, slots], on all devices
        that share a round; None: unknown, and every client has a lane.
      work: what a client adds to a step.
    """
    if steps is None or not steps.any():
        return cohort_size
    steps = steps[steps.any(1)]
    num_devices = -(-steps.shape[1] // cohort_size)
    ratio = (steps.sum(1) / steps.max(1)).mean()
    few = min(math.ceil(ratio / num_devices), cohort_size)
    seconds = lambda lanes: paced(steps, lanes, cohort_size, work)[0]
    return min((cohort_size, few), key=seconds)


def busiest(steps: Iterable[int], num_lanes: int) -> int:
    """Steps of the lane that ends last; the longest client goes first, see `steps.pack`."""
    steps = [*steps]
    if len(steps) <= num_lanes:
        return max(steps)
    taken = [0] * num_lanes
    for more in sorted(steps, reverse=True):
        heapq.heapreplace(taken, taken[0] + more)
    return max(taken)


def paced(
    steps: np.ndarray, num_lanes: int, cohort_size: int, work: Work
) -> tuple[float, int]:
    """Seconds of the local steps of some rounds, and the block that takes the fewest.

    Args:
      steps: as for `kept_busy`, like the last two.
      num_lanes: on a device.
      cohort_size: clients of the round on this device.
      work: what a client adds to a step.
    """
    num_devices = -(-steps.shape[1] // cohort_size)
    step = STEP + num_lanes * work.step
    between = WAIT + (ROOM + num_lanes * work.room) * (num_lanes < cohort_size)

    def seconds(block: int) -> float:
        blocks = -(-steps // block)
        trips = sum(busiest(row, num_lanes * num_devices) for row in blocks.tolist())
        return trips * (block * step + between)

    return min((seconds(block), block) for block in range(1, MOST_BLOCK + 1))


def executed_steps(
    steps: np.ndarray, there: np.ndarray, num_lanes: int, pace: Pace
) -> int:
    """Local steps that the lanes of one device take, with those of idle lanes.

    Args:
      steps: local steps of the clients of some rounds, [rounds, slots].
      there: whether a slot has a client, likewise.
      num_lanes: on the device.
      pace: of the rounds.
    """
    on_cpu = jax.default_backend() == "cpu"
    if num_lanes == 1 and on_cpu:  # its loop ends with the client
        return int(steps.sum())
    fill = [(0, 0), (0, -steps.shape[1] % num_lanes)]
    steps, there = np.pad(steps, fill), np.pad(there, fill)
    groups = lambda slots: slots.reshape(-1, num_lanes).max(1)
    one_group = num_lanes == steps.shape[1]
    if pace.known is not None:
        num_blocks, size = known_blocks(pace.known)
        trained = len(steps) if one_group else int(groups(there).sum())
        return num_lanes * num_blocks * size * trained
    block = 1 if on_cpu else pace.block
    blocks = -(-steps // block)
    if one_group or num_lanes == 1:
        return int(num_lanes * block * groups(blocks).sum())
    return num_lanes * block * sum(busiest(row, num_lanes) for row in blocks.tolist())


def block_of(
    steps: np.ndarray | None, num_lanes: int, cohort_size: int, work: Work
) -> int:
    """Local steps between two waits of an accelerator's host, those that cost least.

    A client that is done stays idle until the block ends. Where all cohorts have one
    longest client, or all clients multiples of some steps, blocks end when they do.

    Args:
      steps: as for `kept_busy`; None: unknown.
      num_lanes: on a device.
      cohort_size: clients of the round on this device.
      work: what a client adds to a step.
    """
    if steps is None or not steps.any():
        return BLOCK
    return paced(steps, num_lanes, cohort_size, work)[1]


def pace_of(setup: Setup) -> Pace:
    """The known step counts of rounds; `plan.lanes` is a number."""
    known = fixed_steps(setup)
    if known is not None or jax.default_backend() == "cpu":
        return Pace(known)
    lanes, size = int(setup.plan.lanes), slots_per_device(setup.data, setup.plan)
    return Pace(block=block_of(cohort_steps(setup), lanes, size, work_of(setup)))


def cohorts(data: FederatedDataset, plan: Plan) -> np.ndarray:
    """The cohorts of some rounds: ids, [DRAWS, slots]; an empty slot holds num_clients.

    Where the first to end make the cohort, any of those that start may be among them.
    """
    with jax.ensure_compile_time_eval():
        keys = jax.random.split(jax.random.key(0), DRAWS)
        draw = jax.jit(jax.vmap(partial(sample_cohort, data, plan)))
        ids = np.asarray(draw(keys))
    slots = num_slots(data, plan)
    if ids.shape[1] > slots:
        ids = np.random.default_rng(0).permuted(ids, axis=1)[:, :slots]
    return np.sort(ids, axis=1)


def client_steps(setup: Setup) -> np.ndarray | None:
    """Local steps of every client in the first round, [num_clients].

    None: they follow from what clients measure, or from a loss, or from what is traced.
    """
    algorithm, task, data, plan = setup[:4]
    policy = algorithm.policy
    if measure_of(policy).client is not None:
        return None
    params = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
    try:
        with jax.ensure_compile_time_eval():
            ids = jnp.arange(data.num_clients, dtype=jnp.int32)
            width = batch_size(data, plan)
            cohort = gather_cohort(data, ids, jnp.zeros((), jnp.int32), width)
            cohort = cohort._replace(train_loss=_loss_unknown)
            state = policy.init(zeros, data.num_clients)
            wanted = policy.steps(state, cohort, ())
            return np.asarray(with_num_steps(cohort, wanted, plan, policy)[0].num_steps)
    except (_LossUnknown, jax.errors.TracerArrayConversionError):
        return None


def cohort_steps(setup: Setup) -> np.ndarray | None:
    """Local steps of the clients of some rounds, [DRAWS, slots]; 0 in empty slots.

    None: as for `client_steps`.
    """
    steps, data, plan = client_steps(setup), setup.data, setup.plan
    try:
        return None if steps is None else np.append(steps, 0)[cohorts(data, plan)]
    except jax.errors.TracerArrayConversionError:  # who takes part is traced
        return None


def fixed_steps(setup: Setup) -> int | None:
    """Local steps that every client takes which trains, in all rounds; None: they differ.

    The policy is traced to see what its answer hangs on. It is None as well where that is
    traced, or is who is there and slots may be empty.
    """
    if measure_of(setup.algorithm.policy).client is not None:
        return None
    steps = _fixed_steps(setup)
    if steps is None or setup.plan.rounds is not None:
        return steps
    # `train` says how many rounds there are; a round that is called by itself does not
    other = _fixed_steps(setup, rounds_follow=True)
    return steps if steps == other else None


def _fixed_steps(setup: Setup, rounds_follow: bool = False) -> int | None:
    """As `fixed_steps`; `rounds_follow`: the rounds of the run are an argument."""
    algorithm, task, data, plan = setup[:4]
    policy = algorithm.policy
    width = batch_size(data, plan)
    sized = replace(data, size=jnp.asarray(data.size))  # NumPy takes no traced index

    def wanted(sizes, epoch_steps, active, ids, round, key, state, rounds):
        cohort = gather_cohort(sized, ids, round, width)
        cohort = cohort._replace(num_examples=sizes, epoch_steps=epoch_steps)
        cohort = cohort._replace(active=active, key=key, train_loss=_loss_unknown)
        setting = setting_of(plan, algorithm, cohort, expected_share(data, plan))
        setting = setting._replace(rounds=rounds) if rounds_follow else setting
        steps = policy.steps(state, cohort._replace(setting=setting), ())
        return jnp.clip(steps, 0, most_steps(plan, policy))

    params = jax.eval_shape(task.init, jax.random.key(0))
    try:
        state = jax.eval_shape(
            lambda params: policy.init(params, data.num_clients), params
        )
        ids = jax.eval_shape(partial(sample_cohort, data, plan), jax.random.key(0))
        traced = jax.make_jaxpr(wanted)(
            ids, ids, jax.ShapeDtypeStruct(ids.shape, bool), ids,
            jnp.zeros((), jnp.int32), jax.random.key(0), state, jnp.ones((), jnp.int32),
        )  # fmt: skip
    except (_LossUnknown, jax.errors.ConcretizationTypeError):
        return None
    kept, needed = dce_jaxpr(traced.jaxpr, [True])
    of_sizes, of_others = needed[:3], needed[3:]
    read = {id(var) for equation in kept.eqns for var in equation.invars}
    constants = zip(kept.constvars, traced.consts, strict=True)
    hidden = [value for var, value in constants if id(var) in read]
    if any(of_others) or any(map(check.is_tracer, hidden)):
        return None
    size = _size_of_all(algorithm, data, plan) if any(of_sizes) else 1
    if size is None:
        return None
    sizes = np.full(ids.shape, size, np.int32)
    values = sizes, -(-sizes // width), np.ones(ids.shape, bool)
    given = [value for value, used in zip(values, of_sizes, strict=True) if used]
    with jax.ensure_compile_time_eval():
        (steps,) = jaxpr_as_fun(ClosedJaxpr(kept, traced.consts))(*given)
    least, *others = np.unique(np.asarray(steps))
    return None if others else int(least)


def _size_of_all(
    algorithm: Algorithm, data: FederatedDataset, plan: Plan
) -> int | None:
    """Examples that every client of every round has; None: some have others."""
    may_be_empty = plan.participation is not None or algorithm.server.busy is not None
    if may_be_empty or check.is_tracer(data.size):
        return None
    sizes = np.asarray(data.size)
    if data.holders is not None and plan.cohort_size is not None:
        sizes = sizes[np.asarray(data.holders)]
    return int(sizes[0]) if (sizes == sizes[0]).all() else None


def _loss_unknown(params: Params) -> NoReturn:
    raise _LossUnknown
