"""State to folder and back, whole or not at all: orbax, the last two kept.

Of several processes the first writes and reads; the others are given their parts of the
state, so they need not see the folder. Orbax's `CheckpointManager` would write another
layout than that of all folders so far, so the two that are kept are counted here.
"""

import errno
import functools
import logging
import os
import re
import shutil
import sys
import time
import warnings
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..core import State, tree_bytes
from ..engine import memory, processes
from ..errors import RunError, SettingError
from . import files
from .files import LOCK, check_held, held
from .store import contents

PyTree = Any

SMALL = 2**26  # bytes, for which there is always room
# of a state's size: what is held besides it while it is written and rounds go on. Measured
# on 2 cores of a Xeon (commit def710c, jax 0.10.2, n = 1) as the peak of VmRSS, read every
# millisecond, over that before the first of 30 calls of `Saver.save`, each followed by 3
# calls of jit(lambda s: jax.tree.map(lambda x: x * 1.000001, s), donate_argnums=0):
# 5.8 for 200 MB in 8 arrays, 4.8 where freed memory is kept (20 saves), 1.9 with
# MALLOC_ARENA_MAX=1. The difference is freed memory in the arenas of orbax's threads.
COPIES = 6
SHARE = 0.5  # of the memory that is free; the rest is for the rounds that go on
# of a state, as an error calls them
PARTS = {
    "params": "parameters",
    "server": "server state",
    "policy": "state of the step policy",
    "clients": "client state",
    "refine": "state of the refinement",
}
# by orbax, after they are listed
DATED = ("_CHECKPOINT_METADATA", "commit_success.txt")
# seconds that a write may take by the time of day: orbax's 600 would end a run whose
# machine sleeps meanwhile
PATIENCE = 7 * 24 * 3600
KEEP = 2  # the newest, and the one before it should the newest be damaged


class Saver:
    """Writes states to a folder while rounds go on, one after another.

    At most one write is under way, and one that failed is an error at the next save, or
    at the end. Where there is no room for a state besides the rounds, they wait for it.
    Of several processes all take part in taking a state off the devices, and the first
    writes it.
    """

    def __init__(self, folder: Path):
        """Takes the folder of the checkpoints."""
        self._folder, self._began, self._spent = folder, 0.0, 0.0
        self._writer = None
        self._round, self._failed = 0, None  # of the newest write
        if not processes.is_first():
            return
        import orbax.checkpoint as ocp

        _one_failure_is_enough()  # before a write has: its others fail with it
        self._writer = ocp.StandardCheckpointer(
            multiprocessing_options=_alone(),
            async_options=ocp.options.AsyncOptions(
                timeout_secs=PATIENCE, post_finalization_callback=self._written
            ),
        )

    def _written(self) -> None:
        """Lists what a checkpoint holds, in orbax's thread, before it has its name."""
        path = _path(self._folder, self._round)
        place = next(path.parent.glob(f"{path.name}.orbax-checkpoint-tmp*"), path)
        data = (at for at in place.rglob("*") if at.is_file() and at.name not in DATED)
        found = {path / at.relative_to(place): at for at in data}
        before = f"{'[0-9]' * len(path.name)}/**/*"
        try:
            files.enter(self._folder, found, [path], [before])
        except Exception as error:  # orbax would say it was its own
            self._failed = error
        self._spent = time.perf_counter() - self._began

    def save(self, state: PyTree, round: int) -> float:
        """Begins to write `state` to `folder/<round>`; its memory may be given up at once.

        Every process must call it.

        Returns:
          The seconds that the newest write took which has ended; 0 before.

        Raises:
          OSError: the write before this one failed, the disk is full or read-only.
        """
        spent = self.wait()
        if processes.several():
            state = jax.tree.map(processes.on_host, state)
        if self._writer is None:
            return spent
        solid = _solid(state)
        with _as_os_error(self._folder):
            files.make(self._folder)
            # of a disk that is too full tensorstore says too much
            if shutil.disk_usage(self._folder).free < tree_bytes(solid):
                raise OSError(
                    errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._folder)
                )
            self._began, self._round = time.perf_counter(), round
            # a checkpoint of the same round is one that could not be read back
            self._writer.save(_path(self._folder, round), solid, force=True)
        return spent if has_room(tree_bytes(state)) else self.wait()

    def wait(self) -> float:
        """Waits for the write under way, and drops all but the last two.

        Returns and raises as `save`, and RunError where the run's folder was moved.
        Orbax writes next to a checkpoint and renames, so a process that is killed leaves
        those that were there.
        """
        if self._writer is not None:
            try:
                with _as_os_error(self._folder):
                    self._writer.wait_until_finished()
                    failed, self._failed = self._failed, None
                    if failed is not None:
                        raise failed
                check_held(self._folder)
            except RunError:
                _withdraw(self._folder)
                raise
            old = [_path(self._folder, at) for at in rounds(self._folder)[:-KEEP]]
            files.strike(self._folder, old)
            for path in old:
                shutil.rmtree(path)
            for left_over in self._folder.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(left_over, ignore_errors=True)
        return self._spent

    def close(self) -> None:
        """Gives up the writer, whether or not its last write has failed."""
        if self._writer is not None:
            with suppress(Exception):
                self._writer.close()
            _withdraw(self._folder)  # threads may write on after the first has failed


