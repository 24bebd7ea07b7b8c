"""Tables as arrays: columns of pandas, polars, pyarrow and Hugging Face data sets.

All of them become one Arrow table, by the protocol that they share; see
https://arrow.apache.org/docs/format/CDataInterface/PyCapsuleInterface.html. pyarrow alone
is imported here. What a Hugging Face data set holds encoded, such as images, it decodes
itself.
"""

from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..errors import SettingError, one_line

KINDS = "a pandas, polars or pyarrow table, or a Dataset of Hugging Face"


class Table(NamedTuple):
    """Columns by name, and how to get at those that Arrow holds encoded."""

    what: str  # how sentences call it: "frame"
    columns: dict[str, Any]  # of pyarrow
    names: list[str]  # without what pandas calls its index
    source: Any  # what it was made of

    def column(self, name: str, role: str) -> Any:
        """A column; `role` is the argument that asks for it.

        Raises:
          ValueError: there is none of that name, or it lacks values.
        """
        if name not in self.columns:
            raise SettingError(
                f"{role}={name!r} is no column of {self.what}; "
                f"{check.nearest(str(name), self.names)}"
            )
        column = self.columns[name]
        if column.null_count:
            row = int(column.is_null().to_numpy().argmax())
            raise SettingError(missing(self.what, name, column.null_count, row))
        return column


def table_of_columns(frame: Any, what: str = "frame") -> Table:
    """Whatever kind of table it is, as one.

    Raises:
      ValueError: it is none, has no rows, or two columns of one name.
    """
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
            f"({one_line(error)}); give {KINDS}."
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
    """The values of a column of names, as Python has them: text, whole numbers, dates.

    Raises:
      ValueError: there is no such column, it lacks values, or it holds something else.
    """
    import pyarrow.types as kinds

    column = table.column(name, role)
    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if kinds.is_floating(kind) or kinds.is_nested(kind) or kinds.is_binary(kind):
        raise SettingError(
            f"{role}={name!r} is a column of {kind}; it must hold names: text, whole "
            "numbers or dates."
        )
    return column.to_pylist()


def label_kind(table: Table, name: str) -> str:
    """What the labels in a column are: "numbers", "classes" (0 and up) or "names".

    Raises:
      ValueError: there is no such column.
    """
    import pyarrow.types as kinds

    kind = table.column(name, "label").type
    if kinds.is_floating(kind):
        return "numbers"
    return "classes" if kinds.is_integer(kind) else "names"


def classes_of(table: Table, name: str, num_classes: int | None) -> np.ndarray:
    """Labels that are classes already, int32 [n].

    Raises:
      ValueError: one is negative, or larger than there are rows, which is none.
    """
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
