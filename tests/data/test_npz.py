import pickle
import zipfile

import numpy as np
import pytest
from written import write_npz

from fedjax_adapt.data import load, split, split_test


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)


def test_npz_is_read_as_float32_with_its_own_moments(tmp_path):
    arrays = write_npz(tmp_path / "mine.npz")
    source = load(str(tmp_path / "mine.npz"))
    np.testing.assert_array_equal(source.x_train, arrays["x_train"].astype(np.float32))
    assert source.y_train.dtype == np.int32 and source.num_classes == 3
    assert source.mean == pytest.approx(arrays["x_train"].mean())
    assert source.std == pytest.approx(arrays["x_train"].std())
    assert source.clients is None


def test_npz_is_found_in_the_data_folder(tmp_path):
    write_npz(tmp_path / "mine.npz")
    assert len(load("mine.npz", tmp_path).y_test) == 4
    with pytest.raises(ValueError, match=r"other.npz and .*other.npz not found; write"):
        load("other.npz", tmp_path)


def test_colour_images_have_moments_per_channel_and_keep_their_bytes(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (8, 5, 5, 3)).astype(np.uint8)
    x[..., 2] = 7
    write_npz(tmp_path / "mine.npz", x_train=x, x_test=x[:4])
    source = load(str(tmp_path / "mine.npz"))
    assert source.x_train.dtype == np.uint8
    assert source.mean == pytest.approx(x.mean((0, 1, 2)).tolist())
    # A constant channel has deviation 0, by which nothing can be divided.
    assert source.std == pytest.approx([*x.std((0, 1, 2))[:2], 1.0])


def test_moments_of_many_blocks_are_those_of_the_whole(tmp_path):
    x = np.random.default_rng(0).normal(1e3, 2, (2100, 1000)).astype(np.float32)
    write_npz(
        tmp_path / "mine.npz", x_train=x, y_train=np.arange(2100) % 3, x_test=x[:4]
    )
    source = load(str(tmp_path / "mine.npz"))
    assert source.mean == pytest.approx(x.mean(dtype=np.float64), rel=1e-12)
    assert source.std == pytest.approx(x.std(dtype=np.float64), rel=1e-9)


def test_owners_are_kept_and_numbered_from_zero(tmp_path):
    write_npz(tmp_path / "mine.npz", clients=[30, 10, 10, 30, 20, 20, 10, 30])
    source = load(str(tmp_path / "mine.npz"))
    np.testing.assert_array_equal(source.clients, [2, 0, 0, 2, 1, 1, 0, 2])


def test_more_labels_than_seen_are_an_option(tmp_path):
    write_npz(tmp_path / "mine.npz")
    assert load(str(tmp_path / "mine.npz"), num_classes=7).num_classes == 7


def nan_at(row, column):
    x = np.zeros((8, 6))
    x[row, column] = np.nan
    x[7, 5] = np.inf
    return x


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"x_test": None, "y_test": None}, "it has no x_test, y_test, only x_train"),
        ({"x_train": np.array([{}] * 8)}, "x_train holds Python objects, which are"),
        ({"x_train": np.array(["a"] * 8)}, r"x_train is <U1\[8\] but must be real"),
        ({"x_train": np.zeros((8, 6), complex)}, "x_train is complex128"),
        ({"x_train": np.zeros(8)}, "at least two axes"),
        (
            {"x_train": np.zeros((0, 6)), "y_train": np.zeros(0, int)},
            "none of length 0",
        ),
        ({"x_train": np.zeros((7, 6))}, "x_train has 7 examples but y_train has 8"),
        ({"x_test": np.zeros((4, 5))}, r"x_train is float32\[6\] but one of x_test"),
        ({"x_test": np.zeros((4, 6), np.uint8)}, r"but one of x_test is uint8\[6\]"),
        (
            {"y_train": np.eye(8)},
            r"y_train is float64\[8, 8\] but must be integers.* write y_train.argmax\(1\)",
        ),
        (
            {"y_train": np.arange(8) / 2},
            r"write np.searchsorted\(np.unique\(np.append\(y_train, y_test\)\), y_train\)",
        ),
        ({"y_train": np.arange(8.0)}, r"write y_train.reshape\(-1\).astype"),
        ({"y_train": np.arange(8) - 2}, "y_train: label -2 of example 0"),
        (
            {"y_train": np.zeros(8, int), "y_test": np.zeros(4, int)},
            "y_train: every label is 0, of which there is no accuracy; give examples of",
        ),
        ({"y_train": np.full(8, 10**9)}, "label 1000000000 of example 0"),
        ({"y_test": np.array([0, 1, 3, 9])}, "y_test: label 3 of example 2 .* 0 to 2"),
        ({"x_train": nan_at(3, 2)}, r"x_train\[3, 2\] is nan .*\(2 such values"),
        ({"x_test": np.full((4, 6), 1e300)}, r"x_test\[0, 0\] is inf in float32 \(24"),
        ({"clients": np.zeros(7, int)}, "clients has 7 owners but y_train has 8"),
        ({"clients": np.zeros(8)}, "clients is float64"),
        (
            {"clients": np.array(["a", "b"] * 4)},
            r"write np.searchsorted\(np.unique\(clients\), clients\)",
        ),
        (
            {"clients": np.zeros(8, int), "test_clients": np.array(["a"] * 4)},
            r"np.unique\(np.append\(clients, test_clients\)\), test_clients\)",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, changes, match):
    write_npz(tmp_path / "mine.npz", **changes)
    with pytest.raises(ValueError, match=match) as error:
        load(str(tmp_path / "mine.npz"))
    text = str(error.value)
    assert "mine.npz" in text and "\n" not in text and text.endswith(".")


