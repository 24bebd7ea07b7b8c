"""Client tables in the memory of the devices: a block of rows on each, or a copy.

A table is sharded where the number of devices divides that of the clients. All else of a
state is on every device.
"""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ... import check
from ...core import Array, ClientState, PyTree, State
from ..arrays import put
from ..mesh import AXIS, HOST_MEMORY, everywhere, mesh_of, sharding
from .exchange import CohortRows, num_rows_of


def is_sharded(num_clients: int, num_devices: int) -> bool:
    """Whether each device holds a block of the rows of a table, not a copy of it."""
    return num_devices > 1 and num_clients % num_devices == 0


def place(state: State, num_devices: int) -> State:
    """`state` with its client tables sharded where they can be, all else everywhere.

    Shapes in place of arrays come back as shapes that say where they lie.
    """
    tables = jax.tree.leaves(state.clients)

    def put_on(tree: PyTree, lies: Sharding) -> PyTree:
        if any(
            isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(tree)
        ):
            as_shape = lambda leaf: jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=lies
            )
            return jax.tree.map(as_shape, tree)
        if num_devices == 1:
            return tree
        if any(map(check.is_tracer, jax.tree.leaves(tree))):
            return jax.lax.with_sharding_constraint(tree, lies)
        return put(tree, lies)

    rest = put_on(state._replace(clients=()), sharding(num_devices))
    num_clients = tables[0].shape[0] if tables else 0
    lies = _table_sharding(num_clients, num_devices)
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
    """The state of one client `num_clients` times, each block of rows made where it lies.

    So a table that fits only when it is sharded is never whole.
    """
    if any(map(check.is_tracer, jax.tree.leaves(client))):
        return repeated(client, num_clients)
    lies = None if num_devices == 1 else _table_sharding(num_clients, num_devices)
    build = jax.jit(repeated, static_argnums=1, out_shardings=lies)
    return build(everywhere(client, num_devices), num_clients)


def gather(table: ClientState, ids: Array, num_devices: int) -> CohortRows:
    """The rows of a cohort, [slots, ...], which are read and written where they lie."""
    num_clients = num_rows_of(table)
    sharded = num_clients > 0 and is_sharded(num_clients, num_devices)
    return CohortRows(table, ids, sharded)


def scatter(
    table: ClientState, ids: Array, rows: ClientState, num_devices: int
) -> ClientState:
    """The table after a round, which has written to it in place."""
    del table, ids, num_devices
    return rows


def repeated(client: ClientState, num_clients: int) -> ClientState:
    """The state of one client `num_clients` times, in a buffer of its own."""

    def repeat(leaf):
        rows = jnp.broadcast_to(leaf, (num_clients, *jnp.shape(leaf)))
        # strongly typed, so that it can be donated
        return jax.lax.convert_element_type(jnp.array(rows), rows.dtype)

    return jax.tree.map(repeat, client)


def _table_sharding(num_clients: int, num_devices: int) -> Sharding:
    if not is_sharded(num_clients, num_devices):
        return sharding(num_devices)
    return NamedSharding(mesh_of(num_devices), PartitionSpec(AXIS))
