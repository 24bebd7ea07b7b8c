"""Client tables in the memory of the host, for when that of the device is too small.

A table stays in pinned host memory from round to round. A round gathers the rows of its
cohort and scatters them back, so that a device holds as many rows as the cohort has slots:

    host --- rows of the cohort ---> device: the round ---> host

On D devices the host keeps row i for device i // (N / D), which passes it to all. The
host's own processor gathers and scatters, where the rows lie.

The functions are those of device.py for such tables.
"""

import inspect
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental.compute_on import compute_on
from jax.sharding import NamedSharding, PartitionSpec

from ... import check
from ...core import Array, ClientState, State, by_row
from ...errors import SettingError
from .. import memory, mesh, processes
from ..footprint import num_bytes, readable
from . import device
from .exchange import CohortRows, evenly, gather_rows, num_rows_of

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
EVERY, CUT = PartitionSpec(), PartitionSpec(mesh.AXIS)


def check_cut(num_clients: int, num_devices: int) -> None:
    """Raises SettingError unless rows divide evenly among the devices of one process."""
    if processes.several():
        raise SettingError(
            "client_memory=host keeps the state of all clients next to one process, and "
            f"here are {jax.process_count()}; write client_memory=device."
        )
    if num_clients % num_devices:
        raise SettingError(
            f"client_memory=host cuts the rows of {num_clients} clients into "
            f"{num_devices} equal parts, one for each device; write devices=1."
        )


def check_room(
    client: ClientState, num_clients: int, num_slots: int, num_devices: int
) -> None:
    """As `device.check_room`, where the host keeps the table."""
    leaves = jax.tree.leaves(jax.eval_shape(lambda client: client, client))
    needed, free = num_clients * sum(map(num_bytes, leaves)), memory.free_host_memory()
    if free is not None and needed > free:
        raise SettingError(
            f"the state of {num_clients} clients takes {readable(needed)} but the host "
            f"has {readable(free)} free; take fewer clients, a smaller model or an "
            "algorithm without client state."
        )


def create(client: ClientState, num_clients: int, num_devices: int) -> ClientState:
    """The state of one client `num_clients` times, made where it is to lie."""
    each = num_clients // num_devices
    repeat = _on_host(partial(device.repeated, num_clients=each))
    build = lambda client: repeat(jax.device_put(client, HOST))
    if not any(map(check.is_tracer, jax.tree.leaves(client))):
        client = jax.device_put(client, NamedSharding(mesh.mesh_of(num_devices), EVERY))
    return jax.jit(mesh.by_device(build, num_devices, (EVERY,), CUT))(client)


def place(state: State, num_devices: int) -> State:
    """`state` with its client tables in the host's memory; see `device.place`."""
    lies = NamedSharding(mesh.mesh_of(num_devices), CUT, memory_kind=mesh.HOST_MEMORY)

    def put(leaf):
        if check.is_tracer(leaf):
            return jax.device_put(leaf, HOST)
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies)
        return jax.device_put(leaf, lies)

    rest = device.place(state._replace(clients=()), num_devices)
    return rest._replace(clients=jax.tree.map(put, state.clients))


def move(state: State, num_devices: int) -> State:
    """`state` where a round reads it, wherever it was; see `device.move`."""
    if any(map(check.is_tracer, jax.tree.leaves(state))):
        return state
    rest = device.move(state._replace(clients=()), num_devices)
    return place(rest._replace(clients=state.clients), num_devices)


def gather(table: ClientState, ids: Array, num_devices: int) -> CohortRows:
    """The rows of a cohort, [slots, ...]."""
    if not jax.tree.leaves(table):
        return CohortRows(table, ids)
    slots = jnp.arange(ids.shape[0], dtype=ids.dtype)
    return CohortRows(rows_of(table, evenly(ids, num_devices), num_devices), slots)


@partial(jax.jit, static_argnames="num_devices")
def rows_of(table: ClientState, ids: Array, num_devices: int) -> ClientState:
    """The rows of some clients, on every device.

    Args:
      table: in the host's memory, [num_clients, ...].
      ids: of the clients, [slots]; beyond the table: no client's, zeros.
      num_devices: among which the table is cut up.
    """

    def of_device(table, ids):
        row = _row_here(table, ids)
        taken = _on_host(gather_rows)(table, jax.device_put(row, HOST))
        taken = jax.device_put(taken, DEVICE)
        here = row < num_rows_of(table)
        # as whole numbers: a sum with zeros loses the sign of a zero, and of bools is none
        bits = lambda leaf: jnp.where(by_row(here, leaf), _bits(leaf), 0)
        mine = jax.tree.map(bits, taken)
        return jax.tree.map(_from_bits, jax.lax.psum(mine, mesh.AXIS), taken)

    if not jax.tree.leaves(table):
        return table
    return mesh.by_device(of_device, num_devices, (CUT, EVERY), EVERY)(table, ids)


@partial(jax.jit, static_argnames="num_devices")
def scatter(
    table: ClientState, ids: Array, rows: ClientState, num_devices: int
) -> ClientState:
    """The table with other rows for some clients.

    Args:
      table: in the host's memory, [num_clients, ...].
      ids: of the clients, [slots]; beyond the table: no client, whose row is dropped.
      rows: theirs, as `gather` gave them.
      num_devices: among which the table is cut up.
    """

    def of_device(table, ids, rows):
        return set_rows(table, *jax.device_put((_row_here(table, ids), rows), HOST))

    @_on_host
    def set_rows(table, row, rows):
        put = lambda all_, new: all_.at[row].set(new.astype(all_.dtype), mode="drop")
        return jax.tree.map(put, table, rows)

    if not jax.tree.leaves(table):
        return table
    put_back = mesh.by_device(of_device, num_devices, (CUT, EVERY, EVERY), CUT)
    return put_back(table, evenly(ids, num_devices), rows)


def _bits(leaf: Array) -> Array:
    """The same bits as unsigned numbers of a width that every backend can sum."""
    if leaf.dtype == bool:
        return leaf.astype(jnp.uint32)
    bits = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
    return bits.astype(jnp.promote_types(bits.dtype, jnp.uint32))


def _from_bits(bits: Array, like: Array) -> Array:
    """The inverse of `_bits`, in the dtype of `like`."""
    if like.dtype == bool:
        return bits.astype(bool)
    bits = bits.astype(f"uint{8 * like.dtype.itemsize}")
    return jax.lax.bitcast_convert_type(bits, like.dtype)


def _row_here(table: ClientState, ids: Array) -> Array:
    """Where this device's part of the table has each client; beyond it: not there."""
    each = num_rows_of(table)
    row = ids - jax.lax.axis_index(mesh.AXIS) * each
    return jnp.where((row >= 0) & (row < each), row, each)


def _on_host(function: Callable) -> Callable:
    """The function by the host's processor, which leaves what it makes in its memory."""
    if "out_memory_spaces" not in inspect.signature(compute_on).parameters:
        return compute_on("device_host")(jax.jit(function))  # as JAX 0.10.2 has it
    return compute_on(function, compute_type="device_host", out_memory_spaces=HOST)
