"""What examples must be like: labels in range, numbers finite."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

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
    if low < 0 or high >= num_classes:
        bad = low if low < 0 else high
        row = int(np.argmax(y.reshape(-1) == bad))
        raise ValueError(
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
                raise ValueError(
                    f"{example} {begin + row} has the {what} "
                    f"{bad[np.argmin(np.isfinite(bad))]} in {kept}; leave such examples "
                    "out, or put numbers there with numpy.nan_to_num."
                )
