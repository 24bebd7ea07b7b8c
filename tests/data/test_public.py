from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import make_clients
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_adapt as fa
from fedjax_adapt.data import PROTOCOLS, PublicSet, Source, holdout, load, published
from fedjax_adapt.data import split_test as half_of_test


def numbered(counts, tests, seed=0):
    """A source whose inputs are the numbers of its rows; tests count on from there."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(len(counts)), counts)).astype(np.int32)
    y_test = np.repeat(np.arange(len(tests)), tests).astype(np.int32)
    x = np.arange(len(y) + len(y_test), dtype=np.float32)[:, None]
    n = len(y)
    return Source("numbered", x[:n], y, x[n:], y_test, len(counts), 0.0, 1.0, y % 2)


counts = st.lists(st.integers(1, 30), min_size=2, max_size=5)


@settings(deadline=None, max_examples=60)
@given(counts, st.integers(0, 9), st.data())
def test_a_holdout_takes_its_share_of_every_label_and_nothing_is_lost(c, seed, data):
    source = numbered(c, [3] * len(c), seed)
    n = len(source.y_train)
    public_size = data.draw(st.integers(1, n - 1))
    validation = data.draw(st.integers(0, n - public_size - 1))
    rest, public = holdout(source, public_size, validation, seed)
    parts = [(public.x, public.y), (rest.x_train, rest.y_train)]
    if validation:
        parts.append(public.validation)
    assert public.num_examples == public_size and public.protocol == "holdout"
    x = np.concatenate([x for x, _ in parts])[:, 0].astype(int)
    np.testing.assert_array_equal(np.sort(x), np.arange(n))
    y = np.concatenate([y for _, y in parts])
    np.testing.assert_array_equal(y, source.y_train[x])
    taken = np.bincount(public.y, minlength=len(c))
    assert (abs(taken - public_size * np.array(c) / n) < 1).all()
    np.testing.assert_array_equal(rest.clients, rest.y_train % 2)
    assert rest.x_test is source.x_test and rest.mean == source.mean
    alone = holdout(source, public_size, 0, seed).public
    np.testing.assert_array_equal(alone.x, public.x)


def test_another_seed_holds_out_others():
    source = numbered([50, 50], [2, 2])
    first, second = (set(holdout(source, 20, 0, s).public.x[:, 0]) for s in (0, 1))
    assert first != second


def test_the_public_set_is_a_tenth_or_half_the_test_set_and_never_more_than_5000():
    source = load("digits")
    assert holdout(source).public.num_examples == 143
    assert half_of_test(source).public.num_examples == 180
    many = numbered([40_000, 20_000], [12_000, 2_000])
    assert holdout(many).public.num_examples == 5000
    np.testing.assert_array_equal(np.bincount(holdout(many).public.y), [3333, 1667])
    assert half_of_test(many).public.num_examples == 5000


def test_half_of_the_test_set_is_tested_on_no_more():
    source = numbered([20, 20], [10, 6])
    rest, public = half_of_test(source, 8, validation=5)
    assert public.protocol == "split_test"
    np.testing.assert_array_equal(np.bincount(public.y), [5, 3])
    x = np.concatenate([public.x, rest.x_test])[:, 0]
    np.testing.assert_array_equal(np.sort(x), source.x_test[:, 0])
    assert len(rest.y_train) == 35 and len(public.validation[1]) == 5
    assert max(public.validation[0]) < 40  # of the training set


def test_the_published_public_set_is_the_test_set():
    source = numbered([20, 20], [10, 6])
    rest, public = published(source)
    assert public.protocol == "published" and rest == source
    np.testing.assert_array_equal(public.x, source.x_test)
    np.testing.assert_array_equal(public.y, source.y_test)
    with pytest.raises(
        ValueError, match="public_examples=7 but public=published takes"
    ):
        published(source, 7)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_source_too_small_is_one_sentence(name):
    source = numbered([6, 6], [4, 4])
    with pytest.raises(ValueError, match="validation_examples=12 leaves nothing of"):
        PROTOCOLS[name](source, validation=12)
    if name != "published":
        with pytest.raises(ValueError, match="public_examples=12 leaves nothing of"):
            PROTOCOLS[name](source, 12)
        with pytest.raises(
            ValueError, match="public_examples=0 must be an integer >= 1"
        ):
            PROTOCOLS[name](source, 0)


def test_enough_of_the_test_set_is_left_to_test_on():
    source = numbered([6, 6, 6], [4, 4, 4])
    says = "public_examples=10 leaves 2 of 12 test examples for 3 labels; write public_"
    with pytest.raises(ValueError, match=says):
        half_of_test(source, 10)
    assert len(half_of_test(source, 9).source.y_test) == 3


def federated(public, test=None):
    return fa.FederatedDataset.from_clients(
        make_clients(), test=test, public=public, num_classes=3
    )


X, Y = np.full((5, 4), 7, np.float32), np.array([0, 1, 2, 1, 0])


@pytest.mark.parametrize(
    "given",
    [X, jnp.asarray(X), (X, Y), [X, Y], (X, None), PublicSet(X, Y, (X, Y), "holdout")],
    ids=["array", "device", "pair", "list", "unlabelled", "set"],
)
def test_whatever_is_given_becomes_a_public_set_on_the_device(given):
    public = federated(given).public
    assert isinstance(public, fa.PublicSet) and isinstance(public.x, jax.Array)
    labelled = isinstance(given, PublicSet) or (
        len(given) == 2 and given[1] is not None
    )
    assert (public.y is not None) is labelled
    protocol = "holdout" if isinstance(given, PublicSet) else "given"
    assert public.protocol == protocol
    shapes = jax.eval_shape(lambda data: data.public, federated(given))
    assert shapes.x.shape == (5, 4) and shapes.protocol == protocol
    assert federated(given).pooled().public.num_examples == 5


def test_no_public_set_is_none():
    assert federated(None).public is None


WRONG = {
    "shape": (X[:, :3], "public has inputs float32.3. but the clients have float32.4."),
    "dtype": (X.astype(np.uint8), "public has inputs uint8"),
    "empty": (X[:0], "public has no examples; give it one or more"),
    "lengths": (
        (X, Y[:3]),
        "public has x of .* and y of shape .3,.; give one label",
    ),
    "label": ((X, Y + 1), "label 3 .public example 2. is out of range"),
    "nan": (np.where(Y[:, None] == 2, np.nan, X), "public example 2 has the input nan"),
    "dict": ({"x": X}, "public must be inputs .* it is a dict"),
    "three": ((X, Y, Y), "a pair .x, y. or a PublicSet; it is a tuple"),
    "protocol": (PublicSet(X, Y, None, "hold_out"), "did you mean 'holdout'"),
    "validation": (PublicSet(X, Y, (X, Y + 1)), "validation example 2"),
}


@pytest.mark.parametrize(("public", "sentence"), WRONG.values(), ids=WRONG)
def test_a_public_set_that_does_not_fit_is_one_sentence(public, sentence):
    with pytest.raises(ValueError, match=sentence):
        federated(public)


def test_a_public_set_may_not_be_tested_on_unless_it_says_so():
    test = (np.concatenate([X[:1] + 1, X[3:]]), Y[:3])
    for public, name in ((X, "public"), (PublicSet(X + 3, Y, (X, Y)), "validation")):
        with pytest.raises(
            ValueError, match=f"{name} overlaps the test set in 5 of its"
        ):
            federated(public, test)
    assert federated(PublicSet(X, Y, protocol="published"), test).public is not None
    assert federated(X + 3, test).public is not None


def test_replacing_a_public_set_does_not_let_test_examples_in():
    data = federated(X + 3, (X, Y))
    data.check_public()
    for public in (X, (X, Y), PublicSet(X + 3, Y, (X, Y))):
        with pytest.raises(ValueError, match="overlaps the test set in 5 of its 5"):
            replace(data, public=public).check_public()
    replace(data, public=PublicSet(X, Y, protocol="published")).check_public()
    replace(data, public=X, test=None).check_public()
    jax.eval_shape(lambda data: data.check_public(), replace(data, public=X))


@pytest.mark.parametrize("protocol", ["holdout", "split_test"])
def test_a_protocol_that_says_apart_may_share_a_tenth_with_the_test_set(protocol):
    x = np.arange(80, dtype=np.float32).reshape(20, 4)
    y = np.zeros(20, np.int32)
    tested = lambda count: (np.concatenate([x[7 : 7 + count], X]), Y[[0] * (count + 5)])
    public = PublicSet(x, y, protocol=protocol)
    assert federated(public, tested(2)).public is not None  # natural duplicates
    with pytest.raises(
        ValueError, match="in 3 of its 20 examples, the first of them 7"
    ):
        federated(public, tested(3))
    judged = PublicSet(X + 3, Y, (x, y), protocol)
    with pytest.raises(ValueError, match="validation overlaps the test set in 20 of"):
        federated(judged, (x, y))
    with pytest.raises(ValueError, match="public overlaps the test set in 1 of its 20"):
        federated((x, y), tested(1))


def test_parity_reaches_the_public_set():
    public = PublicSet(X, Y, (X, Y)).parity()
    np.testing.assert_array_equal(public.y, Y % 2)
    np.testing.assert_array_equal(public.validation[1], Y % 2)
    assert PublicSet(X).parity().y is None


def test_one_label_for_all_of_a_public_set_is_refused():
    clients = make_clients([5, 5])
    with pytest.raises(
        ValueError, match="public has x of shape .*; give one label per input"
    ):
        fa.FederatedDataset.from_clients(clients, public=(clients[0][0][:3] + 9, 1))
