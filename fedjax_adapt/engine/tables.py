"""The rows of the client tables, on their way to the clients that train and back.

On one device a walk reads and writes the table in place, a group of lanes at a time.

On D devices that divide N, client i lives on device i // (N / D), which alone holds its
row. Clients train at home unless that would leave another device idle; the few that do
not are guests there: their rows are passed to every device, one of each home at a time,
before the walk, and passed back after it. Where D does not divide N every device holds a
copy of the whole table, and all new rows are passed to all.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..core import Array, ClientState, PyTree
from . import mesh


class Held(NamedTuple):
    """A table, and where it has the rows of a cohort."""

    table: ClientState  # [rows, ...]
    row: Array  # of each slot, [slots]; beyond the table: nobody's


class Seat(NamedTuple):
    """Where a slot finds its row, on the device that serves it."""

    row: Array  # in the device's part of the table; beyond it: not there
    guest: Array  # among the rows of guests; beyond them: it is none


class Route(NamedTuple):
    """Which slots are guests: the j-th client that leaves home h, [homes, slots]."""

    slot: Array  # of all slots in their new order; beyond them: nobody
    row: Array  # at home
    active: Array  # whether a new row comes back
    longest: Array  # int32, how many leave the home that most leave


class Tables(NamedTuple):
    """What a walk reads rows from and writes them to."""

    own: ClientState  # the device's part of the table, [rows, ...]
    guests: ClientState | None = None  # [slots of the device, ...]


def num_rows_of(table: ClientState) -> int:
    """How many rows a table, or a device's part of it, has; 0 without any leaf."""
    leaves = jax.tree.leaves(table)
    return leaves[0].shape[0] if leaves else 0


