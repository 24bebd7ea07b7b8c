"""The papers' convolutional networks.

    cnn          5 x 5 x 64, 5 x 5 x 64, without padding; 384, 192    FedDyn, FedDC, FedSSG
    lenet5       5 x 5 x 6, 5 x 5 x 16, without padding; 120, 84      GIFT, FedGSNR
    fedveca_cnn  5 x 5 x 32, 5 x 5 x 32, padded to the size; 256      AFL, FedVeca
    vgg11        VGG, without normalisation                           FNR-FL
    vgg16                                                             GIFT, FedGSNR
    resnet18     ResNet, with GroupNorm                               FNR-FL

In the first three each convolution is followed by a ReLU and 2 x 2 max-pooling.

References:
  Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems",
  JSAC 2019, https://arxiv.org/abs/1804.05271. What FedVeca takes from it is as in its code,
  https://github.com/IBM/adaptive-federated-learning, models/cnn_mnist.py.
  Simonyan & Zisserman, "Very Deep Convolutional Networks for Large-Scale Image
  Recognition", ICLR 2015, https://arxiv.org/abs/1409.1556. Configurations A and D.
  He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
  https://arxiv.org/abs/1512.03385. Section 4.2 for small images, Table 1 for the stages.
"""

import jax
from flax import nnx

from .. import check
from ..errors import SettingError
from .dense import Builder, Classifier, Dense, Shape, dense
from .layers import (
    Conv,
    GroupNorm,
    batch_last,
    check_image,
    flatten_batch_last,
    local_response,
    max_pool,
    standardised,
)

KERNEL = 5
# N(0, 2 / (size^2 filters)), for what leaves a layer
KAIMING = nnx.initializers.variance_scaling(2, "fan_out", "normal")


