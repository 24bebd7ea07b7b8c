import gzip

import numpy as np
import pytest
from written import cifar, idx, write_cifar10, write_mnist

from fedjax_adapt.data import load


@pytest.fixture(autouse=True)
def no_variable(monkeypatch):
    monkeypatch.delenv("FEDJAX_ADAPT_DATA", raising=False)


def write(path, data):
    path.write_bytes(gzip.compress(data, 1) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("suffix", [".gz", ""])
def test_mnist_is_read_wherever_it_lies(tmp_path, folder, suffix):
    arrays = write_mnist(tmp_path / folder, suffix=suffix)
    source = load("mnist", tmp_path)
    images = arrays["train-images-idx3-ubyte"]
    np.testing.assert_array_equal(source.x_train[..., 0], images)
    np.testing.assert_array_equal(source.y_test, arrays["t10k-labels-idx1-ubyte"])
    assert source.x_train.dtype == np.uint8 and source.x_train.shape == (12, 5, 4, 1)
    assert source.y_train.dtype == np.int32
    # The published constants, in units of pixels.
    assert source.mean == pytest.approx(0.1307 * 255)
    assert source.std == pytest.approx(0.3081 * 255)


def test_environment_variable_says_where_files_lie(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setenv("FEDJAX_ADAPT_DATA", str(tmp_path))
    assert len(load("mnist").y_train) == 12


def test_data_dir_comes_before_the_environment_variable(tmp_path, monkeypatch):
    write_mnist(tmp_path / "one")
    write_mnist(tmp_path / "two", labels=[1, 2, 3, 4, 5])
    monkeypatch.setenv("FEDJAX_ADAPT_DATA", str(tmp_path / "one"))
    assert len(load("mnist", tmp_path / "two").y_train) == 5


def test_fashion_mnist_has_its_own_folder_and_its_own_moments(tmp_path):
    write_mnist(tmp_path, labels=[1, 2, 3, 4, 5])
    arrays = write_mnist(tmp_path / "fashion-mnist")
    source = load("fashion_mnist", tmp_path)
    images = arrays["train-images-idx3-ubyte"]
    np.testing.assert_array_equal(source.x_train[..., 0], images)
    assert source.mean == pytest.approx(images.mean())
    assert source.std == pytest.approx(images.std())


def test_fashion_mnist_is_not_taken_for_mnist(tmp_path):
    labels = np.arange(60_000) % 10
    write(tmp_path / "train-labels-idx1-ubyte.gz", idx(labels))
    write(tmp_path / "train-images-idx3-ubyte.gz", idx(np.zeros((60_000, 1, 1))))
    write(tmp_path / "t10k-labels-idx1-ubyte.gz", idx(labels[:10]))
    write(tmp_path / "t10k-images-idx3-ubyte.gz", idx(np.zeros((10, 1, 1))))
    with pytest.raises(ValueError, match="dataset=mnist: .* holds Fashion-MNIST"):
        load("mnist", tmp_path)
    assert len(load("fashion_mnist", tmp_path).y_train) == 60_000


def test_emnist_letters_keeps_the_first_letters_and_counts_from_zero(tmp_path):
    letters = np.array([1, 26, 10, 11, 2, 10])
    arrays = write_mnist(tmp_path, "emnist-letters-", labels=letters, test="test")
    images = arrays["emnist-letters-train-images-idx3-ubyte"]
    ten = load("emnist_letters", tmp_path)
    assert ten.num_classes == 10
    np.testing.assert_array_equal(ten.y_train, [0, 9, 1, 9])
    np.testing.assert_array_equal(ten.x_train[..., 0], images[letters <= 10])
    assert ten.mean == pytest.approx(images[letters <= 10].mean())
    assert ten.std == pytest.approx(images[letters <= 10].std())
    whole = load("emnist_letters", tmp_path, classes=26)
    assert whole.num_classes == 26
    np.testing.assert_array_equal(whole.y_train, letters - 1)


def test_emnist_letters_refuses_labels_that_are_no_letters(tmp_path):
    write_mnist(tmp_path, "emnist-letters-", labels=[1, 2, 0, 3, 4], test="test")
    with pytest.raises(ValueError, match="label 0 of example 2 .* must be 1 to 26"):
        load("emnist_letters", tmp_path)
    for classes in (0, 27, 2.5):
        with pytest.raises(ValueError, match=f"classes={classes}"):
            load("emnist_letters", tmp_path, classes=classes)


@pytest.mark.parametrize("folder", [".", "cifar-10/cifar-10-batches-bin"])
def test_cifar10_is_images_with_channels_last(tmp_path, folder):
    parts = write_cifar10(tmp_path / folder)
    source = load("cifar10", tmp_path)
    np.testing.assert_array_equal(source.x_train[3:6], parts[1][0])
    np.testing.assert_array_equal(source.x_test, parts[5][0])
    np.testing.assert_array_equal(source.y_train[12:], parts[4][1])
    assert source.x_train.shape == (15, 32, 32, 3)
    assert source.mean == pytest.approx((0.491 * 255, 0.482 * 255, 0.447 * 255))
    assert source.std == pytest.approx((0.247 * 255, 0.243 * 255, 0.262 * 255))


def test_cifar100_takes_the_fine_label(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3)).astype(np.uint8)
    coarse, fine = [19, 0, 3, 7], [99, 1, 50, 21]
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(cifar(x, coarse, fine))
    source = load("cifar100", tmp_path)
    np.testing.assert_array_equal(source.y_train, fine)
    np.testing.assert_array_equal(source.x_test, x)
    assert source.num_classes == 100
    mean, std = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)  # drift.md 2
    assert source.mean == pytest.approx([255 * m for m in mean])
    assert source.std == pytest.approx([255 * s for s in std])


