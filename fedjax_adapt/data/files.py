"""Data sets read from published files: MNIST and its kin, CIFAR.

Every loader takes the folder of the data (None: the environment variable
FEDJAX_ADAPT_DATA) and options by keyword. A SettingError is one sentence about the file.
"""

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import check
from ..errors import SettingError, one_line
from .source import Source, check_labels, source_of

DATA_VARIABLE = "FEDJAX_ADAPT_DATA"


def data_folder(data_dir: str | Path | None) -> Path | None:
    """`data_dir`, or what the environment variable FEDJAX_ADAPT_DATA says, or None.

    Raises SettingError if that is not a folder.
    """
    given = data_dir or os.environ.get(DATA_VARIABLE)
    if not given:
        return None
    origin = "data_dir" if data_dir else DATA_VARIABLE
    folder = check.expanded(f"{origin}=", given)
    if not folder.is_dir():
        came = "is a file" if folder.exists() else "does not exist"
        raise SettingError(
            f"{origin}={given} {came}; write the folder that holds the data."
        )
    return folder


def folder_with(dataset: str, wanted: str, data_dir: str | Path | None) -> Path:
    """The `data_folder`; raises SettingError where none is given for what is `wanted`."""
    root = data_folder(data_dir)
    if root is None:
        raise SettingError(
            f"dataset={dataset} is read from files; write --data-dir FOLDER (in Python "
            f"data_dir=FOLDER) or set {DATA_VARIABLE}=FOLDER, the folder with {wanted}."
        )
    return root


def locate(
    dataset: str,
    names: Sequence[str],
    folders: Sequence[str],
    data_dir: str | Path | None,
    endings: Sequence[str] = ("",),
) -> list[Path]:
    """The files `names` of a data set, all in the first of `folders` that holds them.

    Folders are relative to the data folder; what a name may end in comes in order of
    preference.
    """
    wanted = " and ".join(", ".join(names).rsplit(", ", 1))
    if any(endings):
        wanted += f" (plain or {' '.join(filter(None, endings))})"
    root = folder_with(dataset, wanted, data_dir)
    best: dict[str, Path] = {}
    for folder in folders:
        found: dict[str, Path] = {}
        for name in names:
            for end in endings:
                path = root / folder / (name + end)
                if path.is_file():
                    found.setdefault(name, path)
        if len(found) == len(names):
            return [found[name] for name in names]
        best = max(best, found, key=len)
    came = f"no files found in {', '.join(str(root / folder) for folder in folders)}"
    if best:
        missing = ", ".join(name for name in names if name not in best)
        here = next(iter(best.values())).parent
        came = f"{missing} not found in {here}, which holds the rest"
    raise SettingError(
        f"dataset={dataset}: {came}; it needs {wanted} in one folder: put them there, "
        f"or write --data-dir FOLDER (or set {DATA_VARIABLE})."
    )


def read_bytes(path: Path) -> bytes:
    """The bytes of a file, unpacked if its name ends in .gz."""
    try:
        data = path.read_bytes()
        if path.suffix != ".gz":
            return data
        if data[:2] != b"\x1f\x8b":
            raise SettingError(
                f"{path} is not a gzip file: it begins with "
                f"{data[:2].hex(' ') or 'nothing'}, not 1f 8b; fetch it again, "
                "or drop .gz from its name if it is unpacked."
            )
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SettingError(
            f"{path} cannot be unpacked ({one_line(error)}): it is truncated or "
            "damaged; fetch it again."
        ) from None
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}.") from None


