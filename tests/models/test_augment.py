"""Augmentation: which transforms, how often, for whom, and when."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.models import flip_crop, linear, reflect_crop

KEY = jax.random.key(0)
PAD, SHAPE = 2, (6, 7, 3)
OFFSETS = range(2 * PAD + 1)
AUGMENTS = {
    "constant": jax.jit(flip_crop(PAD)),
    "reflect": jax.jit(reflect_crop(PAD)),
}


def images(batch, shape=SHAPE):
    return np.random.default_rng(0).normal(size=(batch, *shape)).astype(np.float32)


def transforms(image, mode):
    """Every flip and crop of one image: [2, 2 pad + 1, 2 pad + 1, height, width, c]."""
    height, width, _ = image.shape
    margins = [(PAD, PAD), (PAD, PAD), (0, 0)]
    return np.array(
        [
            [[padded[i : i + height, j : j + width] for j in OFFSETS] for i in OFFSETS]
            for padded in (
                np.pad(flipped, margins, mode=mode)
                for flipped in (image, image[:, ::-1])
            )
        ]
    )


def chosen(mode, batch):
    """(flipped, row, column) of each example of a batch of one image, found by search."""
    image = images(1)[0]
    x = np.broadcast_to(image, (batch, *image.shape))
    y = np.asarray(AUGMENTS[mode](KEY, x))
    found = (y[:, None, None, None] == transforms(image, mode)).all((4, 5, 6))
    assert (found.sum((1, 2, 3)) == 1).all()
    return np.argwhere(found)[:, 1:].T


@pytest.mark.slow
def test_flip_crop_draws_its_transforms_as_often_as_it_says():
    flipped, row, column = chosen("constant", 8000)
    unmoved = (row == PAD) & (column == PAD)
    # half are not shifted, and one shift in 25 is none
    assert abs(unmoved.mean() - (0.5 + 0.5 / 25)) < 0.03
    assert abs(flipped.mean() - 0.5) < 0.03
    assert abs(flipped[unmoved].mean() - 0.5) < 0.04
    counts = np.histogram2d(row[~unmoved], column[~unmoved], bins=2 * [range(6)])[0]
    others = counts.reshape(-1)[np.arange(25) != 12]
    assert abs(others / 8000 - 0.5 / 25).max() < 0.008


def test_reflect_crop_moves_every_image():
    flipped, row, column = chosen("reflect", 8000)
    counts = np.histogram2d(row, column, bins=2 * [range(6)])[0]
    assert abs(counts / 8000 - 1 / 25).max() < 0.01
    assert abs(flipped.mean() - 0.5) < 0.03
    assert abs(np.corrcoef([flipped, row, column]) - np.eye(3)).max() < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("mode", AUGMENTS)
def test_each_example_is_a_transform_of_itself_and_the_key_decides_which(mode):
    x, keys = images(40), jax.random.split(KEY)
    one, same, other = (np.asarray(AUGMENTS[mode](keys[i], x)) for i in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    for before, after in zip(x, one, strict=True):
        assert (transforms(before, mode) == after).all((3, 4, 5)).any()
    under_vmap = jax.jit(jax.vmap(AUGMENTS[mode], (0, None)))(keys, x)
    np.testing.assert_array_equal(under_vmap, np.stack([one, other]))


class Dropping(nnx.Module):
    """Shows what comes behind the augmentation and a dropout of ones."""

    def __init__(self, rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        x = x.reshape(len(x), -1)
        return jnp.concatenate([x, self.drop(jnp.ones_like(x))], axis=1)


@pytest.mark.slow
def test_training_augments_normalised_inputs_and_evaluation_does_not():
    x = images(6)
    shown = ((lambda key: ()), lambda params, x: x.reshape(len(x), -1))
    augment = AUGMENTS["constant"]
    task = fa.classification(shown, SHAPE, mean=0.5, std=2.0, augment=augment)
    normalised = (x - 0.5) / 2
    np.testing.assert_allclose(
        task.apply((), x).logits, normalised.reshape(6, -1), rtol=1e-6
    )
    key = jax.random.split(KEY)[0]
    np.testing.assert_allclose(
        task.apply_train((), x, KEY).logits.reshape(x.shape),
        augment(key, jnp.asarray(normalised)),
        rtol=1e-6,
    )


@pytest.mark.slow
def test_dropout_and_augmentation_draw_from_keys_of_their_own():
    x = images(6)
    size = x[0].size
    augment = AUGMENTS["constant"]
    task = fa.classification(Dropping, SHAPE, augment=augment)
    plain = fa.classification(Dropping, SHAPE)
    key_augment, key_model = jax.random.split(KEY)
    logits = task.apply_train({}, x, KEY).logits
    np.testing.assert_array_equal(
        logits[:, :size].reshape(x.shape), augment(key_augment, x)
    )
    frozen = task.apply_frozen({}, x, KEY).logits
    np.testing.assert_array_equal(frozen[:, :size], logits[:, :size])
    np.testing.assert_array_equal(frozen[:, size:], 1)  # no dropout
    np.testing.assert_array_equal(
        logits[:, size:], plain.apply_train({}, x, key_model).logits[:, size:]
    )


@pytest.mark.slow
def test_lanes_do_not_change_a_round_with_augmentation():
    x, y = images(12), np.arange(12) % 3
    clients = [(x[:5], y[:5]), (x[5:8], y[5:8]), (x[8:], y[8:])]
    data = fa.FederatedDataset.from_clients(clients, num_classes=3)
    task = fa.classification(linear(SHAPE, 3), SHAPE, augment=flip_crop(PAD))

    def after(lanes):
        plan = fa.Plan(batch_size=2, lanes=lanes)
        state = fa.init_state(fedavg(), task, data, plan, KEY)
        step = jax.jit(fa.make_round(fedavg(), task, data, plan))
        return step(state, KEY)[0].params["out"]["kernel"]

    np.testing.assert_allclose(after(1), after(3), rtol=1e-5, atol=1e-7)


def test_what_cannot_be_augmented_is_one_sentence():
    with pytest.raises(ValueError, match=r"augment=flip_crop.*\[4\]; write augment=no"):
        fa.classification(linear((4,), 2), (4,), augment=flip_crop())
    with pytest.raises(ValueError, match="augment=reflect_crop reflects 4.*4 x 6"):
        fa.classification(linear((4, 6, 1), 2), (4, 6, 1), augment=reflect_crop())
    with pytest.raises(ValueError, match="pad=-1 must be an integer >= 0"):
        flip_crop(-1)