# --- mistakes and broken files -------------------------------------------------------


def test_no_folder_given_names_the_files_and_the_two_ways_to_say_where():
    with pytest.raises(ValueError) as error:
        load("mnist")
    for part in ("--data-dir", "FEDJAX_ADAPT_DATA", "t10k-labels-idx1-ubyte", ".gz"):
        assert part in str(error.value)


def test_a_folder_that_does_not_exist_is_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="data_dir=.*nowhere does not exist"):
        load("cifar10", tmp_path / "nowhere")
    monkeypatch.setenv("FEDJAX_ADAPT_DATA", str(tmp_path / "gone"))
    with pytest.raises(ValueError, match="FEDJAX_ADAPT_DATA=.*gone does not exist"):
        load("cifar10")


def test_an_empty_folder_says_where_it_looked(tmp_path):
    with pytest.raises(ValueError, match="no files found in .*mnist, .*MNIST/raw"):
        load("mnist", tmp_path)


def test_a_missing_file_is_named(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_4.bin").unlink()
    with pytest.raises(ValueError, match=r"cifar10: data_batch_4.bin not found in"):
        load("cifar10", tmp_path)


TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"


def one_sentence(error) -> str:
    """The message; it must be one sentence that ends, and name no Python internals."""
    text = str(error.value)
    assert "\n" not in text and text.endswith(".") and "Traceback" not in text
    return text


BROKEN = [
    (TRAIN_IMAGES, b"", "not a gzip file: it begins with nothing"),
    (TRAIN_IMAGES, b"\0\0\x08\x03", "not a gzip file: it begins with 00 00, not 1f"),
    (TRAIN_IMAGES, gzip.compress(idx(np.ones((12, 5, 4))))[:-9], "be unpacked"),
    (TRAIN_IMAGES, gzip.compress(b""), "begins with nothing"),
    (TRAIN_IMAGES, gzip.compress(b"\0\0\x08\x03\0"), "inside its header of 16"),
    (TRAIN_IMAGES, gzip.compress(idx(np.ones(12))), "3 axes begins with 00 00 08 03"),
    (TRAIN_LABELS, gzip.compress(idx(np.ones((2, 2)))), "with 1 axis begins with"),
    (
        TRAIN_IMAGES,
        gzip.compress(idx(np.ones((12, 5, 4)))[:-1]),
        "12 x 5 x 4 values, 256 bytes in all, but there are 255 bytes",
    ),
    (TRAIN_IMAGES, gzip.compress(idx(np.ones((0, 5, 4)))), "it is empty"),
    (TRAIN_IMAGES, gzip.compress(idx(np.ones((9, 5, 4)))), "9 images .* 12 labels"),
    (TRAIN_IMAGES, gzip.compress(idx(np.ones((12, 5, 5)))), r"\[5, 5, 1\] but a te"),
    (TRAIN_LABELS, gzip.compress(idx(np.arange(12))), "label 10 of example 10"),
    (
        TRAIN_IMAGES,
        gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12),
        "4294967295 x 4294967295 x 4294967295 values",
    ),
]


@pytest.mark.parametrize(
    ("name", "data", "match"), BROKEN, ids=[match for _, _, match in BROKEN]
)
def test_a_broken_idx_file_is_named_with_what_came(tmp_path, name, data, match):
    write_mnist(tmp_path)
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=match) as error:
        load("mnist", tmp_path)
    message = one_sentence(error)
    assert name in message or "dataset=mnist" in message


@pytest.mark.parametrize("data", [b"", bytes(6145), bytes(3074)], ids=len)
def test_a_cifar_file_of_a_wrong_size_is_named(tmp_path, data):
    write_cifar10(tmp_path)
    (tmp_path / "data_batch_2.bin").write_bytes(data)
    wanted = rf"data_batch_2.bin holds {len(data)} bytes, .* multiple of 3073"
    with pytest.raises(ValueError, match=wanted) as error:
        load("cifar10", tmp_path)
    one_sentence(error)


def test_a_cifar_label_out_of_range_is_named(tmp_path):
    write_cifar10(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(3073) + b"\x0a" + bytes(3072))
    with pytest.raises(ValueError, match="test_batch.bin: label 10 of example 1"):
        load("cifar10", tmp_path)