def read_idx(path: Path, axes: int) -> np.ndarray:
    """Reads an idx file of bytes, plain or .gz, with `axes` axes: uint8 [n, ...].

    The format is MNIST's (LeCun et al., 1998): 00 00, the type (08: unsigned bytes),
    the number of axes, the length of each as a big-endian uint32, then the values.
    """
    data = read_bytes(path)
    magic, start = bytes((0, 0, 8, axes)), 4 + 4 * axes
    if data[:4] != magic:
        raise SettingError(
            f"{path} begins with {data[:4].hex(' ') or 'nothing'}, but an idx file of "
            f"bytes with {axes} {'axis' if axes == 1 else 'axes'} begins with "
            f"{magic.hex(' ')}; put the right file there."
        )
    if len(data) < start:
        raise SettingError(
            f"{path} ends after {len(data)} bytes, inside its header of {start}; it is "
            "truncated, fetch it again."
        )
    shape = np.frombuffer(data, ">u4", axes, offset=4).tolist()
    expected = start + math.prod(shape)
    if len(data) != expected or expected == start:
        raise SettingError(
            f"{path} says it holds {' x '.join(map(str, shape))} values, {expected} "
            f"bytes in all, but there are {len(data)} bytes; it is "
            f"{'empty' if expected == len(data) else 'truncated or damaged'}, fetch it "
            "again."
        )
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    """Reads grey images uint8 [n, height, width, 1] and their labels int32 [n]."""
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if len(x) != len(y):
        raise SettingError(
            f"{images} holds {len(x)} images but {labels} holds {len(y)} labels; they "
            "belong to different sets, fetch both again."
        )
    return x[..., None], y.astype(np.int32)


