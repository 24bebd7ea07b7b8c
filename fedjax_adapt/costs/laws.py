"""Laws by which a quantity of clients is drawn: seconds, bandwidths, delays."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Array, Key

# what a quantity may be, so that no time is too long for a float32
SMALLEST, LARGEST = 1e-9, 1e15
WIDEST = 10  # sigma; a client in a million is e^50 times the median then


class Law(NamedTuple):
    """How a quantity is drawn: `sample(key)` is a scalar of at least 0."""

    sample: Callable[[Key], Array]
    positive: bool = False  # and never 0, nor next to it


def exponential(mean: float) -> Law:
    """Waiting times without memory, by their mean."""
    _check_law("mean", mean)
    return Law(lambda key: mean * jax.random.exponential(key))


def uniform(most: float) -> Law:
    """Anything from 0 to `most`, alike."""
    _check_law("most", most)
    return Law(lambda key: most * jax.random.uniform(key))


def normal(mean: float, deviation: float) -> Law:
    """Normal, by mean and standard deviation; what falls below 0 is 0."""
    _check_law("mean", mean)
    check.between("deviation", deviation, 0, LARGEST)
    draw = lambda key: mean + deviation * jax.random.normal(key)
    return Law(lambda key: jnp.maximum(draw(key), 0))


def lognormal(median: float, sigma: float) -> Law:
    """Lognormal, by its median and the standard deviation of its logarithm."""
    _check_law("median", median)
    check.between("sigma", sigma, 0, WIDEST)
    draw = lambda key: median * jnp.exp(sigma * jax.random.normal(key))
    return Law(draw, positive=True)


def _check_law(name: str, value: float) -> None:
    check.positive(name, value)
    check.between(name, value, SMALLEST, LARGEST)


LAWS = {law.__name__: law for law in (exponential, uniform, normal, lognormal)}

Quantity = float | Array | np.ndarray | Law
