"""The devices a round runs on: each trains as many of its clients.

The weighted sums of the devices are added up. The parameters are copied to every device,
the data to every accelerator (cores read one copy). The client tables are sharded, and most
clients train where their row is; see client_store/. A client's randomness depends on its id
alone, so the number of devices changes results by rounding only.

A CPU counts as one device unless `cores_as_devices` was called. Cores that serve one
client each finish a round sooner than cores that share every product; see
benchmarks/README.md.

After `jax.distributed.initialize` the devices are those of all processes, and a round
runs in all of them at once: each process builds the same round and the same state, and
calls the same functions in the same order, under `jax.jit` or `train`. Parameters and
infos can be read in each; of a client table each has a part. See processes.py.
"""

import functools
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import (
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from .. import check
from ..core import Array, PyTree
from ..errors import SettingError, first_line
from . import processes
from .processes import put

AXIS = "clients"
SWAPS = 6  # more of them gain less than 1 % on average, on up to 64 devices
HOST_MEMORY = "pinned_host"  # which accelerators reach without a copy

# A device that is done waits for the others. XLA gives up after 40 s and ends the process,
# which the last client of a large model may well take.
DAY = 24 * 3600
PATIENCE = (
    "--xla_cpu_collective_call_terminate_timeout_seconds",
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds",
)


def cores_as_devices(cores: int | None = None) -> None:
    """Makes every core of a CPU a device of its own, for `Plan(devices="auto")`.

    Call it before anything runs on JAX. Accelerators are used as without it. It adds to
    XLA_FLAGS that a device waits a day for the slowest, where XLA would give up.

    Args:
      cores: how many; None: all that this process may use.

    Raises:
      SettingError: `cores` is no positive integer, or JAX has begun to run.
    """
    check.at_least("cores", cores, 1, none="all")
    cores = num_cores() if cores is None else cores
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in PATIENCE if flag not in flags]
    os.environ["XLA_FLAGS"] = " ".join(
        [flags, *(f"{f}={DAY}" for f in missing)]
    ).strip()
    if "xla_force_host_platform_device_count" in flags:
        return  # the user has decided
    try:
        jax.config.update("jax_num_cpu_devices", cores)
    except RuntimeError:
        if len(jax.local_devices(backend="cpu")) != cores:
            raise SettingError(
                f"cores_as_devices({cores}) came after JAX had begun to run; "
                "call it before anything else."
            ) from None


def check_environment() -> None:
    """Raises SettingError where variables leave JAX without a device or a compiler."""
    if jax.config.jax_disable_jit:
        raise SettingError(
            "JAX_DISABLE_JIT is set, and a run is a compiled program; unset it, or call "
            "make_round(...) yourself to look into a round."
        )
    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # the first says nothing
        platforms, why = jax.config.jax_platforms, first_line(error)
        given = "" if platforms is None else f" under JAX_PLATFORMS={platforms}"
        raise SettingError(
            f"JAX finds no device here{given}{f' ({why})' if why else ''}; write "
            "JAX_PLATFORMS=cpu, or install JAX for the accelerator."
        ) from None


def num_cores() -> int:
    """The cores that this process may use."""
    known = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if known else os.cpu_count() or 1


def count(devices: int | str, cohort_size: int) -> int:
    """The number of devices that serve a cohort: at most `devices`, none left over.

    Raises:
      SettingError: JAX has fewer than `devices`, or a process would have none of them.
    """
    present = len(jax.devices())
    if devices != "auto" and int(devices) > present:
        more = f"or begin with fedjax_adapt.cores_as_devices({devices})"
        alone = jax.default_backend() == "cpu" and not processes.several()
        hint = (
            more
            if alone and int(devices) <= num_cores()
            else 'or "auto" for all there are'
        )
        if alone and present > num_cores():  # the command line makes some in advance
            hint += f"; this machine has {num_cores()} cores"
        raise SettingError(
            f"devices={devices} but JAX sees {present}; write devices={present}, {hint}."
        )
    used = serving(present if devices == "auto" else int(devices), cohort_size)
    if 1 < used < jax.process_count():
        raise SettingError(
            f"{used} devices serve a cohort of {cohort_size} with devices={devices}, but "
            f"there are {jax.process_count()} processes; begin {used}, or fewer."
        )
    return used


