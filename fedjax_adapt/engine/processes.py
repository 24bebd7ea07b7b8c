"""Several processes that train together, and what they agree on.

`jax.distributed.initialize` joins them, such as one on each machine. Each holds the same
data and calls the same programs in the same order, each program runs on the devices of
all, and the first process alone writes and prints. A program that one process calls and
another does not is waited for without end. So whatever hangs on a clock, a file or a key
press is agreed on before anybody acts on it.

A process that is alone agrees with itself, and nothing here costs it anything.
"""

import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from ..core import PyTree
from ..errors import SettingError

PART = 2**26  # bytes of an array that are on their way at once, for each process


class Refused(SettingError):
    """A sentence of one of the processes, raised in all of them."""


def several() -> bool:
    """Whether this process trains together with others."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def is_first() -> bool:
    """Whether this process is the one that writes and prints."""
    return not several() or jax.process_index() == 0


def check_alone(what: str) -> None:
    """Raises SettingError if this process trains together with others."""
    if several():
        raise SettingError(
            f"{what} is made by one process, but jax.distributed has joined "
            f"{jax.process_count()}; begin it in a process of its own."
        )


def of_all(value: Any) -> list[Any]:
    """The value of each process, in every process; values that JSON can hold."""
    if not several():
        return [value]
    texts = _bytes_of_all(json.dumps(value).encode())
    return [json.loads(text) for text in texts]


def from_first(value: Any) -> Any:
    """The first process's value, in every process; a value that JSON can hold."""
    return of_all(value if is_first() else None)[0]


def array_from_first(array: np.ndarray) -> np.ndarray:
    """The first process's array, in every process.

    Args:
      array: elsewhere only its shape and dtype count.
    """
    if not several():
        return array
    whole = np.empty(array.shape, array.dtype)
    if is_first():
        whole[...] = array
    flat = whole.reshape(-1).view(np.uint8)  # bytes pass unchanged, whatever they mean
    for begin in range(0, flat.size, PART):
        part = flat[begin : begin + PART]
        part[:] = _rows_of_all(part)[0]
    return whole


@contextmanager
def agreed() -> Iterator[None]:
    """Ends well in every process or in none.

    Raises:
      Refused: with the sentence of the first process whose block raised a ValueError. A
        process that is alone raises its own.
    """
    if not several():
        yield
        return
    mine = None
    try:
        yield
    except ValueError as error:
        mine = error
    said = [sentence for sentence in of_all(mine and str(mine)) if sentence is not None]
    if said:
        raise Refused(said[0]) from mine


def check_same(values: Mapping[str, Any]) -> None:
    """Raises Refused, in every process, unless all have the same values."""
    first, *others = of_all(dict(values))
    for i, other in enumerate(others, 1):
        for name in [n for n in first if first[n] != other.get(n)]:
            raise Refused(
                f"process {i} has {name}={other.get(name)} but process 0 {name}="
                f"{first[name]}; give all the same command but for --process-id, and the "
                "same files."
            )


def devices() -> list[Any]:
    """Those of all processes: the first of each, then the second of each, and so on.

    So the first D of them are of every process, if it has any and D are enough.
    """
    of_process = {}
    for device in jax.devices():
        of_process.setdefault(device.process_index, []).append(device)
    turn = lambda device: of_process[device.process_index].index(device)
    return sorted(jax.devices(), key=lambda d: (turn(d), d.process_index))


def put(tree: PyTree, lies: Sharding) -> PyTree:
    """`jax.device_put`, for devices of other processes too.

    Each process makes the parts that lie with it, of values that all of them have.

    Args:
      tree: arrays that lie anywhere; the same values in every process.
      lies: where they go.
    """
    if not several():
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


def _bytes_of_all(data: bytes) -> list[bytes]:
    """The bytes that each process gives; they need not be as many."""
    sizes = _rows_of_all(np.array([len(data)], np.int32))[:, 0]
    longest = 2 ** int(sizes.max()).bit_length()  # or each length would be a program
    padded = np.zeros(longest, np.uint8)
    padded[: len(data)] = np.frombuffer(data, np.uint8)
    rows = _rows_of_all(padded)
    return [row[:size].tobytes() for row, size in zip(rows, sizes, strict=True)]


def _rows_of_all(row: np.ndarray) -> np.ndarray:
    """The array of each process, [processes, ...]; all of one shape and dtype.

    `multihost_utils.process_allgather` wants as many devices in every process, and puts a
    copy on each of them.
    """
    firsts = devices()[: jax.process_count()]
    mesh = Mesh(np.array(firsts), ("processes",))
    mine = jax.device_put(row[None], firsts[jax.process_index()])
    shape = (len(firsts), *row.shape)
    lies = NamedSharding(mesh, PartitionSpec("processes"))
    rows = jax.make_array_from_single_device_arrays(shape, lies, [mine])
    return np.asarray(_everywhere(mesh)(rows))


@functools.cache
def _everywhere(mesh: Mesh):
    lies = NamedSharding(mesh, PartitionSpec())
    return jax.jit(lambda rows: rows, out_shardings=lies)
