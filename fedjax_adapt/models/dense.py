"""Fully connected models, the layers they share, and MOON's projection head.

    linear       softmax regression
    mlp          hidden layers of ReLUs, for MNIST and EMNIST
    svm          the support vector machine of AFL and FedVeca, under the squared hinge
    projected    any of the models here, with a projection between features and last layer

Initial weights are uniform as PyTorch's, which the papers' experiments start from, but for
svm's, which are 0.

References:
  Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems",
  JSAC 2019, https://arxiv.org/abs/1804.05271. Its SVM as in its code,
  https://github.com/IBM/adaptive-federated-learning, models/svm_smooth.py.
  Li, He & Song, "Model-Contrastive Federated Learning", CVPR 2021,
  https://arxiv.org/abs/2103.16257. Section 3.2; width 256.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from .. import check
from ..errors import SettingError

Shape = tuple[int, ...]
Builder = Callable[[nnx.Rngs], nnx.Module]


def uniform_fan_in(fan_in: int) -> Callable:
    """Initial values U(-b, b), b = 1 / sqrt(fan_in), for weights and biases alike.

    What PyTorch does by default, and so what the papers' experiments start from.
    """
    bound = 1 / math.sqrt(fan_in)

    def init(key, shape, dtype, out_sharding=None):
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return init


def plus(y: jax.Array, bias: jax.Array) -> jax.Array:
    """y + bias, which has as many axes, in the dtype of y.

    The gradient of the bias is a sum over examples and pixels. It is taken in float32:
    in bfloat16, of thousands of terms all but the first few hundred would add nothing.
    """
    exact = bias.astype(jnp.promote_types(y.dtype, jnp.float32))
    return y + jnp.broadcast_to(exact, y.shape).astype(y.dtype)


class Dense(nnx.Linear):
    """flax's affine layer, whose bias is added by `plus`."""

    def __call__(self, x: jax.Array) -> jax.Array:
        """[batch, width in] to [batch, width out]."""
        return plus(x @ self.kernel[...], self.bias[...][None])


def dense(width_in: int, width_out: int, rngs: nnx.Rngs) -> Dense:
    """An affine layer with the initial weights above."""
    init = uniform_fan_in(width_in)
    return Dense(width_in, width_out, kernel_init=init, bias_init=init, rngs=rngs)


def flatten(x: jax.Array) -> jax.Array:
    """[batch, ...] to [batch, pixels]."""
    return x.reshape(x.shape[0], -1)


