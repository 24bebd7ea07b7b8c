"""Whether what a run holds fits, asked before it is allocated."""

from pathlib import Path

import jax

from .. import check
from ..core import ClientState, PyTree
from ..errors import SettingError
from . import mesh
from .client_store.device import divided_axis
from .footprint import Footprint, of_table, readable
from .liveness import num_bytes

SHARE = 0.8  # of the memory that is free, for what an estimate cannot see


def check_fits(
    client: ClientState, num_clients: int, num_slots: int, num_devices: int
) -> None:
    """Raises ValueError unless a client table fits into memory.

    Args:
      client: the state of one client; shapes are enough.
      num_clients: rows of the table.
      num_slots: clients of a round, whose rows may be on their way between devices.
      num_devices: how many share the table.
    """
    # cores that are devices share one memory; an accelerator has its own
    shared = jax.default_backend() == "cpu"

    def needed(num_devices: int) -> int:
        held = states_on_a_device(client, num_clients, num_slots, num_devices)
        return held * (mesh.devices_here(num_devices) if shared else 1)

    free = free_memory()
    if free is None or needed(num_devices) <= free:
        return
    others = range(len(jax.devices()), jax.process_count() - 1, -1)
    others = [d for d in others if mesh.serving(d, num_slots) == d]
    others = [d for d in others if needed(d) <= free]
    on = f" on {'each of ' * (not shared)}{num_devices} devices"
    less = "take fewer clients, a smaller model or an algorithm without client state"
    raise SettingError(
        f"the state of {num_clients} clients takes {readable(needed(num_devices))}"
        f"{on if num_devices > 1 else ''} but {readable(free)} are free; "
        + (f"write devices={others[0]}, or " if others else "")
        + (f"write {_host_instead()}or " if _host_instead() else "")
        + f'{less} (evaluating the mean of "all" clients keeps a model for each).'
    )


def check_host(client: ClientState, num_clients: int) -> None:
    """Raises ValueError unless the host has room for a client table.

    Args:
      client: the state of one client; shapes are enough.
      num_clients: rows of the table.
    """
    leaves = jax.tree.leaves(jax.eval_shape(lambda client: client, client))
    needed, free = num_clients * sum(map(num_bytes, leaves)), free_host_memory()
    if free is not None and needed > free:
        raise SettingError(
            f"the state of {num_clients} clients takes {readable(needed)} but the host "
            f"has {readable(free)} free; take fewer clients, a smaller model or an "
            "algorithm without client state."
        )


def states_on_a_device(
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


def check_copy(state: PyTree) -> None:
    """Raises ValueError unless there is room for another such state beside it."""
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
        needed = sum(of_table(leaf, parts(leaf)) for leaf in leaves)
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
    """Raises ValueError unless there is room for a program, its data being there."""
    free, wanted = free_memory(), needed.total - needed.data
    if free is None or wanted <= free:
        return
    parts = needed._replace(data=0).parts
    raise SettingError(
        f"a round takes {readable(wanted)} beside the data ({parts}) but "
        f"{readable(free)} are free; write {_host_instead()}fewer lanes, a smaller "
        "batch_size, fewer clients or a smaller model."
    )


def _host_instead() -> str:
    """Where clients' state may lie elsewhere than in the memory that is short."""
    return "" if jax.default_backend() == "cpu" else "client_memory=host, "


def free_memory() -> int | None:
    """Bytes free on the device, or in the machine for a CPU; None where that is unknown."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return free_host_memory()


def peak_memory() -> int | None:
    """The most bytes held so far: on the device, or by this process for a CPU."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
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
    """What each limited control group around this process leaves, in bytes."""
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
    """What one control group leaves; None if it has no limit or is not to be seen."""
    try:
        most = int((group / limit).read_text())  # v2 writes "max" for none
        used = int((group / usage).read_text())
        stat = dict(map(str.split, (group / "memory.stat").read_text().splitlines()))
    except (OSError, ValueError):
        return None
    return max(most - used + int(stat.get(cached, 0)), 0)