@contextmanager
def saver(folder: Path) -> Iterator[Saver]:
    """A `Saver` whose writes are all done, or have raised, when the block ends.

    An error of the block has a note of a write that failed, see `noted`.
    """
    with _quiet():  # from beginning to end, for writes that fail say so from threads
        writes = Saver(folder)
        try:
            yield writes
        except BaseException as error:
            with noted(error):
                writes.wait()
            raise
        else:
            writes.wait()
        finally:
            writes.close()


@contextmanager
def noted(error: BaseException) -> Iterator[None]:
    """Saves what there is before `error` is raised; if that fails, `error` has a note.

    Where `error` is Ctrl-C the failure is raised in its place: who presses it relies on
    the rounds so far being saved.
    """
    try:
        yield
    except Exception as failed:
        if isinstance(error, KeyboardInterrupt):
            raise
        if str(failed) != str(error):
            why = str(failed).rstrip(".")
            error.add_note(f"Besides, the rounds so far could not be saved: {why}.")


def save(folder: Path, state: PyTree, round: int) -> None:
    """Writes `state` to `folder/<round>`, as `Saver.save`, and waits for it."""
    with saver(folder) as writes:
        writes.save(state, round)


def has_room(size: int) -> bool:
    """Whether the host has room to write a state of so many bytes while rounds go on."""
    free = memory.free_host_memory()
    return size <= SMALL or free is None or COPIES * size <= SHARE * free


def _withdraw(folder: Path) -> None:
    """Removes what a write under way has made where the folder of its run has gone."""
    place = held(folder)
    if place is None or (place / LOCK).exists():  # another is there now
        return
    shutil.rmtree(folder, ignore_errors=True)
    for path in folder.absolute().parents:
        if path == place.parent or not path.is_dir() or any(path.iterdir()):
            return
        path.rmdir()


def whole_rounds(folder: Path) -> list[int]:
    """The rounds whose checkpoints are as they were written, oldest first."""
    return [at for at in rounds(folder) if _is_whole(folder, _path(folder, at))]


def _is_whole(folder: Path, path: Path) -> bool:
    """Whether a checkpoint is as its run wrote it; True where nothing is listed."""
    known = files.listed(folder)
    if known is None:
        return True
    run = files.listed(folder.absolute().parent)
    if run is not None and run.of != known.of:
        return False
    names = [name for name in known if name.startswith(f"{path.name}/")]
    damage = (files.damaged(folder, folder / name, known) for name in names)
    return bool(names) and not any(damage)


def restore(
    folder: Path, abstract: PyTree, until: int | None = None
) -> tuple[PyTree, int] | None:
    """The newest state that can be read, and its round; None if none was saved.

    Every process must call it. `abstract` is `jax.eval_shape` of the state, and its
    shardings say where the arrays go. `until`, a round, which the first process gives, no
    later state counts. SettingError: there are checkpoints, but none that can be read with
    the arrays of `abstract`.
    """
    if not processes.several():
        return _restored(folder, abstract, until)
    # a view of one zero each, which takes no memory and says where to: NumPy
    like = lambda leaf: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    state = jax.tree.map(like, abstract)
    found = None
    with processes.agreed():
        if processes.is_first():
            found = _restored(folder, state, until)
    round = processes.from_first(found and found[1])
    if round is None:
        return None
    state = found[0] if found is not None else state
    give = lambda leaf, shape: processes.put(
        processes.array_from_first(np.asarray(leaf)), shape.sharding
    )
    return jax.tree.map(give, state, abstract), round


