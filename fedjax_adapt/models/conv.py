"""A convolution that is fast in a loop and under `vmap` over its kernel, on a CPU too.

    y[d, h, w, n] = sum_cij K[i, j, c, d] x[c, s h + i, t w + j, n]

XLA runs the gradients of `lax.conv_general_dilated` inside a loop on a CPU at a few
GFLOP/s, and turns a vmapped kernel into a grouped convolution. Matrix products are fast
everywhere, so this is written as products of the kernel with patches of the images, in
one of two ways:

    "patches"  P[(i, j, c), (h, w, n)] = x[c, s h + i, t w + j, n]           y = K^T P
    "shifts"   R[(j, c), (h, w, n)] = x[c, h, t w + j, n]
               Z[(i, d), (h, w, n)] = sum_jc K[i, j, c, d] R[(j, c), (h, w, n)]
               y[d, h, w, n] = sum_i Z[i, d, s h + i, w, n]

The second makes patches along the width only and adds up shifted products along the
height: for 5 x 5 x 64 filters on 14 x 14 x 64 a third of the memory for 1.4 times the
multiplications. The gradients are written out: three products in all, none of which
contracts the leading axis of both its factors, the form that XLA multiplies slowest.

Kernels of 3 x 3 or 5 x 5 that move by one pixel may be multiplied the third way,
"winograd", of winograd.py; "lax", of xla.py, is XLA's own, which on an accelerator
is its vendor's. Which way a layer takes is said in ways.py.

Inside, the batch is the last axis, so that a patch is a copy of long contiguous runs and
the products come out ready for the next layer. A network that keeps its activations
so, with layout="CHWN", pays for no transposition. Measured in benchmarks/README.md.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .. import check
from ..core import Array
from ..errors import SettingError
from .ways import Layer, chosen
from .winograd import TILE, winograd
from .xla import Pads, Pair, apart, lax_conv, spread, window

UNPADDED = ((0, 0), (0, 0))
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
      SettingError: `x` and `kernel` do not fit each other, or an argument is unknown, or
        `strides` are not two integers of at least 1.
    """
    check.one_of("layout", layout, ("NHWC", "CHWN"))
    if x.ndim != 4 or kernel.ndim != 4 or x.shape[layout.index("C")] != kernel.shape[2]:
        raise SettingError(
            f"conv got x{list(x.shape)} and kernel{list(kernel.shape)}; write x[{layout}] "
            "and kernel[height, width, channels, filters] with the same channels."
        )
    if not check.shape(strides) or len(strides) != 2 or min(strides) < 1:
        raise SettingError(
            f"strides={strides!r} are not two steps of a pixel or more; write (2, 2), for "
            "height and width.",
            setting="strides",
        )
    if layout == "NHWC":
        x = x.transpose(3, 1, 2, 0)
    if isinstance(padding, str):
        check.one_of("padding", padding, ("VALID", "SAME"))
        padding = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    dtype = jnp.result_type(x, kernel)
    x, kernel = x.astype(dtype), kernel.astype(dtype)
    strides = (strides[0], strides[1])  # hashable, whatever came
    padding = tuple((before, after) for before, after in padding)
    layer = layer_of(x, kernel, strides, padding)
    if layer.pixels[0] < layer.size[0] or layer.pixels[1] < layer.size[1]:
        raise SettingError(
            "conv got images of {} x {} pixels, padding included, for a kernel of "
            "{} x {}; give larger images.".format(*layer.pixels, *layer.size)
        )
    y = multiplied(chosen(layer), strides, x, kernel, padding)
    return y.transpose(3, 1, 2, 0) if layout == "NHWC" else y


def layer_of(x: Array, kernel: Array, strides: Pair, padding: Pads = UNPADDED) -> Layer:
    """What the choice of a way hangs on; arguments as for `multiplied`."""
    channels, images = x.shape[0], x.shape[3]
    height, width = (x.shape[1 + a] + sum(padding[a]) for a in (0, 1))
    size, filters = (kernel.shape[0], kernel.shape[1]), kernel.shape[3]
    pixels, dtype = (height, width), str(x.dtype)
    return Layer(pixels, channels, images, size, filters, strides, dtype)


def multiplied(
    way: str, strides: Pair, x: Array, kernel: Array, padding: Pads = UNPADDED
) -> Array:
    """The convolution, computed in one of `WAYS` that can.

    Args:
      way: see ways.py.
      strides: along the height and the width.
      x: [channels, height, width, batch].
      kernel: [kernel height, kernel width, channels, filters].
      padding: ((top, bottom), (left, right)).

    Returns:
      [filters, new height, new width, batch].
    """
    if way == "lax":  # pads as it reads: no padded copy
        return lax_conv(strides, padding, x, kernel)
    if any(map(any, padding)):
        x = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    return _winograd(x, kernel) if way == "winograd" else _conv(way, strides, x, kernel)


