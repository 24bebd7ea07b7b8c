"""Whether the state of the clients fits, asked before it is allocated."""

from pathlib import Path

import jax
import jax.numpy as jnp

from ..core import ClientState
from . import mesh


def check_fits(client: ClientState, num_clients: int, num_devices: int) -> None:
    """Raises ValueError unless a client table, or its copies, fit into memory.

    Args:
      client: the state of one client; shapes are enough.
      num_clients: rows of the table.
      num_devices: how many share the table, or hold a copy each.
    """
    size = num_clients * sum(
        jnp.size(leaf) * jnp.result_type(leaf).itemsize
        for leaf in jax.tree.leaves(client)
    )
    copies = 1 if mesh.cuts_tables(num_clients, num_devices) else num_devices
    # cores that are devices share one memory; an accelerator has its own
    if jax.default_backend() != "cpu":
        copies /= num_devices
    free = free_memory()
    # twice: `train` leaves the state it is given as it is, and works on another
    if free is not None and 2 * copies * size > free:
        on = f" on each of {num_devices} devices" if copies == num_devices > 1 else ""
        raise ValueError(
            f"the state of {num_clients} clients takes twice {size / 2**30:.1f} "
            f"GiB{on} but {free / 2**30:.1f} GiB are free; take fewer clients, a smaller "
            "model, devices=1 or an algorithm without client state (evaluating the mean "
            'of "all" clients keeps a model for each).'
        )


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
