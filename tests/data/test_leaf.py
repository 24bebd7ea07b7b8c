"""LEAF's sets in the files that its scripts write."""

import json

import numpy as np
import pytest

from fedjax_adapt.data import load, split
from fedjax_adapt.data.leaf import LETTERS


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)


def content(user_data, **changes):
    """What LEAF writes for {user: (x, y)}."""
    data = {u: {"x": list(x), "y": list(y)} for u, (x, y) in user_data.items()}
    sizes = [len(own["y"]) for own in data.values()]
    return {"users": list(data), "num_samples": sizes, "user_data": data} | changes


def write(folder, part, name, user_data, **changes):
    (folder / part).mkdir(parents=True, exist_ok=True)
    path = folder / part / f"{name}.json"
    path.write_text(json.dumps(content(user_data, **changes)))
    return path


def pictures(n, shade, label=0):
    """n pictures of one shade of grey, divided by 255 as LEAF has them."""
    return [[(shade + i) / 255] * 784 for i in range(n)], [label + i for i in range(n)]


def write_femnist(folder):
    write(
        folder,
        "train",
        "all_data_0_train_9",
        {"f2": pictures(2, 10), "f1": pictures(3, 20)},
    )
    write(folder, "train", "all_data_1_train_9", {"e9": pictures(1, 30, 61)})
    write(
        folder,
        "test",
        "all_data_0_test_9",
        {"f1": pictures(2, 40), "f2": pictures(1, 50)},
    )
    write(
        folder,
        "test",
        "all_data_1_test_9",
        {"e9": pictures(1, 60), "x": pictures(1, 70)},
    )
    return folder


def shade(x):
    return np.round(255 * np.asarray(x)[..., 0, 0, 0]).astype(int).tolist()


@pytest.mark.parametrize("place", ["femnist/data", "data/femnist/data", "data", "."])
def test_femnist_is_read_from_where_leaf_leaves_it(tmp_path, place):
    write_femnist(tmp_path / place)
    source = load("leaf_femnist", tmp_path)
    assert source.x_train.shape == (6, 28, 28, 1) and source.x_train.dtype == np.float32
    assert source.num_classes == 62 and source.y_train.dtype == np.int32
    assert shade(source.x_train) == [10, 11, 20, 21, 22, 30]
    assert source.y_train.tolist() == [0, 1, 0, 1, 2, 61]
    assert source.mean == pytest.approx(source.x_train.mean(), rel=1e-5)
    assert source.clients.tolist() == [2, 2, 1, 1, 1, 0]  # e9, f1, f2
    assert source.test_clients.tolist() == [1, 1, 2, 0, -1]
    assert source.clients.dtype == source.test_clients.dtype == np.int32


def test_users_become_clients_with_their_own_tests(tmp_path):
    source = load("leaf_femnist", write_femnist(tmp_path))
    rows = split("natural", source.y_train, None, clients=source.clients)
    data = source.federated(rows, test_rows=source.tests_of(rows))
    tests = data.client_tests
    assert [sorted(shade(data.x[r])) for r in data.rows()] == [
        [30],
        [20, 21, 22],
        [10, 11],
    ]
    assert [shade(tests.x[r]) for r in tests.rows()] == [[60], [40, 41], [50]]
    assert len(data.test[1]) == 5  # the stranger's picture is everybody's


def test_users_that_only_test_are_nobodys_test(tmp_path):
    write(tmp_path, "train", "a", {"f1": pictures(2, 10)})
    write(tmp_path, "test", "a", {"f2": pictures(1, 20)})
    source = load("leaf_femnist", tmp_path)
    assert source.test_clients is None and len(source.y_test) == 1


def test_a_user_without_examples_is_none(tmp_path):
    write(tmp_path, "train", "a", {"f1": pictures(2, 10), "f0": ([], [])})
    write(tmp_path, "test", "a", {"f1": pictures(1, 20)})
    assert load("leaf_femnist", tmp_path).clients.tolist() == [0, 0]


LINE = "To be, or not to be: that is the question:\nWhether 'tis nobler in the mind to suff"
assert len(LINE) >= 80


def lines(*texts):
    return [text[:80].ljust(80) for text in texts], [text[-1] for text in texts]


