"""Arrays on the devices of several processes: made of what each process holds, and read.

`jax.device_put` reaches the devices of its own process. Beyond them each process makes
the parts that lie with it, of values that all of them have.
"""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from ..core import PyTree
from . import processes


def put(tree: PyTree, lies: Sharding) -> PyTree:
    """`jax.device_put`, for devices of other processes too.

    Args:
      tree: arrays that lie anywhere; the same values in every process.
      lies: where they go.
    """
    if not processes.several():
        return jax.device_put(tree, lies)
    return jax.tree.map(lambda leaf: _put(leaf, lies), tree)


def _put(leaf, lies: Sharding) -> jax.Array:
    if _spans(leaf) and leaf.sharding.device_set == lies.device_set:
        return jax.device_put(leaf, lies)
    if not _spans(leaf) and lies.is_fully_addressable:
        return jax.device_put(leaf, lies)
    host = on_host(leaf)
    if lies.is_fully_addressable:
        return jax.device_put(host, lies)
    host = host.astype(jax.dtypes.canonicalize_dtype(host.dtype), copy=False)
    return jax.make_array_from_callback(host.shape, lies, lambda part: host[part])


def on_host(leaf) -> np.ndarray:
    """A whole array as NumPy has it, a block of rows at a time if it is sharded.

    Every process must call it, and gets all of it.
    """
    if not _spans(leaf) or leaf.is_fully_replicated:
        return np.asarray(leaf)
    host = np.empty(leaf.shape, leaf.dtype)
    size = len(host)
    rows = -(-size // leaf.sharding.num_devices)
    take = lambda leaf, begin: jax.lax.dynamic_slice_in_dim(leaf, begin, rows)
    everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
    block = jax.jit(take, out_shardings=everywhere)
    for begin in range(0, size, rows):
        begin = min(begin, size - rows)  # the last block may overlap
        host[begin : begin + rows] = block(leaf, begin)
    return host


def _spans(leaf) -> bool:
    """Whether part of an array lies with another process."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable
