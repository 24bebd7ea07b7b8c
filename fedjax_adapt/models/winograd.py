r"""Winograd's convolution: fewer multiplications for kernels moved by one pixel.

    v = B^T d B          d: tiles of n x n pixels, n = r + 1, that overlap by r - 1
    u = G g G^T          g: the r x r kernel
    y = A^T (u . v) A    2 x 2 pixels of the result; (u . v) sums over channels

A 5 x 5 kernel needs 36 products for 4 results where the sum has 100 terms, a 3 x 3 kernel
16 in place of 36. In every one of the n^2 places of a tile, u . v is a product of matrices,
[filters, channels] by [channels, tiles x batch]. A, B and G evaluate polynomials at n - 1
points and at infinity (Toom and Cook); small points keep the rounding error small.

References:
  Lavin & Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016,
  https://arxiv.org/abs/1509.09308. Eqs. (3)-(8).
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..core import Array
from .xla import apart, spread, window

Places = list[list[Array]]  # [place][place], matrices of their own

TILE = 2  # results a side
POINTS = {3: (0, 1, -1), 5: (0, 1, -1, 2, -0.5)}  # by the side of the kernel


@jax.custom_vjp
def winograd(x: Array, kernel: Array) -> Array:
    """Convolves images without padding, at stride 1; see `conv`.

    Args:
      x: [channels, height, width, batch], height and width so that the result's are even.
      kernel: [r, r, channels, filters], r one of `POINTS`.

    Returns:
      [filters, height - r + 1, width - r + 1, batch]. Differentiable once, in reverse.
    """
    return _forward(x, kernel)[0]


@functools.cache
def transforms(r: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A^T [2, n], G [n, r] and B^T [n, n] for kernels of side `r`."""
    points = POINTS[r]
    powers = lambda k: np.array([[float(p) ** i for i in range(k)] for p in points])
    at_infinity = lambda k: np.eye(k)[-1:]  # the highest coefficient
    a = np.concatenate([powers(TILE), at_infinity(TILE)]).T
    g = np.concatenate([powers(r), at_infinity(r)])
    # rows of like size; a power of 2 rounds nothing
    g /= np.exp2(np.round(np.log2(abs(g).sum(1, keepdims=True))))
    # B^T is what makes sum_p A^T[i, p] (G g)_p (B^T d)_p = sum_k g_k d_{i+k} for all g, d
    places, products = len(points) + 1, a[:, None, :] * g.T[None]
    # [i, k, l]: 1 where l = i + k
    wanted = [[np.eye(places)[i + k] for k in range(r)] for i in range(TILE)]
    b = np.linalg.lstsq(products.reshape(-1, places), np.reshape(wanted, (-1, places)))
    return a, g, np.where(abs(b[0]) < 1e-9, 0, b[0])


def _forward(x: Array, kernel: Array):
    r, _, channels, filters = kernel.shape
    a, g, b = transforms(r)
    rows, columns = ((x.shape[axis] - r + 1) // TILE for axis in (1, 2))
    d = _stack(_sums(b, [window(x, 1, i, rows, TILE) for i in range(len(b))]))
    across = lambda row: [window(row, 2, j, columns, TILE) for j in range(len(b))]
    v = [_sums(b, across(row)) for row in d]
    u = _transformed(g, kernel)
    m = apart(partial(_products, jnp.matmul), u, v)
    y = [_stack(_sums(a, column)) for column in zip(*m, strict=True)]
    y = [_sums(a, row) for row in zip(*y, strict=True)]
    y = jnp.stack([jnp.stack(row) for row in y])
    y = y.reshape(TILE, TILE, filters, rows, columns, -1).transpose(2, 3, 0, 4, 1, 5)
    return y.reshape(filters, TILE * rows, TILE * columns, -1), (x, kernel, u, v)


def _backward(residuals, dy: Array) -> tuple[Array, Array]:
    x, kernel, u, v = residuals
    r, _, channels, filters = kernel.shape
    a, g, b = transforms(r)
    rows, columns = dy.shape[1] // TILE, dy.shape[2] // TILE
    dy = dy.reshape(filters, rows, TILE, columns, TILE, -1)
    dy = _stack(_sums(a.T, [dy[:, :, i] for i in range(TILE)]))
    dm = [_sums(a.T, [row[..., j, :] for j in range(TILE)]) for row in dy]
    du = apart(partial(_products, _contracting(1)), dm, v)
    dv = apart(partial(_products, _contracting(0)), u, dm)
    du = jnp.stack([jnp.stack(row) for row in du])
    dkernel = jnp.einsum("pi,qj,pqfc->ijcf", *(jnp.asarray(g, x.dtype),) * 2, du)
    dv = [[place.reshape(channels, rows, columns, -1) for place in row] for row in dv]
    dd = _stack([_overlapped(_sums(b.T, row), 2, x.shape[2]) for row in dv])
    return _overlapped(_sums(b.T, list(dd)), 1, x.shape[1]), dkernel


winograd.defvjp(_forward, _backward)


def _transformed(g: np.ndarray, kernel: Array) -> Places:
    """G g G^T, [filters, channels] at every place."""
    kernel = kernel.transpose(0, 1, 3, 2).reshape(-1, kernel.shape[3], kernel.shape[2])
    kernel = lax.optimization_barrier(kernel)
    factors = np.einsum("pi,qj->pqij", g, g).reshape(*(len(g),) * 2, -1)
    place = lambda factor: _contracting(0)(factor.astype(kernel.dtype), kernel)
    return [[place(factor) for factor in row] for row in factors]


def _contracting(axis: int) -> Callable[[Array, Array], Array]:
    """The product that sums over an axis of both factors."""
    numbers = (((axis,), (axis,)), ((), ()))
    return lambda left, right: lax.dot_general(left, right, numbers)


def _sum(terms: Iterable[Array]) -> Array:
    return functools.reduce(lax.add, terms)


def _sums(matrix: np.ndarray, terms: Sequence[Array]) -> list[Array]:
    """matrix x terms, one sum a row; what is 0 is left out."""
    return [
        _sum(
            term if factor == 1 else lax.mul(term, np.asarray(factor, term.dtype))
            for factor, term in zip(row, terms, strict=True)
            if factor
        )
        for row in matrix
    ]


def _stack(terms: list[Array]) -> Array:
    """`terms` side by side in memory, rather than computed again by each reader."""
    return lax.optimization_barrier(jnp.stack(terms))


def _products(multiply: Callable, left: Places, right: Places) -> Places:
    """left x right for every place.

    One product at a time: XLA multiplies a batch of small matrices at a third of the
    speed. Places that are arrays of their own are multiplied where they lie; those of
    one large array would be copied out of it.
    """
    flat = lambda place: place.reshape(place.shape[0], -1)
    return [
        [multiply(flat(a), flat(b)) for a, b in zip(*pair, strict=True)]
        for pair in zip(left, right, strict=True)
    ]


def _overlapped(places: list[Array], axis: int, size: int) -> Array:
    """The transpose of `window`, of tiles for every place: added up where they lay."""
    half = size // TILE

    def added(first):  # pixels first, first + TILE, ...: of every TILE-th place
        moved = [spread(x, axis, i, half, 1) for i, x in enumerate(places[first::TILE])]
        return _sum(moved)

    pixels = jnp.stack([added(first) for first in range(TILE)], axis + 1)
    shape = places[0].shape
    return pixels.reshape(*shape[:axis], size, *shape[axis + 1 :])
