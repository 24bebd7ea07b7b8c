"""What examples must be like, and tables of who holds which."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import SettingError

Array = jax.Array

BLOCK = 4096  # examples looked at together, so that copies stay small


def count_labels(y: np.ndarray, rows: Sequence, num_classes: int) -> Array | None:
    """[clients, classes] int32, or None where labels are not integers."""
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        return None
    counts = [np.bincount(y[np.asarray(r, int)], minlength=num_classes) for r in rows]
    return jnp.asarray(np.stack(counts), jnp.int32)


def num_classes_of(
    y: np.ndarray, num_classes: int | None, example: str = "example"
) -> int:
    """Checks integer labels against `num_classes`, or counts them."""
    if not np.issubdtype(y.dtype, np.integer) or y.size == 0:
        return num_classes or 0  # regression targets, or no labels to look at
    low, high = int(y.min()), int(y.max())
    if num_classes is None:
        num_classes = high + 1
    if low < 0:
        row = int(np.argmax(y.reshape(-1) == low))
        raise SettingError(
            f"label {low} ({example} {row}) is negative; write labels from 0 on, and a "
            "token of the vocabulary where a sequence is padded."
        )
    if high >= num_classes:
        bad = high
        row = int(np.argmax(y.reshape(-1) == bad))
        raise SettingError(
            f"label {bad} ({example} {row}) is out of range: num_classes={num_classes} "
            f"allows 0 to {num_classes - 1}."
        )
    return num_classes


def check_finite(x: Any, y: Any, example: str) -> None:
    """Raises ValueError on the first example with a NaN or infinite number in it."""
    for what, values in (("input", np.asarray(x)), ("target", np.asarray(y))):
        if not jnp.issubdtype(values.dtype, jnp.floating) or not values.size:
            continue  # integers always are
        kept = jax.dtypes.canonicalize_dtype(values.dtype)  # on the device
        for begin in range(0, len(values), BLOCK):
            with np.errstate(over="ignore"):  # what overflows is named below
                block = values[begin : begin + BLOCK].astype(kept)
            finite = np.isfinite(block.reshape(len(block), -1)).all(1)
            if not finite.all():
                row = int(np.argmin(finite))
                bad = block[row].reshape(-1)
                raise SettingError(
                    f"{example} {begin + row} has the {what} "
                    f"{bad[np.argmin(np.isfinite(bad))]} in {kept}; leave such examples "
                    "out, or put numbers there with numpy.nan_to_num."
                )


def check_like(
    who: str, x: np.ndarray, y: np.ndarray, like: tuple[np.ndarray, np.ndarray]
) -> None:
    """Raises ValueError unless `who` has one label per input, both of the kind of `like`.

    Args:
      who: whose examples they are, as the sentence begins: "client 3".
      x: inputs.
      y: labels.
      like: (x, y) of client 0.
    """
    if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
        raise SettingError(
            f"{who} has x of shape {x.shape} and y of shape {y.shape}; their first axes "
            "must be equal."
        )
    if x.shape[1:] != like[0].shape[1:] or x.dtype != like[0].dtype:
        raise SettingError(
            f"{who} has inputs {x.dtype}{list(x.shape[1:])} but client 0 has "
            f"{like[0].dtype}{list(like[0].shape[1:])}; give every client the same."
        )
    if y.shape[1:] != like[1].shape[1:]:
        raise SettingError(
            f"{who} has labels of shape {list(y.shape[1:])} but client 0 has "
            f"{list(like[1].shape[1:])}; give every client the same."
        )


def joined(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """All inputs, all labels, and the rows of them that each (x, y) became."""
    sizes = [len(y) for _, y in pairs]
    ends = np.cumsum(sizes)
    rows = [np.arange(end - n, end) for n, end in zip(sizes, ends, strict=True)]
    x = np.concatenate([x for x, _ in pairs])
    return x, np.concatenate([y for _, y in pairs]), rows


def table_of(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """`index` and `size` of clients that hold these rows, on the host.

    Raises:
      ValueError: no client holds a row.
    """
    size = np.array([len(r) for r in rows], np.int32)
    if not len(size) or size.max() == 0:
        raise SettingError(f"{len(size)} clients hold no example; give them some.")
    index = np.zeros((len(size), size.max()), np.int32)
    for i, r in enumerate(rows):
        if len(r):
            index[i] = r[0]
            index[i, : len(r)] = r
    return index, size


def rows_in(index: Array, size: Array) -> list[np.ndarray]:
    """For each client the rows it holds; the inverse of `table_of`."""
    pairs = zip(np.asarray(index), np.asarray(size), strict=True)
    return [row[:n] for row, n in pairs]
