"""Tables as the arrays of a federated data set: pandas, polars, pyarrow, Hugging Face.

All of them become one Arrow table, by the protocol that they share; see
https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html. pyarrow alone
is imported here. What a Hugging Face data set holds encoded, such as images, it decodes
itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .. import check
from ..errors import SettingError, one_line
from .rows import group, numbered, places

KINDS = "a pandas, polars or pyarrow table, or a Dataset of Hugging Face"


class Table(NamedTuple):
    """Columns by name, and how to get at those that Arrow holds encoded."""

    what: str  # how sentences call it: "frame"
    columns: dict[str, Any]  # of pyarrow
    names: list[str]  # without what pandas calls its index
    source: Any  # what it was made of

    def column(self, name: str, role: str) -> Any:
        """A column without gaps; `role` is the argument that asks for it."""
        if not isinstance(name, str) or name not in self.columns:
            raise SettingError(
                f"{role}={check.kind_of(name)} is not a column of {self.what}; "
                f"{check.nearest(str(name), self.names)}"
            )
        column = self.columns[name]
        if column.null_count:
            row = int(column.is_null().to_numpy().argmax())
            raise SettingError(missing(self.what, name, column.null_count, row))
        return column


def read_frame(
    frame: Any,
    client: str,
    label: str,
    features: str | Sequence[str] | None,
    test: Any,
    num_classes: int | None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads tables; see `FederatedDataset.from_frame`.

    Returns:
      What `from_rows` takes but the public set, and what clients and labels are called.
    """
    table = table_of_columns(frame)
    tested = None if test is None else table_of_columns(test, "test")
    owned = values_of(table, client, "client")
    named = _features(table, client, label, features)
    x = inputs_of(table, named)
    y, y_test, num_classes, label_names = _labels(table, tested, label, num_classes)
    client_names, owners = numbered(owned)
    rows = _rows(owners, len(client_names))
    given = {"x": x, "y": y, "rows": rows, "num_classes": num_classes}
    names = {"client_names": client_names, "label_names": label_names}
    if tested is None:
        return given, names
    given["test"] = pair = (_like(inputs_of(tested, named), x), y_test)
    if client in tested.columns:
        owners = places(client_names, values_of(tested, client, "client"))
        if (owners >= 0).any():
            given["client_tests"] = (*pair, _rows(owners, len(client_names)))
    return given, names


def _features(
    table: Table, client: str, label: str, features: str | Sequence[str] | None
) -> list[str]:
    """The columns that are inputs: those named, or all but the client and the label."""
    table.column(label, "label")
    if client == label:
        raise SettingError(
            f"client={client!r} and label={label!r} are one column; name two."
        )
    if features is None:
        named = [name for name in table.names if name not in (client, label)]
    else:
        several = isinstance(features, Iterable) and not isinstance(features, str)
        named = list(features) if several else [features]
    if not named:
        raise SettingError(
            f"{table.what} has no features besides {client!r} and {label!r}; give it a "
            "column of numbers, or of arrays."
        )
    wrong = [name for name in named if name == label or named.count(name) > 1]
    if wrong:
        why = "is the label" if wrong[0] == label else "is there twice"
        raise SettingError(f"features={named} but {wrong[0]!r} {why}; leave it out.")
    return named


def _labels(table: Table, tested: Table | None, label: str, num_classes: int | None):
    """Both labels, the number of classes and their names; None where there are none."""
    import pyarrow.types as kinds

    tables = [table] if tested is None else [table, tested]
    came = [one.column(label, "label").type for one in tables]
    all_kinds = {(kinds.is_floating(kind), kinds.is_integer(kind)) for kind in came}
    if len(all_kinds) > 1:
        raise SettingError(
            f"label={label!r} is a column of {came[0]} in frame and of {came[1]} in test; "
            "make them one kind."
        )
    ((are_numbers, are_classes),), names = all_kinds, None
    if are_numbers:
        found = [numeric_column(one, label, "label") for one in tables]
    elif are_classes:
        names = class_names(table, label)
        if num_classes is None and names is not None:
            num_classes = len(names)
        found = [classes_of(one, label, num_classes) for one in tables]
    else:
        texts = [values_of(one, label, "label") for one in tables]
        names, every = numbered([text for some in texts for text in some])
        found = np.split(every, [len(texts[0])])
        num_classes = len(names) if num_classes is None else num_classes
    return found[0], None if tested is None else found[1], num_classes, names


