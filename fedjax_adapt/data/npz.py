"""Your own arrays in one .npz file; never unpickled."""

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .. import check
from ..errors import SettingError, one_line
from .files import data_folder
from .source import Source, check_labels, source_of

NAMES = ("x_train", "y_train", "x_test", "y_test")
OWNERS = ("clients", "test_clients")  # which may be there
EXAMPLE = f"np.savez(FILE, {', '.join(f'{name}={name}' for name in NAMES)})"


def npz(
    path: str | Path,
    data_dir: str | Path | None = None,
    *,
    num_classes: int | None = None,
) -> Source:
    """Reads x_train, y_train, x_test and y_test from an .npz file.

    Args:
      path: the file; a relative path is looked up in the working folder, then in the
        data folder. Inputs [n, ...] may be bytes, integers or floats (uint8 stays, the
        rest becomes float32); labels [n] are integers from 0. An optional array
        `clients` [n] of integers says who owns each training row, for the partition
        "natural", and `test_clients` [m] who owns each test row: owners by the same
        integers, whose own tests they are. Write them with np.savez(FILE,
        x_train=x_train, ..., clients=clients), and for names their numbers among the
        names of both parts: np.searchsorted(np.unique(np.append(y_train, y_test)),
        y_train).
      data_dir: the data folder; None: the environment variable FEDJAX_ADAPT_DATA.
      num_classes: number of labels; None: the largest label plus 1.

    Returns:
      A source whose mean and deviation are those of x_train.

    Raises:
      SettingError: one sentence that names the file and the array: it is missing or
        damaged, shapes do not fit, a label is out of range, an input is not finite.
    """
    check.at_least("num_classes", num_classes, 2, none="the largest label plus 1")
    path = _find(check.expanded("dataset=", path), data_dir)
    arrays = _read(path)
    x_train, y_train = _examples(path, arrays, "train")
    x_test, y_test = _examples(path, arrays, "test")
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise SettingError(
            f"{path}: an example of x_train is {x_train.dtype}{list(x_train.shape[1:])}"
            f" but one of x_test is {x_test.dtype}{list(x_test.shape[1:])}; make them "
            "equal."
        )
    if num_classes is None:
        # More labels than examples is a mistake, and so large a model would not fit.
        check_labels(f"{path}: y_train", y_train, max(len(y_train), 2))
        num_classes = int(y_train.max()) + 1
        if num_classes < 2:
            raise SettingError(
                f"{path}: y_train: every label is 0, of which there is no accuracy; give "
                "examples of two labels or more, or num_classes."
            )
    check_labels(f"{path}: y_train", y_train, num_classes)
    check_labels(f"{path}: y_test", y_test, num_classes)
    train, test = (x_train, y_train.astype(np.int32)), (x_test, y_test.astype(np.int32))
    owners = _owners(path, arrays)
    return source_of(str(path), train, test, int(num_classes), owners=owners)


def _find(path: Path, data_dir: str | Path | None) -> Path:
    places = [path]
    if not path.is_absolute() and (folder := data_folder(data_dir)) is not None:
        places.append(folder / path)
    for place in places:
        if place.is_file():
            return place
    came = " and ".join(str(place) for place in places)
    raise SettingError(f"dataset={path}: {came} not found; write one with {EXAMPLE}.")


def _read(path: Path) -> dict[str, np.ndarray]:
    if not zipfile.is_zipfile(path):
        raise SettingError(
            f"{path} is not an .npz file (a zip of arrays), or it is truncated; write "
            f"one with {EXAMPLE}."
        )
    try:
        # opened here, as NumPy leaves open what it cannot read
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            missing = [name for name in NAMES if name not in stored]
            if not missing:
                extra = [name for name in OWNERS if name in stored]
                return {name: _array(stored, name) for name in [*NAMES, *extra]}
            reason = f"it has no {', '.join(missing)}, only {', '.join(stored.files)}"
    except Exception as error:  # zipfile, zlib, numpy and its tokenizer: many kinds
        reason = one_line(error)
    raise SettingError(f"{path} cannot be used: {reason}; write one with {EXAMPLE}.")


def _examples(path, arrays, part) -> tuple[np.ndarray, np.ndarray]:
    """The inputs and labels of "train" or "test", checked but for the labels' range."""
    x_name, y_name = f"x_{part}", f"y_{part}"
    y = _integers(path, y_name, arrays[y_name], ("y_train", "y_test"))
    x = _inputs(path, x_name, arrays[x_name])
    if len(x) != len(y):
        raise SettingError(
            f"{path}: {x_name} has {len(x)} examples but {y_name} has {len(y)}; give "
            "them the same number."
        )
    return x, y


def _owners(path, arrays) -> tuple[list, list | None] | None:
    """Who owns each row of both parts, checked; None: nobody."""
    for name, y_name in zip(OWNERS, ("y_train", "y_test"), strict=True):
        if name in arrays:
            there = [owner for owner in OWNERS if owner in arrays]
            _integers(path, name, arrays[name], there)
            if len(arrays[name]) != len(arrays[y_name]):
                kind = "training" if y_name == "y_train" else "test"
                raise SettingError(
                    f"{path}: {name} has {len(arrays[name])} owners but {y_name} has "
                    f"{len(arrays[y_name])} rows; give every {kind} row one owner."
                )
    given = [arrays.get(name) for name in OWNERS]
    if given[0] is None:
        if given[1] is None:
            return None
        raise SettingError(
            f"{path} has test_clients but no clients; write who owns each training row, "
            "too."
        )
    return given[0].tolist(), None if given[1] is None else given[1].tolist()


def _array(stored, name) -> np.ndarray:
    try:
        found = stored[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise SettingError(
            f"{name} holds Python objects, which are never unpickled, but must hold numbers"
        ) from None
    # of a member that does not begin as an array NumPy gives the bytes
    if not isinstance(found, np.ndarray):
        raise SettingError(f"{name} is damaged and no array")
    return found


def _integers(path, name, values, alike: Sequence[str]) -> np.ndarray:
    """Values that are integers; `alike`: the arrays that name the same things."""
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        if values.ndim == 2 and values.shape[1] > 1:  # one-hot
            hint = f"write {name}.argmax(1)"
        elif np.issubdtype(values.dtype, np.number) and (values % 1 == 0).all():
            hint = f"write {name}.reshape(-1).astype(np.int32)"
        else:  # each part may lack some
            every = name if len(alike) == 1 else f"np.append({', '.join(alike)})"
            hint = f"write np.searchsorted(np.unique({every}), {name})"
        raise SettingError(
            f"{path}: {name} is {values.dtype}{list(values.shape)} but must be "
            f"integers, one per row; {hint}."
        )
    return values


def _inputs(path, name, x) -> np.ndarray:
    kinds = (np.floating, np.integer, np.bool_)
    real = any(np.issubdtype(x.dtype, kind) for kind in kinds)
    if not real or x.ndim < 2 or x.size == 0:
        raise SettingError(
            f"{path}: {name} is {x.dtype}{list(x.shape)} but must be real numbers "
            "[n, ...] with at least two axes, none of length 0."
        )
    if x.dtype == np.uint8:
        return x
    with np.errstate(over="ignore"):  # what overflows is named below
        x = x.astype(np.float32)
    finite = np.isfinite(x)
    if not finite.all():
        first = np.unravel_index(np.argmin(finite), x.shape)
        raise SettingError(
            f"{path}: {name}[{', '.join(map(str, first))}] is {x[first]} in float32 "
            f"({np.sum(~finite)} such values in all); inputs must be finite."
        )
    return x
