"""Models by name, and the adapter from any flax module to a task.

A builder takes (input_shape, num_classes, **options) and returns a factory that draws
the weights of a flax nnx module from its random streams.
"""

from .adapter import classification
from .cnn import cnn
from .conv import conv, max_pool
from .linear import linear
from .mlp import mlp

MODELS = {"linear": linear, "mlp": mlp, "cnn": cnn}

__all__ = ["MODELS", "classification", "cnn", "conv", "linear", "max_pool", "mlp"]
