"""Whether there is room for a client table, asked before it is allocated."""

import jax

from ...core import ClientState
from ...errors import SettingError
from .. import memory, mesh
from ..footprint import readable
from ..liveness import num_bytes
from .device import divided_axis


def check_room_on_devices(
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

    free = memory.free_memory()
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
        + (f"write {memory.host_instead()}or " if memory.host_instead() else "")
        + f'{less} (evaluating the mean of "all" clients keeps a model for each).'
    )


def check_room_on_host(
    client: ClientState, num_clients: int, num_slots: int, num_devices: int
) -> None:
    """As `check_room_on_devices`, where the host keeps the table."""
    del num_slots, num_devices
    leaves = jax.tree.leaves(jax.eval_shape(lambda client: client, client))
    needed, free = num_clients * sum(map(num_bytes, leaves)), memory.free_host_memory()
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
