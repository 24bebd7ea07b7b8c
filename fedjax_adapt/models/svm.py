"""FedVeca's support vector machine: a linear score under the squared hinge.

    s = <w, x> + b,   loss = max(0, 1 - t s)^2,   t = -1 for label 0, +1 for label 1

The score is shown as the two logits (-s/2, s/2): their difference is s, the largest is the
sign of s, and what reads logits (accuracy, distillation) reads these.

The paper names the model ("squared-SVM", one binary output) and writes no loss out: this
is the usual one. Regularisation, if any, is the run's weight decay.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from ..errors import SettingError
from .linear import Builder, Shape, dense, flatten


class SVM(nnx.Module):
    """One score; as many parameters as inputs, and one."""

    def __init__(self, input_shape: Shape, rngs: nnx.Rngs):
        """Draws the weights, uniform as PyTorch's."""
        self.out = dense(math.prod(input_shape), 1, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The pixels themselves, [batch, pixels]."""
        return flatten(x)

    def head(self, features: jax.Array) -> jax.Array:
        """The score as two logits, [batch, 2]."""
        half = self.out(features) / 2
        return jnp.concatenate([-half, half], axis=1)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The score as two logits, [batch, 2]."""
        return self.head(self.features(x))

    @staticmethod
    def loss(logits: jax.Array, y: jax.Array) -> jax.Array:
        """The squared hinge of each example, [batch], from labels 0 and 1."""
        score = logits[:, 1] - logits[:, 0]
        sign = 2 * y.astype(score.dtype) - 1
        return jnp.square(jax.nn.relu(1 - sign * score))


def svm(input_shape: Shape, num_classes: int) -> Builder:
    """The squared-hinge support vector machine of FedVeca, for two classes.

    Raises:
      ValueError: there are not two classes.
    """
    if num_classes != 2:
        raise SettingError(
            f"svm tells 2 classes apart but the data have {num_classes}; write "
            "labels=parity to learn even against odd."
        )
    return lambda rngs: SVM(input_shape, rngs)