class CNN(Classifier):
    """Two pooled convolutions, then two hidden layers and a head, of given widths."""

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        rngs: nnx.Rngs,
        *,
        filters: tuple[int, int],
        widths: tuple[int, int],
    ):
        """Draws the weights, uniform as PyTorch's."""
        height, width, channels = input_shape
        self.conv1 = Conv(channels, filters[0], KERNEL, rngs)
        self.conv2 = Conv(filters[0], filters[1], KERNEL, rngs)
        pixels = _pooled(_pooled(height)) * _pooled(_pooled(width))
        self.fc1 = dense(pixels * filters[1], widths[0], rngs)
        self.fc2 = dense(*widths, rngs)
        self.out = dense(widths[1], num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The last hidden layer, [batch, widths[1]]."""
        x = batch_last(x)
        for layer in (self.conv1, self.conv2):
            x = max_pool(jax.nn.relu(layer(x)))
        x = jax.nn.relu(self.fc1(flatten_batch_last(x)))
        return jax.nn.relu(self.fc2(x))


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

    797,962 parameters for 32 x 32 x 3 and 10 classes. Images have 16 x 16 pixels or more.
    """
    check_image("cnn", input_shape, 16)
    sizes = dict(filters=(64, 64), widths=(384, 192))
    return lambda rngs: CNN(input_shape, num_classes, rngs, **sizes)


def lenet5(input_shape: Shape, num_classes: int) -> Builder:
    """LeNet-5 of GIFT and FedGSNR, with ReLUs and max-pooling: 6, 16, 120, 84.

    62,006 parameters for 32 x 32 x 3 and 10 classes. Images have 16 x 16 pixels or more.
    """
    check_image("lenet5", input_shape, 16)
    sizes = dict(filters=(6, 16), widths=(120, 84))
    return lambda rngs: CNN(input_shape, num_classes, rngs, **sizes)


def fedveca_cnn(input_shape: Shape, num_classes: int) -> Builder:
    """The network of AFL and FedVeca: two padded 5x5x32 convolutions, then 256.

    The second is flattened to 1568 values for 28 x 28 pixels, to 2048 for 32 x 32. Images
    have 4 x 4 pixels or more.
    """
    check_image("fedveca_cnn", input_shape, 4)
    return lambda rngs: FedVecaCNN(input_shape, num_classes, rngs)


VGG_WIDTHS = (64, 128, 256, 512, 512)  # filters by stage
VGG_HIDDEN = 512
VGG_PIXELS = 2 ** len(VGG_WIDTHS)  # that become one


class VGG(Classifier):
    """Stages of 3 x 3 convolutions, `depths` of them each, then a small classifier.

    A stage is ended by 2 x 2 max-pooling; the classifier is

        Dropout - 512 - ReLU - Dropout - 512 - ReLU - head

    Departs from FNR-FL's text: the features are the input of the head, as everywhere
    here, not the 512 channels behind the last pooling, which that paper's code cannot
    read at all.
    """

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
        for depth, filters in zip(depths, VGG_WIDTHS, strict=True):
            stages.append(nnx.List())
            for _ in range(depth):
                stages[-1].append(_vgg_conv(channels, filters, rngs))
                channels = filters
        self.stages = nnx.List(stages)
        pixels = (height // VGG_PIXELS) * (width // VGG_PIXELS)
        self.fc1 = dense(pixels * channels, VGG_HIDDEN, rngs)
        self.fc2 = dense(VGG_HIDDEN, VGG_HIDDEN, rngs)
        self.out = dense(VGG_HIDDEN, num_classes, rngs)
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


def _vgg_conv(channels: int, filters: int, rngs: nnx.Rngs) -> Conv:
    init = dict(kernel_init=KAIMING, bias_init=nnx.initializers.zeros)
    return Conv(channels, filters, 3, rngs, pad=1, **init)


def vgg11(input_shape: Shape, num_classes: int, dropout: float = 0.5) -> Builder:
    """VGG-11 with biases and without BatchNorm, as FNR-FL has it.

    9,750,922 parameters for 32 x 32 x 3 and 10 classes. Images have as many pixels or more.

    Args:
      dropout: share of what goes into each hidden layer that is dropped, in [0, 1)
    """
    return _vgg("vgg11", input_shape, num_classes, (1, 1, 2, 2, 2), dropout)


def vgg16(input_shape: Shape, num_classes: int, dropout: float = 0.5) -> Builder:
    """VGG-16 with biases and without BatchNorm, for GIFT and FedGSNR.

    15,245,130 parameters for 32 x 32 x 3 and 10 classes. Images have as many pixels or
    more.

    Args:
      dropout: share of what goes into each hidden layer that is dropped, in [0, 1)
    """
    return _vgg("vgg16", input_shape, num_classes, (2, 2, 3, 3, 3), dropout)


def _vgg(name: str, input_shape: Shape, num_classes: int, depths, dropout) -> Builder:
    check_image(name, input_shape, VGG_PIXELS)
    check.between("dropout", dropout, 0, 1, closed="left")
    sizes = dict(depths=depths, dropout=dropout)
    return lambda rngs: VGG(input_shape, num_classes, rngs, **sizes)


RESNET_WIDTHS = (64, 128, 256, 512)  # filters by stage
RESNET_STRIDES = (1, 2, 2, 2)
RESNET_BLOCKS = 2  # a stage


class NormedConv(nnx.Module):
    """A convolution without bias, then GroupNorm."""

    def __init__(
        self, channels: int, filters: int, size: int, stride: int, groups: int, rngs
    ):
        """Draws the kernel."""
        init = dict(kernel_init=KAIMING, use_bias=False)
        where = dict(stride=stride, pad=size // 2)
        self.conv = Conv(channels, filters, size, rngs, **where, **init)
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
    """ResNet-18 for small images, normalised by groups of channels.

        stem       3 x 3 convolution of 64 filters, no max-pooling
        4 stages   of 2 blocks, 64, 128, 256, 512 filters, strides 1, 2, 2, 2
        block      x + N(conv(relu(N(conv(x)))), with x through a 1 x 1 convolution and N
                   where the block changes its size; then a ReLU
        head       of the mean over the pixels, [512]

    Departs from FNR-FL: N is GroupNorm, not BatchNorm, and the head has one output a
    class, not always 1000. The parameters are as many as with BatchNorm: both scale and
    shift every channel.

    Why no BatchNorm: its running statistics belong to the model without being parameters.
    They move by an average and not along a gradient, so as entries of the parameters they
    would be decayed, clipped, given momentum and corrected by control variates, all of
    which they must not be; and as a state of their own every local step, algorithm and
    upload would have to carry them besides the parameters and average them. Without them,
    evaluation would depend on what else is in the batch. And its statistics in training
    would count the rows that pad a partial batch, which weigh nothing in the loss.
    """

    def __init__(
        self, input_shape: Shape, num_classes: int, rngs: nnx.Rngs, *, groups: int
    ):
        """Draws the weights: Kaiming's of the convolutions, PyTorch's of the head."""
        channels = RESNET_WIDTHS[0]
        self.stem = NormedConv(input_shape[2], channels, 3, 1, groups, rngs)
        blocks = []
        for filters, stride in zip(RESNET_WIDTHS, RESNET_STRIDES, strict=True):
            for i in range(RESNET_BLOCKS):
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

    11,173,962 parameters for 32 x 32 x 3 and 10 classes. Images have 8 x 8 pixels or more.

    Args:
      groups: into which every normalisation divides its channels: 1, 2, 4, ... or 64
    """
    check_image("resnet18", input_shape, 8)
    if groups < 1 or RESNET_WIDTHS[0] % groups:
        raise SettingError(
            f"groups={groups} does not divide the {RESNET_WIDTHS[0]} channels of the first "
            "stage; write 1, 2, 4, 8, 16, 32 or 64."
        )
    return lambda rngs: ResNet(input_shape, num_classes, rngs, groups=groups)
