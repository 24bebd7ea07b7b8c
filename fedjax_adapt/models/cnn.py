"""The papers' small convolutional networks: two convolutions, then ReLUs and a head.

    cnn          5 x 5 x 64, 5 x 5 x 64, without padding; 384, 192    FedDyn, FedDC, FedSSG
    lenet5       5 x 5 x 6, 5 x 5 x 16, without padding; 120, 84      GIFT, FedGSNR
    fedveca_cnn  5 x 5 x 32, 5 x 5 x 32, padded to the size; 256      FedVeca

Each convolution is followed by a ReLU and 2 x 2 max-pooling.
"""

import jax
from flax import nnx

from .dense import Builder, Classifier, Shape, dense
from .layers import Conv, batch_last, check_image, flatten_batch_last, max_pool

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
        pad: int = 0,
    ):
        """Draws the weights, uniform as PyTorch's."""
        height, width, channels = input_shape
        self.conv1 = Conv(channels, filters[0], KERNEL, rngs, pad=pad)
        self.conv2 = Conv(filters[0], filters[1], KERNEL, rngs, pad=pad)
        pixels = _pooled(_pooled(height, pad), pad) * _pooled(_pooled(width, pad), pad)
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


def _pooled(pixels: int, pad: int) -> int:
    """Pixels a side after one convolution and one pooling."""
    return (pixels + 2 * pad - KERNEL + 1) // 2


def cnn(input_shape: Shape, num_classes: int) -> Builder:
    """The CIFAR network of FedDyn and FedSSG: two 5x5x64 convolutions, 384, 192.

    797,962 parameters for 32 x 32 x 3 and 10 classes.

    Raises:
      ValueError: `input_shape` is no image of at least 16 x 16 pixels.
    """
    check_image("cnn", input_shape, 16)
    return lambda rngs: CNN(
        input_shape, num_classes, rngs, filters=(64, 64), widths=(384, 192)
    )


def lenet5(input_shape: Shape, num_classes: int) -> Builder:
    """LeNet-5 of GIFT and FedGSNR, with ReLUs and max-pooling: 6, 16, 120, 84.

    62,006 parameters for 32 x 32 x 3 and 10 classes.

    Raises:
      ValueError: `input_shape` is no image of at least 16 x 16 pixels.
    """
    check_image("lenet5", input_shape, 16)
    return lambda rngs: CNN(
        input_shape, num_classes, rngs, filters=(6, 16), widths=(120, 84)
    )


def fedveca_cnn(input_shape: Shape, num_classes: int) -> Builder:
    """The network of FedVeca: two padded 5x5x32 convolutions, then 256.

    The second is flattened to 1568 values for 28 x 28 pixels, to 2048 for 32 x 32.

    Raises:
      ValueError: `input_shape` is no image of at least 4 x 4 pixels.
    """
    check_image("fedveca_cnn", input_shape, 4)
    return lambda rngs: CNN(
        input_shape, num_classes, rngs, filters=(32, 32), widths=(256,), pad=2
    )
