"""Checkpoints that are written while the next rounds run.

A state is taken off the device, which takes little, and a thread writes it. The next one
waits until that is done, so at most one write is under way, and one that failed is an
error at the next save, or at the end. A large state is written at once: memory would hold
it up to four times meanwhile, with what the writer makes of it.

Of several processes all take part in taking the state off the devices, and the first
writes it.
"""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import jax

from ..core import State
from ..engine import arrays, processes
from ..engine.lanes import num_bytes
from . import checkpoint

LARGE = 2**26  # bytes


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
        if num_bytes(state) > LARGE:
            return self._write(state, round)
        self._last = self._pool.submit(self._write, jax.device_get(state), round)
        return spent

    def wait(self) -> float:
        """Waits for the write under way; returns and raises as `save`."""
        return 0.0 if self._last is None else self._last.result()

    def _write(self, state: State, round: int) -> float:
        began = time.perf_counter()
        checkpoint.save(self._folder, state, round)
        return time.perf_counter() - began


@contextmanager
def saver(folder: Path) -> Iterator[Saver]:
    """A `Saver` whose writes are all done, or have raised, when the block ends."""
    with ThreadPoolExecutor(1, "checkpoint") as pool:
        writes = Saver(folder, pool)
        yield writes
        writes.wait()
