"""Whether what a run holds fits, asked before it is allocated."""

from pathlib import Path
from typing import Any

import jax

from .. import check
from ..core import PyTree, State, tree_bytes
from ..errors import SettingError
from . import mesh
from .footprint import Footprint, readable, table_bytes

SHARE = 0.8  # of the memory that is free, for what an estimate cannot see

# copies of a model that a lane holds at once, besides what it computes: where it began,
# where it is, its gradient, correction and momentum, and two on their way
MODELS = 7
# a batch as numbers, its activations and their gradients, in inputs: a guess, which the
# compiled program corrects
ACTIVATIONS = 16


def check_copy(state: PyTree) -> None:
    """Raises SettingError unless there is room for another such state besides it."""
    arrays = [leaf for leaf in jax.tree.leaves(state) if isinstance(leaf, jax.Array)]
    if any(map(check.is_tracer, arrays)):
        return
    shared = jax.default_backend() == "cpu"
    on_host = lambda leaf: not shared and leaf.sharding.memory_kind == mesh.HOST_MEMORY
    parts = lambda leaf: (
        len(leaf.sharding.addressable_devices) if shared or on_host(leaf) else 1
    )
    for there, free in ((False, free_memory()), (True, free_host_memory())):
        leaves = [leaf for leaf in arrays if leaf.ndim and on_host(leaf) == there]
        needed = sum(table_bytes(leaf, parts(leaf)) for leaf in leaves)
        if free is not None and needed > free:
            raise SettingError(
                "train leaves the state it is given as it is and takes "
                f"{readable(needed)} for a copy, but {readable(free)} are free; call "
                "jax.jit(round_fn, donate_argnums=0) round by round, or fedjax-adapt "
                "run, which need none."
            )


def is_exhausted(error: Exception) -> bool:
    """Whether this is what JAX raises where there is no memory left."""
    return "RESOURCE_EXHAUSTED" in str(error)


def check_room(needed: Footprint) -> None:
    """Raises SettingError unless there is room for a program, its data being there."""
    free, wanted = free_memory(), needed.total - needed.data
    if free is None or wanted <= free:
        return
    parts = needed._replace(data=0).parts
    raise SettingError(
        f"a round takes {readable(wanted)} besides the data ({parts}) but "
        f"{readable(free)} are free; write {host_instead()}fewer lanes, a smaller "
        "batch_size, fewer clients or a smaller model."
    )


def too_large(program: Any, num_devices: int) -> bool:
    """Whether a compiled program wants more memory on its devices than is free."""
    free, found = free_memory(), program.memory_analysis()
    if free is None or found is None:
        return False
    wanted = found.temp_size_in_bytes + found.output_size_in_bytes
    return wanted * mesh.sharing_memory(num_devices) > free


def guessed_bytes(state: State, num_lanes: int, batch: tuple[int, int]) -> int:
    """The rough memory of a run on its device: two states, and its lanes at work.

    Args:
      state: shapes are enough.
      num_lanes: clients side by side.
      batch: the examples of a local step, and the bytes of one as a number.
    """
    examples, size = batch
    lane = MODELS * tree_bytes(state.params) + ACTIVATIONS * examples * size
    return 2 * tree_bytes(state) + num_lanes * lane


def host_instead() -> str:
    """Where clients' state may lie elsewhere than in the memory that is short."""
    return "" if jax.default_backend() == "cpu" else "client_memory=host, "


def free_memory() -> int | None:
    """Bytes free on the device, or in the machine for a CPU; None where that is unknown."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return free_host_memory()


def peak_memory() -> int | None:
    """The most bytes held so far: on the device, or by this process for a CPU.

    None: unknown.
    """
    if jax.default_backend() != "cpu":
        stats = jax.local_devices()[0].memory_stats() or {}
        return stats.get("peak_bytes_in_use")
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    line = next((x for x in status.splitlines() if x.startswith("VmHWM")), None)
    return None if line is None else int(line.split()[1]) * 2**10


def free_host_memory(root: Path = Path("/")) -> int | None:
    """Bytes this process may still take: of the machine, or of its container if less.

    Args:
      root: where `proc` and `sys` lie.
    """
    try:
        meminfo = (root / "proc/meminfo").read_text()
        lines = dict(line.split(":") for line in meminfo.splitlines())
        machine = [int(lines["MemAvailable"].split()[0]) * 2**10]
    except (OSError, KeyError, ValueError):
        machine = []
    return min([*machine, *_left_by_cgroups(root)], default=None)


# limit, usage, and what of the usage the kernel gives back when asked: cached files
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _left_by_cgroups(root: Path) -> list[int]:
    """The bytes that each limited control group around this process leaves."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    left = []
    for line in lines:  # hierarchy:controllers:/path
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            names = V1 if controllers else V2
            mount = root / "sys/fs/cgroup" / controllers
            inner = mount / path.strip("/")
            # a container sees its own group at the mount, whatever its path outside
            around = [g for g in (inner, *inner.parents) if g.is_relative_to(mount)]
            left += [_left_by(group, *names) for group in around]
    return [free for free in left if free is not None]


def _left_by(group: Path, limit: str, usage: str, cached: str) -> int | None:
    """The bytes that one control group leaves; None without a limit that can be read."""
    try:
        most = int((group / limit).read_text())  # v2 writes "max" for none
        used = int((group / usage).read_text())
        stat = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
    except (OSError, ValueError):
        return None
    return max(most - used + int(stat.get(cached, 0)), 0)
