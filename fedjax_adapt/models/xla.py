"""What XLA computes slowly as it stands, and how it is written here instead.

    apart           operands computed in their own shapes, against fusion on a CPU
    window, spread  every so many entries of an axis, and the transpose of that
    lax_conv        XLA's convolution, whose gradients stay the vendor's under `vmap`

Measured in benchmarks/README.md and benchmarks/history.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from ..core import Array

Pair = tuple[int, int]
Pads = tuple[Pair, Pair]


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
    zero = lambda like: jnp.zeros(like.shape, like.dtype)
    zeros = lambda *_: jax.tree.map(zero, results)
    always = lax.optimization_barrier(jnp.array(True))
    return lax.cond(always, function, zeros, *operands)


def window(x: Array, axis: int, begin: int, size: int, stride: int) -> Array:
    """Every `stride`-th of `size` entries of an axis, from `begin` on."""
    end = begin + (size - 1) * stride + 1
    return lax.slice_in_dim(x, begin, end, stride, axis)


def spread(x: Array, axis: int, begin: int, size: int, stride: int) -> Array:
    """The transpose of `window`: entries put back into an axis of `size` zeros."""
    used = (x.shape[axis] - 1) * stride + 1
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (begin, size - begin - used, stride - 1)
    return lax.pad(x, jnp.zeros((), x.dtype), config)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def lax_conv(strides: Pair, padding: Pads, x: Array, kernel: Array) -> Array:
    """XLA's own convolution, [filters, new height, new width, batch].

    `vmap` over kernels makes a grouped convolution. The gradient of its kernel is one that
    cuDNN has a kernel for, but JAX writes the gradient of one model first and makes groups
    of that: a forward convolution by a "kernel" as large as the image, for which both
    factors are transposed. Here that gradient is written anew for all models at once. For
    an H100 and 10 clients side by side that saves an eighth of the memory traffic.

    Arguments as of `multiplied` in conv.py.
    """
    return _convolved(strides, padding, x, kernel)


def _convolved(strides: Pair, padding: Pads, x: Array, kernel: Array) -> Array:
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("CHWN", "HWIO", "CHWN")
    )


def _forward(strides: Pair, padding: Pads, x: Array, kernel: Array):
    return _convolved(strides, padding, x, kernel), (x, kernel)


def _backward(strides: Pair, padding: Pads, residuals, dy: Array):
    x, kernel = residuals
    convolve = partial(_convolved, strides, padding)
    # linear in each: what this computes forward is not used
    (dx,) = jax.vjp(lambda x: convolve(x, kernel), x)[1](dy)
    return dx, _kernel_gradient(convolve, kernel)(x, dy)


lax_conv.defvjp(_forward, _backward)


def _kernel_gradient(convolve: Callable, kernel: Array) -> Callable:
    """A function (x, dy) -> the gradient of the kernel; under `vmap`, of all at once."""

    def pull_back(convolve: Callable, like: Array, x: Array, dy: Array) -> Array:
        return jax.vjp(lambda kernel: convolve(x, kernel), like)[1](dy)[0]

    @custom_vmap
    def gradient(x, dy):
        return pull_back(convolve, jnp.zeros(kernel.shape, kernel.dtype), x, dy)

    @gradient.def_vmap
    def batched_gradient(size: int, is_batched, *operands):
        x, dy = (
            operand if has else jnp.broadcast_to(operand, (size, *operand.shape))
            for operand, has in zip(operands, is_batched, strict=True)
        )
        like = jnp.zeros((size, *kernel.shape), kernel.dtype)
        return pull_back(jax.vmap(convolve), like, x, dy), True

    return gradient
