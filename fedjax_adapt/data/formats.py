"""Readers of the files data sets are published as: where they lie, idx, CIFAR binary.

Every reader raises ValueError with one sentence that names the file, what was expected
and what came.
"""

import gzip
import math
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..errors import SettingError, one_line

DATA_VARIABLE = "FEDJAX_ADAPT_DATA"
CIFAR_PIXELS = 3 * 32 * 32


def data_folder(data_dir: str | Path | None) -> Path | None:
    """`data_dir`, or what the environment variable FEDJAX_ADAPT_DATA says, or None.

    Raises:
      ValueError: that is not a folder.
    """
    given = data_dir or os.environ.get(DATA_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        origin = "data_dir" if data_dir else DATA_VARIABLE
        came = "is a file" if folder.exists() else "does not exist"
        raise SettingError(
            f"{origin}={given} {came}; write the folder that holds the data."
        )
    return folder


def locate(
    dataset: str,
    names: Sequence[str],
    folders: Sequence[str],
    data_dir: str | Path | None,
    endings: Sequence[str] = ("",),
) -> list[Path]:
    """Finds the files of a data set, all in one folder.

    Args:
      dataset: its name, for the sentence.
      names: the files, all needed.
      folders: where to look, relative to the data folder, in this order.
      data_dir: the data folder; None: see `data_folder`.
      endings: what a name may end in, in order of preference.

    Raises:
      ValueError: no folder holds all of them.
    """
    wanted = " and ".join(", ".join(names).rsplit(", ", 1))
    if any(endings):
        wanted += f" (plain or {' '.join(filter(None, endings))})"
    root = data_folder(data_dir)
    if root is None:
        raise SettingError(
            f"dataset={dataset} is read from files; write --data-dir FOLDER or set "
            f"{DATA_VARIABLE}=FOLDER to the folder that holds {wanted}."
        )
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
    places = ", ".join(str(root / folder) for folder in folders)
    missing = [name for name in names if name not in best]
    if best:
        here = next(iter(best.values())).parent
        came = f"{', '.join(missing)} not found in {here}, which holds the rest"
    else:
        came = f"no files found in {places}"
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
                f"{path} is no gzip file: it begins with {_hex(data[:2])}, not 1f 8b; "
                "fetch it again, or drop .gz from its name if it is unpacked."
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
            f"{path} begins with {_hex(data[:4])}, but an idx file of bytes with "
            f"{axes} {'axis' if axes == 1 else 'axes'} begins with {_hex(magic)}; put "
            "the right file there."
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
    """Reads a file of CIFAR's binary version (Krizhevsky, 2009).

    A record is `label_bytes` labels, the finest last (1 in CIFAR-10, 2 in CIFAR-100),
    then 1,024 red, green and blue values each.

    Returns:
      Images uint8 [n, 32, 32, 3] and labels int32 [n].
    """
    data = np.frombuffer(read_bytes(path), np.uint8)
    record = label_bytes + CIFAR_PIXELS
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


def check_labels(
    path: Path | str, y: np.ndarray, num_classes: int, lowest: int = 0
) -> None:
    """Raises ValueError unless lowest <= y < lowest + num_classes; names the first."""
    bad = np.flatnonzero((y < lowest) | (y >= lowest + num_classes))
    if len(bad):
        raise SettingError(
            f"{path}: label {y[bad[0]]} of example {bad[0]} is out of range; labels "
            f"must be {lowest} to {lowest + num_classes - 1}."
        )


def _hex(data: bytes) -> str:
    return data.hex(" ") or "nothing"
