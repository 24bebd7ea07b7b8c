"""Generators: their sizes are the published ones, and the label and the noise matter."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedjax_adapt import num_parameters
from fedjax_adapt.generators import (
    EPSILON,
    MOMENTUM,
    Made,
    diversity,
    image_generator,
    latent_generator,
    normalised,
    standard,
)


@pytest.mark.parametrize("width, weights", [(32, 55_840), (512, 302_080)])
def test_the_latent_generator_has_as_many_weights_as_fedgens(width, weights):
    init = lambda key: latent_generator(512).init(key, 64, 10, (width,))
    made = jax.eval_shape(init, jax.random.key(0))
    assert num_parameters(made.weights) == weights


def test_the_image_generator_has_as_many_weights_as_fedftgs():
    """100 numbers of noise and 10 labels to 64 x 8 x 8 each, three convolutions."""
    init = lambda key: image_generator().init(key, 100, 10, (32, 32, 3))
    made = jax.eval_shape(init, jax.random.key(0))
    small = (100 + 10 + 2) * 64 * 8 * 8
    filters = (9 * 128 + 1) * 128 + (9 * 128 + 1) * 64 + (9 * 64 + 1) * 3
    assert num_parameters(made.weights) == small + filters + 2 * (128 + 128 + 64)


@pytest.mark.parametrize("shape", [(28, 28, 1), (8, 12, 3)])
def test_images_have_the_shape_of_the_inputs(shape):
    generator = image_generator(2)
    made = jax.eval_shape(
        lambda key: generator.init(key, 5, 3, shape), jax.random.key(0)
    )
    apply = lambda made: generator.apply(made, jnp.ones((6, 5)), jnp.ones((6, 3)), True)
    x, statistics = jax.eval_shape(apply, made)
    assert x.shape == (6, *shape)
    assert jax.tree.structure(statistics) == jax.tree.structure(made.statistics)


@pytest.mark.parametrize("shape", [(30, 28, 1), (28, 30, 1), (784,), (4, 4)])
def test_inputs_that_no_image_generator_makes_are_one_sentence(shape):
    with pytest.raises(ValueError, match="height and width that 4 divides, but an in"):
        image_generator().init(jax.random.key(0), 5, 3, shape)


@pytest.mark.slow
def test_images_are_standard_normal_and_depend_on_label_and_noise():
    generator = image_generator(2)
    made = generator.init(jax.random.key(0), 5, 3, (4, 8, 2))
    noise = jax.random.normal(jax.random.key(1), (40, 5))
    labels = jnp.arange(40) % 3
    apply = jax.jit(
        lambda noise, labels: generator.apply(
            made, noise, jax.nn.one_hot(labels, 3), True
        )[0]
    )
    x = apply(noise, labels)
    np.testing.assert_allclose(x.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((0, 1, 2)), 1, atol=1e-3)
    assert np.abs(apply(noise, (labels + 1) % 3) - x).max() > 0.1
    assert np.abs(apply(noise[::-1], labels) - x).max() > 0.1


def test_a_batch_is_normalised_by_itself_and_later_by_what_was_kept():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 2, size=(5, 4)).astype(np.float32)
    y, kept = normalised(jnp.asarray(x), standard(4), True, axis=1)
    own = (x - x.mean(0)) / np.sqrt(x.var(0) + EPSILON)
    np.testing.assert_allclose(y, own, atol=1e-5)
    mean = MOMENTUM * x.mean(0)
    variance = 1 - MOMENTUM + MOMENTUM * x.var(0, ddof=1)
    np.testing.assert_allclose(kept.mean, mean, rtol=1e-5)
    np.testing.assert_allclose(kept.variance, variance, rtol=1e-5)
    y, same = normalised(jnp.asarray(x), kept, False, axis=1)
    np.testing.assert_allclose(y, (x - mean) / np.sqrt(variance + EPSILON), rtol=1e-5)
    assert same is kept


@pytest.mark.slow
def test_a_latent_generator_is_the_network_of_the_code(x64):
    """Affine, normalised, ReLU, affine, in float64 NumPy."""
    generator = latent_generator(7)
    made = generator.init(jax.random.key(0), 4, 3, (5,))
    scale = np.linspace(0.5, 2, 7)
    weights = made.weights | {"norm": {"scale": scale, "bias": scale - 1}}
    noise = np.random.default_rng(1).normal(size=(6, 4))
    labels = np.eye(3)[[0, 1, 2, 0, 1, 1]]
    z, kept = generator.apply(Made(weights, made.statistics), noise, labels, True)
    one, two = jax.tree.map(np.asarray, (made.weights["hidden"], made.weights["out"]))
    h = np.concatenate([noise, labels], 1) @ one["kernel"] + one["bias"]
    h = (h - h.mean(0)) / np.sqrt(h.var(0) + EPSILON) * scale + scale - 1
    expected = np.maximum(h, 0) @ two["kernel"] + two["bias"]
    np.testing.assert_allclose(z, expected, rtol=1e-10)
    assert np.abs(z).min() > 0  # nothing comes after the affine layer
    assert kept.mean.dtype == jnp.float64


def filtered(layer, x):
    """A convolution by 3 x 3 kernels with a margin of zeros, [batch, height, width, c]."""
    height, width = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    parts = [
        padded[:, i : i + height, j : j + width] @ layer["kernel"][i, j]
        for i in range(3)
        for j in range(3)
    ]
    return sum(parts) + layer["bias"]


@pytest.mark.slow
def test_an_image_generator_is_the_network_of_the_code(x64):
    """public-set.md C3 in float64 NumPy, from two affine layers to the last BN."""
    generator, rng = image_generator(2), np.random.default_rng(1)
    made = generator.init(jax.random.key(0), 5, 3, (8, 4, 2))
    weights = {
        name: layer if "norm" not in name else {
            "scale": rng.normal(1, 0.3, len(layer["scale"])),
            "bias": rng.normal(0, 0.3, len(layer["bias"])),
        }
        for name, layer in jax.tree.map(np.asarray, made.weights).items()
    }  # fmt: skip
    noise, labels = rng.normal(size=(6, 5)), np.eye(3)[[0, 1, 2, 0, 1, 1]]
    x, _ = generator.apply(Made(weights, made.statistics), noise, labels, True)

    def own(x):
        return (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-5)

    def scaled(name, x):
        return own(x) * weights[name]["scale"] + weights[name]["bias"]

    def block(name, x):
        twice = x.repeat(2, 1).repeat(2, 2)
        y = scaled(f"norm_{name}", filtered(weights[f"conv_{name}"], twice))
        return np.where(y > 0, y, 0.2 * y)

    affine = lambda name, given: (
        np.tensordot(given, weights[name]["kernel"], 1) + weights[name]["bias"]
    )
    begin = np.concatenate([affine("noise", noise), affine("label", labels)], 1)
    expected = scaled("norm_0", begin.transpose(0, 2, 3, 1))
    expected = block("2", block("1", expected))
    expected = own(np.tanh(filtered(weights["conv_3"], expected)))
    np.testing.assert_allclose(x, expected, atol=1e-9)


vectors = arrays(np.float32, (4, 3), elements=st.floats(-3, 3, width=32))
spread = jax.jit(diversity)


@settings(deadline=None, max_examples=30)
@given(vectors, vectors)
def test_diversity_lies_between_0_and_1_and_is_its_formula(noise, made):
    found = float(spread(noise, made))
    assert 0 < found <= 1
    pairs = [
        np.abs(a - b).mean() * np.square(d - e).mean()
        for a, d in zip(made, noise, strict=True)
        for b, e in zip(made, noise, strict=True)
    ]
    np.testing.assert_allclose(found, np.exp(-np.mean(pairs)), rtol=1e-4)


def test_equal_examples_have_no_diversity():
    noise = jax.random.normal(jax.random.key(0), (4, 3))
    assert float(spread(noise, jnp.full((4, 3), 2.0))) == 1
