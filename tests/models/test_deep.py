"""VGG and ResNet, cut short so that they compile fast, against the slow way in lax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from test_models import task_of

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.models import MODELS, convnets
from fedjax_adapt.models.layers import GroupNorm

KEY = jax.random.key(0)


@pytest.fixture
def short(monkeypatch):
    for name, value in (
        ("VGG_WIDTHS", (2, 3)),
        ("VGG_PIXELS", 4),
        ("VGG_HIDDEN", 5),
        ("RESNET_WIDTHS", (4, 6)),
        ("RESNET_STRIDES", (1, 2)),
    ):
        monkeypatch.setattr(convnets, name, value)


def short_vgg(shape, num_classes, dropout=0.5):
    return convnets._vgg("short", shape, num_classes, (1, 2), dropout)


def short_resnet(shape, num_classes, groups):
    return lambda rngs: convnets.ResNet(shape, num_classes, rngs, groups=groups)


def model(builder, shape, **options):
    """A task, parameters drawn in NumPy, biases too, and a batch."""
    task = fa.classification(builder(shape, 3, **options), shape)
    rng = np.random.default_rng(0)
    drawn = lambda p: jnp.asarray(0.5 * rng.normal(size=p.shape), p.dtype)
    params = jax.tree.map(drawn, jax.eval_shape(task.init, KEY))
    return task, params, rng.normal(size=(2, *shape)).astype(np.float32)


def lax_conv(x, layer, stride=1):
    pad = layer["kernel"].shape[0] // 2
    y = lax.conv_general_dilated(
        x, layer["kernel"], (stride, stride), ((pad, pad), (pad, pad)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )  # fmt: skip
    return y + layer.get("bias", jnp.zeros(1))[None, None, None]


def affine(x, layer):
    return x @ layer["kernel"] + layer["bias"][None]


def lax_vgg(params, x):
    for _, stage in sorted(params["stages"].items()):
        for _, layer in sorted(stage.items()):
            x = jax.nn.relu(lax_conv(x, layer))
        window = (1, 2, 2, 1)
        x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)  # (channel, height, width)
    for name in ("fc1", "fc2"):
        x = jax.nn.relu(affine(x, params[name]))
    return affine(x, params["out"])


@pytest.mark.slow
def test_vgg_is_the_network_written_with_lax(short):
    task, params, x = model(short_vgg, (8, 4, 1))
    actual = jax.jit(task.apply)(params, x)
    expected = jax.jit(lax_vgg)(params, x)
    np.testing.assert_allclose(actual.logits, expected, rtol=1e-4, atol=1e-5)
    assert actual.features.shape == (2, 5)


def flax_norm(x, layer, groups):
    norm = nnx.GroupNorm(x.shape[-1], groups, epsilon=1e-5, rngs=nnx.Rngs(0))
    norm.scale[...], norm.bias[...] = layer["scale"], layer["bias"]
    return norm(x)


def lax_resnet(params, x, groups):
    normed = lambda x, layer, stride=1: flax_norm(
        lax_conv(x, layer["conv"], stride), layer["norm"], groups
    )
    x = jax.nn.relu(normed(x, params["stem"]))
    for (_, block), stride in zip(
        sorted(params["blocks"].items()), (1, 1, 2, 1), strict=True
    ):
        y = jax.nn.relu(normed(x, block["conv1"], stride))
        y = normed(y, block["conv2"])
        x = normed(x, block["shortcut"], stride) if "shortcut" in block else x
        x = jax.nn.relu(x + y)
    return affine(x.mean((1, 2)), params["out"])


@pytest.mark.slow
def test_resnet_is_the_network_written_with_lax(short):
    task, params, x = model(short_resnet, (9, 8, 1), groups=2)
    with_shortcut = [name for name, b in params["blocks"].items() if "shortcut" in b]
    assert with_shortcut == ["2"]
    actual = jax.jit(task.apply)(params, x)
    expected = jax.jit(lax_resnet, static_argnums=2)(params, x, 2)
    np.testing.assert_allclose(actual.logits, expected, rtol=1e-3, atol=1e-4)
    assert task.apply_train is None


def test_group_norm_leaves_each_group_of_each_example_standard():
    x = 3 + 2 * np.random.default_rng(0).normal(size=(6, 5, 4, 2)).astype(np.float32)
    y = np.asarray(GroupNorm(6, 3)(jnp.asarray(x))).reshape(3, -1, 2)
    np.testing.assert_allclose(y.mean(1), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(1), 1, rtol=1e-4)


def test_convolutions_of_the_large_models_start_with_kaimings_variance():
    normed = convnets.NormedConv(16, 128, 3, 1, 2, nnx.Rngs(0)).conv
    biased = convnets._vgg_conv(16, 128, nnx.Rngs(0))
    for conv in (normed, biased):  # by what leaves a layer
        np.testing.assert_allclose(conv.kernel[...].var(), 2 / (9 * 128), rtol=0.05)
    assert normed.bias is None
    np.testing.assert_array_equal(biased.bias[...], np.zeros(128))


# weights and biases of 3 x 3 convolutions: 3-64, 64-128, 128-256, 256-256, ...
A, B, C, D, E, F = 1792, 73_856, 295_168, 590_080, 1_180_160, 2_359_808
STAGES = {
    "vgg11": [[A], [B], [C, D], [E, F], [F, F]],  # configuration A
    "vgg16": [[A, 36_928], [B, 147_584], [C, D, D], [E, F, F], [F, F, F]],  # D
}
# from 512 pixels of one stage to 512, to 512, to ten labels
CLASSIFIER = {"fc1": 262_656, "fc2": 262_656, "out": 5130}


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_every_layer_of_a_vgg_has_its_parameters_in_its_stage(name):
    params = jax.eval_shape(task_of(name, (32, 32, 3)).init, KEY)
    in_order = lambda stage: [stage[str(i)] for i in range(len(stage))]
    stages = [
        [fa.num_parameters(layer) for layer in in_order(stage)]
        for stage in in_order(params.pop("stages"))
    ]
    assert stages == STAGES[name]
    others = {layer: fa.num_parameters(of) for layer, of in params.items()}
    assert others == CLASSIFIER


@pytest.mark.slow
def test_both_hidden_layers_of_a_vgg_are_given_half_of_what_they_would_be(short):
    """Dropout .5 - ReLU - Dropout .5: ones everywhere, a sum, then each as it is."""
    task, params, _ = model(short_vgg, (8, 8, 1))
    ones = lambda p: jnp.ones(p.shape) if p.ndim == 1 else jnp.zeros(p.shape)
    params["stages"] = jax.tree.map(ones, params["stages"])  # 12 pixels of 1
    params["fc1"] = {"kernel": jnp.ones((12, 5)), "bias": jnp.zeros(5)}
    params["fc2"] = {"kernel": jnp.eye(5), "bias": jnp.zeros(5)}
    x = np.zeros((300, 8, 8, 1), np.float32)
    seen = np.asarray(jax.jit(task.apply_train)(params, x, KEY).features)
    assert np.mean(seen > 0) == pytest.approx(0.5, abs=0.05)
    number = seen.max(1)[seen.any(1)] / 4  # of 12 pixels, each doubled twice
    assert number.mean() == pytest.approx(6, abs=0.4)
    assert number.std() == pytest.approx(12**0.5 / 2, rel=0.2)
    np.testing.assert_array_equal(jax.jit(task.apply)(params, x).features, 12)


@pytest.mark.slow
def test_the_stages_of_resnet18_halve_the_image_but_for_the_first():
    """A 3 x 3 stem at stride 1 without pooling, widths 64 to 512, strides 1, 2, 2, 2."""
    build = MODELS["resnet18"]((32, 32, 3), 10)
    net = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    graph, weights = nnx.split(net)

    def outputs(weights, x):
        net, shown = nnx.merge(graph, weights), []
        for layer in (net.stem, *net.blocks):
            x = layer(x)
            shown.append(x)
        return shown

    x = jax.ShapeDtypeStruct((3, 32, 32, 7), jnp.float32)
    stages = [(64, 32, 32, 7), (128, 16, 16, 7), (256, 8, 8, 7), (512, 4, 4, 7)]
    shapes = [of.shape for of in jax.eval_shape(outputs, weights, x)]
    assert shapes == [stages[0], *(stage for stage in stages for _ in range(2))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "builder, shape, options",
    [
        (short_vgg, (8, 4, 1), {"dropout": 0.2}),
        (short_resnet, (9, 8, 1), {"groups": 2}),
    ],
)
def test_a_round_moves_every_parameter(short, builder, shape, options):
    task, params, x = model(builder, shape, **options)
    data = fa.FederatedDataset.from_clients(
        [(x[:1], np.array([0])), (x[1:], np.array([1]))], num_classes=3
    )
    plan = fa.Plan(batch_size=1, lr=0.1)
    before = fa.init_state(fedavg(), task, data, plan, KEY)._replace(params=params)
    after, _ = jax.jit(fa.make_round(fedavg(), task, data, plan))(before, KEY)
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), params, after.params)
    assert all(jax.tree.leaves(moved)), moved
