"""MOON's projection head, between the features of any model and its classifier.

    h = features(x) [F],   z = W_2 relu(W_1 h + b_1) + b_2 [width],   logits = W z + b

W_1 is F x F. The head stays: z is what the classifier reads, also when deployed.

References:
  Li, He & Song, "Model-Contrastive Federated Learning", CVPR 2021,
  https://arxiv.org/abs/2103.16257. Section 3.2; width 256.
"""

from collections.abc import Callable

import jax
from flax import nnx

from .. import check
from ..errors import SettingError
from .linear import Builder, Shape, dense


class Projected(nnx.Module):
    """A model whose last layer gave way to a projection and another last layer."""

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

    def head(self, features: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.out(features)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Logits, [batch, classes]."""
        return self.head(self.features(x))


def projected(builder: Callable[..., Builder], width: int = 256) -> Callable:
    """The builder of the same models with a projection head.

    Args:
      builder: (input_shape, num_classes, **options) -> (rngs -> module), where the module
        has `features(x)` and an affine last layer `out` (nnx.Linear) that reads them.
      width: of the projection, and so of the features.

    Returns:
      A builder with the same arguments.

    Raises:
      ValueError: from what it builds: the module has no such parts, or a loss of its own.
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
