"""Entries along an axis of an array, every so many: taken out, and put back."""

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array


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