def _rows(owners: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """The rows of each client in the order they come in; an owner of -1 is none."""
    held = np.flatnonzero(owners >= 0)
    return group(held, owners[held], num_clients)


def _like(x_test: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Test inputs in the dtype of the training inputs, where that holds them."""
    fits = np.issubdtype(x.dtype, np.floating) or np.can_cast(x_test.dtype, x.dtype)
    if x_test.shape[1:] != x.shape[1:] or not fits:
        raise SettingError(
            f"the features of test are {x_test.dtype}{list(x_test.shape[1:])} but those of "
            f"frame {x.dtype}{list(x.shape[1:])}; make them equal."
        )
    return x_test.astype(x.dtype)


def table_of_columns(frame: Any, what: str = "frame") -> Table:
    """Whatever kind of table it is, as one."""
    import pyarrow as pa

    arrow, metadata = frame, None
    if from_hugging_face(frame):
        if type(frame).__name__ != "Dataset":
            raise SettingError(
                f"{what} is {check.kind_of(frame)} of Hugging Face; give a split that is "
                'not streamed, as dataset["train"].'
            )
        arrow = frame.with_format("arrow")[:]
    try:
        table = pa.table(arrow)
        metadata = table.schema.pandas_metadata
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise SettingError(
            f"{what} is {check.kind_of(frame)}, which cannot be read as a table "
            f"({one_line(error)}); give {KINDS}, with arrays of several axes as lists of "
            "lists."
        ) from None
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SettingError(f"{what} has two columns {twice[0]!r}; rename one of them.")
    if not len(table):
        raise SettingError(f"{what} has no rows; give it some.")
    index = (metadata or {}).get("index_columns", [])
    named = [name for name in names if name not in index]
    return Table(what, dict(zip(names, table.columns, strict=True)), named, frame)


def values_of(table: Table, name: str, role: str) -> list[Any]:
    """The values of a column of names, as Python has them: text, whole numbers, dates."""
    import pyarrow.types as kinds

    column = table.column(name, role)
    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if kinds.is_floating(kind) or kinds.is_nested(kind) or kinds.is_binary(kind):
        raise SettingError(
            f"{role}={name!r} is a column of {kind}; it must hold names: text, whole "
            "numbers or dates."
        )
    return column.to_pylist()


def classes_of(table: Table, name: str, num_classes: int | None) -> np.ndarray:
    """Labels that are classes already, int32 [n]; a larger one than rows is none."""
    y = table.column(name, "label").to_numpy()
    most = max(len(y), 2) if num_classes is None else num_classes
    bad = np.flatnonzero((y < 0) | (y >= most))
    if len(bad):
        raise SettingError(
            f"label={name!r} holds {y[bad[0]]} in row {bad[0]} of {table.what}, but "
            f"classes are 0 to {most - 1}; give num_classes, text, which is numbered in "
            "sorted order, or floats to regress on."
        )
    return y.astype(np.int32)


def class_names(table: Table, name: str) -> tuple[str, ...] | None:
    """What Hugging Face calls the classes of a column; None: nothing."""
    features = getattr(table.source, "features", None)
    if not from_hugging_face(table.source) or features is None:
        return None
    names = getattr(features[name], "names", None)
    return None if names is None else tuple(names)


def missing(what: str, name: str, count: int, row: int) -> str:
    """The sentence about a column without a value in some rows."""
    return (
        f"column {name!r} of {what} lacks {count} values, the first in row {row}; fill "
        "them in, or leave such rows out."
    )


def from_hugging_face(frame: Any) -> bool:
    """Whether it is of the library datasets, which need not be there."""
    return type(frame).__module__.partition(".")[0] == "datasets"


def inputs_of(table: Table, features: Sequence[str]) -> np.ndarray:
    """The features, side by side [n, features]; or one column of arrays, [n, ...].

    uint8 stays, other integers become int32 and floats float32 (float64 where JAX has
    that); a mix is floats.
    """
    columns = [numeric_column(table, name) for name in features]
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


def numeric_column(table: Table, name: str, role: str = "features") -> np.ndarray:
    """One column of numbers, [n, ...], in a dtype that the device keeps."""
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
    dtype = jax.dtypes.canonicalize_dtype(values.dtype)
    if np.issubdtype(dtype, np.integer):
        bounds = np.iinfo(dtype)
        bad = (values < bounds.min) | (values > bounds.max)
        if bad.any():
            raise SettingError(
                f"feature {name!r} holds {values[bad][0]}, more than {dtype} can; scale "
                "it, or make it a column of floats."
            )
    values = values.astype(dtype)
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
