"""Arrays that are no examples end in one sentence, none is bent until it fits."""

import jax
import numpy as np
import pytest

import fedjax_adapt as fa

FederatedDataset = fa.FederatedDataset
X, Y = np.ones((6, 2), np.float32), np.array([0, 1, 2, 0, 1, 2])
HALF = np.arange(6) < 3


@pytest.mark.parametrize(
    "rows, sentence",
    [
        ([[0, 1], [2, 6]], "rows gives client 1 row 6, but its x has rows 0 to 5"),
        ([[0, -1]], "rows gives client 0 row -1"),
        ([[0, 1], [2.5, 3]], r"rows gives client 1 float64\[2\]; give the numbers"),
        ([HALF, ~HALF], r"rows gives client 0 bool\[6\]; .* np.flatnonzero of a mask"),
        ([[[0, 1], [2, 3]]], r"rows gives client 0 int64\[2, 2\]"),
        ([1, 2], r"rows gives client 0 int64\[\]; .* such as \[0, 3\]"),
    ],
)
@pytest.mark.parametrize("labels", [Y, Y.astype(np.float32)])  # counted, and not
def test_rows_that_are_none_are_refused(rows, sentence, labels):
    with pytest.raises(fa.SettingError, match=sentence):
        FederatedDataset.from_rows(X, labels, rows)
    with pytest.raises(
        fa.SettingError, match=sentence.replace("rows", "client_tests", 1)
    ):
        FederatedDataset.from_rows(
            X, labels, [[0]] * len(rows), client_tests=(X, labels, rows)
        )


@pytest.mark.parametrize("labels", [Y, Y.astype(np.float32)])
def test_every_input_needs_one_label(labels):
    for x, y in ((X, labels[:4]), (X[:4], labels)):
        with pytest.raises(fa.SettingError, match="give one label per input"):
            FederatedDataset.from_rows(x, y, [[0, 1]])
        with pytest.raises(fa.SettingError, match="^test has x .* one label per input"):
            FederatedDataset.from_rows(X, labels, [[0, 1]], test=(x, y))


