"""The slots of a cohort as lanes and devices take them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..core import Algorithm, Array, Cohort, Key, PyTree, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import lanes, mesh, processes
from .client_store import store_of
from .client_store.exchange import (
    CohortRows,
    DeviceRows,
    Exchange,
    RowIndex,
    num_rows_of,
    plan_exchange,
    read,
)
from .cohort import num_slots
from .forecast import cohort_steps, fixed_steps
from .local import Client, Setup
from .steps import Pace


class Slot(NamedTuple):
    """One slot of the cohort."""

    client: Client  # its state still lies in the table
    weight: PyTree  # of what is summed up as clients end
    index: RowIndex


class Assignment(NamedTuple):
    """All slots, in the order in which lanes and devices take them."""

    slots: Slot
    exchange: Exchange | None  # None: every slot finds its row on its own device
    back: Array | None  # where the clients of the cohort are among the slots
    cohort_size: int
    num_lanes: int
    num_devices: int

    @property
    def each(self) -> int:
        """How many slots a device serves."""
        return self.slots.client.id.shape[0] // self.num_devices

    def in_order(self, per_client: PyTree) -> PyTree:
        """`kept` of every slot, [slots, ...], as [cohort, ...]."""
        if self.back is None:  # which copies nothing, and leaves it where it is
            return jax.tree.map(lambda leaf: leaf[: self.cohort_size], per_client)
        back = self.back[: self.cohort_size]
        return jax.tree.map(lambda leaf: leaf[back], per_client)


def num_devices_of(data: FederatedDataset, plan: Plan) -> int:
    """How many devices serve a round.

    Tables in the host's memory are cut into equal parts: "auto" takes a number that does.
    """
    slots = num_slots(data, plan)
    most = mesh.count(plan.devices, slots)
    anyhow = plan.devices != "auto" or store_of(plan).any_devices
    if anyhow or processes.several():
        return most
    serving = (mesh.serving(some, slots) for some in range(most, 0, -1))
    return next(number for number in serving if data.num_clients % number == 0)


def may_be_empty(data: FederatedDataset, plan: Plan) -> bool:
    """Whether a cohort may have empty slots."""
    return plan.participation is not None or (
        plan.cohort_size is None and data.holders is not None
    )


def each_of(data: FederatedDataset, plan: Plan) -> int:
    """How many slots of a round a device serves."""
    return -(-num_slots(data, plan) // num_devices_of(data, plan))


def pace_of(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Pace:
    """What is known of the steps of rounds; `plan.lanes` is a number."""
    known = fixed_steps(algorithm, task, data, plan)
    if known is not None or jax.default_backend() == "cpu":
        return Pace(known)
    steps = cohort_steps(algorithm.policy, task, data, plan)
    return Pace(block=lanes.block_of(steps, int(plan.lanes), each_of(data, plan)))


def assign_slots(
    setup: Setup,
    cohort: Cohort,
    held: CohortRows,
    key: Key,
    weights: PyTree = (),
    alike: bool = False,
) -> Assignment:
    """The cohort by lanes and devices, the last group of lanes filled with empty slots.

    Args:
      setup: of the round, its lanes a number.
      cohort: who trains.
      held: where the rows of clients are.
      key: of the clients.
      weights: of what is summed up as clients end, [cohort].
      alike: all clients have as much to do, whatever their number of steps.
    """
    plan, data = setup.plan, setup.data
    num_clients, size = data.num_clients, cohort.ids.shape[0]
    num_devices = num_devices_of(data, plan)
    num_lanes = int(plan.lanes)
    extra = -size % (num_lanes * num_devices)
    pad = lambda leaf, value=0: jnp.pad(leaf, (0, extra), constant_values=value)
    ids, num_steps = pad(cohort.ids, num_clients), pad(cohort.num_steps)
    weights = jax.tree.map(pad, weights)

    # of a table of several devices, which hold an equal part each
    num_rows = num_rows_of(held.table) // num_devices if num_devices > 1 else 0
    row = pad(held.row, num_rows_of(held.table))
    # all do as much, or wait for the longest client, wherever it trains
    alike |= num_lanes == (size + extra) // num_devices
    alike |= setup.pace.known is not None and not (
        # a lane of a CPU by itself passes over empty slots, which lie at the end
        num_lanes == 1 and jax.default_backend() == "cpu" and may_be_empty(data, plan)
    )
    back, swaps = None, 0 if alike else mesh.SWAPS
    if num_devices > 1 and (num_rows or swaps):
        no_owner = jnp.full_like(ids, num_devices)
        owner = jnp.minimum(row // num_rows, no_owner) if num_rows else no_owner
        order, back = mesh.assign(num_steps, owner, num_devices, swaps)
        pick = lambda leaf: leaf[order]
        ids, row, num_steps, weights = jax.tree.map(
            pick, (ids, row, num_steps, weights)
        )
    index, exchange = RowIndex(row, row), None
    if num_rows:
        active = num_steps > 0
        index, exchange = plan_exchange(row, active, num_rows, num_devices, swaps)
    client = Client(
        id=ids,
        state=(),
        num_steps=num_steps,
        # the same key whoever else is in the cohort, and wherever the client runs
        key=jax.vmap(lambda i: jax.random.fold_in(key, i))(ids),
    )
    slots = Slot(client, weights, index)
    # XLA would share this arithmetic out, and have devices send each other its parts
    slots, exchange, back = mesh.everywhere((slots, exchange, back), num_devices)
    return Assignment(slots, exchange, back, size, num_lanes, num_devices)


def with_states(tables: DeviceRows, slots: Slot) -> Slot:
    """Some slots, their clients given their rows of the table."""
    return slots._replace(client=slots.client._replace(state=read(tables, slots.index)))
