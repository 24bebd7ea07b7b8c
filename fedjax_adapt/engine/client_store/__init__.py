"""Where the state of all clients is kept between rounds, and how a round reads it."""

from collections.abc import Callable
from typing import NamedTuple

from ...core import Array, ClientState, State
from ...plan import Plan
from . import device, host
from .exchange import CohortRows


class ClientStore(NamedTuple):
    """A place for client states: a table with a row for each client, [num_clients, ...].

    Row i is that of client i. The leaves need not be those of the state of one client,
    but `gather` gives back to the bit what `create` or `scatter` was given:
    `client_memory` is no part of a run's hash, so it must not change a number. The last
    argument of every function is the number of devices that share a round; the shapes of
    the table are the same for any.

    Another way to keep client states is another of these in `STORES`, and its name in
    `plan.ClientMemory`; tests/test_contract.py has one.

    Attributes:
      create: (state of one client, num_clients) -> the table.
      place: (a state as a round leaves it) -> the same, its table where the store keeps
        it. Works under `jax.jit` and on shapes.
      move: (a state of another plan, or of a checkpoint) -> the same, brought from another
        number of devices or another memory to where `place` has it.
      gather: (table, ids) -> where the rows of a cohort are, one for each id, in a table
        of states, which may have more.
      scatter: (table, ids, that table of states after the round) -> the new table.
      check_room: (state of one client, num_clients, slots of a cohort) raises SettingError
        unless the table fits.
      check_devices: (num_clients) raises SettingError unless so many devices can share it.
      any_devices: whether the devices need not divide the clients.
    """

    create: Callable[[ClientState, int, int], ClientState]
    place: Callable[[State, int], State]
    move: Callable[[State, int], State]
    gather: Callable[[ClientState, Array, int], CohortRows]
    scatter: Callable[[ClientState, Array, ClientState, int], ClientState]
    check_room: Callable[[ClientState, int, int, int], None]
    check_devices: Callable[[int, int], None] = lambda num_clients, num_devices: None
    any_devices: bool = True


DEVICE = ClientStore(
    device.create,
    device.place,
    device.move,
    device.gather,
    device.scatter,
    device.check_room,
)
HOST = ClientStore(
    host.create,
    host.place,
    host.move,
    host.gather,
    host.scatter,
    host.check_room,
    host.check_cut,
    any_devices=False,
)
STORES = {"device": DEVICE, "host": HOST}


def store_of(plan: Plan) -> ClientStore:
    """The store that the plan asks for."""
    return STORES[plan.client_memory]
