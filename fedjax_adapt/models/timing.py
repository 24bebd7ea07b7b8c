"""What each way of computing a convolution takes on this machine.

A few steps of a loop are timed, as local training has them: the convolution, the gradient
of its kernel and that of its inputs, which the first layer of a model does not need.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from ..core import Array, Task, precise
from .conv import multiplied
from .ways import WAYS, Layer, by_rule, can, layers_of

STEPS = 3  # of a loop that is timed
LEAST = 3  # loops, the fastest of which counts
SECONDS = 0.05  # and at least so long
HOPELESS = 5  # times the fastest so far in a first step: such a way is not timed again
AXIS = "devices"
NUDGE = 1e-9  # of the gradients: so that every step waits for the one before


def fastest_ways(
    task: Task,
    x: Array | jax.ShapeDtypeStruct,
    lanes: int = 1,
    devices: int = 1,
    compiler_options: Mapping[str, str] | None = None,
) -> dict[Layer, str]:
    """The fastest way for every convolution of a task, for `with_ways`.

    It compiles and times each way of each kind of layer, some seconds in all; results of a
    task differ by rounding only, whatever the ways.

    Args:
      task: what is learnt.
      x: the batch of a local step, [batch, ...]; a shape is enough.
      lanes: clients trained side by side on a device.
      devices: that train at the same time.
      compiler_options: of XLA, under which rounds are compiled.
    """
    options, layers = compiler_options, enumerate(layers_of(task, x))
    with precise(task):
        tables = {
            layer: milliseconds(layer, lanes, devices, options, not i)
            for i, layer in layers
        }
    return {layer: fastest(layer, taken) for layer, taken in tables.items()}


def fastest(layer: Layer, taken: Mapping[str, float]) -> str:
    """The way that took least; that of the rule where none could be timed."""
    best = min(taken, key=lambda way: taken[way], default=None)
    return best if best and taken[best] < math.inf else by_rule(layer)


def ways_to_try(layer: Layer, lanes: int) -> list[str]:
    """The ways that can, that of the rule first.

    Not XLA's own for several models on a CPU, where it is the slowest by far, nor
    Winograd's on an accelerator, where its sums are hundreds of kernels.
    """
    on_cpu = jax.default_backend() == "cpu"
    hopeless = ("lax" if lanes > 1 else None) if on_cpu else "winograd"
    ways = [way for way in WAYS if can(way, layer) and way != hopeless]
    rule = by_rule(layer)
    return sorted(ways, key=lambda way: way != rule)


def milliseconds(
    layer: Layer,
    lanes: int = 1,
    devices: int = 1,
    compiler_options: Mapping[str, str] | None = None,
    reads_examples: bool = False,
    ways: Sequence[str] | None = None,
    too_large: Callable[[Any], bool] = lambda program: False,
) -> dict[str, float]:
    """What a step of a layer takes in each way, forward and both gradients.

    Args:
      layer: of one model.
      lanes: models side by side on a device.
      devices: at the same time, each with as many models.
      compiler_options: of XLA.
      reads_examples: it is the first of its model: its inputs need no gradient.
      ways: to try; None: `ways_to_try`.
      too_large: whether there is no room to run a compiled program.

    Returns:
      By way; infinite for one that does not fit into memory or that XLA refuses.
    """
    taken: dict[str, float] = {}
    for way in ways_to_try(layer, lanes) if ways is None else ways:
        best = min(taken.values(), default=math.inf)
        how = (layer, way, lanes, devices, compiler_options, reads_examples)
        try:
            program, given = compiled(*how)
            if too_large(program):
                taken[way] = math.inf
                continue
            call = lambda count, p=program, g=given: p(np.int32(count), *g)
            taken[way] = _fastest_call(call, best)
        except jax.errors.JaxRuntimeError:
            taken[way] = math.inf
    return taken


def compiled(
    layer: Layer,
    way: str,
    lanes: int,
    devices: int,
    compiler_options: Mapping[str, str] | None,
    reads_examples: bool,
) -> tuple[Any, list[Array]]:
    """A compiled loop, and what it takes after the number of steps; see `milliseconds`."""
    images = (devices, lanes, layer.channels, *layer.pixels, layer.images)
    kernels = (devices, lanes, *layer.size, layer.channels, layer.filters)
    given = [jnp.full(shape, 0.1, layer.dtype) for shape in (images, kernels)]
    loop = _loop(way, layer.strides, lanes, devices, reads_examples)
    traced = loop.lower(np.int32(1), *given)
    return traced.compile(dict(compiler_options or {})), given


def _loop(way: str, strides, lanes: int, devices: int, reads_examples: bool):
    """The program that is timed, of a number of steps and arrays [devices, lanes, ...]."""
    forward = partial(multiplied, way, strides)

    def step(i, carry):
        x, kernel = carry
        y, pull = jax.vjp(forward, x, kernel)
        dx, dkernel = pull(y)
        # another batch, or patches of the same could be made once for all steps
        x = x - NUDGE * (dkernel[0, 0, 0, 0] if reads_examples else dx)
        return x, kernel - NUDGE * dkernel

    def one(count, x, kernel):
        return lax.fori_loop(0, count, step, (x, kernel))[1]

    def block(count, x, kernel):
        if lanes > 1:
            return jax.vmap(one, (None, 0, 0))(count, x[0], kernel[0])[None]
        return one(count, x[0, 0], kernel[0, 0])[None, None]

    if devices == 1:
        return jax.jit(block)
    mesh = Mesh(np.array(jax.local_devices()[:devices]), (AXIS,))
    every, cut = PartitionSpec(), PartitionSpec(AXIS)
    specs = {"in_specs": (every, cut, cut), "out_specs": cut}
    return jax.jit(jax.shard_map(block, mesh=mesh, check_vma=False, **specs))


def _fastest_call(steps: Callable[[int], Array], best: float) -> float:
    """Milliseconds of a step; `best`: of the fastest way so far."""

    def call(count: int) -> float:
        began = time.perf_counter()
        jax.block_until_ready(steps(count))
        return time.perf_counter() - began

    first = 1e3 * call(1)
    if first > HOPELESS * best:
        return first
    taken: list[float] = []
    while len(taken) < LEAST or sum(taken) < SECONDS:
        taken.append(call(STEPS))
    return 1e3 * min(taken) / STEPS
