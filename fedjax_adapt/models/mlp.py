"""The papers' fully connected networks for MNIST and EMNIST."""

import math
from collections.abc import Sequence

import jax
from flax import nnx

from .. import check
from .linear import Builder, Shape, dense, flatten


class MLP(nnx.Module):
    """Layers of ReLUs, then an affine head."""

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        widths: Sequence[int],
        rngs: nnx.Rngs,
    ):
        """Draws the weights of len(widths) hidden layers and the head."""
        sizes = [math.prod(input_shape), *widths]
        self.hidden = nnx.List(
            [dense(a, b, rngs) for a, b in zip(sizes, sizes[1:], strict=False)]
        )
        self.out = dense(sizes[-1], num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The last hidden layer, [batch, widths[-1]]."""
        x = flatten(x)
        for layer in self.hidden:
            x = jax.nn.relu(layer(x))
        return x

    def head(self, features: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.out(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.head(self.features(x))


def mlp(
    input_shape: Shape, num_classes: int, widths: tuple[int, ...] = (200, 200)
) -> Builder:
    """Fully connected ReLU network on the flattened input.

    With 784 inputs and 10 classes, widths=(200, 200) has 199,210 parameters and
    widths=(100, 100) has 89,610.

    Args:
      input_shape: of one example.
      num_classes: number of labels.
      widths: of the hidden layers
    """
    for width in widths:
        check.at_least("widths", width, 1)
    return lambda rngs: MLP(input_shape, num_classes, widths, rngs)
