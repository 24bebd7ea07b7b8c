"""Any model becomes a task: nnx, linen or a pair of functions."""

from functools import lru_cache, partial, wraps

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

import fedjax_adapt as fa
from fedjax_adapt.core import cross_entropy, fused_cross_entropy, losses_of
from fedjax_adapt.models import linear

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)


class Plain(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List(
            [nnx.Linear(4, 6, rngs=rngs), nnx.Linear(6, 3, rngs=rngs)]
        )

    def __call__(self, x):
        return self.layers[1](jax.nn.relu(self.layers[0](x)))


class Dropping(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(4, 300, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.last = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.last(self.drop(self.first(x)))


class Noisy(nnx.Module):
    """Of two halves, with noise between them in training."""

    def __init__(self, rngs):
        self.body, self.out = nnx.Linear(4, 3, rngs=rngs), nnx.Linear(3, 2, rngs=rngs)

    def features(self, x):
        return self.body(x)

    def head(self, features):
        return self.out(features)

    def __call__(self, x, rngs=None):
        features = self.features(x)
        if rngs is not None:
            features = features + jax.random.normal(rngs.noise(), features.shape)
        return fa.Outputs(self.head(features), features)


class BatchNormed(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(4, rngs=rngs)

    def __call__(self, x):
        return self.norm(x)


class LinenDropping(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        return linen.Dropout(0.5, deterministic=not train)(linen.Dense(300)(x))


class LinenParts(linen.Module):
    def setup(self):
        self.body, self.out = linen.Dense(6), linen.Dense(3)

    def features(self, x):
        return jax.nn.relu(self.body(x))

    def head(self, features):
        return self.out(features)

    def __call__(self, x):
        return self.head(self.features(x))


class LinenBatchNormed(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        return linen.BatchNorm(use_running_average=not train)(x)


def test_an_nnx_factory_gives_plain_nested_dicts():
    task = fa.classification(Plain, (4,))
    params = jax.jit(task.init)(KEY)
    assert jax.tree.map(jnp.shape, params) == {
        "layers": {
            "0": {"kernel": (4, 6), "bias": (6,)},
            "1": {"kernel": (6, 3), "bias": (3,)},
        }
    }
    a, b = params["layers"]["0"], params["layers"]["1"]
    a, b = jax.tree.map(np.asarray, (a, b))
    expected = np.maximum(X @ a["kernel"] + a["bias"], 0) @ b["kernel"] + b["bias"]
    outputs = jax.jit(task.apply)(params, X)
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5, atol=1e-6)
    assert outputs.features is None
    assert task.apply_train is None


def test_an_nnx_module_starts_from_its_own_weights():
    module = Plain(nnx.Rngs(3))
    task = fa.classification(module, (4,))
    for key in (KEY, jax.random.key(1)):
        np.testing.assert_array_equal(
            task.init(key)["layers"]["0"]["kernel"], module.layers[0].kernel[...]
        )
    np.testing.assert_allclose(
        task.apply(task.init(KEY), X).logits, module(X), rtol=1e-6
    )


@pytest.mark.parametrize("model", [Dropping, Dropping(nnx.Rngs(0)), LinenDropping()])
def test_dropout_is_random_in_training_only(model):
    task = fa.classification(model, (4,))
    params = task.init(KEY)
    train = jax.jit(task.apply_train)
    assert not np.any(task.apply(params, X).logits == 0)
    one, same, other = (train(params, X, jax.random.key(i)).logits for i in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_two_dropout_layers_drop_different_units():
    task = fa.classification(Dropping, (4,))
    dropped = np.mean(task.apply_train(task.init(KEY), X, KEY).logits == 0)
    assert 0.7 < dropped < 0.8  # 1 - 1/4; layers that agree would drop a half


@pytest.mark.slow
def test_dropout_under_vmap_and_grad_has_one_mask_per_client():
    task = fa.classification(Dropping, (4,))
    params = task.init(KEY)
    loss = lambda params, key: task.apply_train(params, X, key).logits.sum()
    grads = jax.vmap(jax.grad(loss), (None, 0))(params, jax.random.split(KEY, 2))
    bias = grads["first"]["bias"]
    assert bias.shape == (2, 300)
    assert not np.array_equal(bias[0], bias[1])


def test_a_linen_module_with_features_and_head_shows_its_features():
    task = fa.classification(LinenParts(), (4,))
    params = task.init(KEY)
    outputs = task.apply(params, X)
    assert outputs.features.shape == (5, 6)
    np.testing.assert_allclose(
        outputs.logits, LinenParts().apply({"params": params}, X), rtol=1e-6
    )
    np.testing.assert_array_equal(task.head(params, outputs.features), outputs.logits)
    assert task.apply_train is None


class Between(nnx.Module):
    """Its __call__ is not the one of its parts after the other."""

    def __init__(self, rngs):
        self.features = nnx.Linear(4, 6, rngs=rngs)
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(jax.nn.relu(self.features(x)))


class BetweenMethods(Plain):
    def features(self, x):
        return self.layers[0](x)

    def head(self, features):
        return self.layers[1](features)


class LinenBetween(LinenParts):
    def __call__(self, x):
        return 2 * super().__call__(x)


class Otherwise(nnx.Module):
    """Its __call__ differs from its parts in a number, or inside a jitted function."""

    def __init__(self, rngs, slope, curve):
        self.body = nnx.Linear(4, 6, rngs=rngs)
        self.out = nnx.Linear(6, 3, rngs=rngs)
        self.slope, self.curve = slope, curve

    def features(self, x):
        return self.body(x)

    def head(self, features, slope=2.0, curve=jnp.sin):
        return self.out(jax.jit(curve)(slope * features))

    def __call__(self, x):
        return self.head(self.features(x), self.slope, self.curve)


@pytest.mark.parametrize(
    "model",
    [
        Between(nnx.Rngs(0)),
        BetweenMethods(nnx.Rngs(0)),
        LinenBetween(),
        Otherwise(nnx.Rngs(0), 3.0, jnp.sin),
        Otherwise(nnx.Rngs(0), 2.0, jnp.tanh),
    ],
)
def test_a_model_is_its_call_whatever_its_parts_are_called(model):
    task = fa.classification(model, (4,))
    params = task.init(KEY)
    wanted = (
        model.apply({"params": params}, X)
        if isinstance(model, linen.Module)
        else model(X)
    )
    np.testing.assert_array_equal(task.apply(params, X).logits, wanted)
    assert task.head is None


def test_parts_that_jit_the_same_functions_are_the_call():
    task = fa.classification(Otherwise(nnx.Rngs(0), 2.0, jnp.sin), (4,))
    assert task.apply(task.init(KEY), X).features.shape == (5, 6)


class Constant(Plain):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.shift = jnp.arange(4.0)


@pytest.mark.parametrize("model", [Constant, Constant(nnx.Rngs(0))])
def test_an_array_of_a_module_that_is_no_parameter_is_refused(model):
    with pytest.raises(ValueError, match=r"^Constant.shift is an array.*nnx.Param for"):
        fa.classification(model, (4,))


class LinenNoise(linen.Module):
    @linen.compact
    def __call__(self, x, train: bool):
        if train:
            x = x + jax.random.normal(self.make_rng("noise"), x.shape)
        return linen.Dense(3)(x)


def test_a_linen_module_has_random_numbers_under_any_name_in_training():
    task = fa.classification(LinenNoise(), (4,))
    params = task.init(KEY)
    one, two = (task.apply_train(params, X, jax.random.key(i)).logits for i in (1, 2))
    assert np.abs(one - two).max() > 0.1


@pytest.mark.parametrize(
    "augment, message",
    [
        ("flip_crop", r"^augment is 'flip_crop', which takes no \(key, x\); write"),
        (lambda x: x, r"^augment is the function <lambda>, which takes no \(key, x\)"),
        (lambda key, x: x[:1], r"returned float32\[1, 4\] for inputs float32\[2, 4\]"),
        (lambda key, x: (255 * x).astype(np.uint8), r"^augment returned uint8\[2, 4\]"),
        (lambda key, x: (x, x), "^augment returned a tuple for inputs"),
    ],
)
def test_an_augmentation_that_gives_other_inputs_is_refused(augment, message):
    with pytest.raises(ValueError, match=message):
        fa.classification(Plain, (4,), augment=augment)


def test_a_pair_of_functions_is_taken_as_it_is():
    init = lambda key: {"w": jax.random.normal(key, (4, 3))}
    task = fa.classification((init, lambda params, x: x @ params["w"]), (4,))
    np.testing.assert_allclose(task.apply(task.init(KEY), X).logits, X @ init(KEY)["w"])
    features = lambda params, x: fa.Outputs(x @ params["w"], x)
    task = fa.classification((init, features), (4,))
    np.testing.assert_array_equal(task.apply(task.init(KEY), X).features, X)


def test_pixels_are_normalised_in_their_own_units():
    shape, mean, std = (2, 2, 3), (100.0, 110.0, 120.0), (50.0, 60.0, 70.0)
    model = ((lambda key: ()), lambda params, x: x.reshape(x.shape[0], -1))
    task = fa.classification(model, shape, mean, std)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, *shape)
    logits = task.apply((), pixels).logits
    assert logits.dtype == jnp.float32
    expected = (pixels - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(logits, expected.reshape(2, -1), rtol=1e-6)


@pytest.mark.slow
def test_double_precision_inputs_stay_double():
    with jax.enable_x64():
        half = jnp.bfloat16(0.5)
        task = fa.classification(linear((4,), 3), (4,), mean=half, std=2)
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), task.init(KEY))
        logits = task.apply(params, X.astype(np.float64)).logits
        out = jax.tree.map(np.asarray, params["out"])
        expected = (X.astype(np.float64) - 0.5) / 2 @ out["kernel"] + out["bias"]
        assert logits.dtype == jnp.float64
        np.testing.assert_allclose(logits, expected, rtol=1e-14)


@pytest.mark.slow
def test_the_loss_is_cross_entropy_of_each_example():
    task = fa.classification(linear((4,), 3), (4,))
    logits, y = X[:, :3], np.array([0, 1, 2, 0, 1])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(task.loss(logits, y), -np.log(p[range(5), y]), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.int8])
def test_the_fused_cross_entropy_is_optaxs_with_its_gradient(dtype):
    """Labels that no logit has, infinite logits and NaN included."""
    optaxs = lambda logits, y: cross_entropy(logits, y)
    logits = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    logits[3, 0], logits[4, 1], logits[5, 2] = np.inf, -np.inf, np.nan
    for last in (2, 3, 100, *((-1, -3, -4) if dtype != np.uint8 else ())):
        y = np.array([0, 1, 2, 0, 1, 2, 0, last], dtype)
        weight = np.arange(1.0, 9.0, dtype=np.float32)
        (a, pull_a), (b, pull_b) = (
            jax.vjp(partial(loss, y=y), logits)
            for loss in (fused_cross_entropy, optaxs)
        )
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(pull_a(weight)[0], pull_b(weight)[0], rtol=1e-6)


def test_the_gradient_of_the_loss_is_no_scatter(task):
    x, y = jnp.ones((5, 4)), jnp.zeros(5, jnp.int32)
    loss = lambda params: losses_of(task, task.apply(params, x), y).sum()
    text = str(jax.make_jaxpr(jax.grad(loss))(task.init(jax.random.key(0))))
    assert "gather" in text and "scatter" not in text


class Absolute(nnx.Module):
    def __init__(self, rngs):
        self.out = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(x)

    def loss(self, logits, y):
        return jnp.abs(logits[:, 0] - y)


class LinenAbsolute(LinenParts):
    def loss(self, logits, y):
        return jnp.abs(logits[:, 0] - y)


@pytest.mark.parametrize("model", [Absolute, Absolute(nnx.Rngs(0)), LinenAbsolute()])
def test_a_module_may_bring_its_own_loss(model):
    task = fa.classification(model, (4,))
    losses = task.loss(jnp.array([[2.0], [-1.0]]), np.array([0, 1]))
    np.testing.assert_array_equal(losses, [2, 2])


@pytest.mark.parametrize(
    "model", [BatchNormed, BatchNormed(nnx.Rngs(0)), LinenBatchNormed()]
)
def test_running_statistics_are_refused(model):
    with pytest.raises(
        ValueError, match="Normed holds [bB]atch_?[sS]tat.*write GroupNorm"
    ):
        fa.classification(model, (4,))


class LinenWide(linen.Module):
    width: int = 5

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.width)(x)


class Sized(nnx.Module):
    def __init__(self, width, rngs):
        self.out = nnx.Linear(width, 3, rngs=rngs)


@pytest.mark.parametrize(
    "model, message",
    [
        (3, "model=3 is no flax module"),
        (Sized, r"^model is the class Sized, .* with rngs alone \(missing .*'rngs'\)"),
        (fa.models.mlp, "^model is the function mlp, .* give what it returns"),
        (lambda: Sized(4, nnx.Rngs(0)), "<lambda>, .*rngs alone .too many positional"),
        (lambda rngs: 3, "factory returned int, not an nnx.Module"),
        (
            LinenParts,
            r"model=LinenParts is the class .* give a module, as in LinenParts\(\)",
        ),
        (
            LinenWide,
            r"model=LinenWide is the class .* give a module, as in LinenWide\(\)",
        ),
        (
            (lambda key: (), lambda params, x: x.sum()),
            r"returned shape \[\] for a batch of 2",
        ),
    ],
)
def test_what_is_no_classifier_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        fa.classification(model, (4,))


def of_width(width, rngs):
    return nnx.Linear(width, 3, rngs=rngs)


@pytest.mark.parametrize(
    "factory",
    [
        wraps(of_width)(lambda rngs: of_width(4, rngs)),
        partial(of_width, 4),
        lambda *, rngs, width=4: of_width(width, rngs),
        lru_cache(lambda rngs: of_width(4, rngs)),  # of which Python knows no arguments
    ],
)
def test_a_factory_is_taken_that_can_be_called_with_rngs_alone(factory):
    assert fa.classification(factory, (4,)).init(KEY)


def test_a_standard_deviation_of_zero_is_refused():
    for name, moment in (("mean", np.nan), ("mean", "1"), ("std", [1, np.inf, 1, 1])):
        with pytest.raises(
            ValueError, match=f"^{name}=.* is not a finite number; write one"
        ):
            fa.classification(Plain, (4,), **{name: moment})
    with pytest.raises(ValueError, match="std=0.0 must be above 0"):
        fa.classification(Plain, (4,), std=0.0)


def test_inputs_of_another_shape_are_refused():
    task = fa.classification(Plain, (4,))
    with pytest.raises(
        ValueError, match=r"takes inputs of shape \[4\] but got.*\[5, 3\]"
    ):
        task.apply(task.init(KEY), X[:, :3])


def test_what_is_restored_is_what_the_model_standardises():
    """Pixels of two channels; a task that standardises nothing has nothing to undo."""
    assert fa.classification(Plain, (4,)).restore is None
    mean, std = (100.0, 20.0), (50.0, 3.0)
    same = (lambda key: {}, lambda params, x: x.mean((1, 2)))
    task = fa.classification(same, (2, 2, 2), mean, std)
    z = np.random.default_rng(0).normal(size=(5, 2, 2, 2)).astype(np.float32)
    pixels = task.restore(jnp.asarray(z))
    np.testing.assert_allclose(pixels, z * std + mean, rtol=1e-5)
    logits = task.apply({}, pixels).logits
    np.testing.assert_allclose(logits, z.mean((1, 2)), atol=1e-5)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("shape", [(3,), (4, 1, 1, 1), (2, 1)])
def test_moments_of_another_shape_than_the_inputs_are_refused(name, shape):
    """Three means of a grey image would make three channels of one."""
    pair = (lambda key: jnp.ones((16, 2)), lambda p, x: x.reshape(len(x), -1) @ p)
    with pytest.raises(
        ValueError, match=rf"{name} has shape .* for inputs \[4, 4, 1\]"
    ):
        fa.classification(pair, (4, 4, 1), **{name: np.ones(shape)})
    for fits in (2.0, np.ones(1), np.ones((4, 1, 1)), np.ones((4, 4, 1))):
        fa.classification(pair, (4, 4, 1), **{name: fits})


def test_a_module_of_two_halves_that_asks_for_rngs_has_them_in_training():
    task = fa.classification(Noisy, (4,))
    params = task.init(KEY)
    assert task.head is not None  # it is split
    one, two = (task.apply_train(params, X, jax.random.key(k)).logits for k in (1, 2))
    assert not np.array_equal(one, two)
