"""A convolution that is fast on a CPU, in a loop and under `vmap` over its kernel.

    y[d, h, w, n] = sum_cij K[i, j, c, d] x[c, s h + i, t w + j, n]

XLA runs the gradients of `lax.conv_general_dilated` inside a loop on a CPU at a few
GFLOP/s, and turns a vmapped kernel into a grouped convolution. Matrix products are fast
everywhere, so this is written as products of the kernel with patches of the images, in
one of two ways, whichever stores fewer numbers:

    "patches"  P[(i, j, c), (h, w, n)] = x[c, s h + i, t w + j, n]           y = K^T P
    "shifts"   R[(j, c), (h, w, n)] = x[c, h, t w + j, n]
               Z[(i, d), (h, w, n)] = sum_jc K[i, j, c, d] R[(j, c), (h, w, n)]
               y[d, h, w, n] = sum_i Z[i, d, s h + i, w, n]

The second makes patches along the width only and adds up shifted products along the
height: for 5 x 5 x 64 filters on 14 x 14 x 64 a third of the memory for 1.4 times the
multiplications. The gradients are written out: three products in all, none of which
contracts the leading axis of both its factors, the form that XLA multiplies slowest.

Kernels of 3 x 3 or 5 x 5 that move by one pixel over many channels are multiplied the
third way of winograd.py on a CPU.

Inside, the batch is the last axis, so that a patch is a copy of long contiguous runs and
the products come out ready for the next layer. A network that keeps its activations
so, with layout="CHWN", pays for no transposition. Measured in benchmarks/README.md.
"""

import functools
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from .. import check
from .winograd import POINTS, TILE, winograd

Array = jax.Array
Pair = tuple[int, int]

FEW_CHANNELS = 16  # below, the products of Winograd's way are too thin
HEIGHT, WIDTH = 1, 2  # axes of [channels, height, width, batch], and of NHWC as well


