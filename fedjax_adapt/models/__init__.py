"""Models by name, and the adapter from any flax module to a task.

A builder takes (input_shape, num_classes, **options), the shape of one example and how many
labels there are, and returns a factory that draws the weights of a flax nnx module from its
random streams. It raises SettingError where the model cannot take such examples.
"""

from .adapter import classification
from .augment import AUGMENTS, flip_crop, reflect_crop
from .conv import conv
from .convnets import cnn, fedveca_cnn, lenet5, resnet18, vgg11, vgg16
from .dense import linear, mlp, projected, svm
from .layers import max_pool
from .lstm import lstm
from .timing import fastest_ways
from .ways import with_ways

MODELS = {
    "linear": linear,
    "svm": svm,
    "mlp": mlp,
    "cnn": cnn,
    "lenet5": lenet5,
    "fedveca_cnn": fedveca_cnn,
    "vgg11": vgg11,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "lstm": lstm,
}

# whose inputs are pixels in [0, 1], as the papers have them, and not standardised
OF_PIXELS = ("svm", "fedveca_cnn")

__all__ = ["AUGMENTS", "MODELS", "OF_PIXELS", "classification", "conv", "fastest_ways"]
__all__ += ["flip_crop", "max_pool", "projected", "reflect_crop", "with_ways"]
# by name, for type checkers: those of `MODELS`
__all__ += ["cnn", "fedveca_cnn", "lenet5", "linear", "lstm", "mlp", "resnet18", "svm"]
__all__ += ["vgg11", "vgg16"]
