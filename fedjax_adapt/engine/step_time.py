"""The time of a local step on an accelerator, by a rule: nothing is compiled or run.

    a step of L clients        STEP + L work.step
    making room for the next   ROOM + L work.room

A small model's kernels take no longer than it takes to launch them, however many clients
there are; a large model's step takes as long as its arithmetic, or its memory traffic.
The constants are assumed, those of benchmarks/launches.py. By them a step of W2's 50
clients takes 131 microseconds; on an H200 its kernels took about 100.
"""

import math
from typing import NamedTuple

import jax
from jax.extend.core import Jaxpr

from ..core import tree_bytes
from .batches import batch_size
from .footprint import inner_jaxprs
from .setup import Setup

LAUNCH = 3e-6  # seconds of a kernel whatever its size
WAIT = 15e-6  # until the host knows whether any client goes on
STEP, ROOM = 20 * LAUNCH, 25 * LAUNCH  # kernels counted in W2, see benchmarks/README.md
# an H100's: float32 operations and bytes a second. In TF32 and bfloat16 it is faster
PEAK, BANDWIDTH = 67e12, 3.35e12
MOVED = 6  # times a step reads or writes the model, its gradient among it


class Work(NamedTuple):
    """Seconds that each client adds."""

    step: float = 0.0  # to a local step
    room: float = 0.0  # to making room


def work_of(setup: Setup) -> Work:
    """The seconds that a client of such a model and batch adds, on an H100.

    The model's products are done forwards and for two gradients.
    """
    task, data, plan = setup[1:4]
    params = jax.eval_shape(task.init, jax.random.key(0))
    shape = batch_size(data, plan), *data.x.shape[1:]
    batch = jax.ShapeDtypeStruct(shape, data.x.dtype)
    forward = operations(jax.make_jaxpr(task.apply)(params, batch).jaxpr)
    moving = MOVED * tree_bytes(params) / BANDWIDTH
    return Work(step=max(3 * forward / PEAK, moving), room=moving)


def operations(jaxpr: Jaxpr) -> int:
    """Additions and multiplications of its products and convolutions."""
    total = 0
    for equation in jaxpr.eqns:
        name, given = equation.primitive.name, equation.params
        inside = sum(map(operations, inner_jaxprs(equation)))
        total += inside * (given["length"] if name == "scan" else 1)
        if name == "dot_general":
            (summed, _), _ = given["dimension_numbers"]
            each = math.prod(equation.invars[0].aval.shape[axis] for axis in summed)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval
            each = kernel.size // kernel.shape[given["dimension_numbers"].rhs_spec[0]]
        else:
            continue
        total += 2 * each * equation.outvars[0].aval.size
    return total
