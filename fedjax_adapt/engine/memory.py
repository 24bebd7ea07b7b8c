"""Whether the state of the clients fits, asked before it is allocated."""

from pathlib import Path

import jax

from ..core import ClientState
from . import mesh


def check_fits(
    client: ClientState, num_clients: int, num_slots: int, num_devices: int
) -> None:
    """Raises ValueError unless a client table, or its copies, fit into memory.

    Args:
      client: the state of one client; shapes are enough.
      num_clients: rows of the table.
      num_slots: clients of a round, whose rows may be on their way between devices.
      num_devices: how many share the table, or hold a copy each.
    """
    leaves = jax.tree.leaves(jax.eval_shape(lambda client: client, client))
    row = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    # cores that are devices share one memory; an accelerator has its own
    shared = jax.default_backend() == "cpu"

    def needed(num_devices: int) -> int:
        rows = rows_on_a_device(num_clients, num_slots, num_devices)
        return row * rows * (num_devices if shared else 1)

    free = free_memory()
    if free is None or needed(num_devices) <= free:
        return
    others = range(len(jax.local_devices()), 0, -1)
    others = [d for d in others if mesh.count(d, num_slots) == d and needed(d) <= free]
    on = f" on {'each of ' * (not shared)}{num_devices} devices"
    less = "take fewer clients, a smaller model or an algorithm without client state"
    raise ValueError(
        f"the state of {num_clients} clients, held twice, takes "
        f"{needed(num_devices) / 2**30:.1f} GiB{on if num_devices > 1 else ''} but "
        f"{free / 2**30:.1f} GiB are free; "
        + (f"write devices={others[0]}, or " if others else "")
        + f'{less} (evaluating the mean of "all" clients keeps a model for each).'
    )


def rows_on_a_device(num_clients: int, num_slots: int, num_devices: int) -> int:
    """How many clients' states a device holds at once, while it trains."""
    if mesh.cuts_tables(num_clients, num_devices):
        own, guests = num_clients // num_devices, -(-num_slots // num_devices)
    else:  # a copy of the whole table; all new rows are passed to all devices
        own, guests = num_clients, num_slots if num_devices > 1 else 0
    # twice: `train` leaves the state it is given as it is, and works on another
    return 2 * own + guests


def free_memory() -> int | None:
    """Bytes free on the device, or in the machine for a CPU; None where nobody tells."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return free_host_memory()


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