def read_cifar(path: Path, label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [n, 32, 32, 3] and labels int32 [n] of CIFAR's binary version.

    A record is `label_bytes` labels, the finest last (1 in CIFAR-10, 2 in CIFAR-100),
    then 1,024 red, green and blue values each.
    """
    data = np.frombuffer(read_bytes(path), np.uint8)
    record = label_bytes + 3 * 32 * 32
    if data.size == 0 or data.size % record:
        raise SettingError(
            f"{path} holds {data.size} bytes, which is not a positive multiple of "
            f"{record} ({label_bytes} for labels and 3 x 32 x 32 for pixels); it is "
            "truncated or another file, fetch the binary version again."
        )
    records = data.reshape(-1, record)
    planes = records[:, label_bytes:].reshape(-1, 3, 32, 32)
    x = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return x, records[:, label_bytes - 1].astype(np.int32)


def mnist(data_dir: str | Path | None = None) -> Source:
    """MNIST (LeCun et al., 1998): 60,000 + 10,000 digits, 28 x 28 x 1; idx files.

    Looks in the data folder itself, mnist/ and MNIST/raw/ (torchvision's) for
    train-images-idx3-ubyte and its three companions, plain or .gz.
    """
    folders = ("mnist", "MNIST/raw", ".")
    return _mnist_like("mnist", folders, data_dir, _pixels(0.1307, 0.3081))


def fashion_mnist(data_dir: str | Path | None = None) -> Source:
    """Fashion-MNIST (Xiao et al., 2017): 60,000 + 10,000 garments, 28 x 28 x 1; idx files.

    Looks in fashion-mnist/, FashionMNIST/raw/ and the data folder itself; the files are
    called as MNIST's are.
    """
    folders = ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", ".")
    return _mnist_like("fashion_mnist", folders, data_dir)


def emnist_letters(data_dir: str | Path | None = None, *, classes: int = 10) -> Source:
    """EMNIST's letters A to J, or all 26 (Cohen et al., 2017), 28 x 28 x 1; idx files.

    The first 10, stored on their side, are the 48,000 + 8,000 examples on which FedDyn,
    FedDC and FedSSG report; mean and deviation are one number each over that training set.

    Args:
      data_dir: the data folder; emnist-letters-train-images-idx3-ubyte and the other
        three, plain or .gz, are looked for in it, and there in emnist-letters/,
        EMNIST/raw/ (torchvision's) and gzip/ (NIST's).
      classes: how many letters from A on; 26 for all 124,800 + 20,800 examples.
    """
    check.at_least("classes", classes, 1, most=26)
    folders = ("emnist-letters", "EMNIST/raw", "gzip", ".")
    names = ("emnist-letters-train", "emnist-letters-test")
    found, _ = _idx_pairs("emnist_letters", names, folders, data_dir, 26, lowest=1)
    parts = [(x[y <= classes], y[y <= classes] - 1) for x, y in found]
    return _source("emnist_letters", *parts, classes)


def cifar10(data_dir: str | Path | None = None) -> Source:
    """CIFAR-10 (Krizhevsky, 2009), binary version: 50,000 + 10,000, 32 x 32 x 3.

    Looks in cifar-10-batches-bin/, cifar-10/cifar-10-batches-bin/ and the data folder
    itself for data_batch_1.bin to data_batch_5.bin and test_batch.bin.
    """
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    constants = _pixels(0.491, 0.482, 0.447), _pixels(0.247, 0.243, 0.262)
    return _cifar(10, names, "cifar-10-batches-bin", 1, data_dir, constants)


def cifar100(data_dir: str | Path | None = None) -> Source:
    """CIFAR-100 (Krizhevsky, 2009), binary version, fine labels: 50,000 + 10,000.

    Looks in cifar-100-binary/, cifar-100/cifar-100-binary/ and the data folder itself
    for train.bin and test.bin.
    """
    names = ["train.bin", "test.bin"]
    constants = _pixels(0.5071, 0.4867, 0.4408), _pixels(0.2675, 0.2565, 0.2761)
    return _cifar(100, names, "cifar-100-binary", 2, data_dir, constants)


def _idx_pairs(dataset, names, folders, data_dir, num_labels, lowest=0):
    """(x, y) of the training set and of the test set, and the folder that holds them."""
    kinds = ("images-idx3-ubyte", "labels-idx1-ubyte")
    files = [f"{name}-{kind}" for name in names for kind in kinds]
    paths = locate(dataset, files, folders, data_dir, endings=("", ".gz"))
    parts = []
    for images, labels in zip(paths[::2], paths[1::2], strict=True):
        parts.append(read_idx_pair(images, labels))
        check_labels(labels, parts[-1][1], num_labels, lowest)
    return parts, paths[0].parent


def _mnist_like(dataset, folders, data_dir, constants=None) -> Source:
    parts, folder = _idx_pairs(dataset, ("train", "t10k"), folders, data_dir, 10)
    # The two sets have the same file names; only Fashion-MNIST has 6,000 of each label.
    fashion = bool((np.bincount(parts[0][1]) == 6000).all())
    if len(parts[0][1]) == 60_000 and fashion != (dataset == "fashion_mnist"):
        came = "Fashion-MNIST" if fashion else "MNIST"
        raise SettingError(
            f"dataset={dataset}: {folder} holds {came} under the same file "
            f"names; put {dataset} into {folders[0]}/ of the data folder."
        )
    return _source(dataset, *parts, 10, constants)


def _cifar(num_classes, names, folder, label_bytes, data_dir, constants) -> Source:
    dataset, outer = f"cifar{num_classes}", f"cifar-{num_classes}"
    folders = (folder, f"{outer}/{folder}", f"{dataset}/{folder}", ".")
    parts = []
    for path in locate(dataset, names, folders, data_dir):
        parts.append(read_cifar(path, label_bytes))
        check_labels(path, parts[-1][1], num_classes)
    *several, test = parts
    train = tuple(map(np.concatenate, zip(*several, strict=True)))
    return _source(dataset, train, test, num_classes, constants)


def _source(name, train, test, num_classes, constants=None) -> Source:
    shapes = [list(x.shape[1:]) for x, _ in (train, test)]
    counts = [len(y) for _, y in (train, test)]
    if shapes[0] != shapes[1]:
        raise SettingError(
            f"dataset={name}: a training image is {shapes[0]} but a test image "
            f"{shapes[1]}; the files belong to different sets."
        )
    if not all(counts):
        raise SettingError(
            f"dataset={name}: {counts[0]} training and {counts[1]} test examples have one "
            f"of its {num_classes} labels; there must be some of both."
        )
    return source_of(name, train, test, num_classes, constants)


def _pixels(*constants: float) -> tuple[float, ...]:
    """Published constants are for pixels in [0, 1]; ours are for 0 to 255."""
    return tuple(255 * c for c in constants)
