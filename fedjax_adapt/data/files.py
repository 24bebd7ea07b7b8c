"""Data sets read from published files: MNIST and its kin, CIFAR.

Every loader takes the folder of the data (None: the environment variable
FEDJAX_ADAPT_DATA) and options by keyword, and raises ValueError with one sentence that
names the file.
"""

from pathlib import Path

import numpy as np

from .. import check
from ..errors import SettingError
from .formats import check_labels, locate, read_cifar, read_idx_pair
from .source import Source, moments


def mnist(data_dir: str | Path | None = None) -> Source:
    """MNIST (LeCun et al., 1998): 60,000 + 10,000 digits, 28 x 28 x 1.

    Looks in the data folder itself, mnist/ and MNIST/raw/ (torchvision's) for
    train-images-idx3-ubyte and its three companions, plain or .gz.
    """
    folders = ("mnist", "MNIST/raw", ".")
    return _mnist_like("mnist", folders, data_dir, _pixels(0.1307, 0.3081))


def fashion_mnist(data_dir: str | Path | None = None) -> Source:
    """Fashion-MNIST (Xiao et al., 2017): 60,000 + 10,000 garments, 28 x 28 x 1.

    Looks in fashion-mnist/, FashionMNIST/raw/ and the data folder itself; the files are
    called as MNIST's are.
    """
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", ".")
    return _mnist_like("fashion_mnist", folders, data_dir)


def emnist_letters(data_dir: str | Path | None = None, *, classes: int = 10) -> Source:
    """EMNIST letters (Cohen et al., 2017), 28 x 28 x 1, stored on their side.

    The first 10 letters, A to J, are the 48,000 + 8,000 examples on which FedDyn, FedDC
    and FedSSG report; mean and deviation are one number each over that training set.

    Args:
      data_dir: the data folder; emnist-letters-train-images-idx3-ubyte and the other
        three, plain or .gz, are looked for in it, and there in emnist-letters/,
        EMNIST/raw/ (torchvision's) and gzip/ (NIST's).
      classes: how many letters from A on; 26 for all 124,800 + 20,800 examples.
    """
    check.between("classes", classes, 1, 26)
    check.at_least("classes", classes, 1)
    folders = ("emnist-letters", "EMNIST/raw", "gzip", ".")
    names = ("emnist-letters-train", "emnist-letters-test")
    parts = []
    for images, labels in _idx_paths("emnist_letters", names, folders, data_dir):
        x, y = read_idx_pair(images, labels)
        check_labels(labels, y, 26, lowest=1)
        kept = y <= classes
        parts += [x[kept], y[kept] - 1]
    return _source("emnist_letters", *parts, classes)


def cifar10(data_dir: str | Path | None = None) -> Source:
    """CIFAR-10 (Krizhevsky, 2009), binary version: 50,000 + 10,000, 32 x 32 x 3.

    Looks in cifar-10-batches-bin/, cifar-10/cifar-10-batches-bin/ and the data folder
    itself for data_batch_1.bin to data_batch_5.bin and test_batch.bin.
    """
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    inner = "cifar-10-batches-bin"
    folders = (inner, f"cifar-10/{inner}", f"cifar10/{inner}", ".")
    constants = _pixels(0.491, 0.482, 0.447), _pixels(0.247, 0.243, 0.262)
    return _cifar("cifar10", names, folders, 1, 10, data_dir, constants)


def cifar100(data_dir: str | Path | None = None) -> Source:
    """CIFAR-100 (Krizhevsky, 2009), binary version, fine labels: 50,000 + 10,000.

    Looks in cifar-100-binary/, cifar-100/cifar-100-binary/ and the data folder itself
    for train.bin and test.bin.
    """
    names = ["train.bin", "test.bin"]
    inner = "cifar-100-binary"
    folders = (inner, f"cifar-100/{inner}", f"cifar100/{inner}", ".")
    constants = _pixels(0.5071, 0.4867, 0.4408), _pixels(0.2675, 0.2565, 0.2761)
    return _cifar("cifar100", names, folders, 2, 100, data_dir, constants)


def _idx_paths(dataset, names, folders, data_dir) -> list[tuple[Path, Path]]:
    """(images, labels) of the training set and of the test set."""
    names = [
        f"{name}-{kind}" for name in names for kind in ("images-idx3", "labels-idx1")
    ]
    names = [f"{name}-ubyte" for name in names]
    paths = locate(dataset, names, folders, data_dir, endings=("", ".gz"))
    return [(paths[0], paths[1]), (paths[2], paths[3])]


def _mnist_like(dataset, folders, data_dir, constants=None) -> Source:
    parts = []
    for images, labels in _idx_paths(dataset, ("train", "t10k"), folders, data_dir):
        x, y = read_idx_pair(images, labels)
        check_labels(labels, y, 10)
        parts += [x, y]
    # The two sets have the same file names; only Fashion-MNIST has 6,000 of each label.
    if len(parts[1]) == 60_000:
        fashion = bool((np.bincount(parts[1]) == 6000).all())
        if fashion != (dataset == "fashion_mnist"):
            came = "Fashion-MNIST" if fashion else "MNIST"
            raise SettingError(
                f"dataset={dataset}: {labels.parent} holds {came} under the same file "
                f"names; put {dataset} into {folders[0]}/ of the data folder."
            )
    return _source(dataset, *parts, 10, constants)


def _cifar(dataset, names, folders, label_bytes, num_classes, data_dir, constants):
    parts = []
    for path in locate(dataset, names, folders, data_dir):
        x, y = read_cifar(path, label_bytes)
        check_labels(path, y, num_classes)
        parts.append((x, y))
    *train, (x_test, y_test) = parts
    x_train, y_train = (np.concatenate(part) for part in zip(*train, strict=True))
    return _source(dataset, x_train, y_train, x_test, y_test, num_classes, constants)


def _source(
    name, x_train, y_train, x_test, y_test, num_classes, constants=None
) -> Source:
    if x_train.shape[1:] != x_test.shape[1:]:
        raise SettingError(
            f"dataset={name}: a training image is {list(x_train.shape[1:])} but a test "
            f"image {list(x_test.shape[1:])}; the files belong to different sets."
        )
    if not len(y_train) or not len(y_test):
        raise SettingError(
            f"dataset={name}: {len(y_train)} training and {len(y_test)} test examples "
            f"have one of its {num_classes} labels; there must be some of both."
        )
    mean, std = constants or moments(x_train)
    return Source(name, x_train, y_train, x_test, y_test, num_classes, mean, std)


def _pixels(*constants: float) -> tuple[float, ...]:
    """Published constants are for pixels in [0, 1]; ours are for 0 to 255."""
    return tuple(255 * c for c in constants)
