"""Layers of the convolutional networks, whose activations keep the batch last.

That is [channels, height, width, batch], the layout in which conv.py is fast.
"""

import functools
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .. import check
from ..core import Array
from ..errors import SettingError
from .conv import HEIGHT, WIDTH, conv
from .dense import Shape, plus, uniform_fan_in


class Conv(nnx.Module):
    """A convolution by size x size kernels, with a bias by default."""

    def __init__(
        self,
        channels: int,
        filters: int,
        size: int,
        rngs: nnx.Rngs,
        *,
        stride: int = 1,
        pad: int = 0,
        kernel_init: Callable | None = None,
        bias_init: Callable | None = None,
        use_bias: bool = True,
    ):
        """Draws the weights, uniform as PyTorch's unless an initialiser is given.

        `pad` zeros are put on each side; a `size` of 2 pad + 1 keeps the height and the
        width at stride 1.
        """
        self.stride, self.pad = stride, pad
        uniform = uniform_fan_in(size * size * channels)
        shape = (size, size, channels, filters)
        self.kernel = nnx.Param((kernel_init or uniform)(rngs.params(), shape, float))
        biases = lambda: (bias_init or uniform)(rngs.params(), (filters,), float)
        self.bias = nnx.Param(biases()) if use_bias else None

    def __call__(self, x: Array) -> Array:
        """[channels, height, width, batch] to [filters, height', width', batch]."""
        margin = (self.pad, self.pad)
        strides = (self.stride, self.stride)
        y = conv(x, self.kernel[...], strides, (margin, margin), layout="CHWN")
        return y if self.bias is None else plus(y, self.bias[:, None, None, None])


class GroupNorm(nnx.Module):
    """Each example's channels, normalised group by group, then scaled and shifted.

    Wu & He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494. Eqs.
    (1)-(3), (7). Unlike BatchNorm's, its statistics are of one example: there are none to
    keep, and neither the padding of a batch nor the other clients can touch them.
    """

    EPSILON = 1e-5  # PyTorch's

    def __init__(self, channels: int, groups: int):
        """Starts as the identity behind the normalisation."""
        self.groups = groups
        self.scale = nnx.Param(jnp.ones(channels))
        self.bias = nnx.Param(jnp.zeros(channels))

    def __call__(self, x: Array) -> Array:
        """[channels, height, width, batch], kept."""
        # the statistics, and the sums over pixels that gradients are, of bfloat16
        exact = jnp.promote_types(x.dtype, jnp.float32)
        y = x.reshape(self.groups, -1, *x.shape[1:]).astype(exact)
        y = y - y.mean((1, 2, 3), keepdims=True)
        y = y * lax.rsqrt(jnp.square(y).mean((1, 2, 3), keepdims=True) + self.EPSILON)
        along = lambda values: values.astype(exact)[:, None, None, None]
        y = y.reshape(x.shape) * along(self.scale) + along(self.bias)
        return y.astype(x.dtype)


def standardised(x: Array) -> Array:
    """Each image less its mean, over its deviation, [batch, height, width, channels].

    The deviation is at least 1 / (255 sqrt(n)) of n numbers, that of a constant image.
    """
    exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    exact = exact - exact.mean((1, 2, 3), keepdims=True)
    variance = jnp.square(exact).mean((1, 2, 3), keepdims=True)
    least = 1 / (255**2 * x[0].size)
    return (exact * lax.rsqrt(jnp.maximum(variance, least))).astype(x.dtype)


def local_response(x: Array) -> Array:
    """Local response normalisation across channels, [channels, height, width, batch].

        x_c / (1 + alpha sum_{|j - c| <= 4} x_j^2)^(3/4),   alpha = 0.001 / 9

    Krizhevsky, Sutskever & Hinton, "ImageNet Classification with Deep Convolutional Neural
    Networks", NIPS 2012, section 3.3, with the numbers of AFL's code.
    """
    exact = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    reach, channels = 4, x.shape[0]
    squares = jnp.pad(jnp.square(exact), ((reach, reach), (0, 0), (0, 0), (0, 0)))
    near = sum(squares[i : i + channels] for i in range(2 * reach + 1))
    # two roots: a power takes three times as long on a CPU
    root = lax.rsqrt(1 + 0.001 / 9 * near)
    return (exact * root * jnp.sqrt(root)).astype(x.dtype)


def batch_last(x: Array) -> Array:
    """[batch, height, width, channels] to [channels, height, width, batch]."""
    return x.transpose(3, 1, 2, 0)


def flatten_batch_last(x: Array) -> Array:
    """[channels, height, width, batch] to [batch, (channel, height, width)]."""
    return x.reshape(-1, x.shape[3]).T


def check_image(name: str, input_shape: Shape, pixels: int) -> None:
    """Raises SettingError unless the inputs are images of `pixels` x `pixels` or more."""
    if len(input_shape) != 3 or min(input_shape[:2]) < pixels:
        raise SettingError(
            f"{name} got input_shape={tuple(input_shape)} but needs (height, width, "
            f"channels) of at least {pixels} x {pixels} pixels; use mlp or linear instead."
        )


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
