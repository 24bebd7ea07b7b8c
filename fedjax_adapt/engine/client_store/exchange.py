"""Rows of the client tables, exchanged between the devices that hold and train them.

On one device a round reads and writes the table in place, a group of lanes at a time.

On D devices each holds a block of the rows, and most clients train where their row is. The
others' rows, the remote ones, are sent to the device that trains them before the local
steps and sent back after them: each device sends each other one a block of rows, all at
once.

An accelerator sends blocks of a size that is enough for any cohort, so that the host need
not wait to learn how many rows move; a CPU one row at a time, as often as it takes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ...core import Array, ClientState, PyTree, by_row
from .. import mesh, xla


class CohortRows(NamedTuple):
    """A table, and where it has the rows of a cohort.

    Several devices hold an equal block of the rows each.
    """

    table: ClientState  # [rows, ...]
    row: Array  # of each slot, [slots]; beyond the table: no client's


class RowIndex(NamedTuple):
    """Where a slot finds its row, on the device that trains its client."""

    local: Array  # in the device's part of the table; beyond it: not there
    remote: Array  # among the rows received; beyond them: not there


class Exchange(NamedTuple):
    """Which rows are sent from owners to devices, [owner, device, block, row]."""

    row: Array  # in the owner's part of the table
    slot: Array  # on the device, of those it serves; beyond them: none
    active: Array  # whether a new row comes back
    blocks: Array  # int32, with a row in them


class DeviceRows(NamedTuple):
    """The rows that a device reads and writes."""

    local: ClientState  # its part of the table, [rows, ...]
    remote: PyTree = None  # [slots of the device, ...]; concatenated on an accelerator


def num_rows_of(table: ClientState) -> int:
    """The number of rows of a table, or of a device's part of it; 0 without any leaf."""
    leaves = jax.tree.leaves(table)
    return leaves[0].shape[0] if leaves else 0


def evenly(ids: Array, num_devices: int) -> Array:
    """The ids of slots, padded with empty slots to a multiple of the devices."""
    extra, beyond = -ids.shape[0] % num_devices, jnp.iinfo(ids.dtype).max
    return jnp.pad(ids, (0, extra), constant_values=beyond)