@pytest.mark.parametrize("damage", ["cut", "flip", "text", "pickle", "empty", "npy"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = tmp_path / "mine.npz"
    write_npz(path)
    data = path.read_bytes()
    flipped = data[:200] + bytes([data[200] ^ 1]) + data[201:]
    path.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "flip": flipped,
            "text": b"x_train,y_train\n1,2\n",
            "pickle": pickle.dumps({"x_train": 1}),
            "empty": b"",
            "npy": data[data.index(b"\x93NUMPY") :][:300],
        }[damage]
    )
    with pytest.raises(ValueError, match=r"mine.npz (is not|cannot be used).*np.savez"):
        load(str(path))


@pytest.mark.parametrize("name", ["x_train", "y_test"])
def test_a_member_that_is_no_array_is_named(tmp_path, name):
    """NumPy hands on its bytes."""
    path = tmp_path / "mine.npz"
    write_npz(path)
    with zipfile.ZipFile(path) as whole:
        held = {each: whole.read(each) for each in whole.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for each, data in (held | {f"{name}.npy": b"1,2\n"}).items():
            file.writestr(each, data)
    says = f"mine.npz cannot be used: {name} is damaged and no array; write one with"
    with pytest.raises(ValueError, match=says):
        load(str(path))


@pytest.mark.parametrize(
    "shapes",
    [
        (b"(8, 6)", b"(9, 6)"),
        (b"(8, 6)", b"((8, 6"),
        (b"(8, 6), }" + b" " * 12, b"(10000000000, 6), }  "),
    ],
    ids=["too large", "garbled", "huge"],
)
def test_an_array_whose_header_lies_is_named(tmp_path, shapes):
    path = tmp_path / "mine.npz"
    write_npz(path)
    with zipfile.ZipFile(path) as zipped:
        members = {name: zipped.read(name) for name in zipped.namelist()}
    old, new = shapes
    assert old in members["x_train.npy"]
    members["x_train.npy"] = members["x_train.npy"].replace(old, new)
    with zipfile.ZipFile(path, "w") as zipped:
        for name, data in members.items():
            zipped.writestr(name, data)
    with pytest.raises(ValueError, match="mine.npz cannot be used: "):
        load(str(path))


def test_test_rows_have_owners_too(tmp_path):
    owners = {
        "clients": [30, 10, 10, 30, 20, 20, 10, 30],
        "test_clients": [20, 99, 10, 20],
    }
    write_npz(tmp_path / "mine.npz", **owners)
    source = load(tmp_path / "mine.npz")
    np.testing.assert_array_equal(source.test_clients, [1, -1, 0, 1])
    rows = split("natural", source.y_train, None, clients=source.clients, seed=1)
    tests = source.tests_of(rows)
    assert [test.tolist() for test in tests] == [[2], [0, 3], []]
    data = source.federated(rows, test_rows=tests)
    assert data.client_tests.size.tolist() == [1, 2, 0]
    assert data.client_tests.x is data.test[0]
    some = split("natural", source.y_train, 1, clients=source.clients, min_size=3)
    (own,) = source.tests_of(some)
    owner = source.clients[some[0][0]]
    np.testing.assert_array_equal(own, np.flatnonzero(source.test_clients == owner))
    assert source._replace(test_clients=None).tests_of(rows) is None
    # what is taken out of the test set is nobody's test
    left = split_test(source, 2, seed=0).source
    held = [source.x_test.tolist().index(x) for x in left.x_test.tolist()]
    np.testing.assert_array_equal(left.test_clients, source.test_clients[held])
    for wrong, sentence in (
        ({"test_clients": np.zeros(4, int)}, "has test_clients but no clients"),
        (
            {"clients": np.zeros(8, int), "test_clients": np.zeros(3, int)},
            "test_clients has 3 owners but y_test has 4 rows; give every test row",
        ),
    ):
        write_npz(tmp_path / "wrong.npz", **wrong)
        with pytest.raises(ValueError, match=sentence):
            load(tmp_path / "wrong.npz")
