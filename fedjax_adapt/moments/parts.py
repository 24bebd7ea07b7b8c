"""What gradient moments follow from, before they are as large as the model.

A model's parts are a pytree like its parameters, with `Products` or `Moments` in place of
every array.
"""

import jax
import jax.numpy as jnp

from ..core import Array, PyTree
from .sums import (
    Moments,
    Products,
    exactly,
    merge,
    of_those_that_count,
    outer_moments,
    quick_moments,
    total,
)

Parts = PyTree


def leaves_of(parts: Parts) -> list[Products | Moments]:
    """The parts, in the order of the parameters."""
    return jax.tree.leaves(parts, is_leaf=_is_part)


def moments_of(part: Products | Moments) -> Moments:
    """The moments by one parameter."""
    return part if isinstance(part, Moments) else outer_moments(part)


def joined(a: Parts, b: Parts) -> Parts:
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
    x, d, share = of_those_that_count(part)
    products = exactly(x, x.T) * exactly(d, d.T)  # of two examples' gradients
    mean = exactly(share, exactly(products, share))
    square = exactly(share, jnp.diagonal(products))
    return mean, jnp.maximum(square - mean, 0)


def pooled(part: Products | Moments, p: Array) -> Moments:
    """Of the examples of all clients, each client's together weighing p.

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
    own = p.astype(mu.dtype)
    mean = exactly(own, mu)
    spread = exactly(own, var) + exactly(own, jnp.square(mu - mean[None]))
    return Moments(mean.reshape(shape), spread.reshape(shape), p.sum())


def _is_part(node: object) -> bool:
    return isinstance(node, Products | Moments)
