"""How many clients run side by side, and a loop over a cohort in such groups."""

import heapq
import math
from collections.abc import Callable, Iterable

import jax
import numpy as np

from ..core import Params, PyTree, tree_bytes
from .steps import BLOCK

# Measured on two cores, see benchmarks/README.md. Where batches are small a product of
# one client waits for its weights, and ten clients side by side are faster as long as
# their models stay in the cache; at 50 examples a single client fills the cores.
CPU_BYTES = 8 * 2**20
CPU_LANES = 10
CPU_SMALL_BATCH = 20
CPU_SMALL_MODEL = 2 * 2**20

# On an accelerator, in local steps of a small model, some twenty kernels: assumed, not
# measured, from 3 us for a launch and 15 us for a wait.
WAIT = 0.25  # of the host, to know whether somebody goes on
SWAP = 1.25  # what makes room for the next clients
MOST_BLOCK = 64


def choose(
    lanes: int | str,
    cohort_size: int,
    params: Params,
    batch_size: int,
    num_devices: int = 1,
    steps: Callable[[], np.ndarray | None] = lambda: None,
) -> int:
    """The number of clients trained side by side under `vmap` on one device.

    "auto" takes on an accelerator as many as unequal clients keep busy, see `kept_busy`
    (build.py asks whether they fit), and on a CPU what was measured to be fast: several
    clients for small models on small batches, one otherwise and wherever cores are
    devices, each with a client in its own cache.

    Args:
      lanes: a number, or "auto".
      cohort_size: clients of the round on this device.
      params: of one model; shapes are enough.
      batch_size: examples per local step.
      num_devices: how many devices share the round.
      steps: asked for the local steps of the clients of some rounds, see `kept_busy`.
    """
    if lanes != "auto":
        return min(int(lanes), cohort_size)
    if jax.default_backend() != "cpu":
        return kept_busy(cohort_size, steps())
    size = tree_bytes(params)
    if num_devices > 1 or size > CPU_SMALL_MODEL or batch_size > CPU_SMALL_BATCH:
        return 1
    most = max(1, min(CPU_LANES, CPU_BYTES // max(size, 1), cohort_size))
    groups = -(-cohort_size // most)
    return -(-cohort_size // groups)  # 12 clients are 2 x 6, not 10 and 2 idle lanes


def kept_busy(cohort_size: int, steps: np.ndarray | None) -> int:
    """Lanes for clients of unequal steps on a device where all have room.

    As many as the steps of all hold those of the longest: with more, somebody waits for
    it whatever is done. But fewer lanes than clients leave the last turn half empty, so
    that clients which are nearly equal have a lane each.

    Args:
      cohort_size: clients of the round on this device.
      steps: local steps of the clients of some rounds, [rounds, slots], on all devices
        that share a round; None: unknown, and every client has a lane.
    """
    if steps is None or not steps.any():
        return cohort_size
    steps = steps[steps.any(1)]
    num_devices = -(-steps.shape[1] // cohort_size)
    ratio = (steps.sum(1) / steps.max(1)).mean()
    few = min(math.ceil(ratio / num_devices), cohort_size)

    def executed(lanes: int) -> int:
        lanes *= num_devices
        return lanes * sum(busiest(of_round, lanes) for of_round in steps.tolist())

    return few if executed(few) < executed(cohort_size) else cohort_size


def busiest(steps: Iterable[int], num_lanes: int) -> int:
    """Steps of the lane that ends last; the longest client goes first, see packing.py."""
    taken = [0] * num_lanes
    for more in sorted(steps, reverse=True):
        heapq.heapreplace(taken, taken[0] + more)
    return max(taken)


def block_of(steps: np.ndarray | None, num_lanes: int, cohort_size: int) -> int:
    """Local steps between two waits of an accelerator's host, those that cost least.

    A client that is done stays idle until the block ends. Where all cohorts have one
    longest client, or all clients multiples of some steps, blocks end when they do.

    Args:
      steps: as for `kept_busy`; None: unknown.
      num_lanes: on a device.
      cohort_size: clients of the round on this device.
    """
    if steps is None or not steps.any():
        return BLOCK
    num_devices = -(-steps.shape[1] // cohort_size)
    between = WAIT + SWAP * (num_lanes < cohort_size)

    def cost(block: int) -> float:
        blocks = -(-steps // block)
        trips = sum(busiest(row, num_lanes * num_devices) for row in blocks.tolist())
        return trips * (block + between)

    return min(range(1, MOST_BLOCK + 1), key=cost)


def each(function: Callable, num_lanes: int) -> Callable:
    """`function` of one client as one of clients side by side, [lanes, ...]."""
    if num_lanes > 1:
        return jax.vmap(function)

    def alone(*some):  # no vmap: a plain matmul beats a batched one of batch 1
        result = function(*jax.tree.map(lambda leaf: leaf[0], some))
        return jax.tree.map(lambda leaf: leaf[None], result)

    return alone


def fold(
    train: Callable,
    combine: Callable,
    carry: PyTree,
    clients: PyTree,
    lanes: int,
    begin: Callable = lambda carry, clients: clients,
) -> tuple[PyTree, PyTree]:
    """Goes through a cohort `lanes` clients at a time, summing up as clients end.

    Args:
      train: clients -> their results, all with a leading axis `lanes`.
      combine: (carry, clients, results) -> (carry, per_client), all but the carry with a
        leading axis `lanes`.
      carry: what `combine` sums up.
      clients: leading axis cohort, a multiple of `lanes`.
      lanes: how many clients at a time.
      begin: (carry, clients) -> what `train` takes, with a leading axis `lanes`.

    Returns:
      The last carry, and what was kept of every client, with leading axis cohort.
    """

    def group(carry, some):
        return combine(carry, some, train(begin(carry, some)))

    split = lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:])
    join = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    carry, per_client = jax.lax.scan(group, carry, jax.tree.map(split, clients))
    return carry, jax.tree.map(join, per_client)
