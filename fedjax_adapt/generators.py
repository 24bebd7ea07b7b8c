"""Conditional generators: from a label and noise to what a classifier is taught with.

A server that has no data trains one against the models of its clients.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .errors import SettingError
from .models.conv import conv

Array = jax.Array
Shape = tuple[int, ...]

MOMENTUM = 0.1  # of running statistics; this, epsilon and the slope are PyTorch's
EPSILON = 1e-5
SLOPE = 0.2  # of leaky ReLUs, FedFTG's


class Made(NamedTuple):
    """The parameters of a generator, a pytree."""

    weights: Any  # what is trained
    statistics: Any  # of its batch normalisation


class Generator(NamedTuple):
    """A conditional generator as two pure functions.

    `init(key, noise_size, num_classes, shape)` draws one of examples of `shape`.
    `apply(made, noise, labels, train)` takes noise [batch, noise_size] and one-hot labels
    [batch, classes] and returns examples [batch, *shape] and the new statistics: a
    batch is normalised by its own while training, else by those kept.
    """

    init: Callable[[jax.Array, int, int, Shape], Made]
    apply: Callable[[Made, Array, Array, bool], tuple[Array, Any]]


class Statistics(NamedTuple):
    """Running mean and variance per channel."""

    mean: Array
    variance: Array


def latent_generator(hidden: int = 256) -> Generator:
    """FedGen's: one hidden layer, normalised, with ReLUs, then an affine layer.

    With 64 numbers of noise, 10 labels, 512 hidden units and 32 features it has 55,840
    weights.
    """

    def init(key, noise_size, num_classes, shape):
        one, two = jax.random.split(key)
        weights = {
            "hidden": affine(one, noise_size + num_classes, (hidden,)),
            "norm": identity(hidden),
            "out": affine(two, hidden, shape),
        }
        return Made(weights, standard(hidden))

    def apply(made, noise, labels, train):
        weights = made.weights
        x = through(weights["hidden"], jnp.concatenate([noise, labels], 1))
        x, statistics = normalised(x, made.statistics, train, axis=1)
        x = jax.nn.relu(scaled(weights["norm"], x, axis=1))
        return through(weights["out"], x), statistics

    return Generator(init, apply)


def image_generator(channels: int = 64) -> Generator:
    """FedFTG's: two affine layers, of noise and label, and three convolutions.

    Images are about standard normal per channel, [batch, height, width, channels].
    """

    def init(key, noise_size, num_classes, shape):
        if len(shape) != 3 or shape[0] % 4 or shape[1] % 4:
            raise SettingError(
                f"this generator makes images (height, width, channels) of a height and "
                f"width that 4 divides, but an input here has shape {list(shape)}; give "
                "generator=Generator(init, apply), one that makes such inputs."
            )
        small = (channels, shape[0] // 4, shape[1] // 4)
        keys = jax.random.split(key, 5)
        wide = 2 * channels
        weights = {
            "noise": affine(keys[0], noise_size, small),
            "label": affine(keys[1], num_classes, small),
            "norm_0": identity(wide),
            "conv_1": kernel(keys[2], wide, wide),
            "norm_1": identity(wide),
            "conv_2": kernel(keys[3], wide, channels),
            "norm_2": identity(channels),
            "conv_3": kernel(keys[4], channels, shape[2]),
        }
        widths = {"0": wide, "1": wide, "2": channels, "3": shape[2]}
        return Made(weights, {name: standard(width) for name, width in widths.items()})

    def apply(made, noise, labels, train):
        weights, new_statistics = made.weights, {}

        def norm(x, name):
            x, new_statistics[name] = normalised(
                x, made.statistics[name], train, axis=0
            )
            return x

        def block(x, name):
            x = filtered(weights[f"conv_{name}"], x)
            x = scaled(weights[f"norm_{name}"], norm(x, name), axis=0)
            return jax.nn.leaky_relu(x, SLOPE)

        x = [through(weights["noise"], noise), through(weights["label"], labels)]
        x = jnp.concatenate(x, 1).transpose(1, 2, 3, 0)  # the batch last
        x = scaled(weights["norm_0"], norm(x, "0"), axis=0)
        x = block(block_up(x), "1")
        x = block(block_up(x), "2")
        x = norm(jnp.tanh(filtered(weights["conv_3"], x)), "3")
        return x.transpose(3, 1, 2, 0), new_statistics

    return Generator(init, apply)


def diversity(noise: Array, made: Array) -> Array:
    """exp(-mean |a_i - a_j| (e_i - e_j)^2), each a mean over coordinates. A scalar.

    1 where all examples `made` [batch, ...] are equal; less, the more examples differ
    whose noise [batch, noise_size] does.
    """
    made = made.reshape(len(made), -1)
    apart = jnp.abs(made[:, None] - made[None]).mean(-1)
    noises = jnp.square(noise[:, None] - noise[None]).mean(-1)
    return jnp.exp(-(apart * noises).mean())


def uniform(key: jax.Array, fan_in: int, shape: Shape) -> Array:
    """U(-b, b), b = 1 / sqrt(fan_in), as PyTorch draws weights and biases."""
    bound = 1 / math.sqrt(fan_in)
    return jax.random.uniform(key, shape, float, -bound, bound)


def affine(key: jax.Array, width: int, shape: Shape) -> dict[str, Array]:
    """An affine layer from `width` numbers to an array of `shape`."""
    one, two = jax.random.split(key)
    return {
        "kernel": uniform(one, width, (width, *shape)),
        "bias": uniform(two, width, shape),
    }


def through(layer: dict[str, Array], x: Array) -> Array:
    """An affine layer of [batch, width]."""
    return jnp.tensordot(x, layer["kernel"], 1) + layer["bias"][None]


def kernel(key: jax.Array, channels: int, filters: int) -> dict[str, Array]:
    """A convolution by 3 x 3 kernels."""
    one, two = jax.random.split(key)
    return {
        "kernel": uniform(one, 9 * channels, (3, 3, channels, filters)),
        "bias": uniform(two, 9 * channels, (filters,)),
    }


def filtered(layer: dict[str, Array], x: Array) -> Array:
    """A convolution that keeps height and width, [channels, height, width, batch]."""
    y = conv(x, layer["kernel"], padding=((1, 1), (1, 1)), layout="CHWN")
    return y + layer["bias"][:, None, None, None]


def block_up(x: Array) -> Array:
    """Every pixel as a block of 2 x 2, [channels, height, width, batch]."""
    return x.repeat(2, 1).repeat(2, 2)


def identity(width: int) -> dict[str, Array]:
    """The scale and shift behind a normalisation: 1 and 0 at first."""
    return {"scale": jnp.ones(width), "bias": jnp.zeros(width)}


def standard(width: int) -> Statistics:
    """The running statistics before any batch: mean 0, variance 1."""
    return Statistics(jnp.zeros(width), jnp.ones(width))


def normalised(
    x: Array, statistics: Statistics, train: bool, axis: int
) -> tuple[Array, Statistics]:
    """`x` with mean 0 and variance 1 along `axis`, and the statistics then kept."""
    rest = tuple(i for i in range(x.ndim) if i != axis)
    now = Statistics(x.mean(rest), x.var(rest)) if train else statistics
    y = x - jnp.expand_dims(now.mean, rest)
    y = y * jax.lax.rsqrt(jnp.expand_dims(now.variance, rest) + EPSILON)
    if not train:
        return y, statistics
    n = x.size // x.shape[axis]
    seen = Statistics(now.mean, now.variance * (n / max(n - 1, 1)))  # unbiased
    mix = lambda old, new: (1 - MOMENTUM) * old + MOMENTUM * new
    return y, jax.tree.map(mix, statistics, seen)


def scaled(layer: dict[str, Array], x: Array, axis: int) -> Array:
    """Scales and shifts along `axis`."""
    rest = tuple(i for i in range(x.ndim) if i != axis)
    return x * jnp.expand_dims(layer["scale"], rest) + jnp.expand_dims(
        layer["bias"], rest
    )
