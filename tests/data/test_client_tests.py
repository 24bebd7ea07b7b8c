"""Test examples that belong to clients."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.data import corrupt, feature_noise


def examples(n, start=0, width=2):
    """n inputs that are told apart by their numbers, and their labels."""
    x = np.arange(start, start + n, dtype=np.float32)[:, None] * np.ones(width)
    return x.astype(np.float32), (np.arange(start, start + n) % 3).astype(np.int32)


CLIENTS = [examples(4), examples(2, 4), examples(3, 6)]
TESTS = [examples(2, 100), examples(0), examples(1, 102)]


def federated(**changes):
    given = {"num_classes": 3, "client_tests": TESTS} | changes
    return fa.FederatedDataset.from_clients(CLIENTS, **given)


def of_client(tests, i):
    """Its test inputs, told by their first numbers."""
    return np.asarray(tests.x)[tests.rows()[i], 0].tolist()


def test_clients_are_tested_on_their_own():
    data = federated()
    tests = data.client_tests
    assert tests.x.shape == (3, 2) and tests.x.dtype == jnp.float32
    assert tests.index.dtype == tests.size.dtype == jnp.int32
    assert tests.index.shape == (3, 2) and tests.size.tolist() == [2, 0, 1]
    assert [of_client(tests, i) for i in range(3)] == [[100, 101], [], [102]]
    np.testing.assert_array_equal(tests.y, np.array([100, 101, 102]) % 3)
    assert tests.index[2].tolist() == [2, 2]  # padded with its own first row
    assert data.test is None and tests.num_clients == 3
    assert federated(client_tests=None).client_tests is None
    assert "3 clients, 3 examples" in repr(tests)


def test_central_tests_lie_on_the_device_once():
    x, y = examples(9)
    rows = [np.arange(5), np.arange(5, 9)]
    given = {"test": (x, y), "client_tests": (x, y, [[], [7, 2]])}
    data = fa.FederatedDataset.from_rows(x, y, rows, **given)
    assert data.client_tests.x is data.test[0] and data.client_tests.y is data.test[1]
    assert of_client(data.client_tests, 1) == [7, 2]
    others = {"client_tests": (x.copy(), y, [[], [7, 2]])}
    apart = fa.FederatedDataset.from_rows(x, y, rows, **given | others)
    assert apart.client_tests.x is not apart.test[0]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (TESTS[:2], "client_tests has 2 entries but there are 3 clients; give one"),
        (
            [*TESTS[:2], examples(1, width=5)],
            "the test of client 2 has inputs float32[5] but client 0 has float32[2]",
        ),
        (
            [(TESTS[0][0].astype(np.float64), TESTS[0][1]), *TESTS[1:]],
            "the test of client 0 has inputs float64[2] but client 0 has float32[2]",
        ),
        (
            [(TESTS[0][0], TESTS[0][1][:1]), *TESTS[1:]],
            "the test of client 0 has x of shape (2, 2) and y of shape (1,)",
        ),
        ([examples(0)] * 3, "client_tests gives no client an example"),
        (
            [(TESTS[0][0], np.array([0, 3])), *TESTS[1:]],
            "label 3 (client test example 1) is out of range: num_classes=3",
        ),
        (
            [(np.full((1, 2), np.nan, np.float32), TESTS[2][1]), *TESTS[1:]],
            "client test example 0 has the input nan",
        ),
    ],
)
def test_what_is_no_test_of_these_clients_is_refused(given, sentence):
    with pytest.raises(ValueError) as caught:
        federated(client_tests=given)
    assert sentence in str(caught.value)


def test_no_public_example_is_in_a_test_of_a_client():
    public = (np.concatenate([examples(3, 50)[0], TESTS[2][0]]), np.zeros(4, int))
    with pytest.raises(ValueError, match="public overlaps the test set in 1 of its 4"):
        federated(public=public)
    data = federated(public=(public[0][:3], public[1][:3]))
    with pytest.raises(ValueError, match="overlaps the test set"):
        replace(data, public=replace(data.public, x=data.client_tests.x)).check_public()
    published = fa.PublicSet(*public, protocol="published")
    assert federated(public=published).public.num_examples == 4


def test_an_empty_test_needs_no_shape():
    tests = federated(client_tests=[([], []), *TESTS[1:]]).client_tests
    assert tests.size.tolist() == [0, 0, 1] and tests.x.shape == (1, 2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (TESTS[0], "client_tests is a tuple; write client_tests=(x, y, rows)"),
        ((*TESTS[0], [[0]]), "has rows for 1 clients but there are 2"),
        ((*TESTS[0], [[0], [2]]), "gives client 1 row 2, but its x has rows 0 to 1"),
        ((*TESTS[0], [[-1], [1]]), "gives client 0 row -1, but"),
        ((TESTS[0][0][:, :1], TESTS[0][1], [[], [0]]), "client_tests has inputs"),
    ],
)
def test_central_tests_must_fit_the_clients(given, sentence):
    x, y = examples(4)
    with pytest.raises(ValueError) as caught:
        fa.FederatedDataset.from_rows(x, y, [[0, 1], [2, 3]], client_tests=given)
    assert sentence in str(caught.value)


def test_tests_are_leaves_of_the_data_and_names_are_not():
    data = replace(federated(), client_names=("a", "b", "c"))
    sizes = jax.jit(lambda data: data.client_tests.size)(data)
    assert sizes.tolist() == [2, 0, 1]
    plain = federated()
    assert jax.tree.structure(data) == jax.tree.structure(plain)
    assert jax.tree.map(lambda leaf: leaf, data).client_names is None


def test_the_pooled_client_is_tested_on_every_test_once():
    x, y = examples(9)
    given = (x, y, [[3, 1], [1, 8]])
    data = fa.FederatedDataset.from_rows(x, y, [[0, 1], [1, 2]], client_tests=given)
    tests = data.pooled().client_tests
    assert tests.num_clients == 1 and of_client(tests, 0) == [1, 3, 8]
    assert federated(client_tests=None).pooled().client_tests is None


def test_what_changes_clients_leaves_their_tests_clean():
    data = federated()
    noise = feature_noise(3, 0.5, np.asarray(data.x))
    for changed in (
        corrupt(data, "random_labels", [0]),
        corrupt(data, "random_inputs", [0, 1, 2]),
        replace(data, noise=noise),
    ):
        for kept, own in zip(
            jax.tree.leaves(changed.client_tests),
            jax.tree.leaves(data.client_tests),
            strict=True,
        ):
            np.testing.assert_array_equal(kept, own)
    with pytest.raises(ValueError, match="tests are of 3 clients but there would be 2"):
        data.with_changed(index=data.index[:2], size=data.size[:2])


def shown(data):
    """What each client trains on and is tested on, by the first numbers."""
    x = np.asarray(data.x)[:, 0]
    trained = [x[rows].tolist() for rows in data.rows()]
    return trained, [of_client(data.client_tests, i) for i in range(data.num_clients)]


@pytest.mark.slow
def test_a_share_of_each_client_is_held_out():
    sizes = [1, 2, 5, 10, 0, 13]
    starts = np.cumsum([0, *sizes])
    pairs = [examples(n, start) for n, start in zip(sizes, starts, strict=False)]
    whole = fa.FederatedDataset.from_clients(pairs, num_classes=3, test=examples(2))
    split = whole.split_clients(0.3, seed=4)
    trained, tested = shown(split)
    assert [len(t) for t in tested] == [0, 1, 2, 3, 0, 4]  # 0.3 x 5 = 1.5 becomes 2
    for own, kept, held, (x, _) in zip(sizes, trained, tested, pairs, strict=True):
        assert sorted(kept + held) == x[:, 0].tolist() and len(kept + held) == own
        assert held == sorted(held) and kept == sorted(kept)
    assert split.x.shape[0] == sum(map(len, trained)) and split.test is whole.test
    np.testing.assert_array_equal(split.client_tests.y, split.client_tests.x[:, 0] % 3)
    np.testing.assert_array_equal(split.y, split.x[:, 0] % 3)
    assert split.label_counts.sum() == split.x.shape[0]
    assert shown(whole.split_clients(0.3, seed=4)) == (trained, tested)
    assert shown(whole.split_clients(0.3, seed=5)) != (trained, tested)
    equal = fa.FederatedDataset.from_clients([examples(10)] * 2, num_classes=3)
    assert len(set(map(tuple, shown(equal.split_clients(0.5))[1]))) == 2
    # who else there is changes nothing, and one example always stays
    alone = fa.FederatedDataset.from_clients([*pairs[:4], pairs[0]], num_classes=3)
    assert shown(alone.split_clients(0.3, seed=4))[1][:4] == tested[:4]
    assert [len(t) for t in shown(whole.split_clients(0.99))[0]] == [1, 1, 1, 1, 0, 1]


@pytest.mark.parametrize(
    ("rows", "share", "sentence"),
    [
        ([[0, 1], [1, 2]], 0.5, "1 examples are held more than once"),
        ([[0, 1], [2]], 1.0, "test_share=1.0 must lie in [0, 1)"),
        (
            [[0, 1], [2]],
            0.1,
            "test_share=0.1 holds out nothing: the largest client has 2",
        ),
    ],
)
def test_what_cannot_be_held_out_is_refused(rows, share, sentence):
    data = fa.FederatedDataset.from_rows(*examples(3), rows)
    with pytest.raises(ValueError) as caught:
        data.split_clients(share)
    assert sentence in str(caught.value)


def test_tests_are_not_held_out_twice():
    with pytest.raises(ValueError, match="have tests of their own already"):
        federated().split_clients()
