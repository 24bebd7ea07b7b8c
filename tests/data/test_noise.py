from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import close, keys, make_data, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.data import ClientNoise, feature_noise
from fedjax_adapt.engine.batches import batch_at

PIXELS = np.full((9, 8, 8, 1), 255, np.uint8)


def test_noise_grows_from_a_clean_first_client_to_sigma_of_255_grey_levels():
    found = feature_noise(5, 0.1, PIXELS)
    np.testing.assert_allclose(found.std, 255 * 0.1 * np.arange(5) / 4, rtol=1e-6)
    units = feature_noise(5, 0.1, np.ones((3, 4), np.float32))
    np.testing.assert_allclose(units.std, 0.1 * np.arange(5) / 4, rtol=1e-6)
    assert feature_noise(5, 0.0, PIXELS) is None
    assert feature_noise(1, 0.5, PIXELS).std.tolist() == [0]


def test_noise_on_inputs_in_half_precision_is_normal_too():
    x = jnp.zeros((200_000, 1), jnp.bfloat16)
    seen = ClientNoise(jnp.ones(1)).add(x, 0, jax.random.key(0))
    assert seen.dtype == jnp.bfloat16
    noise = seen.astype(float)
    assert abs(noise.mean()) < 0.008 and np.abs(noise).max() > 4
    np.testing.assert_allclose(noise.std(), 1, rtol=0.01)


@pytest.mark.slow
def test_every_access_sees_other_noise_of_the_clients_deviation():
    noise = ClientNoise(jnp.array([0.0, 2.0]))
    data = replace(make_data(sizes=(40, 40)), noise=noise)
    clean = replace(data, noise=None)
    plan = fa.Plan(batch_size=40, shuffle="none")
    batches = jax.jit(
        jax.vmap(
            lambda client, step: (
                batch_at(data, plan, client, jax.random.key(3), step).x
            ),
            in_axes=(None, 0),
        )
    )
    steps = jnp.arange(50)
    without = batch_at(clean, plan, 1, jax.random.key(3), 0).x
    found = np.asarray(batches(1, steps)) - np.asarray(without)
    assert found.std() == pytest.approx(2, rel=0.03)
    assert abs(found.mean()) < 0.1
    assert abs(np.corrcoef(found[0].ravel(), found[1].ravel())[0, 1]) < 0.3
    first = batch_at(clean, plan, 0, jax.random.key(3), 0).x
    np.testing.assert_array_equal(batches(0, steps)[7], first)


@pytest.mark.slow
def test_noise_takes_the_same_examples_and_turns_pixels_into_floats():
    data = make_data(dtype=np.uint8)
    quiet = replace(data, noise=ClientNoise(jnp.zeros(data.num_clients)))
    for step in (0, 2, 5):
        with_, without = (
            batch_at(d, fa.Plan(batch_size=4), 3, jax.random.key(1), step)
            for d in (quiet, data)
        )
        assert with_.x.dtype == jnp.float32
        np.testing.assert_array_equal(with_.x, without.x)
        np.testing.assert_array_equal(with_.y, without.y)


@pytest.mark.parametrize("num_clients, grid", [(10, 3), (2, 1), (17, 4)])
def test_masks_are_blocks_of_their_own(num_clients, grid):
    side = 14
    noise = feature_noise(num_clients, 0.5, np.zeros((2, side, side, 3)), mask=True)
    assert noise.grid == grid == int(np.ceil(np.sqrt(num_clients - 1)))
    add = jax.jit(noise.add)
    x, block = jnp.zeros((2, side, side, 3)), side // grid
    taken = np.zeros((side, side), int)
    for client in range(num_clients):
        touched = np.asarray(add(x, client, jax.random.key(0))) != 0
        if client == num_clients - 1:
            assert not touched.any()  # the last client is clean
            continue
        row, column = divmod(client, grid)
        expected = np.zeros((side, side), bool)
        rows = slice(row * block, (row + 1) * block)
        expected[rows, column * block : (column + 1) * block] = True
        np.testing.assert_array_equal(
            touched, np.broadcast_to(expected[None, :, :, None], x.shape)
        )
        taken += expected
    assert taken.max() == 1


@pytest.mark.parametrize(
    "num_clients, sigma, x, match",
    [
        (4, -0.1, PIXELS, "feature_noise=-0.1 must be"),
        (4, 0.1, np.zeros((3, 60)), r"needs images .* the inputs are \[3, 60\]"),
        (66, 0.1, PIXELS, "9 x 9 blocks for num_clients=66 .* 8 x 8 .*_clients=65 or"),
    ],
)
def test_noise_that_cannot_be_is_one_sentence(num_clients, sigma, x, match):
    with pytest.raises(ValueError, match=match):
        feature_noise(num_clients, sigma, x, mask=True)


def test_noise_of_another_number_of_clients_is_refused(task):
    data = make_data(sizes=(4, 3, 4))
    noisy = replace(data, noise=feature_noise(2, 0.5, data.x))
    with pytest.raises(ValueError, match="noise is of 2 clients but the data have 3"):
        fa.make_round(fedavg(), task, noisy, fa.Plan())


@pytest.mark.slow
def test_neither_lanes_nor_devices_change_the_slow_twins_round_under_noise(task):
    data = make_data(sizes=(4, 3, 4))
    noisy = replace(data, noise=feature_noise(3, 0.5, data.x))
    assert len(jax.tree.leaves(noisy)) == len(jax.tree.leaves(data)) + 1
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(2))
    plan = fa.Plan(batch_size=4, shuffle="none", lanes=2, devices=2)
    round_fn, state = start(algorithm, task, noisy, plan)
    found = jax.jit(round_fn)(state, keys(1)[0])
    expected = fa.debug_round(algorithm, task, noisy, plan)(state, keys(1)[0])
    close(found[0].params, expected[0].params)
    close(found[1].loss, expected[1].loss)
