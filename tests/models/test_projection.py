"""MOON's projection head on top of any model."""

import jax
import numpy as np
import pytest
from flax import nnx
from test_models import task_of

import fedjax_adapt as fa
from fedjax_adapt.models import MODELS, linear, mlp, projected, svm

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


@pytest.mark.slow
def test_the_features_are_the_projection_and_the_classifier_reads_them():
    builder = projected(mlp, width=7)
    task = fa.classification(builder((4,), 3, widths=(5,)), (4,))
    params = jax.jit(task.init)(KEY)
    shapes = jax.tree.map(lambda leaf: leaf.shape, params)
    assert shapes == {
        "body": {"hidden": {"0": {"kernel": (4, 5), "bias": (5,)}}},
        "fc1": {"kernel": (5, 5), "bias": (5,)},
        "fc2": {"kernel": (5, 7), "bias": (7,)},
        "out": {"kernel": (7, 3), "bias": (3,)},
    }
    affine = lambda x, layer: x @ layer["kernel"] + layer["bias"]
    params = jax.tree.map(np.asarray, params)
    h = np.maximum(affine(X, params["body"]["hidden"]["0"]), 0)
    z = affine(np.maximum(affine(h, params["fc1"]), 0), params["fc2"])
    outputs = jax.jit(task.apply)(params, X)
    np.testing.assert_allclose(outputs.features, z, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        outputs.logits, affine(z, params["out"]), rtol=1e-4, atol=1e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, shape, width",
    [
        ("linear", (6, 6, 1), 36),
        ("cnn", (32, 32, 3), 192),
        ("lenet5", (32, 32, 3), 84),
        ("fedveca_cnn", (28, 28, 1), 256),
        ("vgg11", (32, 32, 3), 512),
        ("resnet18", (32, 32, 3), 512),
        ("lstm", (9, 4), 64),
    ],
)
def test_every_model_takes_one_and_gives_its_last_layer_for_it(name, shape, width):
    count = lambda task: fa.num_parameters(jax.eval_shape(task.init, KEY))
    task = fa.classification(projected(MODELS[name])(shape, 10), shape)
    added = (width + 1) * width + (width + 1) * 256 + 257 * 10
    assert count(task) == count(task_of(name, shape)) + added - 10 * (width + 1)


@pytest.mark.slow
def test_dropout_stays_random_below_a_projection():
    task = fa.classification(projected(MODELS["vgg11"])((32, 32, 3), 2), (32, 32, 3))
    assert task.apply_train is not None


class Headless(nnx.Module):
    def __init__(self, rngs):
        self.last = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.last(x)


def test_what_cannot_be_projected_is_one_sentence():
    build = lambda builder, classes: fa.classification(
        projected(builder)((4,), classes), (4,)
    )
    with pytest.raises(ValueError, match="Headless has not.*write projection=none"):
        build(lambda shape, classes: Headless, 3)
    with pytest.raises(ValueError, match="SVM has a loss of its own; write projection"):
        build(svm, 2)
    with pytest.raises(ValueError, match="projection=0 must be an integer >= 1"):
        projected(linear, width=0)
