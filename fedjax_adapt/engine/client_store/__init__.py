"""Where the state of all clients is kept between rounds, and how a round reads it."""

from collections.abc import Callable
from typing import NamedTuple

from ...core import Array, ClientState, State
from ...plan import Plan
from . import device, host
from .exchange import CohortRows


class ClientStore(NamedTuple):
    """A place for client states: a table with a row for each client, [num_clients, ...].

    The last argument of every function is the number of devices that share a round.

    Attributes:
      create: (state of one client, num_clients) -> the table.
      place: the state of a round -> the same, its table where the store keeps it.
      move: likewise, from wherever it is.
      gather: (table, ids) -> the rows of a cohort.
      scatter: (table, ids, new rows) -> the table after a round.
    """

    create: Callable[[ClientState, int, int], ClientState]
    place: Callable[[State, int], State]
    move: Callable[[State, int], State]
    gather: Callable[[ClientState, Array, int], CohortRows]
    scatter: Callable[[ClientState, Array, ClientState, int], ClientState]


DEVICE = ClientStore(
    device.create, device.place, device.move, device.gather, device.scatter
)
HOST = ClientStore(host.create, host.place, host.move, host.gather, host.scatter)


def store_of(plan: Plan) -> ClientStore:
    """The store that the plan asks for."""
    return HOST if plan.client_memory == "host" else DEVICE
