"""VGG with a small classifier and no normalisation: FNR-FL's VGG-11, GIFT's VGG-16.

Stages of 3 x 3 convolutions with ReLUs, each ended by 2 x 2 max-pooling, then

    Dropout - 512 - ReLU - Dropout - 512 - ReLU - head

Departs from FNR-FL's text: the features are the input of the head, as everywhere here,
not the 512 channels behind the last pooling, which that paper's code cannot read at all.

References:
  Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
  Recognition", ICLR 2015, https://arxiv.org/abs/1409.1556. Configurations A and D.
"""

import jax
from flax import nnx

from .. import check
from .dense import Builder, Classifier, Shape, dense
from .layers import (
    Conv,
    batch_last,
    check_image,
    flatten_batch_last,
    normal_fan_out,
)
from .pool import max_pool

WIDTHS = (64, 128, 256, 512, 512)  # filters by stage
HIDDEN = 512
PIXELS = 2 ** len(WIDTHS)  # that become one


class VGG(Classifier):
    """As many convolutions in each stage as `depths` says, then the classifier."""

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        rngs: nnx.Rngs,
        *,
        depths: tuple[int, ...],
        dropout: float,
    ):
        """Draws the weights: Kaiming's of the convolutions, PyTorch's of the rest."""
        height, width, channels = input_shape
        stages = []
        for depth, filters in zip(depths, WIDTHS, strict=True):
            stages.append(nnx.List())
            for _ in range(depth):
                stages[-1].append(_conv(channels, filters, rngs))
                channels = filters
        self.stages = nnx.List(stages)
        pixels = (height // PIXELS) * (width // PIXELS)
        self.fc1 = dense(pixels * channels, HIDDEN, rngs)
        self.fc2 = dense(HIDDEN, HIDDEN, rngs)
        self.out = dense(HIDDEN, num_classes, rngs)
        self.drop1 = nnx.Dropout(dropout, rngs=rngs)
        self.drop2 = nnx.Dropout(dropout, rngs=rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The last hidden layer, [batch, 512]."""
        x = batch_last(x)
        for stage in self.stages:
            for layer in stage:
                x = jax.nn.relu(layer(x))
            x = max_pool(x)
        x = jax.nn.relu(self.fc1(self.drop1(flatten_batch_last(x))))
        return jax.nn.relu(self.fc2(self.drop2(x)))


def _conv(channels: int, filters: int, rngs: nnx.Rngs) -> Conv:
    return Conv(
        channels,
        filters,
        3,
        rngs,
        pad=1,
        kernel_init=normal_fan_out(3, filters),
        bias_init=nnx.initializers.zeros,
    )


def vgg11(input_shape: Shape, num_classes: int, dropout: float = 0.5) -> Builder:
    """VGG-11 with biases and without BatchNorm, as FNR-FL has it.

    9,750,922 parameters for 32 x 32 x 3 and 10 classes.

    Args:
      input_shape: of one example.
      num_classes: number of labels.
      dropout: share of what goes into each hidden layer that is dropped, in [0, 1)

    Raises:
      ValueError: `input_shape` is no image of at least 32 x 32 pixels.
    """
    return _vgg("vgg11", input_shape, num_classes, (1, 1, 2, 2, 2), dropout)


def vgg16(input_shape: Shape, num_classes: int, dropout: float = 0.5) -> Builder:
    """VGG-16 with biases and without BatchNorm, for GIFT and FedGSNR.

    15,245,130 parameters for 32 x 32 x 3 and 10 classes.

    Args:
      input_shape: of one example.
      num_classes: number of labels.
      dropout: share of what goes into each hidden layer that is dropped, in [0, 1)

    Raises:
      ValueError: `input_shape` is no image of at least 32 x 32 pixels.
    """
    return _vgg("vgg16", input_shape, num_classes, (2, 2, 3, 3, 3), dropout)


def _vgg(name: str, input_shape: Shape, num_classes: int, depths, dropout) -> Builder:
    check_image(name, input_shape, PIXELS)
    check.between("dropout", dropout, 0, 1, closed="left")
    return lambda rngs: VGG(
        input_shape, num_classes, rngs, depths=depths, dropout=dropout
    )
