"""What XLA is to compute by itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def apart(function: Callable, *operands: Any) -> Any:
    """`function(*operands)`, whose operands are computed in the shapes that they have.

    On a CPU XLA fuses a reshape into what computes its argument, in loops over the new
    shape that find each old index by divisions: sums over tiles take four times as long.
    It fuses nothing into a branch, so this is one that is always taken, which XLA does
    not see. Accelerators fuse better, and would wait for the host to decide.

    Args:
      function: to arrays, not differentiated.
      operands: its arguments, as pytrees.
    """
    if jax.default_backend() != "cpu":
        return function(*operands)
    results = jax.eval_shape(function, *operands)
    zeros = lambda *_: jax.tree.map(
        lambda like: jnp.zeros(like.shape, like.dtype), results
    )
    return lax.cond(
        lax.optimization_barrier(jnp.array(True)), function, zeros, *operands
    )
