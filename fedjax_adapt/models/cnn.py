"""The papers' small convolutional networks: two convolutions, then ReLUs and a head.

    cnn          5 x 5 x 64, 5 x 5 x 64, without padding; 384, 192    FedDyn, FedDC, FedSSG
    lenet5       5 x 5 x 6, 5 x 5 x 16, without padding; 120, 84      GIFT, FedGSNR
    fedveca_cnn  5 x 5 x 32, 5 x 5 x 32, padded to the size; 256      AFL, FedVeca

Each convolution is followed by a ReLU and 2 x 2 max-pooling.

References:
  Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems",
  JSAC 2019, https://arxiv.org/abs/1804.05271. What FedVeca takes from it is as in its code,
  https://github.com/IBM/adaptive-federated-learning, models/cnn_mnist.py.
"""

import jax
from flax import nnx

from .dense import Builder, Classifier, Dense, Shape, dense
from .layers import (
    Conv,
    batch_last,
    check_image,
    flatten_batch_last,
    local_response,
    max_pool,
    standardised,
)

KERNEL = 5


class CNN(Classifier):
    """Two pooled convolutions of given widths, then hidden layers and a head."""

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        rngs: nnx.Rngs,
        *,
        filters: tuple[int, int],
        widths: tuple[int, ...],
    ):
        """Draws the weights, uniform as PyTorch's."""
        height, width, channels = input_shape
        self.conv1 = Conv(channels, filters[0], KERNEL, rngs)
        self.conv2 = Conv(filters[0], filters[1], KERNEL, rngs)
        pixels = _pooled(_pooled(height)) * _pooled(_pooled(width))
        sizes = (pixels * filters[1], *widths)
        self.fc1 = dense(sizes[0], sizes[1], rngs)
        self.fc2 = dense(sizes[1], sizes[2], rngs) if len(widths) > 1 else None
        self.out = dense(sizes[-1], num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The last hidden layer, [batch, widths[-1]]."""
        x = batch_last(x)
        for layer in (self.conv1, self.conv2):
            x = max_pool(jax.nn.relu(layer(x)))
        x = jax.nn.relu(self.fc1(flatten_batch_last(x)))
        return x if self.fc2 is None else jax.nn.relu(self.fc2(x))


def _pooled(pixels: int) -> int:
    """Pixels a side after one convolution and one pooling."""
    return (pixels - KERNEL + 1) // 2


class FedVecaCNN(Classifier):
    """AFL's network, whose images keep their size but for pooling.

    Local response normalisation comes after the first pooling and before the second.
    Weights are N(0, 0.1^2) within two deviations, biases 0.1. Colour images are
    standardised one by one, as its code reads CIFAR-10, and those of MNIST are not.
    """

    def __init__(self, input_shape: Shape, num_classes: int, rngs: nnx.Rngs):
        """Draws the weights."""
        height, width, channels = input_shape
        drawn = nnx.initializers.truncated_normal(0.1)
        begin = {"kernel_init": drawn, "bias_init": nnx.initializers.constant(0.1)}
        self.conv1 = Conv(channels, 32, KERNEL, rngs, pad=KERNEL // 2, **begin)
        self.conv2 = Conv(32, 32, KERNEL, rngs, pad=KERNEL // 2, **begin)
        pixels = (height // 4) * (width // 4)
        self.fc1 = Dense(32 * pixels, 256, rngs=rngs, **begin)
        self.out = Dense(256, num_classes, rngs=rngs, **begin)

    def features(self, x: jax.Array) -> jax.Array:
        """The hidden layer, [batch, 256]."""
        x = batch_last(x if x.shape[3] == 1 else standardised(x))
        x = jax.nn.relu(self.conv1(x))
        x = jax.nn.relu(self.conv2(local_response(max_pool(x))))
        x = max_pool(local_response(x))
        return jax.nn.relu(self.fc1(flatten_batch_last(x)))


def cnn(input_shape: Shape, num_classes: int) -> Builder:
    """The CIFAR network of FedDyn and FedSSG: two 5x5x64 convolutions, 384, 192.

    797,962 parameters for 32 x 32 x 3 and 10 classes.
    """
    check_image("cnn", input_shape, 16)
    sizes = dict(filters=(64, 64), widths=(384, 192))
    return lambda rngs: CNN(input_shape, num_classes, rngs, **sizes)


def lenet5(input_shape: Shape, num_classes: int) -> Builder:
    """LeNet-5 of GIFT and FedGSNR, with ReLUs and max-pooling: 6, 16, 120, 84.

    62,006 parameters for 32 x 32 x 3 and 10 classes.
    """
    check_image("lenet5", input_shape, 16)
    sizes = dict(filters=(6, 16), widths=(120, 84))
    return lambda rngs: CNN(input_shape, num_classes, rngs, **sizes)


def fedveca_cnn(input_shape: Shape, num_classes: int) -> Builder:
    """The network of AFL and FedVeca: two padded 5x5x32 convolutions, then 256.

    The second is flattened to 1568 values for 28 x 28 pixels, to 2048 for 32 x 32.
    """
    check_image("fedveca_cnn", input_shape, 4)
    return lambda rngs: FedVecaCNN(input_shape, num_classes, rngs)