def _restored(
    folder: Path, abstract: PyTree, until: int | None
) -> tuple[PyTree, int] | None:
    saved = [at for at in rounds(folder) if until is None or at <= until]
    solid, others = _solid(abstract), {}
    expected = _arrays(solid)
    if saved:
        _one_failure_is_enough()
    for round in reversed(saved):
        path = _path(folder, round)
        if not _is_whole(folder, path):
            continue
        # A damaged file may surface as almost any exception of orbax or tensorstore.
        try:
            with _reader() as checkpointer:
                found = _arrays(checkpointer.metadata(path).item_metadata.tree)
                if off := expected.items() ^ found.items():
                    others[round] = off
                    continue  # orbax would cast to the types it is asked for
                state = checkpointer.restore(path, solid)
        except Exception:
            continue
        return _filled(abstract, state), round
    if not saved:
        return None
    listed = lambda some: ", ".join(map(str, some))
    none = f"no checkpoint in {folder} can be read (rounds {listed(saved)})"
    if others:
        newest = others[max(others)]
        parts = sorted({name.partition(".")[0] for name, _ in newest})
        named = " and ".join(PARTS.get(part, part) for part in parts)
        damaged = [round for round in saved if round not in others]  # one of the two
        who = f"{listed(damaged)} is damaged, and the rest" if damaged else "they"
        raise SettingError(
            f"{none}: {who} have other arrays or types in the {named}, as an earlier "
            "version or another algorithm keeps; go on with what wrote it, or give another "
            "folder."
        )
    raise SettingError(f"{none}; delete the run folder and start again.")


def _arrays(tree: PyTree) -> dict[str, tuple[Any, ...]]:
    """Type and shape of each leaf by where it is, in a named tuple or a dict."""
    found = {}
    for path, leaf in jax.tree.leaves_with_path(tree):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):  # whose numbers are kept
            leaf = jax.eval_shape(jax.random.key_data, leaf)
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = (str(leaf.dtype), *leaf.shape)
    return found


def set_aside(folder: Path, round: int, why: str = "") -> str | None:
    """Renames the checkpoints that `restore` has passed over, and says so.

    They count no more among the last two, and nothing of them is lost. The one of `round`
    was read, 0: none; `why` an older one was, where it is not for what they are.
    """
    newer = [_path(folder, saved) for saved in rounds(folder) if saved > round]
    aside = [path.rename(files.aside(path)) for path in newer]
    files.strike(folder, newer)
    names = ", ".join(path.name for path in aside)
    on = f"this goes on from round {round}."
    if why:
        after = f", and the state after it is called {names} now" if newer else ""
        return f"{why}{after}; {on}"
    if not newer:
        return None
    return f"in {folder} the newest state is damaged, and is called {names} now; {on}"


def rounds(folder: Path) -> list[int]:
    """The rounds whose checkpoints are complete, oldest first."""
    return sorted(int(p.name) for p in contents(folder) if p.name.isdigit())


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
    """What tensorstore says of the system's errors, as the error that Python has for it.

    What it says of a folder that was moved is what `check_held` says.
    """
    try:
        yield
    except Exception as error:
        check_held(folder)
        found = re.search(r"os_error_code='(\d+)'", str(error))
        if found is None:
            raise
        code = int(found[1])
        raise OSError(code, os.strerror(code), str(folder)) from None


def _alone() -> Any:
    """Options of orbax with which it does not wait for other processes."""
    import orbax.checkpoint as ocp

    active = {0} if processes.several() else None
    return ocp.options.MultiprocessingOptions(active_processes=active)


@contextmanager
def _quiet() -> Iterator[None]:
    """Orbax keeps its log to itself, of all threads: what it raises says as much."""
    logger = logging.getLogger("absl")
    heard = lambda record: "orbax" not in Path(record.pathname).parts
    logger.addFilter(heard)
    try:
        yield
    finally:
        logger.removeFilter(heard)


@contextmanager
def _reader() -> Iterator[Any]:
    """A checkpointer to read with, and no warnings meanwhile.

    What cannot be read the next older checkpoint makes good. Warnings are those of the
    whole process, so this is not for a thread next to others, as `saver` has.
    """
    import orbax.checkpoint as ocp

    with (
        warnings.catch_warnings(action="ignore"),
        _quiet(),
        ocp.StandardCheckpointer(multiprocessing_options=_alone()) as checkpointer,
    ):
        yield checkpointer


@functools.cache
def _one_failure_is_enough() -> None:
    """From now on, keeps to themselves what fails after the first read or write has.

    Orbax has closed their event loop by then, so that each prints a traceback, and its
    future another when it is thrown away, which may be long after. Of those that have
    begun, Python 3.14 tells that they were thrown away.
    """
    tell = sys.unraisablehook

    def hook(raised: "sys.UnraisableHookArgs") -> None:
        error = raised.exc_value
        reading = str(error).startswith("Encountered error while reading array")
        thrown_away = reading and isinstance(error.__cause__, GeneratorExit)
        if str(error) != "Event loop is closed" and not thrown_away:
            tell(raised)

    def heard(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        return "OCDBT database" not in str(error)

    sys.unraisablehook = hook
    logging.getLogger("asyncio").addFilter(heard)
