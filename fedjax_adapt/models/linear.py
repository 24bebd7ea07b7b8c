"""Softmax regression, and the initial weights that all our models share."""

import math
from collections.abc import Callable

import jax
from flax import nnx

Shape = tuple[int, ...]
Builder = Callable[[nnx.Rngs], nnx.Module]


def uniform_fan_in(fan_in: int) -> Callable:
    """Initial values U(-b, b), b = 1 / sqrt(fan_in), for weights and biases alike.

    What PyTorch does by default, and so what the papers' experiments start from.
    """
    bound = 1 / math.sqrt(fan_in)

    def init(key, shape, dtype, out_sharding=None):
        del out_sharding  # flax passes it; a simulated model has none
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def dense(width_in: int, width_out: int, rngs: nnx.Rngs) -> nnx.Linear:
    """An affine layer with the initial weights above."""
    init = uniform_fan_in(width_in)
    return nnx.Linear(width_in, width_out, kernel_init=init, bias_init=init, rngs=rngs)


def flatten(x: jax.Array) -> jax.Array:
    """[batch, ...] to [batch, pixels]."""
    return x.reshape(x.shape[0], -1)


class Linear(nnx.Module):
    """logits = x W + b."""

    def __init__(self, input_shape: Shape, num_classes: int, rngs: nnx.Rngs):
        """Draws the weights."""
        self.out = dense(math.prod(input_shape), num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The pixels themselves, [batch, pixels]."""
        return flatten(x)

    def head(self, features: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.out(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.head(self.features(x))


def linear(input_shape: Shape, num_classes: int) -> Builder:
    """Softmax regression on the flattened input."""
    return lambda rngs: Linear(input_shape, num_classes, rngs)
