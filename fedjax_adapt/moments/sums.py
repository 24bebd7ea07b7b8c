"""Moments from sums: of outer products, and of gradients some at a time, merged.

A model's parts, from which its moments follow, are a pytree like its parameters, with
`Products` or `Moments` in place of every array.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..core import Array, Params, PyTree, by_row, widened

# Gradients held at once, as numbers. On a CPU plain products, one example at a time, are
# faster than batched ones, but for what is small.
FLOATS = 2**20
CPU_SMALL = 2**16


class Moments(NamedTuple):
    """The moments of the gradients of some examples, coordinate by coordinate."""

    mean: Params
    var: Params  # with 1/B, not 1/(B - 1)
    count: Array  # B, a scalar


class Products(NamedTuple):
    """Gradients that are outer products x_b d_b, as what they are made of."""

    x: Array  # [batch, in]
    d: Array  # [batch, out]
    weight: Array  # [batch], 0 for what does not count


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of two disjoint sets of examples together; one may be empty."""
    count = a.count + b.count
    share = b.count / jnp.maximum(count, 1)  # 0 where both are empty

    def var(mean_a, mean_b, var_a, var_b):
        between = share * (1 - share) * jnp.square(mean_b - mean_a)
        return (1 - share) * var_a + share * var_b + between

    return Moments(
        jax.tree.map(lambda u, v: u + share * (v - u), a.mean, b.mean),
        jax.tree.map(var, a.mean, b.mean, a.var, b.var),
        count,
    )


def weighted_products(part: Products) -> tuple[Array, Array, Array]:
    """x, d and the examples' shares of the whole; all 0 for those that weigh nothing."""
    x, d, weight = part
    share = (weight / jnp.maximum(weight.sum(), 1)).astype(d.dtype)
    x, d = (jnp.where(weight[:, None] > 0, array, 0) for array in (x, d))
    return x, d, share


def outer_moments(part: Products) -> Moments:
    """The moments of outer products, exact to the deviations, however small they are."""
    x, d, share = weighted_products(part)
    x_mean, d_mean = exactly(share, x)[:, None], exactly(share, d)[None]
    x_off, d_off = x - x_mean.T, d - d_mean
    weighted = share[:, None] * x_off
    product = exactly(weighted.T, d_off)
    # E[x'^2 d^2] + 2 X E[x' d' d] + X^2 E[d'^2] as one product of matrices
    left = jnp.concatenate([weighted * x_off, 2 * x_mean.T * weighted, x_mean.T**2])
    right = jnp.concatenate([d * d, d_off * d, exactly(share, d_off * d_off)[None]])
    var = exactly(left.T, right) - product**2
    count = part.weight.sum()
    return Moments(x_mean * d_mean + product, jnp.maximum(var, 0), count)


def quick_moments(part: Products) -> Moments:
    """As `outer_moments`, faster; each variance is off by rounding of the mean square.

    So they are taken only where the variances are no small part of the whole.
    """
    x, d, share = weighted_products(part)
    weighted = share[:, None] * x
    mean = exactly(weighted.T, d)
    var = jnp.maximum(exactly((weighted * x).T, d * d) - mean**2, 0)
    count = part.weight.sum()
    small = total(var) < 0.01 * total(jnp.square(mean))
    return jax.lax.cond(
        small, lambda: outer_moments(part), lambda: Moments(mean, var, count)
    )


def total(array: Array) -> Array:
    """The sum of all numbers of an array, a scalar.

    XLA's CPU backend adds them up one after the other, and a product with ones several at
    a time, in less than half the time for what lies in the cache.
    """
    if array.ndim == 0 or jax.default_backend() != "cpu":
        return array.sum()
    rows = array.reshape(-1, array.shape[-1])
    return (rows @ jnp.ones(rows.shape[-1], rows.dtype)).sum()


