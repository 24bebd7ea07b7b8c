from dataclasses import replace
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.data import CORRUPTIONS, corrupt
from fedjax_adapt.experiment.schema import Corruption

N, K = 200, 10
X = np.random.default_rng(0).integers(0, 256, (N, 3, 3, 1)).astype(np.uint8)
Y = (np.arange(N) % K).astype(np.int32)
# clients 0 and 1 share rows, client 2 holds a row twice, client 3 holds nothing
ROWS = [np.arange(60), np.arange(30, 90), np.r_[90:150, 90], [], np.arange(150, 200)]
DATA = fa.FederatedDataset.from_rows(X, Y, ROWS, test=(X[:5], Y[:5]), num_classes=K)


def held(data, client):
    rows = data.index[client, : data.size[client]]
    return np.asarray(data.x[rows]), np.asarray(data.y[rows])


def test_the_setting_lists_every_corruption():
    assert list(CORRUPTIONS) == list(get_args(Corruption))


@pytest.mark.parametrize("clients", [[0], [1, 2], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_only_the_chosen_clients_change_even_where_rows_are_shared(corruption, clients):
    before = jax.tree.map(np.array, DATA)
    found = corrupt(DATA, corruption, clients, mean=33.0, std=78.0, seed=1)
    again = corrupt(DATA, corruption, clients, mean=33.0, std=78.0, seed=1)
    for leaf, other in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(leaf, other)
    for leaf, old in zip(jax.tree.leaves(DATA), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(leaf, old)  # the one that was given is as it was
    np.testing.assert_array_equal(found.size, DATA.size)
    np.testing.assert_array_equal(found.test[0], X[:5])
    for client in range(5):
        old, new = held(DATA, client), held(found, client)
        alike = all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
        assert alike == (client not in clients or client == 3)
    alone = corrupt(DATA, corruption, clients[-1:], mean=33.0, std=78.0, seed=1)
    for part, other in zip(
        held(alone, clients[-1]), held(found, clients[-1]), strict=True
    ):
        np.testing.assert_array_equal(part, other)  # whoever else is corrupted
    padding = np.arange(found.index.shape[1])[None] >= np.asarray(found.size)[:, None]
    first = np.broadcast_to(np.asarray(found.index)[:, :1], padding.shape)
    np.testing.assert_array_equal(np.asarray(found.index)[padding], first[padding])


def test_labels_shift_around_the_end():
    _, y = held(corrupt(DATA, "label_shift", [0], 5), 0)
    np.testing.assert_array_equal(y, (Y[:60] + 5) % K)
    twice = corrupt(corrupt(DATA, "label_shift", [2], 3), "label_shift", [2], 7)
    np.testing.assert_array_equal(held(twice, 2)[1], held(DATA, 2)[1])


@pytest.mark.parametrize("dtype, shift", [(np.int8, 50), (np.uint8, 190)])
def test_labels_shift_around_the_end_whatever_their_dtype_holds(dtype, shift):
    y = np.arange(100).astype(dtype)
    data = fa.FederatedDataset.from_rows(np.zeros((100, 1)), y, [np.arange(100)])
    found = corrupt(data, "label_shift", [0], shift)
    assert found.y.dtype == data.y.dtype
    np.testing.assert_array_equal(found.y, (np.arange(100) + shift) % 100)


@pytest.mark.slow
def test_a_share_of_the_labels_is_random():
    data = fa.FederatedDataset.from_rows(
        np.zeros((4000, 1), np.float32),
        np.zeros(4000, int),
        [range(4000)],
        num_classes=K,
    )
    y = held(corrupt(data, "random_labels", [0], 0.5), 0)[1]
    # half are drawn again, a tenth of those stay what they were
    assert np.mean(y != 0) == pytest.approx(0.45, abs=0.03)
    whole = held(corrupt(data, "random_labels", [0]), 0)[1]
    counts = np.bincount(whole, minlength=K)
    assert ((counts - 400) ** 2 / 400).sum() < 9 + 5 * np.sqrt(18)


def seen(data, client, mean, std):
    """The inputs of a client as the model sees them."""
    pair = (lambda key: {}, lambda params, x: x.reshape(x.shape[0], -1))
    task = fa.classification(pair, X.shape[1:], mean=mean, std=std)
    return np.asarray(task.apply({}, jnp.asarray(held(data, client)[0])).logits)


@pytest.mark.parametrize("mean, std", [(33.0, 78.0), ((33.0,), (78.0,))])
def test_the_model_sees_uniform_inputs_and_others_as_before(mean, std):
    found = corrupt(DATA, "random_inputs", [0], mean=mean, std=std)
    assert found.x.dtype == jnp.float32
    values = seen(found, 0, mean, std)
    assert -1 <= values.min() < -0.95 and 0.95 < values.max() <= 1
    assert values.std() == pytest.approx(1 / np.sqrt(3), rel=0.05)
    np.testing.assert_array_equal(seen(found, 4, mean, std), seen(DATA, 4, mean, std))


def test_noise_that_is_drawn_once_has_its_level_in_units_of_the_model():
    found = corrupt(DATA, "noisy_inputs", [2], 0.5, mean=33.0, std=78.0)
    noise = seen(found, 2, 33.0, 78.0) - seen(DATA, 2, 33.0, 78.0)
    assert noise.std() == pytest.approx(0.5, rel=0.08)
    assert len(np.unique(noise[[0, -1]], axis=0)) == 2  # of the row that is held twice


def test_duplicates_are_as_many_but_fewer_are_different():
    found = corrupt(DATA, "duplicated", [0], 7)
    rows = np.asarray(found.index[0, :60])
    assert set(rows) == set(range(9))  # ceil(60 / 7)
    assert np.ptp(np.bincount(rows)) <= 1


def test_corruptions_compose():
    one = corrupt(corrupt(DATA, "random_inputs", [0]), "label_shift", [0, 1])
    x, y = held(one, 0)
    assert np.abs(x).max() <= 1
    np.testing.assert_array_equal(y, (Y[:60] + 5) % K)
    np.testing.assert_array_equal(held(one, 1)[0], X[30:90])


@pytest.mark.parametrize(
    "corruption, clients, strength, match",
    [
        (
            "label_shit",
            [0],
            None,
            "corrupt='label_shit' is unknown; did you mean 'label",
        ),
        (
            "label_shift",
            [5],
            None,
            "client 5 cannot be corrupted: .* 5 clients, 0 to 4",
        ),
        ("label_shift", [0, -1], None, "client -1 cannot be corrupted"),
        ("label_shift", [], None, "no client to corrupt is named"),
        ("label_shift", [0.5], None, "must be integers, not"),
        ("label_shift", [0], 20, "shift=20 changes no label of 10; write 1 to 9"),
        ("label_shift", [0], 0.5, "shift=0.5 must be an integer >= 1"),
        ("random_labels", [0], 2, r"strength of random_labels: share=2 must lie in"),
        ("random_inputs", [0], 0, "bound=0 must be"),
        ("noisy_inputs", [0], -1, "level=-1 must be"),
        ("duplicated", [0], 0, "times=0 must be an integer >= 1"),
    ],
)
def test_a_mistake_is_one_sentence(corruption, clients, strength, match):
    with pytest.raises(ValueError, match=match) as error:
        corrupt(DATA, corruption, clients, strength)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_labels_that_are_no_classes_cannot_be_shifted():
    data = replace(DATA, y=DATA.y.astype(jnp.float32))
    with pytest.raises(
        ValueError, match="label_shift needs integer labels of 2 classes"
    ):
        corrupt(data, "label_shift", [0])


# --- numbers that are none -----------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("part", ["train", "test", "target"])
def test_an_input_that_is_not_finite_is_found_when_the_data_set_is_built(bad, part):
    x, y = np.zeros((9000, 2)), np.zeros(9000)
    test_x = np.zeros((7, 2))
    {"train": x[8000], "test": test_x[3], "target": y[8000:8001]}[part][-1] = bad
    where = "test example 3" if part == "test" else "training example 8000"
    what = "target" if part == "target" else "input"
    came = "inf" if bad == 1e300 else str(bad)
    with pytest.raises(ValueError, match=f"^{where} has the {what} {came} in float32;"):
        fa.FederatedDataset.from_rows(x, y, [range(9000)], test=(test_x, np.zeros(7)))


def test_inputs_without_numbers_and_integers_are_not_looked_at():
    empty = np.zeros((3, 0), np.float32)
    assert (
        fa.FederatedDataset.from_rows(empty, np.arange(3), [[0, 1, 2]]).num_classes == 3
    )


def test_what_follows_from_labels_and_rows_follows_a_corruption():
    data = fa.FederatedDataset.from_rows(
        np.zeros((6, 1)), np.array([0, 0, 1, 1, 2, 2]), [[0, 1, 2], [2, 3], [], [4, 5]]
    )
    shifted = corrupt(data, "label_shift", [1], 1)
    expected = [[2, 1, 0], [0, 0, 2], [0, 0, 0], [0, 0, 2]]
    np.testing.assert_array_equal(shifted.label_counts, expected)
    np.testing.assert_array_equal(shifted.holders, [0, 1, 3])
    emptied = data.with_changed(size=np.array([3, 0, 0, 2], np.int32))
    np.testing.assert_array_equal(emptied.holders, [0, 3])
    assert emptied.label_counts[1].sum() == 0
