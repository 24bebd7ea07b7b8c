"""Where the state of a run lies between its rounds, as the plan says."""

from types import ModuleType

import jax
import jax.numpy as jnp

from ..core import Array, ClientState
from ..plan import Plan
from . import device, host
from .tables import Held


def home_of(plan: Plan) -> ModuleType:
    """What has `table_of`, `placed` and `moved` for states of this plan."""
    return host if plan.client_memory == "host" else device


def lend(plan: Plan, num_devices: int, table: ClientState, ids: Array) -> Held:
    """The rows of a cohort, [slots, ...], where the devices can read and write them."""
    if plan.client_memory == "device" or not jax.tree.leaves(table):
        return Held(table, ids)
    slots = jnp.arange(ids.shape[0], dtype=ids.dtype)
    return Held(host.borrow(table, ids, num_devices), slots)


def take_back(
    plan: Plan, num_devices: int, table: ClientState, ids: Array, rows: ClientState
) -> ClientState:
    """The client table after a round, [num_clients, ...].

    Args:
      plan: as for `lend`.
      num_devices: as for `lend`.
      table: what was given to `lend`.
      ids: of the cohort, [slots].
      rows: the table of `Held`, written to.
    """
    if plan.client_memory == "device" or not jax.tree.leaves(table):
        return rows
    return host.give_back(table, ids, rows, num_devices)