def plan_exchange(
    row: Array, active: Array, num_rows: int, num_devices: int, swaps: int
) -> tuple[RowIndex, Exchange | None]:
    """Where the slots find their rows, and which rows are passed; None: none ever is.

    Args:
      row: of the slots in the table, [slots], in the order of `mesh.assign`; beyond it:
        no client's.
      active: whether the slot's client trains, [slots].
      num_rows: of the table on each device.
      num_devices: how many equal blocks the slots are cut into.
      swaps: as for `mesh.assign`.
    """
    slots = row.shape[0]
    each = slots // num_devices
    position = jnp.arange(slots, dtype=jnp.int32)
    device, slot = jnp.divmod(position, each)
    owner, row = jnp.minimum(row // num_rows, num_devices), row % num_rows
    away = (owner != device) & (owner < num_devices)
    index = RowIndex(
        local=jnp.where(away | (owner == num_devices), num_rows, row),
        remote=jnp.where(away, slot, each),
    )
    most = _most_passed(each, min(slots, num_rows), swaps)
    if not most:
        return index, None
    size = _block_size(most, max(each, num_rows), num_devices)
    of_owner = jax.nn.one_hot(jnp.where(away, owner, -1), num_devices, dtype=jnp.int32)
    count = jnp.cumsum(of_owner.reshape(num_devices, each, num_devices), 1)
    rank = count[device, slot, jnp.minimum(owner, num_devices - 1)] - 1
    where = (jnp.where(away, owner, num_devices), device, *jnp.divmod(rank, size))
    shape = num_devices, num_devices, -(-most // size), size
    who = jnp.full(shape, slots).at[where].set(position, mode="drop")
    of = lambda values, fill: values.at[who].get(mode="fill", fill_value=fill)
    blocks = -(-count[:, -1].max() // size)
    return index, Exchange(of(row, 0), of(slot, each), of(active, False), blocks)


def _most_passed(each: int, at_one_owner: int, swaps: int) -> int:
    """The most rows that one device passes to another, whatever the cohort.

    An owner of more clients than a device serves passes on the rest, a swap one more.
    """
    return min(each, max(0, at_one_owner - each) + swaps)


def _block_size(most: int, num_rows: int, num_devices: int) -> int:
    """The rows that pass at once, so that all take the memory of `num_rows` at most."""
    return 1 if _on_cpu() else min(most, max(1, num_rows // num_devices))


def receive(table: ClientState, exchange: Exchange | None, each: int) -> DeviceRows:
    """This device's part of the table, and the rows that others hold.

    Args:
      table: the rows on this device.
      exchange: None: no row is remote.
      each: how many slots every device serves.
    """
    if exchange is None:
        return DeviceRows(table)
    me = jax.lax.axis_index(mesh.AXIS)

    def pass_on(i, received):
        rows = exchanged(gather_rows(table, exchange.row[me, :, i].reshape(-1)))
        slot = exchange.slot[:, me, i].reshape(-1)
        rows = split_by_dtype(rows, table) if _on_cpu() else rows
        return set_rows(received, slot, slot < each, rows)

    like = jax.tree.map(_empty(1), table)
    empty = jax.tree.map(_empty(each), like if _on_cpu() else concat_by_dtype(like))
    return DeviceRows(
        table, jax.lax.fori_loop(0, _num_blocks(exchange), pass_on, empty)
    )


def send_back(tables: DeviceRows, exchange: Exchange | None) -> ClientState:
    """The device's part of the table, with the new rows of its clients elsewhere."""
    if exchange is None:
        return tables.local
    me = jax.lax.axis_index(mesh.AXIS)

    def pass_back(i, table):
        rows = gather_rows(tables.remote, exchange.slot[:, me, i].reshape(-1))
        row, active = (x[me, :, i].reshape(-1) for x in (exchange.row, exchange.active))
        return set_rows(table, row, active, split_by_dtype(exchanged(rows), table))

    return jax.lax.fori_loop(0, _num_blocks(exchange), pass_back, tables.local)


def _num_blocks(exchange: Exchange) -> Array | int:
    """The number of blocks to pass: all on an accelerator, whose host need not wait."""
    return exchange.blocks if _on_cpu() else exchange.row.shape[2]


def exchanged(rows: PyTree) -> list[Array]:
    """The rows that the other devices have for this one, by `concat_by_dtype`.

    Args:
      rows: [devices x rows, ...], a block for each device.
    """
    swap = lambda some: jax.lax.all_to_all(some, mesh.AXIS, 0, 0, tiled=True)
    return list(map(swap, concat_by_dtype(rows)))


def _on_cpu() -> bool:
    """Whether a row is read and written where it lies, and a leaf costs no kernel."""
    return jax.default_backend() == "cpu"


def concat_by_dtype(rows: PyTree) -> list[Array]:
    """Rows as one array [rows, ...] for each dtype: one message, where leaves were many."""
    leaves = jax.tree.leaves(rows)
    dtypes = dict.fromkeys(leaf.dtype for leaf in leaves)
    flat = [
        [leaf.reshape(leaf.shape[0], -1) for leaf in leaves if leaf.dtype == dtype]
        for dtype in dtypes
    ]
    return [jnp.concatenate(some, axis=1) for some in flat]


def split_by_dtype(arrays: list[Array], like: ClientState) -> ClientState:
    """The inverse of `concat_by_dtype`, in the structure and row shapes of `like`."""
    leaves, structure = jax.tree.flatten(like)
    rest = dict(zip(dict.fromkeys(leaf.dtype for leaf in leaves), arrays, strict=True))
    parts = []
    for leaf in leaves:
        width = leaf.size // leaf.shape[0]
        part, rest[leaf.dtype] = jnp.split(rest[leaf.dtype], [width], axis=1)
        parts.append(part.reshape(part.shape[0], *leaf.shape[1:]))
    return jax.tree.unflatten(structure, parts)


def read(tables: DeviceRows, index: RowIndex) -> ClientState:
    """The rows of some slots, [lanes, ...]; anything for a slot without a client.

    On a CPU each read is a loop by itself, see `xla.read_apart`.
    """
    if not jax.tree.leaves(tables.local):
        return tables.local

    def local_rows():
        return gather_rows(tables.local, index.local)

    def received():
        found = gather_rows(tables.remote, index.remote)
        return found if _on_cpu() else split_by_dtype(found, tables.local)

    if _on_cpu() and index.local.shape[0] == 1:  # it reads only where the row is
        found = jax.tree.map(_empty(1), tables.local)
        found = xla.read_apart(_is_in(tables.local, index.local), local_rows, found)
        if tables.remote is None:
            return found
        return xla.read_apart(_is_in(tables.remote, index.remote), received, found)

    def pick(local, other):
        here = index.local < num_rows_of(tables.local)
        return jnp.where(by_row(here, local), local, other)

    def rows():
        local = local_rows()
        if tables.remote is None:
            return local
        return jax.tree.map(pick, local, received())

    if not _on_cpu():
        return rows()
    always = jnp.minimum(index.local[0] + 1, 1)  # which XLA does not see
    zeros = jax.tree.map(_empty(index.local.shape[0]), tables.local)
    return xla.read_apart(always, rows, zeros)


def write(
    tables: DeviceRows, index: RowIndex, active: Array, rows: ClientState
) -> DeviceRows:
    """The tables with new rows of the slots that are active; others keep theirs."""
    local = set_rows(tables.local, index.local, active, rows)
    if tables.remote is None:
        return DeviceRows(local)
    as_local = lambda new, leaf: new.astype(leaf.dtype)
    new = rows if _on_cpu() else concat_by_dtype(jax.tree.map(as_local, rows, local))
    return DeviceRows(local, set_rows(tables.remote, index.remote, active, new))


def set_rows(
    table: ClientState, index: Array, active: Array, rows: ClientState
) -> ClientState:
    """`table` with some rows replaced; idle clients keep theirs to the bit."""
    if not jax.tree.leaves(table):
        return table
    if index.shape[0] == 1 and _on_cpu():
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
    replace = lambda all_, some: all_.at[index].set(
        some.astype(all_.dtype), mode="drop"
    )
    return jax.tree.map(replace, table, rows)


def _is_in(table: ClientState, index: Array) -> Array:
    return index[0] < num_rows_of(table)


def gather_rows(table: ClientState, index: Array) -> PyTree:
    """Rows of a table, [len(index), ...]; beyond its end, its last."""
    take = lambda leaf: jnp.take(leaf, index, axis=0, mode="clip")
    return jax.tree.map(take, table)


def _empty(num_rows: int) -> Callable[[Array], Array]:
    return lambda leaf: jnp.zeros((num_rows, *leaf.shape[1:]), leaf.dtype)
