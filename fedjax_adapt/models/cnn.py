"""The CIFAR network of FedDyn, FedDC and FedSSG."""

import jax
from flax import nnx

from .conv import conv, max_pool
from .linear import Builder, Shape, dense, uniform_fan_in

FILTERS = 64
KERNEL = 5


def _pooled(pixels: int) -> int:
    """Pixels a side after one convolution and one pooling."""
    return (pixels - KERNEL + 1) // 2


class Conv(nnx.Module):
    """A convolution without padding, its bias, and a ReLU, pooled 2 x 2."""

    def __init__(self, channels: int, rngs: nnx.Rngs):
        """Draws KERNEL x KERNEL x channels x FILTERS weights and the biases."""
        init = uniform_fan_in(KERNEL * KERNEL * channels)
        shape = (KERNEL, KERNEL, channels, FILTERS)
        self.kernel = nnx.Param(init(rngs.params(), shape, float))
        self.bias = nnx.Param(init(rngs.params(), (FILTERS,), float))

    def __call__(self, x: jax.Array) -> jax.Array:
        """[channels, height, width, batch] to [FILTERS, height', width', batch]."""
        y = conv(x, self.kernel[...], layout="CHWN")
        return max_pool(jax.nn.relu(y + self.bias[:, None, None, None]))


class CNN(nnx.Module):
    """Two convolutions 5x5x64 with pooling, then 384 and 192 ReLUs and a head."""

    def __init__(self, input_shape: Shape, num_classes: int, rngs: nnx.Rngs):
        """Draws the weights; 797,962 of them for 32x32x3 and 10 classes."""
        height, width, channels = input_shape
        pixels = _pooled(_pooled(height)) * _pooled(_pooled(width))
        self.conv1 = Conv(channels, rngs)
        self.conv2 = Conv(FILTERS, rngs)
        self.fc1 = dense(pixels * FILTERS, 384, rngs)
        self.fc2 = dense(384, 192, rngs)
        self.out = dense(192, num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The last hidden layer, [batch, 192]."""
        x = x.transpose(3, 1, 2, 0)  # the batch last: see conv.py
        x = self.conv2(self.conv1(x))
        x = x.reshape(-1, x.shape[3]).T  # [batch, (channel, height, width)]
        return jax.nn.relu(self.fc2(jax.nn.relu(self.fc1(x))))

    def head(self, features: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.out(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.head(self.features(x))


def cnn(input_shape: Shape, num_classes: int) -> Builder:
    """The CIFAR network of FedDyn and FedSSG: two 5x5x64 convolutions, 384, 192.

    Raises:
      ValueError: `input_shape` is no image of at least 16 x 16 pixels.
    """
    if len(input_shape) != 3 or min(input_shape[:2]) < 16:
        raise ValueError(
            f"cnn got input_shape={tuple(input_shape)} but needs (height, width, "
            "channels) of at least 16 x 16 pixels; use mlp or linear instead."
        )
    return lambda rngs: CNN(input_shape, num_classes, rngs)
