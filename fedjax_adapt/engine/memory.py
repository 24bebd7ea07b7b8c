"""Whether the state of the clients fits, asked before it is allocated."""

import jax
import jax.numpy as jnp

from ..core import ClientState


def check_fits(client: ClientState, num_clients: int, num_devices: int) -> None:
    """Raises ValueError unless `num_devices` copies of a client table fit into memory.

    Args:
      client: the state of one client; shapes are enough.
      num_clients: rows of the table.
      num_devices: how many hold a copy.
    """
    size = num_clients * sum(
        jnp.size(leaf) * jnp.result_type(leaf).itemsize
        for leaf in jax.tree.leaves(client)
    )
    # cores that are devices share one memory; an accelerator has its own
    copies = num_devices if jax.default_backend() == "cpu" else 1
    free = free_memory()
    # twice: `train` leaves the state it is given as it is, and works on another
    if free is not None and 2 * copies * size > free:
        on = f" on each of {num_devices} devices" if num_devices > 1 else ""
        raise ValueError(
            f"the state of {num_clients} clients takes twice {size / 2**30:.1f} "
            f"GiB{on} but {free / 2**30:.1f} GiB are free; take fewer clients, a smaller "
            "model, devices=1 or an algorithm without client state."
        )


def free_memory() -> int | None:
    """Bytes free on the device, or in the machine for a CPU; None where nobody tells."""
    stats = jax.local_devices()[0].memory_stats()
    if stats is not None and "bytes_limit" in stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        return int(lines["MemAvailable"].split()[0]) * 2**10
    except (OSError, KeyError):
        return None
