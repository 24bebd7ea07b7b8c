"""Softmax regression, and the initial weights that all our models share."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
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


def plus(y: jax.Array, bias: jax.Array) -> jax.Array:
    """y + bias, which has as many axes, in the dtype of y.

    The gradient of the bias is a sum over examples and pixels. It is taken in float32:
    in bfloat16, of thousands of terms all but the first few hundred would add nothing.
    """
    exact = bias.astype(jnp.promote_types(y.dtype, jnp.float32))
    return y + jnp.broadcast_to(exact, y.shape).astype(y.dtype)


class Dense(nnx.Linear):
    """flax's affine layer, whose bias is added by `plus`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, width in] to [batch, width out]."""
        return plus(x @ self.kernel[...], self.bias[...][None])


def dense(width_in: int, width_out: int, rngs: nnx.Rngs) -> Dense:
    """An affine layer with the initial weights above."""
    init = uniform_fan_in(width_in)
    return Dense(width_in, width_out, kernel_init=init, bias_init=init, rngs=rngs)


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
