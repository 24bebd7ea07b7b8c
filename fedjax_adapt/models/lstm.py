"""GIFT's recurrent network for spoken words: LSTM layers and a head on the last state.

    i, f, g, o = split(W x_t + b + U h_{t-1} + d)
    c_t = sigmoid(f) c_{t-1} + sigmoid(i) tanh(g)
    h_t = sigmoid(o) tanh(c_t)                          h_0 = c_0 = 0

Both biases are there, and all weights start uniform within 1 / sqrt(width), as PyTorch
has it. 2 layers of 64 on 40 features and 10 words have 61,066 parameters.

References:
  Hochreiter & Schmidhuber, "Long Short-Term Memory", Neural Computation 9(8), 1997; with
  the forget gate of Gers, Schmidhuber & Cummins, "Learning to Forget", 2000.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from .. import check
from ..errors import SettingError
from .dense import Builder, Classifier, Shape, dense, uniform_fan_in


class LSTMLayer(nnx.Module):
    """One layer: a scan over time."""

    def __init__(self, num_features: int, width: int, rngs: nnx.Rngs):
        """Draws W, b [features, 4 width] and U, d [width, 4 width]."""
        init = uniform_fan_in(width)
        affine = lambda size: nnx.Linear(
            size, 4 * width, kernel_init=init, bias_init=init, rngs=rngs
        )
        self.input, self.recurrent = affine(num_features), affine(width)

    def __call__(self, x: jax.Array) -> jax.Array:
        """[time, batch, features] to the state after each step, [time, batch, width]."""
        inputs = self.input(x)  # of all times in one product
        kernel, bias = self.recurrent.kernel[...], self.recurrent.bias[...][None]

        def step(carry, entered):
            h, c = carry
            i, f, g, o = jnp.split(entered + h @ kernel + bias, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], kernel.shape[0]), inputs.dtype)
        return lax.scan(step, (zeros, zeros), inputs)[1]


class LSTM(Classifier):
    """Layers one upon the other, then an affine head on the last state."""

    def __init__(
        self,
        input_shape: Shape,
        num_classes: int,
        rngs: nnx.Rngs,
        *,
        width: int,
        layers: int,
    ):
        """Draws the weights."""
        sizes = [input_shape[1], *[width] * layers]
        self.layers = nnx.List(
            [LSTMLayer(a, b, rngs) for a, b in zip(sizes, sizes[1:], strict=False)]
        )
        self.out = dense(width, num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The last layer's state after the last step, [batch, width]."""
        x = x.transpose(1, 0, 2)
        for layer in self.layers:
            x = layer(x)
        return x[-1]


def lstm(
    input_shape: Shape, num_classes: int, width: int = 64, layers: int = 2
) -> Builder:
    """LSTM layers over a sequence of feature vectors, as GIFT has for spoken words.

    Args:
      input_shape: (time, features) of one example.
      width: of every layer's state
      layers: one upon the other
    """
    check.at_least("width", width, 1)
    check.at_least("layers", layers, 1)
    if len(input_shape) != 2:
        raise SettingError(
            f"lstm got input_shape={tuple(input_shape)} but needs (time, features), as an "
            ".npz file with x_train [n, time, features] has; for images write mlp or cnn."
        )
    return lambda rngs: LSTM(input_shape, num_classes, rngs, width=width, layers=layers)
