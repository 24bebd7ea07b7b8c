"""The patches-and-products convolution against XLA's own."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jax import lax

from fedjax_adapt.models import conv, max_pool
from fedjax_adapt.models.conv import layer_of, multiplied
from fedjax_adapt.models.ways import WAYS, by_rule, can


def reference(x, kernel, strides, padding):
    return lax.conv_general_dilated(
        x, kernel, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def normal(seed, shape, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


@partial(jax.jit, static_argnums=0)
def value_and_gradients(convolve, x, kernel, cotangent):
    y, pull = jax.vjp(convolve, x, kernel)
    return y, *pull(cotangent)


PADDINGS = ("VALID", "SAME", ((2, 1), (0, 3)))


@pytest.mark.slow
@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    pixels=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    channels=st.integers(1, 4),
    filters=st.integers(1, 3),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.sampled_from(PADDINGS),
)
# both ways of writing it, with a stride that leaves pixels over
@example((8, 7), (5, 3), 4, 1, (1, 2), "VALID")
@example((8, 7), (2, 3), 1, 3, (2, 1), "SAME")
def test_values_and_gradients_are_those_of_lax(
    pixels, size, channels, filters, strides, padding
):
    x = normal(0, (2, *pixels, channels))
    kernel = normal(1, (*size, channels, filters))
    slow = lambda x, kernel: reference(x, kernel, strides, padding)
    cotangent = normal(2, jax.eval_shape(slow, x, kernel).shape)
    expected = value_and_gradients(slow, x, kernel, cotangent)
    for layout, order in (("NHWC", (0, 1, 2, 3)), ("CHWN", (3, 1, 2, 0))):
        fast = lambda x, kernel, layout=layout, order=order: conv(
            x.transpose(order), kernel, strides, padding, layout
        ).transpose(order)
        actual = value_and_gradients(fast, x, kernel, cotangent)
        for a, b in zip(actual, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_both_ways_of_writing_it_are_tested():
    x, few, many = (
        jnp.ones((4, 8, 7, 2)),
        jnp.ones((5, 3, 4, 1)),
        jnp.ones((2, 3, 1, 3)),
    )
    assert by_rule(layer_of(x, few, (1, 2))) == "shifts"
    assert by_rule(layer_of(x[:1], many, (2, 1))) == "patches"


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_the_sum_and_so_are_its_gradients(way, lanes):
    strides = (1, 1) if way == "winograd" else (2, 1)
    x, kernel = normal(0, (lanes, 3, 6, 7, 2)), normal(1, (lanes, 3, 3, 3, 4))
    channels_first = lambda x, kernel: lax.conv_general_dilated(
        x, kernel, strides, "VALID", dimension_numbers=("CHWN", "HWIO", "CHWN")
    )
    cotangent = normal(2, jax.eval_shape(channels_first, x[0], kernel[0]).shape)
    assert can(way, layer_of(x[0], kernel[0], strides))

    def side_by_side(convolve):
        of_one = partial(value_and_gradients, convolve, cotangent=cotangent)
        if lanes == 1:  # as the engine has it
            return jax.tree.map(lambda leaf: leaf[None], of_one(x[0], kernel[0]))
        return jax.vmap(of_one)(x, kernel)

    actual = side_by_side(partial(multiplied, way, strides))
    for a, b in zip(actual, side_by_side(channels_first), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_pads(way):
    x, kernel, padding = (
        normal(0, (3, 6, 7, 2)),
        normal(1, (3, 3, 3, 4)),
        ((1, 2), (0, 1)),
    )
    cotangent = normal(2, (4, 7, 6, 2))
    pads = lambda x, kernel: multiplied(way, (1, 1), x, kernel, padding)
    padded = lambda x, kernel: multiplied(
        "patches", (1, 1), jnp.pad(x, ((0, 0), *padding, (0, 0))), kernel
    )
    actual, expected = (
        value_and_gradients(convolve, x, kernel, cotangent)
        for convolve in (pads, padded)
    )
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_the_gradient_of_kernels_side_by_side_is_one_of_all_of_them():
    """In groups of the batch, which cuDNN has kernels for, and trials of clients too."""

    def gradient(x, kernel):
        loss = lambda kernel: (multiplied("lax", (1, 1), x, kernel) ** 2).sum()
        return jax.grad(loss)(kernel)

    x, kernels = normal(0, (2, 3, 3, 6, 7, 2)), normal(1, (2, 3, 3, 3, 3, 4))
    every = jax.vmap(jax.vmap(gradient))
    text = str(jax.make_jaxpr(every)(x, kernels))
    assert "batch_group_count=6" in text
    for i in range(2):
        for j in range(3):
            np.testing.assert_allclose(
                every(x, kernels)[i, j], gradient(x[i, j], kernels[i, j]), rtol=1e-4
            )
    shared = jax.vmap(gradient, (None, 0))(x[0, 0], kernels[0])
    np.testing.assert_allclose(shared[1], gradient(x[0, 0], kernels[0, 1]), rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("bfloat16", 0.05)])
def test_other_precisions(dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(normal(0, (3, 6, 6, 8)), dtype)
        kernel = jnp.asarray(normal(1, (3, 3, 8, 4)), dtype)
        y, dx, dkernel = value_and_gradients(
            conv, x, kernel, jnp.ones((3, 4, 4, 4), dtype)
        )
        assert y.dtype == dx.dtype == dkernel.dtype == dtype
        exact = lambda array: jnp.asarray(array, jnp.promote_types(dtype, jnp.float32))
        slow = lambda x, kernel: reference(x, kernel, (1, 1), "VALID")
        expected = value_and_gradients(
            slow, exact(x), exact(kernel), jnp.ones((3, 4, 4, 4), exact(x).dtype)
        )
        for a, b in zip((y, dx, dkernel), expected, strict=True):
            error = jnp.abs(exact(a) - b).max() / jnp.abs(b).max()
            assert error < tolerance


@pytest.mark.slow
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 5e-6)])
@pytest.mark.parametrize(
    "side, pixels, padding", [(3, (6, 7), "SAME"), (5, (9, 8), "VALID")]
)
def test_winograds_way_is_the_sum(dtype, tolerance, side, pixels, padding):
    with jax.enable_x64(True):
        x = jnp.asarray(normal(0, (2, *pixels, 16)), dtype)
        kernel = jnp.asarray(normal(1, (side, side, 16, 18)), dtype)
        assert by_rule(layer_of(x.transpose(3, 1, 2, 0), kernel, (1, 1))) == "winograd"
        slow = lambda x, kernel: reference(x, kernel, (1, 1), padding)
        exact = x.astype(float), kernel.astype(float)
        cotangent = jnp.asarray(normal(2, jax.eval_shape(slow, *exact).shape))
        fast = lambda x, kernel: conv(x, kernel, padding=padding)
        actual = value_and_gradients(fast, x, kernel, cotangent.astype(dtype))
        expected = value_and_gradients(slow, *exact, cotangent.astype(float))
        for a, b in zip(actual, expected, strict=True):
            assert a.dtype == dtype
            assert jnp.abs(a - b).max() < tolerance * jnp.abs(b).max()


@pytest.mark.slow
@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
@pytest.mark.parametrize("channels, filters", [(4, 2), (16, 16)])
def test_vmap_over_kernels_and_images_is_a_loop_over_them(strides, channels, filters):
    xs = normal(0, (3, 2, 6, 6, channels))
    kernels = normal(1, (3, 3, 3, channels, filters))
    loss = lambda x, kernel: (conv(x, kernel, strides) ** 2).sum()
    gradient = jax.grad(loss, (0, 1))
    both, one_of = jax.jit(jax.vmap(gradient))(xs, kernels), jax.jit(gradient)
    for i in range(3):
        one = one_of(xs[i], kernels[i])
        for a, b in zip(both, one, strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-4, atol=1e-4 * abs(b).max())


def test_an_unused_input_gradient_costs_nothing():
    products = lambda wrt: (
        jax.jit(jax.grad(lambda x, k: (conv(x, k, (1, 1)) ** 2).sum(), wrt))
        .lower(normal(0, (2, 6, 6, 3)), normal(1, (3, 3, 3, 4)))
        .compile()
        .as_text()
        .count(" dot(")
    )
    assert products(1) == products((0, 1)) - 1


@pytest.mark.slow
@pytest.mark.parametrize("window, pixels", [(2, (6, 4)), (2, (7, 5)), (3, (7, 9))])
def test_max_pool_is_the_reduce_window_of_lax(window, pixels):
    x = normal(0, (2, *pixels, 3))
    shape = (1, window, window, 1)
    slow = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, shape, shape, "VALID")
    (y, pull), (z, pull_slow) = (
        jax.vjp(f, x) for f in (lambda x: max_pool(x, window), slow)
    )
    np.testing.assert_array_equal(y, z)
    cotangent = normal(1, y.shape)
    np.testing.assert_array_equal(pull(cotangent)[0], pull_slow(cotangent)[0])


@pytest.mark.slow
def test_max_pool_shares_the_gradient_of_a_tie():
    x = jnp.array([[1.0, 1.0], [0.0, 1.0]]).reshape(1, 2, 2, 1)
    gradient = jax.grad(lambda x: max_pool(x).sum())(x)
    np.testing.assert_allclose(
        gradient.reshape(-1), [1 / 3, 1 / 3, 0, 1 / 3], rtol=1e-6
    )


def test_a_misfit_is_one_sentence():
    x, kernel = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 3, 1))
    with pytest.raises(ValueError, match=r"x\[1, 4, 4, 2\].*same channels"):
        conv(x, kernel)
    with pytest.raises(ValueError, match="4 x 4 pixels.*kernel of 5 x 5"):
        conv(x, jnp.ones((5, 5, 2, 1)))
    with pytest.raises(
        ValueError, match="padding='SMAE' is unknown; did you mean 'SAME'"
    ):
        conv(x, jnp.ones((3, 3, 2, 1)), padding="SMAE")
    with pytest.raises(ValueError, match="layout='NCHW' is unknown"):
        conv(x, jnp.ones((3, 3, 2, 1)), layout="NCHW")
    for strides in ((1, 2, 3), 2, (0, 1), (1.0, 1)):
        with pytest.raises(ValueError, match=r"strides=.* not two steps .* \(2, 2\)"):
            conv(x, jnp.ones((3, 3, 2, 1)), strides)
