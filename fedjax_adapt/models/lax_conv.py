"""XLA's own convolution, whose gradients stay convolutions of the vendor's under `vmap`.

`vmap` over kernels makes a grouped convolution. The gradient of its kernel is one that
cuDNN has a kernel for, but JAX writes the gradient of one model first and makes groups of
that: a forward convolution by a "kernel" as large as the image, for which both factors are
transposed. Here that gradient is written anew for all models at once. For an H100 and 10
clients side by side that saves an eighth of the memory traffic (benchmarks/README.md).
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

Array = jax.Array
Pair = tuple[int, int]
Pads = tuple[Pair, Pair]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def lax_conv(strides: Pair, padding: Pads, x: Array, kernel: Array) -> Array:
    """[filters, new height, new width, batch].

    Args:
      strides: along the height and the width.
      padding: ((top, bottom), (left, right)).
      x: [channels, height, width, batch].
      kernel: [kernel height, kernel width, channels, filters].
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

    def pulled(convolve: Callable, like: Array, x: Array, dy: Array) -> Array:
        return jax.vjp(lambda kernel: convolve(x, kernel), like)[1](dy)[0]

    @custom_vmap
    def of_one(x, dy):
        return pulled(convolve, jnp.zeros(kernel.shape, kernel.dtype), x, dy)

    @of_one.def_vmap
    def of_all(size: int, batched, *given):
        x, dy = (
            one if has else jnp.broadcast_to(one, (size, *one.shape))
            for one, has in zip(given, batched, strict=True)
        )
        like = jnp.zeros((size, *kernel.shape), kernel.dtype)
        return pulled(jax.vmap(convolve), like, x, dy), True

    return of_one
