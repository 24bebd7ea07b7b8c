"""A convolution that is fast on a CPU, in a loop and under `vmap` over its kernel.

    y[n, h, w, :] = sum_ij x[n, s h + i, t w + j, :] kernel[i, j, :, :]

XLA runs the gradients of `lax.conv_general_dilated` inside a loop on a CPU at a few
GFLOP/s, and turns a vmapped kernel into a grouped convolution, slow everywhere. Patches
times a matrix keep to what every backend does well:

    P[n, h, w, (i, j, c)] = x[n, s h + i, t w + j, c]
    y = P K          dK = P^T dy          dx = adjoint of "patches" of dy K^T

Patches are cut along the width first and along the height second, 2 k copies instead of
k^2. The gradient is written out so that XLA sees three matrix products and no gather.
Measured in benchmarks/README.md.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
Pair = tuple[int, int]


def conv(
    x: Array,
    kernel: Array,
    strides: Pair = (1, 1),
    padding: str | Sequence[Pair] = "VALID",
) -> Array:
    """Convolves images, as `lax.conv_general_dilated` does with NHWC and HWIO.

    Args:
      x: images, [batch, height, width, channels].
      kernel: [kernel height, kernel width, channels, filters], in the dtype of `x`.
      strides: along the height and the width.
      padding: "VALID", "SAME", or ((top, bottom), (left, right)).

    Returns:
      [batch, new height, new width, filters]. Differentiable once, in reverse mode.

    Raises:
      ValueError: `x` and `kernel` do not fit each other.
    """
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[3] != kernel.shape[2]:
        raise ValueError(
            f"conv got x{list(x.shape)} and kernel{list(kernel.shape)}; write "
            "x[batch, height, width, channels] and "
            "kernel[height, width, channels, filters]."
        )
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    height, width = padding
    if any((*height, *width)):
        x = jnp.pad(x, ((0, 0), height, width, (0, 0)))
    if any(n < k for n, k in zip(x.shape[1:3], kernel.shape[:2], strict=True)):
        raise ValueError(
            f"conv got images of {x.shape[1]}x{x.shape[2]} pixels, padding included, for "
            f"a kernel of {kernel.shape[0]}x{kernel.shape[1]}; the kernel must fit in."
        )
    return _conv(tuple(strides), x, kernel)


def max_pool(x: Array, window: int = 2) -> Array:
    """The maximum over windows that tile the image; a remainder is left out.

    A maximum of strided slices: the gradient of XLA's `reduce_window` is a
    select-and-scatter, ten times slower on a CPU. Where values tie, the gradient is
    shared among them.

    Args:
      x: [batch, height, width, channels].
      window: side of the window, and the stride.

    Returns:
      [batch, height // window, width // window, channels].
    """
    for axis in (1, 2):
        end = x.shape[axis] // window * window
        slices = [
            lax.slice_in_dim(x, i, end, stride=window, axis=axis) for i in range(window)
        ]
        x = slices[0]
        for other in slices[1:]:
            x = jnp.maximum(x, other)
    return x


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(strides: Pair, x: Array, kernel: Array) -> Array:
    return _forward(strides, x, kernel)[0]


def _forward(strides: Pair, x: Array, kernel: Array):
    patches = _patches(x, kernel.shape[:2], strides)
    y = patches @ kernel.reshape(-1, kernel.shape[3])
    return y, (patches, kernel, x[:0])


def _backward(strides: Pair, residuals, dy: Array) -> tuple[Array, Array]:
    patches, kernel, x = residuals
    flat = lambda array: array.reshape(-1, array.shape[-1])
    dkernel = (flat(patches).T @ flat(dy)).reshape(kernel.shape)
    dpatches = (flat(dy) @ flat(kernel).T).reshape(patches.shape)
    return _patches_adjoint(dpatches, x.shape[1:3], kernel.shape, strides), dkernel


_conv.defvjp(_forward, _backward)


def _patches(x: Array, size: Pair, strides: Pair) -> Array:
    """Patches, [batch, new height, new width, size * channels]."""
    for axis in (2, 1):
        x = jnp.concatenate(
            [
                lax.slice_in_dim(x, i, i + span, stride=strides[axis - 1], axis=axis)
                for i, span in _windows(x.shape[axis], size[axis - 1])
            ],
            axis=3,
        )
    return x


def _patches_adjoint(dpatches: Array, pixels: Pair, kernel, strides: Pair) -> Array:
    """The transpose of the linear map `_patches`, [batch, height, width, channels]."""
    for axis in (1, 2):
        parts = jnp.split(dpatches, kernel[axis - 1], axis=3)
        dpatches = sum(
            _spread(part, axis, i, pixels[axis - 1], strides[axis - 1])
            for i, part in enumerate(parts)
        )
    return dpatches


def _spread(part: Array, axis: int, begin: int, pixels: int, stride: int) -> Array:
    """Puts the entries of an axis `stride` apart from `begin` on, with zeros between."""
    used = (part.shape[axis] - 1) * stride + 1
    config = [(0, 0, 0)] * part.ndim
    config[axis] = (begin, pixels - begin - used, stride - 1)
    return lax.pad(part, jnp.zeros((), part.dtype), config)


def _windows(pixels: int, size: int) -> list[Pair]:
    """For every position of a kernel row: its first pixel and how far it slides."""
    return [(i, pixels - size + 1) for i in range(size)]
