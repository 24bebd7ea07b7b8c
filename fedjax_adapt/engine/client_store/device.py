"""Client tables in the memory of the devices, each of which holds a part.

Where the number of devices divides that of the clients, each device holds a block of rows.
Otherwise it holds a part of every row: each leaf is divided along the longest axis that
the devices divide, and a leaf without such an axis is on every device. A round then gathers
whole rows of its cohort, a block on each device, and scatters them back.

All else of a state is on every device.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from ... import check
from ...core import Array, ClientState, PyTree, State
from ...errors import SettingError
from .. import memory
from ..footprint import num_bytes, readable
from ..mesh import (
    AXIS,
    HOST_MEMORY,
    by_device,
    everywhere,
    mesh_of,
    serving,
    sharding,
    sharing_memory,
)
from ..processes import put
from .exchange import (
    CohortRows,
    concat_by_dtype,
    evenly,
    exchanged,
    num_rows_of,
    split_by_dtype,
)


def divided_axis(shape: tuple[int, ...], num_devices: int) -> int | None:
    """The axis along which a leaf of a table is divided; None: each device has all of it.

    Args:
      shape: of the leaf, [num_clients, ...].
      num_devices: how many share it.
    """
    if num_devices == 1 or shape[0] % num_devices == 0:
        return 0
    if 0 in shape:
        return None
    even = [i for i, size in enumerate(shape) if size % num_devices == 0]
    return max(even, key=shape.__getitem__, default=None)


def place(state: State, num_devices: int) -> State:
    """`state` with its client tables sharded, all else on every device.

    Shapes in place of arrays come back as shapes that say where they lie.
    """

    def put_on(tree: PyTree, lies: PyTree) -> PyTree:
        leaves = jax.tree.leaves(tree)
        if any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves):
            as_shape = lambda leaf, lies: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=lies
            )
            return jax.tree.map(as_shape, tree, lies)
        if num_devices == 1:
            return tree
        if any(map(check.is_tracer, leaves)):
            return jax.lax.with_sharding_constraint(tree, lies)
        return jax.tree.map(put, tree, lies)

    rest = state._replace(clients=())
    rest = put_on(rest, jax.tree.map(lambda _: sharding(num_devices), rest))
    lies = table_shardings(state.clients, num_devices)
    return rest._replace(clients=put_on(state.clients, lies))


def move(state: State, num_devices: int) -> State:
    """`state` where a round on so many devices reads it, wherever it was."""
    leaves = jax.tree.leaves(state)
    if any(map(check.is_tracer, leaves)):
        return state
    if num_devices > 1:
        return place(state, num_devices)

    def elsewhere(leaf):  # one device may be any: the user has chosen it
        lies = leaf.sharding
        return len(lies.device_set) > 1 or lies.memory_kind == HOST_MEMORY

    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return put(state, sharding(1)) if any(map(elsewhere, arrays)) else state


def create(client: ClientState, num_clients: int, num_devices: int) -> ClientState:
    """The state of one client `num_clients` times, each part made where it lies.

    So a table that fits only when it is sharded is never whole.
    """
    if any(map(check.is_tracer, jax.tree.leaves(client))):
        return repeated(client, num_clients)
    table = jax.eval_shape(lambda client: repeated(client, num_clients), client)
    lies = None if num_devices == 1 else table_shardings(table, num_devices)
    build = jax.jit(repeated, static_argnums=1, out_shardings=lies)
    return build(everywhere(client, num_devices), num_clients)


def check_room(
    client: ClientState, num_clients: int, num_slots: int, num_devices: int
) -> None:
    """Raises SettingError unless a client table fits into memory.

    Args:
      client: the state of one client; shapes are enough.
      num_clients: rows of the table.
      num_slots: clients of a round, whose rows may be on their way between devices.
      num_devices: how many share the table.
    """

    def needed(num_devices: int) -> int:
        held = _bytes_on_device(client, num_clients, num_slots, num_devices)
        return held * sharing_memory(num_devices)

    free = memory.free_memory()
    if free is None or needed(num_devices) <= free:
        return
    others = [
        number
        for number in range(len(jax.devices()), jax.process_count() - 1, -1)
        if serving(number, num_slots) == number and needed(number) <= free
    ]
    each = "" if jax.default_backend() == "cpu" else "each of "
    on = f" on {each}{num_devices} devices" if num_devices > 1 else ""
    less = "take fewer clients, a smaller model or an algorithm without client state"
    raise SettingError(
        f"the state of {num_clients} clients takes {readable(needed(num_devices))}"
        f"{on} but {readable(free)} are free; "
        + (f"write devices={others[0]}, or " if others else "")
        + (f"write {memory.host_instead()}or " if memory.host_instead() else "")
        + f'{less} (evaluating the mean of "all" clients keeps a model for each).'
    )


def gather(table: ClientState, ids: Array, num_devices: int) -> CohortRows:
    """The rows of a cohort: where they lie, or gathered from the parts of all devices."""
    if not _in_parts(table, num_devices):
        return CohortRows(table, ids)
    axes = _axes(table, num_devices)

    def of_device(table: list[Array], ids: Array) -> list[Array]:
        each = ids.shape[0] // num_devices
        begin = jax.lax.axis_index(AXIS) * each
        mine = jax.lax.dynamic_slice_in_dim(ids, begin, each)
        take = lambda leaf, ids: jnp.take(leaf, ids, axis=0, mode="clip")
        whole = [
            take(leaf, mine) for leaf, i in zip(table, axes, strict=True) if i is None
        ]
        parts = [
            take(leaf, ids)
            for leaf, i in zip(table, axes, strict=True)
            if i is not None
        ]
        parts = split_by_dtype(exchanged(parts), parts) if parts else []
        whole, parts = iter(whole), iter(parts)  # parts: [devices x each, ...]

        def rows(axis: int | None) -> Array:
            if axis is None:
                return next(whole)
            part = next(parts)
            part = part.reshape(num_devices, each, *part.shape[1:])
            part = jnp.moveaxis(part, 0, axis)
            shape = part.shape[:axis] + (-1,) + part.shape[axis + 2 :]
            return part.reshape(shape)

        return list(map(rows, axes))

    leaves, structure = jax.tree.flatten(table)
    takes, gives = (_specs(axes), PartitionSpec()), PartitionSpec(AXIS)
    gathered = by_device(of_device, num_devices, takes, gives)
    rows = gathered(leaves, evenly(ids, num_devices))
    slots = jnp.arange(ids.shape[0], dtype=ids.dtype)
    return CohortRows(jax.tree.unflatten(structure, rows), slots)


def scatter(
    table: ClientState, ids: Array, rows: ClientState, num_devices: int
) -> ClientState:
    """The table after a round; without parts the round has written to it in place."""
    if not _in_parts(table, num_devices):
        return rows
    axes = _axes(table, num_devices)

    def of_device(table: list[Array], ids: Array, rows: list[Array]) -> list[Array]:
        def blocks(leaf: Array, axis: int) -> Array:  # [devices x each, ...]
            size = leaf.shape[axis] // num_devices
            shape = leaf.shape[:axis] + (num_devices, size) + leaf.shape[axis + 1 :]
            leaf = jnp.moveaxis(leaf.reshape(shape), axis, 0)
            return leaf.reshape(-1, *leaf.shape[2:])

        gathered = lambda leaf: jax.lax.all_gather(leaf, AXIS, tiled=True)
        pairs = list(zip(rows, axes, strict=True))
        whole = [leaf for leaf, axis in pairs if axis is None]
        parts = [blocks(leaf, axis) for leaf, axis in pairs if axis is not None]
        whole = split_by_dtype(
            [gathered(some) for some in concat_by_dtype(whole)], whole
        )
        parts = split_by_dtype(exchanged(parts), parts)
        whole, parts = iter(whole), iter(parts)
        new = [next(whole if axis is None else parts) for axis in axes]
        put = lambda leaf, new: leaf.at[ids].set(new, mode="drop")
        return list(map(put, table, new))

    leaves, structure = jax.tree.flatten(table)
    takes = _specs(axes), PartitionSpec(), PartitionSpec(AXIS)
    put_back = by_device(of_device, num_devices, takes, _specs(axes))
    new = put_back(leaves, evenly(ids, num_devices), jax.tree.leaves(rows))
    return jax.tree.unflatten(structure, new)


def repeated(client: ClientState, num_clients: int) -> ClientState:
    """The state of one client `num_clients` times, in a buffer of its own."""

    def repeat(leaf):
        rows = jnp.broadcast_to(leaf, (num_clients, *jnp.shape(leaf)))
        # strongly typed, so that it can be donated
        return jax.lax.convert_element_type(jnp.array(rows), rows.dtype)

    return jax.tree.map(repeat, client)


def table_shardings(table: ClientState, num_devices: int) -> PyTree:
    """Where each leaf of a table lies, as a tree of its structure; shapes are enough."""
    if num_devices == 1:
        return jax.tree.map(lambda _: sharding(1), table)
    structure = jax.tree.structure(table)
    specs = _specs(_axes(table, num_devices))
    lies = [NamedSharding(mesh_of(num_devices), spec) for spec in specs]
    return jax.tree.unflatten(structure, lies)


def _bytes_on_device(
    client: ClientState, num_clients: int, num_slots: int, num_devices: int
) -> int:
    """The bytes of clients' states that a device holds at once, while it trains.

    Its part of the table, room for rows of other devices, and where that part is no block
    of rows the cohort's rows.
    """
    table = 0
    leaves = jax.tree.leaves(jax.eval_shape(lambda client: client, client))
    for leaf in leaves:
        axis = divided_axis((num_clients, *leaf.shape), num_devices)
        table += num_clients * num_bytes(leaf) // (1 if axis is None else num_devices)
    copies = 0 if num_devices == 1 else 1 if num_clients % num_devices == 0 else 2
    rows = copies * -(-num_slots // num_devices)
    return table + rows * sum(map(num_bytes, leaves))


def _in_parts(table: ClientState, num_devices: int) -> bool:
    """Whether devices hold parts of rows."""
    return num_rows_of(table) % num_devices != 0


def _axes(table: ClientState, num_devices: int) -> list[int | None]:
    return [divided_axis(leaf.shape, num_devices) for leaf in jax.tree.leaves(table)]


def _specs(axes: list[int | None]) -> list[PartitionSpec]:
    """The `PartitionSpec` of leaves that are divided along these axes."""
    every = PartitionSpec()
    return [every if i is None else PartitionSpec(*[None] * i, AXIS) for i in axes]
