"""The models by name: sizes, initial values, shapes."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_adapt as fa
from fedjax_adapt.models import MODELS, cnn, mlp

KEY = jax.random.key(0)


def task_of(name, shape, num_classes=10, **options):
    return fa.classification(MODELS[name](shape, num_classes, **options), shape)


@pytest.mark.parametrize(
    "name, shape, options, expected",
    [
        ("linear", (8, 8, 1), {}, 650),
        ("mlp", (28, 28, 1), {}, 199_210),
        ("mlp", (784,), {"widths": (100, 100)}, 89_610),
        ("cnn", (32, 32, 3), {}, 797_962),
    ],
)
def test_number_of_parameters_is_the_papers(name, shape, options, expected):
    task = task_of(name, shape, **options)
    assert fa.num_parameters(jax.eval_shape(task.init, KEY)) == expected


def test_cifar100_cnn_has_the_papers_size():
    task = task_of("cnn", (32, 32, 3), num_classes=100)
    assert fa.num_parameters(jax.eval_shape(task.init, KEY)) == 815_332


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_biases_start_within_one_over_root_fan_in(name):
    task = task_of(name, (16, 16, 1))
    params = jax.jit(task.init)(KEY)
    layers = jax.tree.leaves(
        params, is_leaf=lambda p: isinstance(p, dict) and "bias" in p
    )
    for layer in layers:
        bound = 1 / math.sqrt(math.prod(layer["kernel"].shape[:-1]))
        for values in layer.values():
            largest = np.abs(values).max()
            assert largest <= bound
            assert largest > bound * 0.5 ** (
                20 / values.size
            )  # and they fill the range


@pytest.mark.parametrize("name", MODELS)
def test_features_are_what_the_last_layer_sees(name):
    shape = (16, 16, 1)
    task = task_of(name, shape)
    params = jax.jit(task.init)(KEY)
    outputs = jax.jit(task.apply)(params, jnp.ones((3, *shape)))
    assert outputs.logits.shape == (3, 10)
    features, head = jax.tree.map(np.asarray, (outputs.features, params["out"]))
    expected = features @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5, atol=1e-6)
    assert task.apply_train is None


def lax_cnn(params, x):
    """The same network, the slow way."""
    affine = lambda y, layer: y + jnp.broadcast_to(layer["bias"], y.shape)
    for name in ("conv1", "conv2"):
        x = lax.conv_general_dilated(
            x, params[name]["kernel"], (1, 1), "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )  # fmt: skip
        x = jax.nn.relu(affine(x, params[name]))
        window = (1, 2, 2, 1)
        x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(x.shape[0], -1)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(affine(x @ params[name]["kernel"], params[name]))
    return affine(x @ params["out"]["kernel"], params["out"])


def test_cnn_is_the_network_written_with_lax():
    shape = (18, 21, 2)
    task = task_of("cnn", shape)
    params = jax.jit(task.init)(KEY)
    x = jax.random.normal(jax.random.key(1), (3, *shape))
    loss = lambda apply: jax.jit(jax.value_and_grad(lambda p: (apply(p, x) ** 2).sum()))
    actual = loss(lambda p, x: task.apply(p, x).logits)(params)
    expected = loss(lax_cnn)(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        actual,
        expected,
    )


def test_one_key_gives_one_model_and_another_key_another():
    task = task_of("linear", (4,), num_classes=2)
    first, same, other = (
        task.init(jax.random.key(i))["out"]["kernel"] for i in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_says_in_one_line_what_it_is(name):
    summary = inspect.getdoc(MODELS[name]).partition("\n")[0]
    assert 10 < len(summary) < 80


def test_small_images_are_refused_by_the_cnn():
    with pytest.raises(ValueError, match=r"input_shape=\(8, 8, 1\).*use mlp or linear"):
        cnn((8, 8, 1), 10)


def test_widths_must_be_positive():
    with pytest.raises(ValueError, match="widths=0 must be an integer >= 1"):
        mlp((4,), 2, widths=(3, 0))