def _winograd(x: Array, kernel: Array) -> Array:
    """`winograd` for results of any size: the tiles that reach over the edge are cut."""
    height, width = _positions(x, kernel, (1, 1))
    odd = ((0, 0), (0, height % TILE), (0, width % TILE), (0, 0))
    return winograd(jnp.pad(x, odd), kernel)[:, :height, :width]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _conv(way: str, strides: Pair, x: Array, kernel: Array) -> Array:
    return _forward(way, strides, x, kernel)[0]


def _forward(way: str, strides: Pair, x: Array, kernel: Array):
    kh, kw, _, filters = kernel.shape
    height, width = _positions(x, kernel, strides)
    batch = x.shape[3]
    windows = lambda x: [window(x, WIDTH, j, width, strides[1]) for j in range(kw)]
    # of x as it lies: a transposition would be done again for each
    patches = apart(lambda x: jnp.stack(windows(x)), x)
    if way == "patches":
        rows = [window(patches, 1 + HEIGHT, i, height, strides[0]) for i in range(kh)]
        patches = jnp.stack(rows)
        y = apart(_times_patches, kernel.reshape(-1, filters).T, patches)
        return y.reshape(filters, height, width, batch), (x, kernel, patches)
    weights = kernel.transpose(0, 3, 1, 2).reshape(kh * filters, -1)
    z = apart(_times_patches, weights, patches)
    z = z.reshape(kh, filters, x.shape[1], width, batch)
    y = sum(window(z[i], HEIGHT, i, height, strides[0]) for i in range(kh))
    return y, (x, kernel, patches)


def _backward(way: str, strides: Pair, residuals, dy: Array) -> tuple[Array, Array]:
    x, kernel, patches = residuals
    kh, kw, channels, filters = kernel.shape
    _, height, width, batch = dy.shape
    if way == "patches":
        dkernel = apart(_by_patches, dy, patches).T.reshape(kernel.shape)
        dpatches = apart(_by_weights, kernel.reshape(-1, filters), dy)
        dpatches = dpatches.reshape(kh, kw, channels, height, width, batch)
        dpatches = _gather_rows(dpatches, 2 + HEIGHT, x.shape[1], strides[0])
    else:
        dz = jnp.stack(
            [spread(dy, HEIGHT, i, x.shape[1], strides[0]) for i in range(kh)]
        )
        weights = kernel.transpose(1, 2, 0, 3).reshape(kw * channels, -1)
        dkernel = apart(_by_shifts, dz, patches)
        dkernel = dkernel.reshape(kh, filters, kw, channels).transpose(0, 2, 3, 1)
        dpatches = apart(_times_patches, weights, dz)
        dpatches = dpatches.reshape(kw, channels, x.shape[1], width, batch)
    return _gather_rows(dpatches, 1 + WIDTH, x.shape[2], strides[1]), dkernel


_conv.defvjp(_forward, _backward)


def _times_patches(weights: Array, patches: Array) -> Array:
    """[rows, positions] of weights [rows, terms] and patches [..., batch]."""
    # the barrier keeps XLA from folding a transposition into the product, which is slower
    weights = lax.optimization_barrier(weights)
    return weights @ patches.reshape(weights.shape[1], -1)


def _by_weights(weights: Array, dy: Array) -> Array:
    """The same of weights [terms, filters] that lie as they are multiplied."""
    return weights @ dy.reshape(len(dy), -1)


def _by_patches(dy: Array, patches: Array) -> Array:
    """[filters, terms], the sum over positions of dy and patches."""
    dy, patches = dy.reshape(len(dy), -1), patches.reshape(-1, dy[0].size)
    if jax.local_device_count() > 1:
        return _by_transpose(dy, patches)
    # XLA gives a product with so few rows and columns to one core; two fill two. Where
    # cores are devices, others may be busy, whether or not this round has them all
    half = len(patches) // 2
    parts = [_by_transpose(dy, part) for part in (patches[:half], patches[half:])]
    return jnp.concatenate(parts, axis=1)


def _by_shifts(dz: Array, patches: Array) -> Array:
    """[shifts x filters, terms], likewise, where both are [..., height, width, batch]."""
    rows = lambda array: array.reshape(-1, np.prod(array.shape[-3:]))
    return _by_transpose(rows(dz), rows(patches))


def _positions(x: Array, kernel: Array, strides: Pair) -> Pair:
    """Height and width of the result."""
    return tuple((x.shape[1 + a] - kernel.shape[a]) // strides[a] + 1 for a in (0, 1))


def _by_transpose(a: Array, b: Array) -> Array:
    """a b^T."""
    return lax.dot_general(a, b, (((1,), (1,)), ((), ())))


def _gather_rows(windows: Array, axis: int, size: int, stride: int) -> Array:
    """The transpose of stacking windows 0, 1, ...: they are added up where they lay."""
    return sum(spread(row, axis - 1, i, size, stride) for i, row in enumerate(windows))
