"""The models by name: sizes, initial values, shapes."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedjax_adapt as fa
from fedjax_adapt.core import predict_train
from fedjax_adapt.models import MODELS

KEY = jax.random.key(0)
IMAGES = (16, 16, 1)
CIFAR = (32, 32, 3)


@functools.cache
def task_of(name, shape, num_classes=10, **options):
    """The task of a model by name: once, as those of large ones take a second."""
    return fa.classification(MODELS[name](shape, num_classes, **options), shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, shape, options, expected",
    [
        ("linear", (8, 8, 1), {}, 650),
        ("mlp", (28, 28, 1), {}, 199_210),
        ("mlp", (784,), {"widths": (100, 100)}, 89_610),
        ("cnn", CIFAR, {}, 797_962),
        ("lenet5", CIFAR, {}, 62_006),
        # 5 x 5 x 32 twice, then 1568 or 2048 into 256
        ("fedveca_cnn", (28, 28, 1), {}, 832 + 25_632 + 1569 * 256 + 2570),
        ("fedveca_cnn", CIFAR, {}, 2432 + 25_632 + 2049 * 256 + 2570),
        ("vgg11", CIFAR, {}, 9_750_922),
        ("vgg16", CIFAR, {}, 15_245_130),
        ("resnet18", CIFAR, {}, 11_173_962),
        ("resnet18", CIFAR, {"groups": 1}, 11_173_962),
        # its strides leave one pixel of the digits' eight
        ("resnet18", (8, 8, 1), {}, 11_172_810),
        ("lstm", (98, 40), {}, 61_066),
    ],
)
def test_number_of_parameters_is_the_papers(name, shape, options, expected):
    task = task_of(name, shape, **options)
    assert fa.num_parameters(jax.eval_shape(task.init, KEY)) == expected


@pytest.mark.slow
def test_cifar100_cnn_has_the_papers_size():
    task = task_of("cnn", (32, 32, 3), num_classes=100)
    assert fa.num_parameters(jax.eval_shape(task.init, KEY)) == 815_332


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_weights_and_biases_start_within_one_over_root_fan_in(name):
    task = task_of(name, IMAGES)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_features_are_what_the_last_layer_sees(name):
    shape = IMAGES
    task = task_of(name, shape)
    params = jax.jit(task.init)(KEY)
    outputs = jax.jit(task.apply)(params, jnp.ones((3, *shape)))
    assert outputs.logits.shape == (3, 10)
    features, head = jax.tree.map(np.asarray, (outputs.features, params["out"]))
    expected = features @ head["kernel"] + head["bias"]
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(task.head(params, outputs.features), outputs.logits)
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
    for name in sorted(set(params) & {"fc1", "fc2"}):
        x = jax.nn.relu(affine(x @ params[name]["kernel"], params[name]))
    return affine(x @ params["out"]["kernel"], params["out"])


@pytest.mark.slow
def test_cnn_is_the_network_written_with_lax():
    shape = (18, 21, 2)
    task = task_of("cnn", shape)
    params = jax.jit(task.init)(KEY)
    x = jax.random.normal(jax.random.key(1), (3, *shape))
    loss = lambda apply: jax.jit(jax.value_and_grad(lambda p: (apply(p, x) ** 2).sum()))
    actual = loss(lambda p, x: task.apply(p, x).logits)(params)
    expected = loss(lambda p, x: lax_cnn(p, x))(params)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5),
        actual,
        expected,
    )


@pytest.mark.slow
def test_fedvecas_weights_are_normal_within_two_deviations():
    params = jax.jit(task_of("fedveca_cnn", IMAGES).init)(KEY)
    for name, layer in params.items():
        values = np.asarray(layer["kernel"])
        assert 0.195 < np.abs(values).max() <= 0.2, name
        # the deviation of a normal that is cut off at two of its own is 0.88 of that
        np.testing.assert_allclose(values.std(), 0.088, rtol=0.05)
        np.testing.assert_allclose(layer["bias"], 0.1, rtol=1e-6)


def numpy_response(x):
    """x_c / (1 + 0.001/9 sum of x_j^2 for |j - c| <= 4)^0.75, the channels last."""
    found = np.empty_like(x)
    for c in range(x.shape[-1]):
        near = (x[..., max(c - 4, 0) : c + 5] ** 2).sum(-1)
        found[..., c] = x[..., c] / (1 + 0.001 / 9 * near) ** 0.75
    return found


def numpy_fedveca_cnn(params, x):
    """AFL's network in float64, [batch, height, width, channels]."""

    def convolved(x, layer):
        y = np.pad(x, ((0, 0), (2, 2), (2, 2), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(y, (5, 5), (1, 2))
        return np.maximum(
            np.einsum("bhwcij,ijcf->bhwf", windows, layer["kernel"]) + layer["bias"], 0
        )

    def pooled(x):
        height, width = (2 * (n // 2) for n in x.shape[1:3])
        four = [x[:, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1)]
        return np.max(four, axis=0)

    if x.shape[3] > 1:
        x = (x - x.mean((1, 2, 3), keepdims=True)) / x.std((1, 2, 3), keepdims=True)
    x = numpy_response(pooled(convolved(x, params["conv1"])))
    x = pooled(numpy_response(convolved(x, params["conv2"])))
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    x = np.maximum(x @ params["fc1"]["kernel"] + params["fc1"]["bias"], 0)
    return x @ params["out"]["kernel"] + params["out"]["bias"]


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(6, 9, 1), (8, 4, 3)])
def test_fedvecas_network_is_afls(shape):
    task = task_of("fedveca_cnn", shape)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: rng.normal(size=p.shape), jax.eval_shape(task.init, KEY)
    )
    x = 3 * rng.normal(size=(3, *shape)) + 1
    actual = jax.jit(task.apply)(
        jax.tree.map(lambda p: jnp.asarray(p, jnp.float32), params),
        x.astype(np.float32),
    ).logits
    expected = numpy_fedveca_cnn(params, x)
    size = np.abs(expected).max()
    np.testing.assert_allclose(actual / size, expected / size, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_an_image_of_one_colour_has_finite_logits():
    task = task_of("fedveca_cnn", (4, 4, 3))
    logits = task.apply(task.init(KEY), jnp.full((2, 4, 4, 3), 0.5)).logits
    assert np.isfinite(logits).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, shape",
    [
        ("lstm", (5, 3)),
        pytest.param("lenet5", IMAGES, marks=pytest.mark.slow),
        pytest.param("fedveca_cnn", IMAGES, marks=pytest.mark.slow),
    ],
)
def test_a_round_moves_every_parameter(name, shape):
    task = task_of(name, shape, num_classes=3)
    x, y = np.random.default_rng(0).normal(size=(6, *shape)), np.arange(6) % 3
    data = fa.FederatedDataset.from_clients(
        [(x[:4].astype(np.float32), y[:4]), (x[4:].astype(np.float32), y[4:])],
        num_classes=3,
    )
    algorithm = fa.algorithms.fedavg()
    plan = fa.Plan(batch_size=4, lr=0.1)
    before = fa.init_state(algorithm, task, data, plan, KEY)
    after, info = jax.jit(fa.make_round(algorithm, task, data, plan))(before, KEY)
    assert info.num_steps.tolist() == [1, 1]
    moved = jax.tree.map(
        lambda a, b: bool(jnp.abs(a - b).max() > 0), before.params, after.params
    )
    assert all(jax.tree.leaves(moved)), moved


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "vgg11",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("vgg16", "resnet18")),
    ],
)
def test_large_models_can_be_differentiated_for_many_clients(name):
    task = task_of(name, CIFAR)
    params = jax.eval_shape(task.init, KEY)

    def loss(params, x, y, key):
        outputs = predict_train(task, params, x, key)
        assert outputs.features.shape == (4, 512)
        return task.loss(outputs.logits, y).mean()

    clients = lambda dtype, *shape: jax.ShapeDtypeStruct((2, *shape), dtype)
    losses, gradients = jax.eval_shape(
        jax.vmap(jax.value_and_grad(loss), (None, 0, 0, 0)),
        params,
        clients(np.uint8, 4, *CIFAR),
        clients(np.int32, 4),
        jax.eval_shape(lambda: jax.random.split(KEY)),
    )
    assert losses.shape == (2,)
    jax.tree.map(
        lambda g, p: np.testing.assert_equal(g.shape[1:], p.shape), gradients, params
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


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("cnn", (8, 8, 1), r"cnn got input_shape=\(8, 8, 1\).*16 x 16 pixels; use mlp"),
        ("lenet5", (784,), r"lenet5 got input_shape=\(784,\)"),
        ("vgg11", (28, 28, 1), "vgg11 got.*at least 32 x 32 pixels"),
        ("resnet18", (7, 9, 1), "resnet18 got.*at least 8 x 8 pixels"),
        ("lstm", (8, 8, 1), r"lstm got.*needs \(time, features\)"),
    ],
)
def test_inputs_a_model_cannot_take_are_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        MODELS[name](shape, 10)


@pytest.mark.parametrize(
    "name, shape, options, message",
    [
        ("mlp", (4,), {"widths": (3, 0)}, "widths=0 must be an integer >= 1"),
        ("vgg16", CIFAR, {"dropout": 1}, r"dropout=1 must lie in \[0, 1\)"),
        ("resnet18", CIFAR, {"groups": 3}, "groups=3 does not divide the 64"),
        ("lstm", (5, 3), {"layers": 0}, "layers=0 must be an integer >= 1"),
    ],
)
def test_options_out_of_range_are_refused(name, shape, options, message):
    with pytest.raises(ValueError, match=message):
        MODELS[name](shape, 10, **options)
