"""Tables whose rows have owners: pandas, polars, pyarrow, Hugging Face."""

import sys

import numpy as np
import pyarrow as pa
import pytest

import fedjax_adapt as fa

COLUMNS = {
    "user": ["cleo", "anna", "cleo", "bert", "anna"],
    "age": [1, 2, 3, 4, 5],
    "height": [0.5, 1.5, 2.5, 3.5, 4.5],
    "kind": ["dog", "cat", "cat", "ant", "dog"],
}
from_frame = fa.FederatedDataset.from_frame


def pandas(columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def polars(columns):
    return pytest.importorskip("polars").DataFrame(columns)


def hugging_face(columns):
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def with_index(columns):
    """A pandas table whose index is not 0, 1, ..., which is no feature."""
    return pandas(columns).set_index(np.array([7, 3, 5, 9, 8]))


def categorical(columns):
    return pandas(columns).astype({"user": "category", "kind": "category"})


TABLES = [pa.table, pandas, with_index, categorical, polars, hugging_face]


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__)
def test_every_kind_of_table_is_the_same_federation(table):
    data = from_frame(table(COLUMNS), client="user", label="kind")
    assert data.client_names == ("anna", "bert", "cleo")
    assert data.label_names == ("ant", "cat", "dog") and data.num_classes == 3
    x, y = np.asarray(data.x), np.asarray(data.y)
    held = [(x[rows].tolist(), y[rows].tolist()) for rows in data.rows()]
    assert held == [
        ([[2, 1.5], [5, 4.5]], [1, 2]),
        ([[4, 3.5]], [0]),
        ([[1, 0.5], [3, 2.5]], [2, 1]),
    ]
    assert x.dtype == np.float32 and y.dtype == np.int32
    assert data.test is None and data.client_tests is None


def test_features_are_taken_in_the_order_they_are_named_in():
    table = pa.table(COLUMNS)
    named = lambda features: from_frame(table, "user", "kind", features=features).x
    np.testing.assert_array_equal(named(["height", "age"])[0], [0.5, 1])
    assert named("age").dtype == np.int32 and named("age").shape == (5, 1)
    np.testing.assert_array_equal(
        named(("age",))[:, 0], COLUMNS["age"]
    )  # int32 as no column of floats is named


def test_labels_keep_their_kind():
    table = pa.table(COLUMNS | {"y": [2, 0, 1, 0, 2], "z": [0.5, -1.0, 2, 3, 4]})
    classes = from_frame(table, "user", "y", "age")
    assert classes.y.tolist() == [2, 0, 1, 0, 2] and classes.num_classes == 3
    assert classes.label_names is None
    assert from_frame(table, "user", "y", "age", num_classes=7).num_classes == 7
    gaps = pa.table(
        COLUMNS | {"y": [4, 0, 4, 0, 2]}
    )  # classes of which some are absent
    gaps = from_frame(gaps, "user", "y", "age")
    assert gaps.y.tolist() == [4, 0, 4, 0, 2] and gaps.num_classes == 5
    numbers = from_frame(table, "user", "z", "age")
    assert numbers.y.tolist() == [0.5, -1, 2, 3, 4] and numbers.label_counts is None
    flags = pa.table(COLUMNS | {"old": [True, False, True, True, False]})
    old = from_frame(flags, "user", "old", "age")
    assert old.label_names == (False, True) and old.y.tolist() == [1, 0, 1, 1, 0]


def test_clients_may_be_numbers_and_are_sorted_as_such():
    table = pa.table(COLUMNS | {"user": [10, 9, 10, 2, 9]})
    data = from_frame(table, "user", "kind")
    assert data.client_names == (2, 9, 10) and data.size.tolist() == [1, 2, 2]


TEST = {
    "user": ["bert", "zoe", "anna", "bert"],
    "age": [7, 8, 9, 10],
    "height": [1, 2, 3, 4],  # whole numbers, as a small table may have them
    "kind": ["cat", "bee", "ant", "cat"],
}


@pytest.mark.parametrize("table", [pa.table, pandas, polars])
def test_a_test_table_with_clients_is_their_own_test(table):
    data = from_frame(table(COLUMNS), "user", "kind", test=table(TEST))
    x, y = data.test
    assert x.tolist() == [[7, 1], [8, 2], [9, 3], [10, 4]] and x.dtype == np.float32
    assert data.label_names == ("ant", "bee", "cat", "dog")
    assert y.tolist() == [2, 1, 0, 2] and data.num_classes == 4
    tests = data.client_tests
    assert tests.x is x and [r.tolist() for r in tests.rows()] == [[2], [0, 3], []]
    without = {name: column for name, column in TEST.items() if name != "user"}
    central = from_frame(table(COLUMNS), "user", "kind", test=table(without))
    assert central.client_tests is None and len(central.test[1]) == 4
    strangers = pa.table(TEST | {"user": ["x", "y", "z", "z"]})
    data = from_frame(pa.table(COLUMNS), "user", "kind", test=strangers)
    assert data.client_tests is None and len(data.test[1]) == 4