def route(
    ids: Array, active: Array, num_rows: int, num_devices: int
) -> tuple[Seat, Route]:
    """Seats of the slots, dealt already, and the guests among them.

    Args:
      ids: clients of the slots, [slots]; beyond all tables: nobody.
      active: whether the slot's client trains, [slots].
      num_rows: of the table on each device.
      num_devices: how many equal blocks the slots are cut into.
    """
    slots = ids.shape[0]
    position = jnp.arange(slots, dtype=jnp.int32)
    each = slots // num_devices
    home = jnp.minimum(ids // num_rows, num_devices)
    away = (home != position // each) & (home < num_devices)
    row = ids % num_rows
    seat = Seat(
        row=jnp.where(away | (home == num_devices), num_rows, row),
        guest=jnp.where(away, position % each, each),
    )
    leaves = away[:, None] & (home[:, None] == jnp.arange(num_devices)[None])
    count = jnp.cumsum(leaves, 0)
    rank = (count - 1)[position, jnp.minimum(home, num_devices - 1)]
    where = jnp.where(away, home, num_devices), rank
    of = lambda values, fill: (
        jnp.full((num_devices, slots), fill).at[where].set(values, mode="drop")
    )
    return seat, Route(
        of(position, slots), of(row, num_rows), of(active, False), count[-1].max()
    )


def fetch(table: ClientState, route: Route | None, each: int) -> Tables:
    """This device's part of the table, and the rows of its guests.

    Args:
      table: the rows on this device.
      route: None: nobody is a guest.
      each: how many slots every device serves.
    """
    if route is None:
        return Tables(table)
    me = jax.lax.axis_index(mesh.AXIS)

    def pass_on(j, guests):
        leaving = jax.tree.map(lambda leaf: leaf[route.row[me, j]][None], table)
        arriving = jax.lax.all_gather(_joined(leaving), mesh.AXIS)
        seats = _seats_here(route, j, each, me)

        def sit(home, guests):
            row = _parted([vector[home] for vector in arriving], leaving)
            return put(guests, seats[home][None], jnp.array([True]), row)

        return jax.lax.fori_loop(0, seats.shape[0], sit, guests)

    nobody = jax.tree.map(_empty(each), table)
    return Tables(table, jax.lax.fori_loop(0, route.longest, pass_on, nobody))


def give_back(tables: Tables, route: Route | None, each: int) -> ClientState:
    """The device's part of the table, with the new rows of its clients elsewhere."""
    if route is None:
        return tables.own
    me = jax.lax.axis_index(mesh.AXIS)

    def pass_back(j, table):
        seats = _seats_here(route, j, each, me)

        def held(leaf):  # [homes, ...]; other devices hold the rest
            here = (seats < each).reshape(-1, *(1,) * (leaf.ndim - 1))
            return jnp.where(here, leaf[seats], 0)

        back = jax.tree.map(held, tables.guests)
        row = jax.lax.psum_scatter(_joined(back), mesh.AXIS, tiled=True)
        row = _parted(row, jax.tree.map(lambda leaf: leaf[:1], back))
        return put(table, route.row[me, j][None], route.active[me, j][None], row)

    return jax.lax.fori_loop(0, route.longest, pass_back, tables.own)


def _joined(rows: ClientState) -> list[Array]:
    """Rows as one array [rows, ...] for each dtype: one message, where leaves were many."""
    leaves = jax.tree.leaves(rows)
    dtypes = dict.fromkeys(leaf.dtype for leaf in leaves)
    flat = [
        [leaf.reshape(leaf.shape[0], -1) for leaf in leaves if leaf.dtype == dtype]
        for dtype in dtypes
    ]
    return [jnp.concatenate(some, axis=1) for some in flat]


def _parted(joined: list[Array], like: ClientState) -> ClientState:
    """The rows that were `_joined`, in the structure and the shapes of `like`."""
    leaves, structure = jax.tree.flatten(like)
    rest = dict(zip(dict.fromkeys(leaf.dtype for leaf in leaves), joined, strict=True))
    parts = []
    for leaf in leaves:
        width = leaf.size // leaf.shape[0]
        part, rest[leaf.dtype] = jnp.split(rest[leaf.dtype], [width], axis=1)
        parts.append(part.reshape(leaf.shape))
    return jax.tree.unflatten(structure, parts)


def _seats_here(route: Route, j: Array, each: int, me: Array) -> Array:
    """Where this device seats the j-th guest of each home, [homes]; `each`: elsewhere."""
    slot = route.slot[:, j]
    return jnp.where(slot // each == me, slot % each, each)


def read(tables: Tables, seat: Seat) -> ClientState:
    """The rows of some slots, [lanes, ...]; anything for a slot without a client.

    A read that XLA fuses into something after the write makes it copy the whole table
    for every client. No fusion reaches into a loop, so each read is one, of length 1.
    """
    if not jax.tree.leaves(tables.own):
        return tables.own
    if jax.default_backend() != "cpu" and tables.guests is None:
        return _rows(tables.own, seat.row)()
    if seat.row.shape[0] == 1:  # it reads only where the row is
        found = jax.tree.map(_empty(1), tables.own)
        found = _once(_is_in(tables.own, seat.row), _rows(tables.own, seat.row), found)
        if tables.guests is None:
            return found
        return _once(
            _is_in(tables.guests, seat.guest), _rows(tables.guests, seat.guest), found
        )

    def pick(own, guest):
        here = (seat.row < num_rows_of(tables.own)).reshape(-1, *(1,) * (own.ndim - 1))
        return jnp.where(here, own, guest)

    def rows():
        own = _rows(tables.own, seat.row)()
        if tables.guests is None:
            return own
        return jax.tree.map(pick, own, _rows(tables.guests, seat.guest)())

    always = jnp.minimum(seat.row[0] + 1, 1)  # which XLA does not see
    zeros = jax.tree.map(_empty(seat.row.shape[0]), tables.own)
    return _once(always, rows, zeros)


def write(tables: Tables, seat: Seat, active: Array, rows: ClientState) -> Tables:
    """The tables with new rows of the slots that are active; others keep theirs."""
    own = put(tables.own, seat.row, active, rows)
    if tables.guests is None:
        return Tables(own)
    return Tables(own, put(tables.guests, seat.guest, active, rows))


def put(
    table: ClientState, index: Array, active: Array, rows: ClientState
) -> ClientState:
    """`table` with some rows replaced; idle clients keep theirs to the bit."""
    if not jax.tree.leaves(table):
        return table
    if index.shape[0] == 1 and jax.default_backend() == "cpu":
        at = index[0]  # a scatter would read the old row, which it may have to keep

        def replaced(all_, some):
            start = (at, *(jnp.zeros_like(at),) * (all_.ndim - 1))
            return jax.lax.dynamic_update_slice(all_, some.astype(all_.dtype), start)

        both = lambda table: jax.tree.map(replaced, table, rows)
        live = active[0] & _is_in(table, index)
        return jax.lax.fori_loop(
            0, live.astype(int), lambda _, table: both(table), table
        )
    index = jnp.where(active, index, num_rows_of(table))
    set_rows = lambda all_, some: all_.at[index].set(
        some.astype(all_.dtype), mode="drop"
    )
    return jax.tree.map(set_rows, table, rows)


def _once(times: Array, read: Callable[[], PyTree], otherwise: PyTree) -> PyTree:
    """`read()`, or `otherwise` if `times` is 0, in a loop by itself."""
    return jax.lax.fori_loop(0, times.astype(int), lambda _, rows: read(), otherwise)


def _is_in(table: ClientState, index: Array) -> Array:
    return index[0] < num_rows_of(table)


def _rows(table: ClientState, index: Array) -> Callable[[], PyTree]:
    take = lambda leaf: jnp.take(leaf, index, axis=0, mode="clip")
    return lambda: jax.tree.map(take, table)


def _empty(num_rows: int) -> Callable[[Array], Array]:
    return lambda leaf: jnp.zeros((num_rows, *leaf.shape[1:]), leaf.dtype)