def serving(most: int, cohort_size: int) -> int:
    """The most of so many devices that serve a cohort with none left over."""
    each = -(-cohort_size // min(most, cohort_size))
    return -(-cohort_size // each)  # 10 clients on 8 devices are 5 x 2


@functools.cache
def mesh_of(num_devices: int) -> Mesh:
    """The first devices, in a row."""
    return Mesh(np.array(processes.devices()[:num_devices]), (AXIS,))


def sharing_memory(num_devices: int) -> int:
    """The number of devices that share one memory: a process's, where they are cores."""
    if num_devices == 1 or jax.default_backend() != "cpu":
        return 1
    return len(mesh_of(num_devices).local_devices)


def sharding(num_devices: int) -> Sharding:
    """Where what is on every device lies."""
    if num_devices == 1:
        return SingleDeviceSharding(jax.local_devices()[0])
    return NamedSharding(mesh_of(num_devices), PartitionSpec())


def everywhere(tree: PyTree, num_devices: int) -> PyTree:
    """`tree` with a copy of every leaf on each device; as it was for one device."""
    if num_devices == 1:
        return tree
    if any(map(check.is_tracer, jax.tree.leaves(tree))):
        return jax.lax.with_sharding_constraint(tree, sharding(num_devices))
    return put(tree, sharding(num_devices))


def readable(tree: PyTree, num_devices: int) -> PyTree:
    """`tree` where every process can read all of it; as it was for one process."""
    return everywhere(tree, num_devices) if processes.several() else tree


def to_read(tree: PyTree, num_devices: int) -> PyTree:
    """As `everywhere`, for what is only read: cores that are devices share one copy."""
    if num_devices > 1 and jax.default_backend() == "cpu":
        # JAX takes over a NumPy view without copying it
        view = lambda leaf: leaf if check.is_tracer(leaf) else np.asarray(leaf)
        tree = jax.tree.map(view, tree)
    return everywhere(tree, num_devices)


def assign(
    num_steps: Array, owner: Array, num_devices: int, swaps: int
) -> tuple[Array, Array]:
    """An order of slots that gives each device as many, most of them with their owner.

    Slots stay with their owner as long as it has room; the others fill the places left,
    longest first. Then the device with most steps changes one slot with the device with
    fewest, the second with the second last, and so on: of all pairs of slots that which
    leaves the two devices nearest to each other. Nothing is swapped where no pair helps.

    Args:
      num_steps: local steps of each slot, [slots], a multiple of `num_devices`.
      owner: the device that has the slot's row, [slots]; `num_devices`: none has.
      num_devices: how many equal blocks the order is cut into.
      swaps: how often devices change slots; 0: the steps do not count.

    Returns:
      The order, and the order back, as indices.
    """
    slots = num_steps.shape[0]
    each = slots // num_devices
    owned = jnp.cumsum(jax.nn.one_hot(owner, num_devices, dtype=jnp.int32), 0)
    rank = owned[jnp.arange(slots), jnp.minimum(owner, num_devices - 1)] - 1
    stays = (owner < num_devices) & (rank < each)
    # places are numbered rank by rank, so those that move are spread over the devices
    place = jnp.where(stays, rank * num_devices + owner, slots)
    free = jnp.argsort(jnp.zeros(slots, bool).at[place].set(True, mode="drop"))
    moving = jnp.lexsort((-num_steps, stays))
    taken = jnp.where(stays[moving], place[moving], free.astype(place.dtype))
    place = place.at[moving].set(taken)
    of_device = jnp.argsort(place).astype(jnp.int32).reshape(each, num_devices).T
    of_device = jax.lax.fori_loop(
        0, swaps, lambda _, of_device: _swapped(num_steps, of_device), of_device
    )
    order = of_device.reshape(-1)
    return order, jnp.argsort(order)


def _swapped(num_steps: Array, of_device: Array) -> Array:
    """The slots of each device, [devices, each], after each has changed one at most."""
    steps = num_steps[of_device]
    load = steps.sum(1)
    by_load, pairs, each = jnp.argsort(load), of_device.shape[0] // 2, steps.shape[1]
    light, heavy = by_load[:pairs], by_load[::-1][:pairs]
    gap = load[heavy] - load[light]
    passed = steps[heavy][:, :, None] - steps[light][:, None, :]
    gap_after = jnp.abs(gap[:, None] - 2 * passed.reshape(pairs, -1))
    best = jnp.argmin(gap_after, 1)
    helps = gap_after.min(1) < gap
    at = jnp.concatenate([heavy, light]), jnp.concatenate(jnp.divmod(best, each))
    now = of_device[at]
    other = jnp.roll(now, pairs)
    return of_device.at[at].set(jnp.where(jnp.tile(helps, 2), other, now))


def run_on_devices(
    function: Callable, shared: PyTree, slots: PyTree, table: PyTree, num_devices: int
) -> tuple[PyTree, PyTree, PyTree]:
    """`function(shared, slots, table) -> (sums, kept, table)`, a block of slots per device.

    Args:
      function: sums up over some slots, keeps something of each, and writes to a table.
      shared: what every device reads.
      slots: leading axis slots, a multiple of `num_devices`.
      table: leading axis rows, cut into a block per device too.
      num_devices: how many blocks.

    Returns:
      The sums of all devices added up, what was kept, in the order of `slots`, and the
      table.
    """
    if num_devices == 1:
        return function(shared, slots, table)
    leaves, structure = jax.tree.flatten(shared)
    is_array = [isinstance(leaf, jax.Array) for leaf in leaves]  # else a static number

    def block(arrays, slots, table):
        arrays = iter(arrays)
        pairs = zip(leaves, is_array, strict=True)
        filled = [next(arrays) if varies else leaf for leaf, varies in pairs]
        sums, per_client, table = function(structure.unflatten(filled), slots, table)
        return jax.lax.psum(sums, AXIS), per_client, table

    parts = PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(AXIS)
    arrays = [leaf for leaf, varies in zip(leaves, is_array, strict=True) if varies]
    return by_device(block, num_devices, parts, parts)(arrays, slots, table)


def by_device(
    function: Callable, num_devices: int, takes: PyTree, gives: PyTree
) -> Callable:
    """`jax.shard_map` over the devices of a round."""
    # unchecked: a loop's sums begin at a zero that is alike everywhere
    specs = {"in_specs": takes, "out_specs": gives, "check_vma": False}
    return jax.shard_map(function, mesh=mesh_of(num_devices), **specs)
