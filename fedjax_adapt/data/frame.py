"""A table whose rows have owners, as the arrays of a federated data set."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import SettingError
from . import columns
from .columns import Table, inputs_of, numeric_column
from .rows import group, numbered, places


class Framed(NamedTuple):
    """What `FederatedDataset.from_rows` takes, and what clients and labels are called."""

    x: np.ndarray
    y: np.ndarray
    rows: list[np.ndarray]
    test: tuple[np.ndarray, np.ndarray] | None
    client_tests: tuple[np.ndarray, np.ndarray, list[np.ndarray]] | None
    num_classes: int | None
    client_names: tuple[Any, ...]
    label_names: tuple[Any, ...] | None


def read_frame(
    frame: Any,
    client: str,
    label: str,
    features: str | Sequence[str] | None,
    test: Any,
    num_classes: int | None,
) -> Framed:
    """Reads tables; see `FederatedDataset.from_frame`.

    Raises:
      ValueError: one sentence that names the column.
    """
    table = columns.table_of_columns(frame)
    tested = None if test is None else columns.table_of_columns(test, "test")
    owned = columns.values_of(table, client, "client")
    named = _features(table, client, label, features)
    x = inputs_of(table, named)
    y, y_test, num_classes, label_names = _labels(table, tested, label, num_classes)
    client_names, owners = numbered(owned)
    rows = _rows(owners, len(client_names))
    framed = Framed(x, y, rows, None, None, num_classes, client_names, label_names)
    if tested is None:
        return framed
    pair = (_like(inputs_of(tested, named), x), y_test)
    framed = framed._replace(test=pair)
    if client not in tested.columns:
        return framed
    owners = places(client_names, columns.values_of(tested, client, "client"))
    if (owners < 0).all():
        return framed
    return framed._replace(client_tests=(*pair, _rows(owners, len(client_names))))


def _features(
    table: Table, client: str, label: str, features: str | Sequence[str] | None
) -> list[str]:
    """The columns that are inputs: those named, or all but the client and the label."""
    if client == label:
        raise SettingError(
            f"client={client!r} and label={label!r} are one column; name two."
        )
    if features is None:
        table.column(label, "label")
        named = [name for name in table.names if name not in (client, label)]
    else:
        named = [features] if isinstance(features, str) else list(features)
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
    tables = [table] if tested is None else [table, tested]
    kinds = [columns.label_kind(one, label) for one in tables]
    if len(set(kinds)) > 1:
        came = [one.columns[label].type for one in tables]
        raise SettingError(
            f"label={label!r} is a column of {came[0]} in frame and of {came[1]} in test; "
            "make them one kind."
        )
    names = None
    if kinds[0] == "numbers":
        found = [numeric_column(one, label, "label") for one in tables]
    elif kinds[0] == "classes":
        names = columns.class_names(table, label)
        if num_classes is None and names is not None:
            num_classes = len(names)
        found = [columns.classes_of(one, label, num_classes) for one in tables]
    else:
        texts = [columns.values_of(one, label, "label") for one in tables]
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
