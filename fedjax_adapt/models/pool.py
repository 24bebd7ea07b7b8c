"""Max-pooling whose gradient is fast on a CPU."""

import functools
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from .. import check

Array = jax.Array

HEIGHT, WIDTH = 1, 2  # axes of [channels, height, width, batch], and of NHWC as well


def max_pool(x: Array, window: int = 2) -> Array:
    """The maximum over square windows that tile the images; a remainder is left out.

    A maximum of strided slices with its own gradient: that of XLA's `reduce_window` is
    slow on a CPU. Where values tie, they share the gradient in equal parts.

    Args:
      x: [batch, height, width, channels] or [channels, height, width, batch].
      window: side of the window, and the stride.

    Returns:
      The same with height // window and width // window.
    """
    check.at_least("window", window, 1)
    for axis in (HEIGHT, WIDTH):
        end = x.shape[axis] // window * window
        x = lax.slice_in_dim(x, 0, end, axis=axis)
    return _max_pool(window, x)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _max_pool(window: int, x: Array) -> Array:
    for axis in (HEIGHT, WIDTH):
        slices = [lax.slice_in_dim(x, i, None, window, axis) for i in range(window)]
        x = functools.reduce(jnp.maximum, slices)
    return x


def _max_pool_forward(window: int, x: Array):
    y = _max_pool(window, x)
    return y, (x, y)


def _max_pool_backward(window: int, residuals, dy: Array) -> tuple[Array]:
    x, y = residuals
    first, height, width, last = y.shape
    tiled = (first, height, window, width, window, last)
    over_windows = lambda a: jnp.broadcast_to(a[:, :, None, :, None], tiled)
    largest = lambda i, j: (x[:, i::window, j::window] == y).astype(dy.dtype)
    share = dy / sum(largest(i, j) for i in range(window) for j in range(window))
    dx = jnp.where(x.reshape(tiled) == over_windows(y), over_windows(share), 0)
    return (dx.reshape(x.shape),)


_max_pool.defvjp(_max_pool_forward, _max_pool_backward)