def test_shakespeare_is_places_in_leafs_alphabet(tmp_path):
    assert len(LETTERS) == len(set(LETTERS)) == 80 and LETTERS == "".join(
        sorted(LETTERS)
    )
    write(tmp_path / "shakespeare/data", "train", "a", {"HAMLET": lines(LINE, "Ay?")})
    write(tmp_path / "shakespeare/data", "test", "a", {"HAMLET": lines("}\n!")})
    source = load("leaf_shakespeare", tmp_path)
    assert source.x_train.shape == (2, 80) and source.x_train.dtype == np.uint8
    read = "".join(LETTERS[place] for place in source.x_train[0])
    assert read == LINE[:80]
    assert [LETTERS[y] for y in source.y_train] == ["f", "?"]
    assert source.x_test[0, :4].tolist() == [
        79,
        0,
        2,
        1,
    ] and source.y_test.tolist() == [2]
    assert source.num_classes == 80 and (source.mean, source.std) == (0, 1)
    assert source.clients.tolist() == [0, 0] and source.test_clients.tolist() == [0]


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        (([[0.5] * 783], [0]), "user f1 has inputs of shape [1, 783], not [1, 784]"),
        (([[0.5] * 784, [0.5]], [0, 1]), "user f1 has inputs that are no lists of"),
        (([[2.0] * 784], [0]), "user f1 has a pixel of 2.0, not from 0 to 1"),
        (([[float("nan")] * 784], [0]), "user f1 has a pixel of nan"),
        (([[0.5] * 784], [62]), "user f1: label 62 of example 0 is out of range"),
        (([[0.5] * 784], [-1]), "user f1: label -1 of example 0 is out of range"),
        (([[0.5] * 784], [2**40]), f"user f1 has the label {2**40}, no class"),
        (([[0.5] * 784], ["a"]), "user f1 has the label 'a', no class"),
        (([[0.5] * 784], [0, 1]), "user f1 has 1 examples in x but 2 in y"),
    ],
)
def test_examples_that_are_not_femnists_are_refused(tmp_path, own, sentence):
    write_femnist(tmp_path)
    path = write(tmp_path, "test", "all_data_0_test_9", {"f1": own})
    with pytest.raises(ValueError) as caught:
        load("leaf_femnist", tmp_path)
    assert sentence in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ((["short"], ["a"]), "user R has an input of 5 characters, not of 80"),
        (([7], ["a"]), "user R has an input of no text, not of 80"),
        ((["a" * 80], ["ab"]), "user R has a label of 2 characters, not of 1"),
        ((["a" * 79 + "é"], ["a"]), "the character 'é', which is none of LEAF's 80"),
        ((["a" * 80], ["\u2019"]), "the character '’'"),
        ((["a" * 80], ["{"]), "the character '{'"),
    ],
)
def test_lines_that_are_not_shakespeares_are_refused(tmp_path, own, sentence):
    write(tmp_path, "test", "a", {"R": lines("Ay.")})
    path = write(tmp_path, "train", "a", {"R": own})
    with pytest.raises(ValueError) as caught:
        load("leaf_shakespeare", tmp_path)
    assert sentence in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '{"users": ["f1"], "user_data": {"f1": {"x": [[0.1,',
            "is no JSON, or it is trunc",
        ),
        ("", "is no JSON"),
        (b"\xff\xfe\x00", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[1, 2]", "has no users as LEAF's files have"),
        ('{"users": ["f1"]}', "has no user_data as LEAF's files have"),
        ('{"users": ["f1"], "user_data": {}}', "user f1 has no x and y in user_data"),
        ('{"users": ["f1"], "user_data": {"f1": []}}', "user f1 has no x and y"),
        ('{"users": [["f"]], "user_data": {}}', "user ['f'] has no x and y"),
        ('{"users": [], "user_data": {}}', "no user has an example in"),
    ],
)
def test_files_that_are_not_leafs_are_refused(tmp_path, text, sentence):
    write(tmp_path, "train", "a", {"f1": pictures(1, 10)})
    (tmp_path / "test").mkdir()
    (tmp_path / "test/a.json").write_bytes(
        text if isinstance(text, bytes) else text.encode()
    )
    with pytest.raises(ValueError) as caught:
        load("leaf_femnist", tmp_path)
    assert sentence in str(caught.value) and str(tmp_path / "test") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_user_in_two_files_is_refused(tmp_path):
    write_femnist(tmp_path)
    write(tmp_path, "train", "more", {"f1": pictures(1, 10)})
    with pytest.raises(ValueError, match="user f1 is there twice"):
        load("leaf_femnist", tmp_path)


def test_files_that_are_not_there_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"write --data-dir FOLDER .* or set"):
        load("leaf_femnist")
    write(tmp_path, "train", "a", {"f1": pictures(1, 10)})
    with pytest.raises(ValueError, match=r"no train/\*.json and test/\*.json, as LEAF"):
        load("leaf_femnist", tmp_path)
