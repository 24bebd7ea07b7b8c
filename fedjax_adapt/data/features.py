"""Columns of numbers, of lists of numbers and of images, as inputs."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..errors import SettingError, one_line
from .columns import Table, from_hugging_face, missing


def inputs_of(table: Table, features: Sequence[str]) -> np.ndarray:
    """The features, side by side [n, features]; or one column of arrays, [n, ...].

    uint8 stays, other integers become int32 and floats float32 (float64 where JAX has
    that); a mix is floats.

    Raises:
      ValueError: one has no numbers, or none for some row; or arrays are mixed with others.
    """
    columns = [numbers_of(table, name) for name in features]
    for name, column in zip(features, columns, strict=True):
        if column.ndim > 1 and len(columns) > 1:
            raise SettingError(
                f"feature {name!r} is a column of arrays {list(column.shape[1:])}, which "
                f"cannot be joined with {len(columns) - 1} others; write features={name!r}."
            )
    if len(columns) == 1 and columns[0].ndim > 1:
        return columns[0]
    dtype = jax.dtypes.canonicalize_dtype(np.result_type(*columns))
    return np.stack([column.astype(dtype) for column in columns], axis=1)


def numbers_of(table: Table, name: str, role: str = "features") -> np.ndarray:
    """One column of numbers, [n, ...], in a dtype that the device keeps.

    Raises:
      ValueError: there is none of that name, or no number for some row.
    """
    import pyarrow.types as kinds

    column = table.column(name, role)
    if kinds.is_struct(column.type) or hasattr(column.type, "extension_name"):
        values, shape = _decoded(table, name), None
    else:
        column, shape = _flat(table, name, column)
        kind = column.type
        if not (kinds.is_integer(kind) or kinds.is_floating(kind)) and not (
            kinds.is_boolean(kind)
        ):
            raise SettingError(
                f"feature {name!r} is a column of {kind}, no numbers; turn it into some, "
                "or leave it out by naming the others: features=[...]."
            )
        values = column.to_numpy()
    if np.issubdtype(values.dtype, np.floating) and np.isnan(values).any():
        rows = np.flatnonzero(np.isnan(values.reshape(len(table.columns[name]), -1)))
        each = values.size // len(table.columns[name])
        raise SettingError(missing(table.what, name, len(rows), rows[0] // each))
    kept = jax.dtypes.canonicalize_dtype(values.dtype)
    if np.issubdtype(kept, np.integer):
        bounds = np.iinfo(kept)
        bad = (values < bounds.min) | (values > bounds.max)
        if bad.any():
            raise SettingError(
                f"feature {name!r} holds {values[bad][0]}, more than {kept} can; scale it, "
                "or make it a column of floats."
            )
    values = values.astype(kept)
    return values if shape is None else values.reshape(-1, *shape)


def _flat(table: Table, name: str, column: Any) -> tuple[Any, list[int]]:
    """The numbers in lists of lists in one line, and the shape of a row."""
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    lists = (kinds.is_list, kinds.is_large_list, kinds.is_fixed_size_list)
    shape, rows = [], len(column)
    while any(is_list(column.type) for is_list in lists):
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1:
            some = " and ".join(map(str, sorted(lengths)[:2]))
            raise SettingError(
                f"feature {name!r} has lists of {some} values; make all of one length."
            )
        shape += lengths
        column = pc.list_flatten(column)
        if column.null_count:
            each = len(column) // rows
            row = int(column.is_null().to_numpy().argmax()) // each
            raise SettingError(missing(table.what, name, column.null_count, row))
    return column, shape


def _decoded(table: Table, name: str) -> np.ndarray:
    """A column as Hugging Face decodes it; images get an axis for their one channel."""
    if not from_hugging_face(table.source):
        raise SettingError(
            f"feature {name!r} is a column of {table.columns[name].type}, no numbers; turn "
            "it into lists of them, or leave it out by naming the others: features=[...]."
        )
    alone = table.source.select_columns([name]).with_format("numpy")
    try:
        values = np.asarray(alone[:][name])
    except (ValueError, ImportError) as error:  # arrays of several shapes; no Pillow
        raise SettingError(
            f"feature {name!r} cannot be decoded ({one_line(error)}); make all of it "
            "arrays of one shape."
        ) from None
    if values.dtype == object or not np.issubdtype(values.dtype, np.number):
        raise SettingError(
            f"feature {name!r} does not decode to arrays of one shape; make it so, for "
            "example by resizing all images with dataset.map."
        )
    grey = values.ndim == 3 and type(table.source.features[name]).__name__ == "Image"
    return values[..., None] if grey else values
