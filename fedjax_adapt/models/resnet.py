"""ResNet-18 for small images, normalised by groups of channels.

    stem       3 x 3 convolution of 64 filters, no max-pooling
    4 stages   of 2 blocks, 64, 128, 256, 512 filters, strides 1, 2, 2, 2
    block      x + N(conv(relu(N(conv(x)))), with x through a 1 x 1 convolution and N
               where the block changes its size; then a ReLU
    head       of the mean over the pixels, [512]

Departs from FNR-FL: N is GroupNorm, not BatchNorm, and the head has one output a class,
not always 1000. The parameters are as many as with BatchNorm: both scale and shift
every channel.

Why no BatchNorm: its running statistics belong to the model without being parameters.
They move by an average and not along a gradient, so as entries of the parameters they
would be decayed, clipped, given momentum and corrected by control variates, all of which
they must not be; and as a state of their own every local step, algorithm and upload would
have to carry them besides the parameters and average them. Without them, evaluation would
depend on what else is in the batch. And its statistics in training would count the rows
that pad a partial batch, which weigh nothing in the loss.

References:
  He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
  https://arxiv.org/abs/1512.03385. Section 4.2 for small images, Table 1 for the stages.
"""

import jax
from flax import nnx

from ..errors import SettingError
from .dense import Builder, Classifier, Shape, dense
from .layers import Conv, GroupNorm, batch_last, check_image, normal_fan_out

WIDTHS = (64, 128, 256, 512)  # filters by stage
STRIDES = (1, 2, 2, 2)
BLOCKS = 2  # a stage


class NormedConv(nnx.Module):
    """A convolution without bias, then GroupNorm."""

    def __init__(
        self, channels: int, filters: int, size: int, stride: int, groups: int, rngs
    ):
        """Draws the kernel."""
        self.conv = Conv(
            channels,
            filters,
            size,
            rngs,
            stride=stride,
            pad=size // 2,
            kernel_init=normal_fan_out(size, filters),
            use_bias=False,
        )
        self.norm = GroupNorm(filters, groups)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[channels, height, width, batch] to [filters, height', width', batch]."""
        return self.norm(self.conv(x))


class Block(nnx.Module):
    """Two convolutions of 3 x 3 and what they are added to."""

    def __init__(self, channels: int, filters: int, stride: int, groups: int, rngs):
        """Draws the kernels."""
        self.conv1 = NormedConv(channels, filters, 3, stride, groups, rngs)
        self.conv2 = NormedConv(filters, filters, 3, 1, groups, rngs)
        self.shortcut = (
            NormedConv(channels, filters, 1, stride, groups, rngs)
            if stride != 1 or channels != filters
            else None
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """[channels, height, width, batch] to [filters, height', width', batch]."""
        y = self.conv2(jax.nn.relu(self.conv1(x)))
        return jax.nn.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(Classifier):
    """The stem, the blocks and the head."""

    def __init__(
        self, input_shape: Shape, num_classes: int, rngs: nnx.Rngs, *, groups: int
    ):
        """Draws the weights: Kaiming's of the convolutions, PyTorch's of the head."""
        channels = WIDTHS[0]
        self.stem = NormedConv(input_shape[2], channels, 3, 1, groups, rngs)
        blocks = []
        for filters, stride in zip(WIDTHS, STRIDES, strict=True):
            for i in range(BLOCKS):
                moved = stride if i == 0 else 1
                blocks.append(Block(channels, filters, moved, groups, rngs))
                channels = filters
        self.blocks = nnx.List(blocks)
        self.out = dense(channels, num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The mean over the pixels of the last block, [batch, 512]."""
        x = jax.nn.relu(self.stem(batch_last(x)))
        for block in self.blocks:
            x = block(x)
        return x.mean((1, 2)).T


def resnet18(input_shape: Shape, num_classes: int, groups: int = 32) -> Builder:
    """ResNet-18 of FNR-FL for small images, with GroupNorm in BatchNorm's place.

    11,173,962 parameters for 32 x 32 x 3 and 10 classes.

    Args:
      input_shape: of one example.
      num_classes: number of labels.
      groups: into which every normalisation divides its channels: 1, 2, 4, ... or 64

    Raises:
      ValueError: `input_shape` is no image of at least 8 x 8 pixels, or `groups` does not
        divide 64.
    """
    check_image("resnet18", input_shape, 8)
    if groups < 1 or WIDTHS[0] % groups:
        raise SettingError(
            f"groups={groups} does not divide the {WIDTHS[0]} channels of the first "
            "stage; write 1, 2, 4, 8, 16, 32 or 64."
        )
    return lambda rngs: ResNet(input_shape, num_classes, rngs, groups=groups)
