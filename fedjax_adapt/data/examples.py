"""Examples as they are given: what they must be, and as arrays."""

from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError

MOST_CLASSES = 1_000_000  # where examples are fewer; every client counts each class
BLOCK = 4096  # examples looked at together, so that copies stay small


def as_array(name: str, values: Any) -> np.ndarray:
    """`values` as an array in this machine's byte order; their numbers stay as they are.

    Raises:
      SettingError: they are lists of different lengths, or a mask hides some.
    """
    if np.ma.is_masked(values):
        raise SettingError(
            f"{name} is a masked array, whose hidden values would be trained on; fill them "
            "in with .filled(value), or leave such examples out."
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise SettingError(
            f"{name} holds lists of different lengths; give one array [examples, ...], "
            "shorter examples padded."
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def check_values(example: str, x: Any, y: Any, num_classes: int | None) -> int:
    """Checks inputs and labels that are to lie on the device; returns how many classes.

    Raises:
      SettingError: one is no number, NaN, infinite or an integer too large for that, or
        a label is out of range; the sentence calls it as in "test example 3".
    """
    x, y = np.asarray(x), np.asarray(y)
    _check_numbers(example, x, y)
    num_classes = _num_classes_of(y, num_classes, example)
    _check_finite(x, y, example)
    return num_classes


def _num_classes_of(y: np.ndarray, num_classes: int | None, example: str) -> int:
    """Checks integer labels against `num_classes`, or counts them."""
    if not np.issubdtype(y.dtype, np.integer) or y.size == 0:
        return num_classes or 0  # regression targets, or no labels to look at
    low, high = int(y.min()), int(y.max())
    if num_classes is None:
        num_classes = high + 1
        if high >= max(len(y), MOST_CLASSES):
            row = _holder(y, high)
            raise SettingError(
                f"label {high} ({example} {row}) would make {high + 1} classes of "
                f"{len(y)} examples; write labels from 0 on, as np.unique(y, "
                "return_inverse=True)[1], or floats to regress on."
            )
    if low < 0:
        row = _holder(y, low)
        raise SettingError(
            f"label {low} ({example} {row}) is negative; write labels from 0 on, and a "
            "token of the vocabulary where a sequence is padded."
        )
    if high >= num_classes:
        row = _holder(y, high)
        raise SettingError(
            f"label {high} ({example} {row}) is out of range: num_classes={num_classes} "
            f"allows 0 to {num_classes - 1}."
        )
    return num_classes


def _holder(y: np.ndarray, label: int) -> int:
    """The first example that has the label, or one of its labels."""
    return int((y.reshape(len(y), -1) == label).any(1).argmax())


def largest_pixel(x: np.ndarray) -> float:
    """What inputs are divided by to be pixels in [0, 1]; 1 where they are no integers.

    Integers reach from 0 to the largest in `x`: 255 in photographs, 16 in the digits.
    """
    return float(x.max() or 1) if x.size and np.issubdtype(x.dtype, np.integer) else 1.0


def _check_finite(x: np.ndarray, y: np.ndarray, example: str) -> None:
    """Raises SettingError on the first example with a NaN or infinite number in it."""
    for what, values in (("input", x), ("target", y)):
        if not jnp.issubdtype(values.dtype, jnp.floating) or not values.size:
            continue  # integers always are
        dtype = jax.dtypes.canonicalize_dtype(values.dtype)  # on the device
        for begin in range(0, len(values), BLOCK):
            with np.errstate(over="ignore"):  # what overflows is named below
                block = values[begin : begin + BLOCK].astype(dtype)
            finite = np.isfinite(block.reshape(len(block), -1)).all(1)
            if not finite.all():
                row = int(np.argmin(finite))
                bad = block[row].reshape(-1)
                raise SettingError(
                    f"{example} {begin + row} has the {what} "
                    f"{bad[np.argmin(np.isfinite(bad))]} in {dtype}; leave such examples "
                    "out, or put numbers there with numpy.nan_to_num."
                )


def _check_numbers(example: str, x: np.ndarray, y: np.ndarray) -> None:
    """Raises SettingError unless they are real numbers that the device holds as they are.

    A float64 may lose digits there; an integer that lost some would be another label or
    token.
    """
    for what, values in (("inputs", x), ("targets", y)):
        kinds = (np.bool_, np.integer, np.floating)
        if not any(jnp.issubdtype(values.dtype, kind) for kind in kinds):
            raise SettingError(
                f"the {what} of {example}s are {values.dtype}; give real numbers, and of "
                "text the place of each in a list, from 0 on."
            )
        dtype = jax.dtypes.canonicalize_dtype(values.dtype)
        if dtype == values.dtype or not (
            values.size and jnp.issubdtype(dtype, jnp.integer)
        ):
            continue
        limits, values = np.iinfo(dtype), values.reshape(len(values), -1)
        for bound in (values.min(), values.max()):
            if not limits.min <= bound <= limits.max:
                row = _holder(values, bound)
                raise SettingError(
                    f"{example} {row} has {bound} among its {what}, more than {dtype} "
                    f"holds, {limits.min} to {limits.max}; write smaller integers."
                )


def as_pairs(who: str, given: Iterable[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """One (x, y) per client as arrays; `who` is whose they are, as in "client {i}"."""
    pairs = []
    for i, pair in enumerate(given):
        named = who.format(i=i)
        if not check.pair(pair):
            raise SettingError(
                f"{named} is {check.kind_of(pair)}; give it a pair (x, y), of no examples "
                "where it has none."
            )
        for what, values in zip("xy", pair, strict=True):
            if isinstance(values, dict):
                raise SettingError(
                    f"{named} has a dict for {what}; give one array [examples, ...], with "
                    "what belongs to an example side by side."
                )
        x, y = pair
        pairs.append((as_array(f"x of {named}", x), as_array(f"y of {named}", y)))
    # of [] NumPy makes floats without a shape
    held = [(x[:0], y[:0]) for x, y in pairs if x.ndim and y.ndim and y.size]
    if not held:
        return pairs
    no_x, no_y = held[0]
    no_like = lambda array, like: like if array.shape == (0,) else array
    filled = lambda x, y: (no_like(x, no_x), no_like(y, no_y).astype(no_y.dtype))
    return [(x, y) if y.size else filled(x, y) for x, y in pairs]


def check_columns(given: dict[str, Any]) -> None:
    """Raises SettingError if tables have other columns, or the same in another order.

    Args:
      given: owner -> (x, y), or x alone. Arrays without column names are not compared.
    """
    for place, what in enumerate(("columns", "label columns")):
        first, wanted = "", []
        for who, pair in given.items():
            tables = pair if check.pair(pair) else (pair, None)
            names = _column_names(tables[place])
            if names and wanted and names != wanted:
                raise SettingError(
                    f"{who} has the {what} {', '.join(map(str, names))} but {first} has "
                    f"{', '.join(map(str, wanted))}; give all the same columns in one "
                    "order."
                )
            if names and not wanted:
                first, wanted = who, names


def _column_names(x: Any) -> list[Any]:
    """Those of a table of pandas, polars or pyarrow; none of an array."""
    return [*getattr(x, "column_names", getattr(x, "columns", ()))]


def check_like(
    who: str,
    x: np.ndarray,
    y: np.ndarray | None,
    like: tuple[np.ndarray, np.ndarray | None],
    others: str = "client 0 has",
    on_device: bool = False,
) -> None:
    """Raises SettingError unless `who` has one label per input, both of the kind of `like`.

    Args:
      who: whose examples they are, as the sentence begins: "client 3".
      x: inputs.
      y: labels; None: there are none.
      like: (x, y) of others; y None: theirs may be of any kind.
      others: who they are.
      on_device: dtypes that are one there are alike.
    """
    if y is not None and (x.ndim == 0 or y.ndim == 0 or len(x) != len(y)):
        raise SettingError(
            f"{who} has x of shape {x.shape} and y of shape {y.shape}; give one label per "
            "input."
        )
    dtypes = {x.dtype, like[0].dtype}
    if on_device:
        dtypes = {*map(jax.dtypes.canonicalize_dtype, dtypes)}
    if (x.ndim, *x.shape[1:]) != (like[0].ndim, *like[0].shape[1:]) or len(dtypes) > 1:
        raise SettingError(
            f"{who} has inputs {x.dtype}{list(x.shape[1:])} but {others} "
            f"{like[0].dtype}{list(like[0].shape[1:])}; give it inputs like theirs."
        )
    if y is None or like[1] is None:
        return
    is_float = lambda dtype: jnp.issubdtype(dtype, jnp.floating)
    kinds = is_float(y.dtype), is_float(like[1].dtype)
    # int64 and uint64 together are float64 to NumPy
    if kinds[0] != kinds[1] or kinds[0] != is_float(np.result_type(y, like[1])):
        raise SettingError(
            f"{who} has labels {y.dtype} but {others} {like[1].dtype}; give all the same."
        )
    if y.shape[1:] != like[1].shape[1:]:
        raise SettingError(
            f"{who} has labels of shape {list(y.shape[1:])} but {others} "
            f"{list(like[1].shape[1:])}; give all the same."
        )


def concatenated(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """All inputs, all labels, and the rows of them that each (x, y) became."""
    sizes = [len(y) for _, y in pairs]
    ends = np.cumsum(sizes)
    rows = [np.arange(end - n, end) for n, end in zip(sizes, ends, strict=True)]
    x = np.concatenate([x for x, _ in pairs])
    return x, np.concatenate([y for _, y in pairs]), rows