def conv(
    x: Array,
    kernel: Array,
    strides: Pair = (1, 1),
    padding: str | Sequence[Pair] = "VALID",
    layout: str = "NHWC",
) -> Array:
    """Convolves images, equal to `lax.conv_general_dilated` within rounding.

    Args:
      x: images, [batch, height, width, channels] or, with layout "CHWN", [channels,
        height, width, batch].
      kernel: [kernel height, kernel width, channels, filters].
      strides: along the height and the width.
      padding: "VALID", "SAME", or ((top, bottom), (left, right)).
      layout: "NHWC" or, faster, "CHWN": of `x` and of the result.

    Returns:
      [batch, new height, new width, filters], or as `layout` says. Differentiable once,
      in reverse mode.

    Raises:
      ValueError: `x` and `kernel` do not fit each other, or an argument is unknown.
    """
    check.one_of("layout", layout, ("NHWC", "CHWN"))
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[layout.index("C")] != kernel.shape[2]:
        raise ValueError(
            f"conv got x{list(x.shape)} and kernel{list(kernel.shape)}; write x[{layout}] "
            "and kernel[height, width, channels, filters] with the same channels."
        )
    if layout == "NHWC":
        x = x.transpose(3, 1, 2, 0)
    if isinstance(padding, str):
        check.one_of("padding", padding, ("VALID", "SAME"))
        padding = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    if any(map(any, padding)):
        x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    if x.shape[1] < kernel.shape[0] or x.shape[2] < kernel.shape[1]:
        raise ValueError(
            f"conv got images of {x.shape[1]} x {x.shape[2]} pixels, padding included, "
            f"for a kernel of {kernel.shape[0]} x {kernel.shape[1]}; give larger images."
        )
    dtype = jnp.result_type(x, kernel)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    strides = (strides[0], strides[1])  # hashable, whatever came
    y = (
        _winograd(x, kernel)
        if _suits(kernel, strides, x.shape[3])
        else _conv(strides, x, kernel)
    )
    return y.transpose(3, 1, 2, 0) if layout == "NHWC" else y


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
        slices = [
            _window(x, axis, i, x.shape[axis] // window, window) for i in range(window)
        ]
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


def _suits(kernel: Array, strides: Pair, images: int = 2) -> bool:
    """Whether Winograd's way is the fastest: measured on a CPU, in float32."""
    kh, kw, *channels = kernel.shape
    return (
        jax.default_backend() == "cpu"
        and kernel.dtype in (jnp.float32, jnp.float64)
        and kh == kw
        and kh in POINTS
        and strides == (1, 1)
        and min(channels) >= FEW_CHANNELS
        and images > 1  # one has too few tiles
    )


def _winograd(x: Array, kernel: Array) -> Array:
    """`winograd` for results of any size: the tiles that reach over the edge are cut."""
    height, width = _positions(x, kernel, (1, 1))
    odd = ((0, 0), (0, height % TILE), (0, width % TILE), (0, 0))
    return winograd(jnp.pad(x, odd), kernel)[:, :height, :width]


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(strides: Pair, x: Array, kernel: Array) -> Array:
    return _forward(strides, x, kernel)[0]


def _forward(strides: Pair, x: Array, kernel: Array):
    kh, kw, _, filters = kernel.shape
    height, width = _positions(x, kernel, strides)
    batch = x.shape[3]
    patches = jnp.stack([_window(x, WIDTH, j, width, strides[1]) for j in range(kw)])
    if not _shifts(x, kernel, strides):
        rows = [_window(patches, 1 + HEIGHT, i, height, strides[0]) for i in range(kh)]
        patches = jnp.stack(rows).reshape(-1, height * width * batch)
        y = _fixed(kernel.reshape(-1, filters).T) @ patches
        return y.reshape(filters, height, width, batch), (x, kernel, patches)
    patches = patches.reshape(-1, x.shape[1] * width * batch)
    weights = _fixed(kernel.transpose(0, 3, 1, 2).reshape(kh * filters, -1))
    z = (weights @ patches).reshape(kh, filters, x.shape[1], width, batch)
    y = sum(_window(z[i], HEIGHT, i, height, strides[0]) for i in range(kh))
    return y, (x, kernel, patches)


def _backward(strides: Pair, residuals, dy: Array) -> tuple[Array, Array]:
    x, kernel, patches = residuals
    kh, kw, channels, filters = kernel.shape
    _, height, width, batch = dy.shape
    if not _shifts(x, kernel, strides):
        dy = dy.reshape(filters, -1)
        # XLA gives a product with so few rows and columns to one core; two fill two
        half = len(patches) // 2
        dkernel = [_by_transpose(dy, part) for part in (patches[:half], patches[half:])]
        dkernel = jnp.concatenate(dkernel, axis=1).T.reshape(kernel.shape)
        dpatches = kernel.reshape(-1, filters) @ dy
        dpatches = dpatches.reshape(kh, kw, channels, height, width, batch)
        dpatches = _gather_rows(dpatches, 2 + HEIGHT, x.shape[1], strides[0])
    else:
        dz = jnp.stack(
            [_spread(dy, HEIGHT, i, x.shape[1], strides[0]) for i in range(kh)]
        ).reshape(kh * filters, -1)
        dkernel = _by_transpose(dz, patches).reshape(kh, filters, kw, channels)
        dkernel = dkernel.transpose(0, 2, 3, 1)
        weights = _fixed(kernel.transpose(1, 2, 0, 3).reshape(kw * channels, -1))
        dpatches = (weights @ dz).reshape(kw, channels, x.shape[1], width, batch)
    return _gather_rows(dpatches, 1 + WIDTH, x.shape[2], strides[1]), dkernel


_conv.defvjp(_forward, _backward)


def _positions(x: Array, kernel: Array, strides: Pair) -> Pair:
    """Height and width of the result."""
    return tuple((x.shape[1 + a] - kernel.shape[a]) // strides[a] + 1 for a in (0, 1))


def _shifts(x: Array, kernel: Array, strides: Pair) -> bool:
    """Whether patches along the width alone store fewer numbers."""
    kh, kw, channels, filters = kernel.shape
    height, _ = _positions(x, kernel, strides)
    return (kw * channels + kh * filters) * x.shape[1] < kh * kw * channels * height


def _fixed(weights: Array) -> Array:
    """Keeps XLA from folding a transposition into the product, which is slower."""
    return lax.optimization_barrier(weights)


def _by_transpose(a: Array, b: Array) -> Array:
    """a b^T."""
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())))


def _window(x: Array, axis: int, begin: int, size: int, stride: int) -> Array:
    """Every `stride`-th of `size` entries of an axis, from `begin` on."""
    end = begin + (size - 1) * stride + 1
    return lax.slice_in_dim(x, begin, end, stride, axis)


def _spread(x: Array, axis: int, begin: int, size: int, stride: int) -> Array:
    """The transpose of `_window`: entries put back into an axis of `size` zeros."""
    used = (x.shape[axis] - 1) * stride + 1
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (begin, size - begin - used, stride - 1)
    return lax.pad(x, jnp.zeros((), x.dtype), config)


def _gather_rows(windows: Array, axis: int, size: int, stride: int) -> Array:
    """The transpose of stacking windows 0, 1, ...: they are added up where they lay."""
    return sum(
        _spread(window, axis - 1, i, size, stride) for i, window in enumerate(windows)
    )