def test_a_column_of_arrays_is_the_input():
    rows = [[[i, i + 1], [i + 2, i + 3], [0, 0]] for i in range(5)]
    image = pa.array(rows, pa.list_(pa.list_(pa.uint8(), 2)))
    table = pa.table(COLUMNS | {"image": image})
    data = from_frame(table, "user", "kind", "image")
    assert data.x.shape == (5, 3, 2) and data.x.dtype == np.uint8
    assert data.x[3].tolist() == rows[3]
    sliced = from_frame(table.slice(2), "user", "kind", "image")
    assert sliced.x[0].tolist() == rows[2]  # an Arrow slice keeps the whole buffer


def test_polars_arrays_and_pandas_objects_are_columns_of_arrays():
    rows = np.arange(15, dtype=np.float32).reshape(5, 3)
    pl = pytest.importorskip("polars")
    column = pl.Series("v", rows, dtype=pl.Array(pl.Float32, 3))
    table = pl.DataFrame(COLUMNS | {"v": column})
    np.testing.assert_array_equal(from_frame(table, "user", "kind", "v").x, rows)
    table = pandas(COLUMNS | {"v": list(rows)})
    np.testing.assert_array_equal(from_frame(table, "user", "kind", "v").x, rows)
    images = rows.reshape(5, 3, 1)
    with pytest.raises(ValueError, match="arrays of several axes as lists of lists"):
        from_frame(pandas(COLUMNS | {"v": list(images)}), "user", "kind", "v")
    table = pandas(COLUMNS | {"v": images.tolist()})
    np.testing.assert_array_equal(from_frame(table, "user", "kind", "v").x, images)


def test_hugging_face_decodes_images_and_names_classes():
    datasets = pytest.importorskip("datasets")
    grey = np.arange(80, dtype=np.uint8).reshape(5, 4, 4)
    features = datasets.Features(
        user=datasets.Value("string"),
        image=datasets.Image(),
        label=datasets.ClassLabel(names=["no", "yes", "perhaps"]),
    )
    columns = {"user": COLUMNS["user"], "image": list(grey), "label": [0, 1, 1, 0, 1]}
    whole = datasets.Dataset.from_dict(columns, features=features)
    data = from_frame(whole, client="user", label="label")
    assert data.x.shape == (5, 4, 4, 1) and data.x.dtype == np.uint8
    np.testing.assert_array_equal(data.x[..., 0], grey)
    assert data.label_names == ("no", "yes", "perhaps") and data.num_classes == 3
    some = from_frame(whole.select([4, 0]), client="user", label="label")
    np.testing.assert_array_equal(some.x[..., 0], grey[[4, 0]])  # as selected
    assert some.client_names == ("anna", "cleo") and some.num_classes == 3
    plane = datasets.Features(
        user=datasets.Value("string"),
        image=datasets.Array2D((4, 4), "float32"),
        label=datasets.Value("string"),
    )
    planes = columns | {"image": grey.astype(np.float32), "label": COLUMNS["kind"]}
    data = from_frame(
        datasets.Dataset.from_dict(planes, features=plane), "user", "label"
    )
    np.testing.assert_array_equal(data.x, grey)
    assert data.label_names == ("ant", "cat", "dog")
    other = [grey[0], *(np.zeros((3, 3), np.uint8) for _ in range(4))]
    uneven = datasets.Dataset.from_dict(columns | {"image": other}, features=features)
    with pytest.raises(ValueError, match="'image'.* arrays of one shape"):
        from_frame(uneven, client="user", label="label")
    streamed = whole.to_iterable_dataset()
    with pytest.raises(ValueError, match="IterableDataset of .* not streamed"):
        from_frame(streamed, "user", "label")
    with pytest.raises(ValueError, match=r"is a DatasetDict of .*\[\"train\"\]"):
        from_frame(datasets.DatasetDict(train=whole), "user", "label")