class Classifier(nnx.Module):
    """A model of features and an affine last layer `out`, which a subclass sets."""

    out: nnx.Linear

    def features(self, x: jax.Array) -> jax.Array:
        """The input of the last layer, [batch, features]."""
        raise NotImplementedError

    def head(self, features: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.out(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.head(self.features(x))


class Linear(Classifier):
    """logits = x W + b."""

    def __init__(self, input_shape: Shape, num_classes: int, rngs: nnx.Rngs):
        """Draws the weights."""
        self.out = dense(math.prod(input_shape), num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """The pixels themselves, [batch, pixels]."""
        return flatten(x)


def linear(input_shape: Shape, num_classes: int) -> Builder:
    """Softmax regression on the flattened input."""
    return lambda rngs: Linear(input_shape, num_classes, rngs)


class MLP(Classifier):
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


def mlp(
    input_shape: Shape, num_classes: int, widths: tuple[int, ...] = (200, 200)
) -> Builder:
    """Fully connected ReLU network on the flattened input.

    With 784 inputs and 10 classes, widths=(200, 200) has 199,210 parameters and
    widths=(100, 100) has 89,610.

    Args:
      widths: of the hidden layers
    """
    for width in widths:
        check.at_least("widths", width, 1)
    return lambda rngs: MLP(input_shape, num_classes, widths, rngs)


LAMBDA = 0.1  # of the support vector machine's squared norm, from AFL's code


class SVM(Linear):
    """AFL's support vector machine, which FedVeca takes over.

        s = <w, x>,   loss = lambda/2 ||w||^2 + 1/2 max(0, 1 - t s)^2,   w = 0 at first

    with lambda = 0.1 and t = +1 for label 0 (even), -1 for label 1 (odd). The logits are
    lambda/2 ||w||^2 +- s/2: their difference is s and the larger one its sign, so what
    reads logits (accuracy, distillation) reads these; and their mean is the first term,
    so that the loss has it wherever one is taken, in evaluation too.
    """

    def __init__(self, input_shape: Shape, rngs: nnx.Rngs):
        """Weights 0, and no bias."""
        width, zeros = math.prod(input_shape), nnx.initializers.zeros
        self.out = nnx.Linear(width, 1, use_bias=False, kernel_init=zeros, rngs=rngs)

    def head(self, features: jax.Array) -> jax.Array:
        """The score and the term in w as two logits, [batch, 2]."""
        half = self.out(features) / 2
        term = LAMBDA / 2 * (self.out.kernel[...] ** 2).sum()
        return jnp.concatenate([term + half, term - half], axis=1)

    @staticmethod
    def loss(logits: jax.Array, y: jax.Array) -> jax.Array:
        """The loss of each example, [batch], from labels 0 and 1."""
        score = logits[:, 0] - logits[:, 1]
        sign = 1 - 2 * y.astype(score.dtype)
        return logits.mean(1) + jnp.square(jax.nn.relu(1 - sign * score)) / 2


def svm(input_shape: Shape, num_classes: int) -> Builder:
    """The squared-hinge support vector machine of AFL and FedVeca, for two classes."""
    if num_classes != 2:
        raise SettingError(
            f"svm tells 2 classes apart but the data have {num_classes}; write "
            "labels=parity to learn even against odd."
        )
    return lambda rngs: SVM(input_shape, rngs)


class Projected(Classifier):
    """A model whose last layer gave way to a projection z and another last layer.

        h = features(x) [F],   z = W_2 relu(W_1 h + b_1) + b_2 [width],   logits = W z + b

    W_1 is F x F. z is what the classifier reads, also when the model is deployed.
    """

    def __init__(
        self, body: nnx.Module, num_classes: int, rngs: nnx.Rngs, *, width: int
    ):
        """Takes the last layer `out` from `body` and draws the weights of its own."""
        num_features = body.out.in_features
        del body.out  # its weights would be sent around and never used
        self.body = body
        self.fc1 = dense(num_features, num_features, rngs)
        self.fc2 = dense(num_features, width, rngs)
        self.out = dense(width, num_classes, rngs)

    def features(self, x: jax.Array) -> jax.Array:
        """z, [batch, width]."""
        return self.fc2(jax.nn.relu(self.fc1(self.body.features(x))))


def projected(builder: Callable[..., Builder], width: int = 256) -> Callable:
    """The builder of the same models with a projection head.

    Args:
      builder: of modules without a loss of their own that have `features(x)` and an affine
        last layer `out` (nnx.Linear) that reads them; else what it builds is refused.
      width: of the projection, and so of the features.
    """
    check.at_least("projection", width, 1, none="none at all")

    def build(input_shape: Shape, num_classes: int, **options) -> Builder:
        factory = builder(input_shape, num_classes, **options)

        def projected_factory(rngs: nnx.Rngs) -> nnx.Module:
            body = factory(rngs)
            _check_body(body)
            return Projected(body, num_classes, rngs, width=width)

        return projected_factory

    return build


def _check_body(body: nnx.Module) -> None:
    name = type(body).__name__
    if hasattr(body, "loss"):
        raise SettingError(
            f"projection puts a classifier under cross entropy on top of the model, but "
            f"{name} has a loss of its own; write projection=none."
        )
    if not hasattr(body, "features") or not isinstance(
        getattr(body, "out", None), nnx.Linear
    ):
        raise SettingError(
            f"projection goes between features(x) and a last layer `out` (nnx.Linear), "
            f"which {name} has not; give a model that has, or write projection=none."
        )
