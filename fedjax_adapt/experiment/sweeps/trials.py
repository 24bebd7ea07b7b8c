"""Whole runs side by side: one more axis around everything, [trials].

A function of one trial becomes a function of `width` of them: `width / devices` under
`vmap` on each device, which need not talk to each other.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ...core import PyTree, State
from ...engine import lanes, memory, mesh


class Layout(NamedTuple):
    """How the trials of a group are laid out."""

    num_devices: int
    each: int  # side by side on a device

    @property
    def width(self) -> int:
        """Trials in one call of the program."""
        return self.num_devices * self.each


def over(one: Callable, layout: Layout) -> Callable:
    """`one(shared, *own)` of a trial as a function of `layout.width`, stacked."""

    def some(shared, *own):
        if layout.each > 1:
            return jax.vmap(one, in_axes=(None, *(0 for _ in own)))(shared, *own)
        # no vmap: a plain matmul beats a batched one of batch 1
        result = one(shared, *jax.tree.map(lambda leaf: leaf[0], own))
        return jax.tree.map(lambda leaf: leaf[None], result)

    if layout.num_devices == 1:
        return some
    every, cut = PartitionSpec(), PartitionSpec(mesh.AXIS)

    def spread(shared, *own):
        return jax.shard_map(
            some,
            mesh=mesh.mesh_of(layout.num_devices),
            in_specs=(every, *(cut for _ in own)),
            out_specs=cut,
            check_vma=False,
        )(shared, *own)

    return spread


def placed(tree: PyTree, layout: Layout) -> PyTree:
    """What trials own, [width, ...], where each trial runs; shapes stay shapes."""
    lies = SingleDeviceSharding(jax.local_devices()[0])
    if layout.num_devices > 1:
        lies = NamedSharding(mesh.mesh_of(layout.num_devices), PartitionSpec(mesh.AXIS))

    def place(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies)
        return jax.device_put(leaf, lies)

    return jax.tree.map(place, tree)


def choose(
    side_by_side: int | str,
    num_trials: int,
    devices: int | str,
    num_lanes: Callable[[int], int],
    state: State,
    batch: tuple[int, int],
) -> Layout:
    """How many trials run at once, and where.

    "auto" takes all on an accelerator, as far as memory goes; on a CPU as many as there
    would be clients side by side if they were all of one run, see `lanes.choose`. Trials
    are then divided evenly: 12 where 10 would fit are 2 times 6.

    Args:
      side_by_side: trials on a device, or "auto".
      num_trials: how many there are.
      devices: how many may share them, or "auto".
      num_lanes: how many clients of one trial run side by side, by how many devices.
      state: of one trial; shapes are enough.
      batch: the examples of a local step, and the bytes of one as a number.

    Raises:
      ValueError: JAX has fewer devices.
    """
    num_devices = mesh.count(devices, num_trials)
    there = -(-num_trials // num_devices)
    clients = num_lanes(num_devices)
    most = there
    if side_by_side != "auto":
        most = int(side_by_side)
    elif jax.default_backend() == "cpu":
        slots, params = clients * there, state.params
        most = lanes.choose("auto", slots, params, batch[0], num_devices) // clients
    if side_by_side == "auto":
        most = min(most, _fitting(state, clients, batch, num_devices))
    calls = -(-there // max(most, 1))
    return Layout(num_devices, -(-there // calls))


def halved(layout: Layout) -> Layout:
    """Half as many trials at once: side by side, or else on half as many devices."""
    if layout.each > 1:
        return layout._replace(each=-(-layout.each // 2))
    return layout._replace(num_devices=-(-layout.num_devices // 2))


def _fitting(
    state: State, num_lanes: int, batch: tuple[int, int], num_devices: int
) -> int:
    free = memory.free_memory()
    if free is None:
        return 2**30
    each = memory.guessed_bytes(state, num_lanes, batch)
    return int(memory.SHARE * free / mesh.sharing_memory(num_devices)) // max(each, 1)