def test_no_library_of_tables_is_imported_that_the_table_is_not_of(monkeypatch):
    table = pa.table(COLUMNS)  # PyArrow itself looks for pandas once
    for name in ("pandas", "polars", "datasets", "narwhals"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it would fail
    assert from_frame(table, "user", "kind").num_clients == 3


def refused(columns=(), **arguments):
    given = {"client": "user", "label": "kind"} | arguments
    with pytest.raises(ValueError) as caught:
        from_frame(pa.table(COLUMNS | dict(columns)), **given)
    return str(caught.value)


def test_columns_that_do_not_serve_are_named():
    assert "client='usr' is not a column of frame; did you mean 'user'?" in refused(
        client="usr"
    )
    assert "label='kinds' is not a column of frame" in refused(label="kinds")
    assert "features='weight' is not a column" in refused(features=["age", "weight"])
    assert "are one column" in refused(client="kind")
    assert "'kind' is the label" in refused(features=["age", "kind"])
    assert "'age' is there twice" in refused(features=["age", "age"])
    assert "client='height' is a column of double" in refused(client="height")
    for label in (["kind", "age"], np.array(["kind", "age"])):
        assert "label=a" in refused(label=label, features="age")
    assert "client=0 is not a column of frame" in refused(client=0)
    assert "features=7 is not a column of frame" in refused(features=7)
    text = {"city": list("abcde")}
    assert "feature 'city' is a column of string, no numbers" in refused(text)


def test_what_is_missing_is_counted():
    assert "column 'user' of frame lacks 2 values, the first in row 1" in refused(
        {"user": ["a", None, "b", None, "c"]}
    )
    assert "column 'kind' of frame lacks 1 values" in refused(
        {"kind": ["a", "b", "c", "d", None]}
    )
    nan = [0.5, 1, float("nan"), 3, float("nan")]
    assert "column 'height' of frame lacks 2 values, the first in row 2" in refused(
        {"height": nan}
    )
    assert "column 'y' of frame lacks 2 values" in refused(
        {"y": nan}, label="y", features="age"
    )
    holes = {"v": [[1.0, 2.0], [3.0, 4.0], [5.0, None], [7.0, 8.0], [9.0, 0.0]]}
    assert "column 'v' of frame lacks 1 values, the first in row 2" in refused(
        holes, features="v"
    )


def test_numbers_that_do_not_serve_are_named():
    of = lambda y: refused({"y": y}, label="y", features="age")
    assert "label='y' holds -1 in row 1" in of([0, -1, 1, 1, 0])
    assert "label='y' holds 900 in row 4" in of([0, 1, 1, 1, 900])
    large = {"age": [1, 2, 2**40, 4, 5]}
    assert f"feature 'age' holds {2**40}, more than int32 can" in refused(large)
    ragged = {"v": [[1.0], [1.0, 2.0], [1.0], [1.0], [1.0]]}
    assert "feature 'v' has lists of 1 and 2 values" in refused(ragged, features="v")
    arrays = {"v": [[1.0, 2.0]] * 5}
    assert "'v' is a column of arrays [2], which cannot be joined with 2" in refused(
        arrays
    )
    struct = {"v": [{"a": 1}] * 5}
    assert "'v' is a column of struct<a: int64>" in refused(struct, features="v")


def test_what_is_no_table_is_refused():
    for frame in (7, [1, 2], np.ones((3, 2)), None):
        with pytest.raises(ValueError, match="pandas, polars or pyarrow table"):
            from_frame(frame, "user", "kind")
    with pytest.raises(ValueError, match="frame has no rows"):
        from_frame(pa.table(COLUMNS).slice(5), "user", "kind")
    twice = pa.table([pa.array([1])] * 2, names=["user", "user"])
    with pytest.raises(ValueError, match="frame has two columns 'user'"):
        from_frame(twice, "user", "kind")
    with pytest.raises(ValueError, match="no features besides 'user' and 'kind'"):
        from_frame(pa.table(COLUMNS).select(["user", "kind"]), "user", "kind")


def test_a_test_table_must_be_like_the_frame():
    def sentence(**changes):
        test = {n: c for n, c in (TEST | changes).items() if c is not None}
        given = {"client": "user", "label": "kind", "test": pa.table(test)}
        with pytest.raises(ValueError) as caught:
            from_frame(pa.table(COLUMNS), **given)
        return str(caught.value)

    assert "label='kind' is a column of string in frame and of int64" in sentence(
        kind=[0, 1, 2, 0]
    )
    assert "features='age' is not a column of test" in sentence(age=None)
    assert "column 'age' of test lacks 1 values" in sentence(age=[1, 2, None, 3])