# an accelerator's products in TF32 would leave nothing of a small difference
exactly = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def accumulated(
    gradient: Callable[[PyTree], list[Array]],
    examples: PyTree,
    weight: Array,
    like: list[Array],
    micro_batch: int | None,
) -> Moments:
    """The moments of `gradient(example)`, some examples at a time.

    Args:
      gradient: of one example, arrays shaped as in `like`.
      examples: leading axis batch.
      weight: [batch], 0 for what does not count.
      like: the parameters.
      micro_batch: how many at a time; None: what is fast.
    """
    batch = weight.shape[0]
    size = sum(leaf.size for leaf in like)
    of_one = lambda example: widened(gradient(example))
    most = micro_batch or max(1, FLOATS // max(size, 1))
    on_cpu = jax.default_backend() == "cpu"
    if micro_batch is None and on_cpu and batch * size > CPU_SMALL:
        most = 1
    parts = -(-batch // min(most, batch))
    width = -(-batch // parts)

    def alone(part):  # no vmap: a plain product beats a batched one of batch 1
        g = of_one(jax.tree.map(lambda leaf: leaf[0], part[0]))
        g = [jnp.where(part[1][0] > 0, leaf, 0) for leaf in g]
        return Moments(g, [jnp.zeros_like(leaf) for leaf in g], part[1][0])

    def moments(part):
        if width == 1:
            return alone(part)
        examples, weight = part
        count = weight.sum()

        def of(g):
            along = by_row(weight, g).astype(g.dtype)
            g = jnp.where(along > 0, g, 0)
            mean = (along * g).sum(0) / jnp.maximum(count, 1).astype(g.dtype)
            off = along * jnp.square(g - mean[None])
            return mean, off.sum(0) / jnp.maximum(count, 1).astype(g.dtype)

        pairs = [of(g) for g in jax.vmap(of_one)(examples)]
        return Moments([p[0] for p in pairs], [p[1] for p in pairs], count)

    if parts == 1:
        return moments((examples, weight))
    missing = parts * width - batch
    # copies of the last examples fill the last part, and weigh nothing
    fill = lambda a: jnp.concatenate([a, a[batch - missing :]]) if missing else a
    split = lambda a: fill(a).reshape(parts, width, *a.shape[1:])
    weight = jnp.concatenate([weight, jnp.zeros(missing, weight.dtype)])
    split_up = (jax.tree.map(split, examples), weight.reshape(parts, width))
    zeros = [jnp.zeros_like(leaf) for leaf in widened(like)]
    nothing = Moments(zeros, zeros, jnp.zeros((), weight.dtype))
    add = lambda sofar, part: (merge(sofar, moments(part)), None)
    return jax.lax.scan(add, nothing, split_up)[0]


Parts = PyTree


def leaves_of(parts: Parts) -> list[Products | Moments]:
    """The parts, in the order of the parameters."""
    return jax.tree.leaves(parts, is_leaf=_is_part)


def moments_of(part: Products | Moments) -> Moments:
    """The moments by one parameter."""
    return part if isinstance(part, Moments) else outer_moments(part)


def merge_parts(a: Parts, b: Parts) -> Parts:
    """The parts of two disjoint sets of examples together."""

    def join(one, other):
        if isinstance(one, Moments):
            return merge(one, other)
        return jax.tree.map(lambda *both: jnp.concatenate(both), one, other)

    return jax.tree.map(join, a, b, is_leaf=_is_part)


def second_moments(part: Products | Moments) -> tuple[Array, Array]:
    """||mean||^2 and the sum of the variances over all coordinates, two scalars."""
    if isinstance(part, Moments):
        return total(jnp.square(part.mean)), total(part.var)
    x, d, share = weighted_products(part)
    products = exactly(x, x.T) * exactly(d, d.T)  # of two examples' gradients
    mean = exactly(share, exactly(products, share))
    square = exactly(share, jnp.diagonal(products))
    return mean, jnp.maximum(square - mean, 0)


def pooled(part: Products | Moments, p: Array) -> Moments:
    """The moments over all clients' examples, each client's together weighing p.

    Args:
      part: leading axis cohort.
      p: [cohort], which sum to 1, or to 0.
    """
    if isinstance(part, Products):
        counts = jnp.maximum(part.weight.sum(1), 1)
        weight = p[:, None] * part.weight / counts[:, None]
        flat = lambda leaf: leaf.reshape(-1, leaf.shape[-1])
        # quick ones hang on a condition, for which an accelerator would wait
        moments = quick_moments if jax.default_backend() == "cpu" else outer_moments
        return moments(Products(flat(part.x), flat(part.d), weight.reshape(-1)))
    shape = part.mean.shape[1:]
    mu, var = (leaf.reshape(len(p), -1) for leaf in (part.mean, part.var))
    share = p.astype(mu.dtype)
    mean = exactly(share, mu)
    spread = exactly(share, var) + exactly(share, jnp.square(mu - mean[None]))
    return Moments(mean.reshape(shape), spread.reshape(shape), p.sum())


def _is_part(node: object) -> bool:
    return isinstance(node, Products | Moments)
