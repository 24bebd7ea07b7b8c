"""State to folder and back, whole or not at all: orbax, the last two kept.

Of several processes the first writes and reads; the others are given their parts of the
state, so they need not see the folder. See also saver.py.
"""

import errno
import functools
import logging
import os
import re
import shutil
import sys
import warnings
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core import State, tree_bytes
from ..engine import arrays, processes
from ..errors import SettingError

PyTree = Any

CHUNK = 2**27  # bytes: a table in one piece would be copied whole on its way
KEEP = 2  # the newest, and the one before it should the newest be damaged


def save(folder: Path, state: PyTree, round: int) -> None:
    """Writes `state` to `folder/<round>` and drops all but the last two.

    Orbax writes next to it and renames, so a process killed meanwhile leaves the
    checkpoints that were there. Of several processes one calls it, with what it can read.

    Raises:
      OSError: the disk is full or read-only.
    """
    from orbax.checkpoint import SaveArgs

    with _as_os_error(folder), _orbax() as checkpointer:
        # A checkpoint of the same round is one that could not be read back.
        whole = _solid(state)
        _check_space(folder, whole)
        pieces = jax.tree.map(lambda _: SaveArgs(chunk_byte_size=CHUNK), whole)
        checkpointer.save(_path(folder, round), whole, save_args=pieces, force=True)
    for old in rounds(folder)[:-KEEP]:
        shutil.rmtree(_path(folder, old))
    for left_over in folder.glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(left_over, ignore_errors=True)


def _check_space(folder: Path, state: PyTree) -> None:
    """Raises OSError where a disk is too full, of which tensorstore says too much."""
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder).free < tree_bytes(state):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def restore(folder: Path, abstract: PyTree) -> tuple[PyTree, int] | None:
    """The newest state that can be read, and its round; None if none was saved.

    Every process must call it.

    Args:
      folder: where `save` wrote.
      abstract: `jax.eval_shape` of the state: structure, shapes and dtypes, and by their
        shardings where the arrays go.

    Raises:
      ValueError: there are checkpoints and none of them can be read.
    """
    if processes.several():
        return _restored_by_first(folder, abstract)
    return _restored(folder, abstract)


def _restored_by_first(folder: Path, abstract: PyTree) -> tuple[PyTree, int] | None:
    """As `restore`, for several processes."""
    # a view of one zero each, which takes no memory and says where to: NumPy
    like = lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    state = jax.tree.map(like, abstract)
    found = None
    with processes.agreed():
        if processes.is_first():
            found = _restored(folder, state)
    round = processes.from_first(found and found[1])
    if round is None:
        return None
    state = found[0] if found is not None else state
    give = lambda leaf, shape: arrays.put(
        processes.array_from_first(np.asarray(leaf)), shape.sharding
    )
    return jax.tree.map(give, state, abstract), round


def _restored(folder: Path, abstract: PyTree) -> tuple[PyTree, int] | None:
    saved = rounds(folder)
    if saved:
        _one_failure_is_enough()
    for round in reversed(saved):
        # A damaged file may surface as almost any exception of orbax or tensorstore.
        try:
            with _no_warnings(), _orbax() as checkpointer:
                state = checkpointer.restore(_path(folder, round), _solid(abstract))
        except Exception:
            continue
        return _filled(abstract, state), round
    if saved:
        raise SettingError(
            f"no checkpoint in {folder} can be read (rounds "
            f"{', '.join(map(str, saved))}); delete the run folder and start again."
        )
    return None


def set_aside(folder: Path, round: int) -> str | None:
    """Renames the checkpoints that `restore` has passed over, and says so.

    They count no more among the last two, and nothing of them is lost.

    Args:
      folder: where they lie.
      round: of the one that could be read; 0 if none was saved.
    """
    newer = [_path(folder, saved) for saved in rounds(folder) if saved > round]
    for path in newer:
        aside = path.with_name(f"{path.name}.unreadable")
        shutil.rmtree(aside, ignore_errors=True)
        path.rename(aside)
    if not newer:
        return None
    names = ", ".join(f"{path.name}.unreadable" for path in newer)
    return (
        f"in {folder} the newest state cannot be read, and is called {names} now; this "
        f"goes on from round {round}."
    )


def rounds(folder: Path) -> list[int]:
    """The rounds whose checkpoints are complete, oldest first."""
    return sorted(int(p.name) for p in folder.glob("*") if p.name.isdigit())


def _path(folder: Path, round: int) -> Path:
    return folder.absolute() / f"{round:09d}"


# a state but for its origin, which the algorithm of the run gives
_Arrays = namedtuple("_Arrays", State._fields[: State._fields.index("origin")])


def _solid(tree: PyTree) -> PyTree:
    """Without leaves that hold no number, which tensorstore cannot write."""
    if isinstance(tree, State):
        tree = _Arrays(*(getattr(tree, name) for name in _Arrays._fields))
    return jax.tree.map(lambda leaf: leaf if leaf.size else None, tree)


def _filled(abstract: PyTree, tree: PyTree) -> PyTree:
    """Undoes `_solid`."""
    leaves, structure = jax.tree.flatten(abstract)
    solid = iter(jax.tree.leaves(tree))
    return structure.unflatten(
        next(solid) if leaf.size else jnp.zeros(leaf.shape, leaf.dtype)
        for leaf in leaves
    )


@contextmanager
def _as_os_error(folder: Path) -> Iterator[None]:
    """What tensorstore says of the system's errors, as the error that Python has for it."""
    try:
        yield
    except Exception as error:
        found = re.search(r"os_error_code='(\d+)'", str(error))
        if found is None:
            raise
        code = int(found[1])
        raise OSError(code, os.strerror(code), str(folder)) from None


@contextmanager
def _orbax() -> Iterator[Any]:
    """A checkpointer that keeps its log to itself: what it raises says as much."""
    import orbax.checkpoint as ocp

    # among several processes orbax would wait for all of them
    alone = ocp.options.MultiprocessingOptions()
    if processes.several():
        alone = ocp.options.MultiprocessingOptions(active_processes={0})
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with ocp.StandardCheckpointer(multiprocessing_options=alone) as checkpointer:
            yield checkpointer
    finally:
        logger.setLevel(level)


@functools.cache
def _one_failure_is_enough() -> None:
    """From now on, keeps the reads to themselves that fail after the first has.

    Orbax has closed their event loop by then, so that each prints a traceback, and its
    future another when it is thrown away, which may be long after.
    """
    tell = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        if str(raised.exc_value) != "Event loop is closed":
            tell(raised)

    def heard(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return "OCDBT database" not in str(error)

    sys.unraisablehook = hook
    logging.getLogger("asyncio").addFilter(heard)


@contextmanager
def _no_warnings() -> Iterator[None]:
    """What cannot be read the next older checkpoint makes good.

    Of the whole process, so not for a thread next to others: states are written without.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