@pytest.mark.parametrize(
    "bend",
    [lambda a: a.tolist(), lambda a: a.astype(a.dtype.newbyteorder(">"))],
    ids=["lists", "the other byte order"],
)
def test_lists_and_any_byte_order_are_the_same_arrays(bend):
    def made(as_given):
        x, y, apart = as_given(X), as_given(Y), as_given(X + 1)
        return FederatedDataset.from_rows(
            x,
            y,
            [[0, 1], [2]],
            test=(x, y),
            public=fa.PublicSet(apart, y, validation=(apart, y)),
            client_tests=(x, y, [[3], [4, 5]]),
        )

    bent, straight = made(bend), made(lambda a: a)
    assert jax.tree.structure(bent) == jax.tree.structure(straight)
    for a, b in zip(*map(jax.tree.leaves, (bent, straight)), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    clients = [(bend(X[:2]), bend(Y[:2])), (bend(X), bend(Y))]
    assert FederatedDataset.from_clients(clients).x.tolist() == [[1, 1]] * 8


@pytest.mark.parametrize("where", ["x", "y"])
def test_lists_of_different_lengths_are_named(where):
    pair = tuple([[1.0], [1.0, 2.0]] if where == what else X[:2] for what in "xy")
    for of, make in {
        "": lambda: FederatedDataset.from_rows(*pair, [[0]]),
        " of test": lambda: FederatedDataset.from_rows(X, Y, [[0]], test=pair),
        " of public": lambda: FederatedDataset.from_rows(X, Y, [[0]], public=pair),
        " of client_tests": lambda: FederatedDataset.from_rows(
            X, Y, [[0]], client_tests=(*pair, [[0]])
        ),
        " of client 1": lambda: FederatedDataset.from_clients([(X, Y), pair]),
    }.items():
        with pytest.raises(
            fa.SettingError, match=f"^{where}{of} holds lists of differ"
        ):
            make()


def test_an_integer_the_device_cannot_hold_is_refused():
    large = np.full((6, 2), 3)
    large[4, 1] = 2**31
    sentence = "example 4 has 2147483648 among its inputs, more than int32 holds"
    tokens = np.ones((6, 2), int)
    with pytest.raises(fa.SettingError, match=f"^training {sentence}"):
        FederatedDataset.from_rows(large, Y, [[0]])
    with pytest.raises(fa.SettingError, match=f"^test {sentence}"):
        FederatedDataset.from_rows(tokens, Y, [[0]], test=(large, Y))
    with pytest.raises(fa.SettingError, match=f"^public {sentence}"):
        FederatedDataset.from_rows(tokens, Y, [[0]], public=large)
    with pytest.raises(fa.SettingError, match="18446744073709551615 among its inputs"):
        FederatedDataset.from_rows(np.full((6, 2), -1).astype(np.uint64), Y, [[0]])
    with pytest.raises(fa.SettingError, match=f"has {-(2**31) - 1} among its inputs"):
        FederatedDataset.from_rows(tokens - 2**31 - 2, Y, [[0]])
    with pytest.raises(fa.SettingError, match="2147483648 among its targets"):
        wide = tokens, np.full(6, 2**31)
        FederatedDataset.from_rows(tokens, Y, [[0]], test=wide)
    most = np.full((6, 2), 2**31 - 1)
    assert FederatedDataset.from_rows(most, Y, [[0]]).x.max() == 2**31 - 1


@pytest.mark.parametrize(
    "x, y, sentence",
    [
        (X.astype(complex), Y, "the inputs of training examples are complex128"),
        (
            X.astype("datetime64[s]"),
            Y,
            "the inputs of training examples are datetime64",
        ),
        (
            X,
            np.array(list("abcabc")),
            "the targets of training examples are <U1; .* text",
        ),
        (X, Y.astype(object), "the targets of training examples are object"),
    ],
)
def test_what_is_no_real_number_is_refused(x, y, sentence):
    with pytest.raises(fa.SettingError, match=sentence):
        FederatedDataset.from_rows(x, y, [[0]])


def test_a_mask_that_hides_values_is_refused():
    masked = np.ma.masked_equal(X, 1)
    with pytest.raises(fa.SettingError, match=r"x is a masked array, .* with .filled"):
        FederatedDataset.from_rows(masked, Y, [[0]])
    with pytest.raises(fa.SettingError, match="y of client 0 is a masked array"):
        FederatedDataset.from_clients([(X, np.ma.masked_less(Y, 1))])


def test_a_test_has_inputs_like_the_clients():
    for other in (X.astype(np.uint8), np.ones((6, 3), np.float32)):
        with pytest.raises(fa.SettingError, match="^test has inputs .* like theirs"):
            FederatedDataset.from_rows(X, Y, [[0]], test=(other, Y))
    data = FederatedDataset.from_rows(X, Y, [[0]], test=(X.astype(np.float64), Y))
    assert data.test[0].dtype == X.dtype
    empty = FederatedDataset.from_rows(X, Y, [[0]], test=(X[:0], Y[:0])).test
    assert [part.shape for part in empty] == [(0, 2), (0,)]
    for given in (X, (X, Y, Y)):
        with pytest.raises(fa.SettingError, match=r"give a pair, test=\(x, y\)"):
            FederatedDataset.from_rows(X, Y, [[0]], test=given)


def test_every_client_is_a_pair_of_arrays_of_one_kind():
    refused = {
        "client 1 is a tuple; give it a pair": [(X, Y), (X, Y, Y)],
        "client 1 is None; give it a pair": [(X, Y), None],
        "client 0 has a dict for x; give one array": [({"a": X, "b": X}, Y)],
        "client 1 has labels float32 but client 0 has int64": [(X, Y), (X, X[:, 0])],
    }
    for sentence, clients in refused.items():
        with pytest.raises(fa.SettingError, match=sentence):
            FederatedDataset.from_clients(clients)
    with pytest.raises(fa.SettingError, match="the test of client 1 is None"):
        FederatedDataset.from_clients([(X, Y)] * 2, client_tests=[(X, Y), None])


def test_of_several_labels_an_example_the_example_is_named():
    pairs = np.stack([Y, Y], 1)
    pairs[4, 1] = -1
    with pytest.raises(fa.SettingError, match=r"^label -1 \(training example 4\)"):
        FederatedDataset.from_rows(X, pairs, [[0]])
    large = np.where(pairs < 0, 7, pairs)
    with pytest.raises(fa.SettingError, match=r"^label 7 \(test example 4\)"):
        FederatedDataset.from_rows(X, abs(pairs), [[0]], test=(X, large))


def test_labels_that_number_no_classes_are_refused():
    dates = Y + 20240101  # each client would have a count of every one
    with pytest.raises(
        fa.SettingError, match="^label 20240103 .* 20240104 classes of 6"
    ):
        FederatedDataset.from_clients([(X, dates)])
    given = FederatedDataset.from_rows(X, Y + 999_997, [[0]])
    assert given.num_classes == 1_000_000


def test_there_may_be_as_many_classes_as_examples(monkeypatch):
    monkeypatch.setattr("fedjax_adapt.data.examples.MOST_CLASSES", 3)
    own = np.arange(6)
    assert FederatedDataset.from_rows(X, own, [[0]]).num_classes == 6
    with pytest.raises(fa.SettingError, match="^label 6 .* 7 classes of 6 examples"):
        FederatedDataset.from_rows(X, own + 1, [[0]])


@pytest.mark.parametrize("number", ["3", 3.5, -1, True])
def test_a_number_of_classes_is_a_whole_number(number):
    with pytest.raises(fa.SettingError, match="num_classes="):
        FederatedDataset.from_rows(X, Y, [[0]], num_classes=number)


@pytest.mark.parametrize(
    "labels, other",
    [
        (Y, Y.astype(np.float32)),
        (Y.astype(np.float32), Y),
        (Y, Y.astype(np.uint64)),  # of which NumPy makes float64
        (Y, Y[:, None]),
    ],
)
def test_labels_are_of_one_kind_and_shape(labels, other):
    with pytest.raises(fa.SettingError, match="^client 1 has labels .* client 0 has"):
        FederatedDataset.from_clients([(X, labels), (X, other)])
    with pytest.raises(fa.SettingError, match="^test has labels .* the clients have"):
        FederatedDataset.from_rows(X, labels, [[0]], test=(X, other))


def test_labels_of_a_client_without_examples_are_of_the_others_kind():
    data = FederatedDataset.from_clients([(X, Y), (X[:0], [])], test=(X.tolist(), Y))
    assert data.y.dtype == np.int32 and data.num_classes == 3
    assert list(data.size) == [6, 0]
    assert data.test[0].shape == (6, 2) and data.test[1].dtype == np.int32


@pytest.mark.parametrize("place", range(3))
def test_a_client_without_examples_may_be_two_empty_lists(place):
    pairs = [(X.tolist(), Y.tolist())] * 2
    pairs.insert(place, ([], []))
    data = FederatedDataset.from_clients(pairs)
    assert data.size.tolist() == [6 * (i != place) for i in range(3)]
    assert data.x.shape == (12, 2) and data.num_classes == 3


def test_a_client_of_empty_lists_has_targets_of_the_others_shape():
    data = FederatedDataset.from_clients(
        [([], []), (X, X)], client_tests=[(X, X), ([], [])]
    )
    assert data.y.shape == (6, 2) and data.size.tolist() == [0, 6]


def test_a_client_without_examples_has_inputs_of_the_others_shape():
    with pytest.raises(fa.SettingError, match=r"client 1 has inputs float64\[3\]"):
        FederatedDataset.from_clients([(X, Y), (np.zeros((0, 3)), [])])


@pytest.mark.parametrize("kind", ["pyarrow", "polars"])
def test_tables_of_other_kinds_have_an_order_of_columns_too(kind):
    make = getattr(
        pytest.importorskip(kind), {"pyarrow": "table"}.get(kind, "DataFrame")
    )
    table = make({"speed": X[:, 0], "weight": X[:, 1]})
    data = FederatedDataset.from_clients([(table, Y)], (table, Y))
    np.testing.assert_array_equal(data.test[0], X)
    with pytest.raises(
        fa.SettingError, match="^test has the columns weight, speed but"
    ):
        turned = table.select(["weight", "speed"])
        FederatedDataset.from_clients([(table, Y)], (turned, Y))


def test_tables_whose_columns_are_in_another_order_are_refused():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(X, columns=["speed", "weight"])
    turned = table[["weight", "speed"]]
    clients, rows = [(table, Y), (X, Y)], [[0, 1]]
    FederatedDataset.from_clients(
        clients, (table, Y), client_tests=[(table, Y), ([], [])]
    )
    own = iter([(X, Y), (turned, Y)])
    from_clients, from_rows = FederatedDataset.from_clients, FederatedDataset.from_rows
    for who, make in {
        "client 2": lambda: from_clients([*clients, (turned, Y)]),
        "test": lambda: from_clients(clients, (turned, Y)),
        "public": lambda: from_clients(clients, public=turned),
        "public  ": lambda: from_rows(table, Y, rows, public=fa.PublicSet(turned)),
        "validation": lambda: from_clients(
            clients, public=fa.PublicSet(table, validation=(turned, Y))
        ),
        "the test of client 1": lambda: from_clients(clients, client_tests=own),
        "test ": lambda: from_rows(table, Y, rows, (turned, Y)),
        "public ": lambda: from_rows(table, Y, rows, public=(turned, Y)),
        "client_tests": lambda: from_rows(
            table, Y, rows, client_tests=(turned, Y, rows)
        ),
    }.items():
        sentence = f"^{who.strip()} has the columns weight, speed but .* speed, weight;"
        with pytest.raises(fa.SettingError, match=sentence):
            make()
    for who, make in {
        "client 1": lambda: from_clients([(X, table), (X, turned)]),
        "test": lambda: from_rows(X, table, rows, (X, turned)),
    }.items():
        sentence = f"^{who} has the label columns weight, speed but .* speed, weight;"
        with pytest.raises(fa.SettingError, match=sentence):
            make()
