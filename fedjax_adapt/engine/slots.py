"""The slots of a cohort as lanes and devices take them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..core import Array, ClientState, Cohort, Key, Params, PyTree
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import lanes, mesh
from .batches import batch_size
from .cohort import num_slots
from .local import Client, Setup


class Slot(NamedTuple):
    """One slot of the cohort, as the walk takes it."""

    client: Client
    weight: PyTree  # of what is summed up as clients end


class Dealt(NamedTuple):
    """All slots, in the order in which lanes and devices take them."""

    slots: Slot
    back: Array | slice  # where the clients of the cohort are among the slots
    cohort_size: int
    num_lanes: int
    num_devices: int

    def in_order(self, kept: PyTree) -> PyTree:
        """`kept` of every slot, [slots, ...], as [cohort, ...]."""
        return jax.tree.map(lambda leaf: leaf[self.back][: self.cohort_size], kept)


def num_devices_of(plan: Plan, data: FederatedDataset) -> int:
    """How many devices serve a round."""
    return mesh.count(plan.devices, num_slots(plan, data))


def num_lanes_of(plan: Plan, data: FederatedDataset, params: Params) -> int:
    """How many clients of a round run side by side on one device."""
    slots, num_devices = num_slots(plan, data), num_devices_of(plan, data)
    each, width = -(-slots // num_devices), batch_size(data, plan)
    return lanes.choose(plan.lanes, each, params, width, num_devices)


def deal(
    setup: Setup,
    cohort: Cohort,
    params: Params,
    table: ClientState,
    key: Key,
    weights: PyTree = (),
) -> Dealt:
    """The cohort as the walk takes it, the last group of lanes filled with empty slots.

    The rows of the client table are gathered here, all before the first is written: a
    read inside the walk would make XLA copy the whole table for every client.
    """
    plan, data = setup.plan, setup.data
    num_devices = num_devices_of(plan, data)
    num_lanes = num_lanes_of(plan, data, params)
    extra = -cohort.ids.shape[0] % (num_lanes * num_devices)
    pad = lambda leaf, value=0: jnp.pad(leaf, (0, extra), constant_values=value)
    num_steps = pad(cohort.num_steps)
    order, back = mesh.deal(num_steps, num_devices)
    ids = pad(cohort.ids, cohort.num_clients)[order]
    # an empty slot reads the last client, and nothing comes of it
    rows = jnp.minimum(ids, cohort.num_clients - 1)
    client = Client(
        id=ids,
        state=jax.tree.map(lambda leaf: leaf[rows], table),
        num_steps=num_steps[order],
        # the same key whoever else is in the cohort, and wherever the client runs
        key=jax.vmap(lambda i: jax.random.fold_in(key, i))(ids),
    )
    weights = jax.tree.map(lambda leaf: pad(leaf)[order], weights)
    size = cohort.ids.shape[0]
    return Dealt(Slot(client, weights), back, size, num_lanes, num_devices)
