"""Checkpoints that are written while the next rounds run.

A state is taken off the device, which takes little, and a thread writes it. The next one
waits until that is done, so at most one write is under way, and one that failed is an
error at the next save, or at the end. Meanwhile memory holds what was taken, and what the
writer makes of it. Where there is no room for so much, rounds wait for the write.

Of several processes all take part in taking the state off the devices, and the first
writes it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp

from ..core import State, tree_bytes
from ..engine import arrays, memory, processes
from . import checkpoint

SMALL = 2**26  # bytes, for which there is always room
# of a state's size: what is held besides it while it is written and rounds go on. Measured
# on a CPU: 3.4 in a run (SCAFFOLD, 1,400 clients, 296 MiB) where freed memory is kept, of
# which 1.8 are this writer and the round that cannot write in place meanwhile.
COPIES = 4
SHARE = 0.5  # of the memory that is free; the rest is for the rounds that go on


class Saver:
    """Writes states to a folder, one after another."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor):
        """Takes the folder of the checkpoints, and a pool of one thread, which writes."""
        self._folder, self._pool = folder, pool
        self._last: Future | None = None

    def save(self, state: State, round: int) -> float:
        """Begins to write a state, whose memory may be given up at once.

        Every process must call it.

        Returns:
          The seconds that the newest write took which has ended; 0 before.

        Raises:
          OSError: the write before this one failed, the disk is full or read-only.
        """
        spent = self.wait()
        if processes.several():  # not in the thread: programs have one order in all
            state = jax.tree.map(arrays.on_host, state)
            if not processes.is_first():
                return spent
        if not has_room(tree_bytes(state)):
            return self._write(state, round)
        taken = jax.device_get(state)
        if jax.default_backend() == "cpu" and not processes.several():
            # which copies nothing; arrays of NumPy orbax would copy
            taken = jax.tree.map(jnp.asarray, taken)
        self._last = self._pool.submit(self._write, taken, round)
        return spent

    def wait(self) -> float:
        """Waits for the write under way; returns and raises as `save`."""
        return 0.0 if self._last is None else self._last.result()

    def _write(self, state: State, round: int) -> float:
        began = time.perf_counter()
        checkpoint.save(self._folder, state, round)
        return time.perf_counter() - began


def has_room(size: int) -> bool:
    """Whether the host has room to write a state of so many bytes while rounds go on."""
    free = memory.free_host_memory()
    return size <= SMALL or free is None or COPIES * size <= SHARE * free


@contextmanager
def saver(folder: Path) -> Iterator[Saver]:
    """A `Saver` whose writes are all done, or have raised, when the block ends."""
    with ThreadPoolExecutor(1, "checkpoint") as pool:
        writes = Saver(folder, pool)
        yield writes
        writes.wait()
