"""A federated data set: every pixel once, clients are rows of an index matrix."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .clients import (
    ClientNoise,
    ClientTests,
    checked_tests,
    concatenated_tests,
    hold_out,
)
from .examples import (
    as_array,
    as_pairs,
    check_columns,
    check_like,
    check_values,
    concatenated,
)
from .frame import read_frame
from .public import PublicSet, check_apart, public_set, tables_of
from .rows import Array, check_rows, count_labels, rows_in, table_of


@partial(
    jax.tree_util.register_dataclass,
    data_fields=[
        *("x", "y", "index", "size", "test", "public", "holders", "label_counts"),
        *("noise", "client_tests"),
    ],
    meta_fields=["num_classes"],
    drop_fields=["client_names", "label_names"],
)
@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Examples and who holds them. A pytree; `num_classes` is static.

    The names at the end are for people, and no part of the pytree: what JAX makes of a
    data set has none, and clients of other names are the same program.

    Attributes:
      x: inputs of all clients, [examples, ...], in the dtype they came in (uint8 pixels
        stay uint8; the task normalises them in the step).
      y: labels, [examples, ...].
      index: the rows of `x` each client holds, [clients, longest] int32, padded with the
        client's own first row.
      size: how many of them count, [clients] int32.
      test: (x, y) for evaluation, or None.
      public: what refinements may train on, or None; never the test set, unless it says
        so (`PublicSet.protocol`).
      holders: the clients that hold examples, in order, int32, from whom a round's cohort
        is drawn; None: everyone does.
      label_counts: how many examples of each label a client holds, [clients, classes]
        int32; None where `y` is not one integer label per example.
      noise: what each client sees its inputs through while it trains, or None; never the
        test set. Give it with `dataclasses.replace(data, noise=...)`.
      client_tests: test examples of each client's own, or None; clean, as `test` is. It
        is apart from `test`, which stays None where only clients have tests.
      num_classes: number of labels.
      client_names: what each client is called where it came from, or None.
      label_names: what each label is called there, or None.
    """

    x: Array
    y: Array
    index: Array
    size: Array
    test: tuple[Array, Array] | None = None
    public: PublicSet | None = None
    holders: Array | None = None
    label_counts: Array | None = None
    noise: ClientNoise | None = None
    client_tests: ClientTests | None = None
    num_classes: int = 0
    client_names: tuple[Any, ...] | None = None
    label_names: tuple[Any, ...] | None = None

    def __repr__(self) -> str:
        dtype, shape = self.x.dtype, list(self.x.shape[1:])
        return (
            f"FederatedDataset({self.num_clients} clients, {self.x.shape[0]} examples "
            f"{dtype}{shape}, {self.num_classes} classes)"
        )

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return self.index.shape[0]

    @property
    def num_holders(self) -> int:
        """How many of them hold examples: N of every mean over all clients."""
        return self.num_clients if self.holders is None else self.holders.shape[0]

    def rows(self) -> list[np.ndarray]:
        """For each client the rows of `x` and `y` it holds."""
        return rows_in(self.index, self.size)

    def with_changed(self, **changes: Any) -> "FederatedDataset":
        """Some of x, y, index and size replaced, and what follows from them.

        The tests stay as they are, those of clients too.

        Raises:
          SettingError: there are tests of another number of clients.
        """
        data = replace(self, **changes)
        tests = data.client_tests
        if tests is not None and tests.num_clients != data.num_clients:
            raise SettingError(
                f"client_tests are of {tests.num_clients} clients but there would be "
                f"{data.num_clients}; give client_tests, too, or None."
            )
        return replace(
            data,
            holders=jnp.asarray(np.flatnonzero(data.size), jnp.int32),
            label_counts=count_labels(
                np.asarray(data.y), data.rows(), data.num_classes
            ),
        )

    def check_public(self) -> None:
        """Raises SettingError if the public set holds test examples and does not say so.

        `from_clients` and `from_rows` have looked already, `dataclasses.replace` has not.
        """
        check_apart(self.public, self.test)
        check_apart(self.public, self._own_tests())

    def _own_tests(self) -> tuple[Array, Array] | None:
        """(x, y) that only clients are tested on, or None."""
        tests = self.client_tests
        if tests is None or (self.test is not None and tests.x is self.test[0]):
            return None
        return tests.x, tests.y

    def pooled(self) -> "FederatedDataset":
        """One client that holds every row some client holds, once, without noise.

        Local SGD on it is SGD on the pooled data: the reference line of a comparison.
        Its own test is that of all clients, each example once.
        """
        once = lambda rows: [np.unique(np.concatenate(rows))]
        tests = self.client_tests
        return FederatedDataset.from_rows(
            self.x,
            self.y,
            once(self.rows()),
            test=self.test,
            public=self.public,
            num_classes=self.num_classes,
            client_tests=tests and (tests.x, tests.y, once(tests.rows())),
        )

    def split_clients(
        self, test_share: float = 0.2, seed: int = 0
    ) -> "FederatedDataset":
        """Each client's examples in two: what it trains on, and `client_tests`.

        Of n_i examples round(test_share n_i), half to even, are held out, but never all:
        at least 1 stays to train on. Which follow from the seed and the client alone.
        `test`, which is for all, stays as it is. Split before anything is corrupted
        if the tests are to be clean.

        Raises:
          SettingError: clients have tests already or share examples, `test_share` does not
            lie in [0, 1), or is so small that nothing is held out.
        """
        if self.client_tests is not None:
            raise SettingError(
                "the clients have tests of their own already; give split_clients data "
                "without, replace(data, client_tests=None)."
            )
        x, y, rows, tests = hold_out(self.x, self.y, self.rows(), test_share, seed)
        index, size = map(jnp.asarray, table_of(rows))
        return self.with_changed(x=x, y=y, index=index, size=size, client_tests=tests)

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, Any]],
        test: tuple[Any, Any] | None = None,
        public: Any = None,
        num_classes: int | None = None,
        client_tests: Sequence[tuple[Any, Any]] | None = None,
    ) -> "FederatedDataset":
        """Builds a data set from one (x, y) per client; keeps the dtypes given.

        Args:
          clients: (x [n_i, ...], y [n_i, ...]) of each client; n_i may be 0.
          test: (x, y) for evaluation.
          public: for refinements: a `PublicSet`, (x, y), or x alone; y may be None.
          num_classes: number of labels; None: the largest integer label plus 1.
          client_tests: (x [m_i, ...], y [m_i, ...]) that each client is tested on by
            itself; m_i may be 0. `test` does not follow from it.

        Raises:
          SettingError: a client's x and y differ in length, the clients' shapes differ, or
            a label lies outside [0, num_classes); or as `from_rows`.

        Example:
          >>> clients = [(np.zeros((5, 2)), [0, 1, 0, 1, 2]), (np.ones((3, 2)), [0, 0, 1])]
          >>> data = fa.FederatedDataset.from_clients(clients)
          >>> data.num_clients, data.num_classes, data.size.tolist()
          (2, 3, [5, 3])
        """
        if isinstance(clients, dict):
            raise SettingError(
                "from_clients got a dict for clients; give a list of one (x, y) per "
                "client, such as list(clients.values())."
            )
        tables = [*clients]
        clients = as_pairs("client {i}", tables)
        if not clients:
            raise SettingError(
                "from_clients got no clients; give one (x, y) per client."
            )
        for i, (x, y) in enumerate(clients):
            check_like(f"client {i}", x, y, clients[0])
        named = {f"client {i}": table for i, table in enumerate(tables)}
        named |= {"test": test, **tables_of(public)}
        given = client_tests
        if given is not None:
            tests = [*given]
            given = concatenated_tests(tests, clients)
            named |= {f"the test of client {i}": table for i, table in enumerate(tests)}
        check_columns(named)
        return cls.from_rows(*concatenated(clients), test, public, num_classes, given)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        client: str,
        label: str,
        features: str | Sequence[str] | None = None,
        test: Any = None,
        public: Any = None,
        num_classes: int | None = None,
    ) -> "FederatedDataset":
        """Builds a data set from a table with a row per example and a column of clients.

        Clients are numbered in the sorted order of their names, which `client_names`
        keeps; each holds its rows in the order of the table.

        Args:
          frame: a table of pandas, polars or pyarrow, or whatever else speaks Arrow's
            PyCapsule protocol; or a Dataset of Hugging Face, whose images are decoded.
          client: the column that says whose a row is: text, whole numbers or dates.
          label: the column to learn. Integers are classes from 0; floats stay floats;
            text and the like become classes in sorted order, which `label_names` keeps,
            as it does what Hugging Face calls its classes.
          features: columns of numbers, side by side in `x` [examples, features]; or one
            column of arrays, [examples, ...]; None: all but the two above. uint8 stays,
            other integers become int32, floats float32 and so does a mix.
          test: another such table, for evaluation. If it has the column of clients, each
            client's rows are its own test as well (`client_tests`); those of clients that
            `frame` lacks are in `test` alone. None: none; see `split_clients`.
          public: for refinements: a `PublicSet`, (x, y), or x alone; y may be None.
          num_classes: number of labels; None: as many as have a name, or the largest of
            `frame` plus 1.

        Raises:
          SettingError: no such table or column, a value is missing or no number, a label is
            out of range; or as `from_rows`.
        """
        given, names = read_frame(frame, client, label, features, test, num_classes)
        return replace(cls.from_rows(**given, public=public), **names)

    @classmethod
    def from_rows(
        cls,
        x: Any,
        y: Any,
        rows: Sequence[Any],
        test: tuple[Any, Any] | None = None,
        public: Any = None,
        num_classes: int | None = None,
        client_tests: tuple[Any, Any, Sequence[Any]] | None = None,
    ) -> "FederatedDataset":
        """Builds a data set from central arrays and the rows each client holds.

        Args:
          x: all inputs, [examples, ...].
          y: all labels, [examples, ...].
          rows: for each client, the rows of x and y it holds (a partition; clients may
            share rows).
          test: (x, y) for evaluation.
          public: for refinements: a `PublicSet`, (x, y), or x alone; y may be None.
          num_classes: number of labels; None: the largest integer label plus 1.
          client_tests: (x, y, rows): inputs, labels, and for each client the rows of them
            it is tested on by itself. Those of `test` lie on the device once.

        Raises:
          SettingError: no client holds a row, or one holds a row that is none; an input has
            no label; a label lies outside [0, num_classes); an input or a target is no
            number, NaN, infinite, or an integer that the device cannot hold; or `test`,
            `public` or `client_tests` are not of the clients' kind, or `public` holds
            examples of a test.
        """
        pair = client_tests[:2] if isinstance(client_tests, tuple | list) else None
        named = {"the training set": (x, y), "test": test, "client_tests": pair}
        check_columns(named | tables_of(public))
        x, y = as_array("x", x), as_array("y", y)
        check_like("the training set", x, y, (x, y))
        check.at_least("num_classes", num_classes, 0, none="the largest label plus 1")
        check_rows(rows, len(x))
        index, size = table_of(rows)
        num_classes = check_values("training example", x, y, num_classes)
        tested = None
        if test is not None:
            if not check.pair(test):
                raise SettingError(
                    f"test is {check.kind_of(test)}; give a pair, test=(x, y)."
                )
            tested_on = as_array("x of test", test[0]), as_array("y of test", test[1])
            check_like("test", *tested_on, (x, y), "the clients have", on_device=True)
            check_values("test example", *tested_on, num_classes)
            tested = jnp.asarray(tested_on[0]), jnp.asarray(tested_on[1])
        tests = checked_tests(
            client_tests, (x, y), len(rows), num_classes, test, tested
        )
        data = cls(
            x=jax.device_put(x),  # jnp.asarray would copy it twice
            y=jnp.asarray(y),
            index=jnp.asarray(index),
            size=jnp.asarray(size),
            holders=jnp.asarray(np.flatnonzero(size), jnp.int32),
            label_counts=count_labels(y, rows, num_classes),
            test=tested,
            public=public_set(public, x, num_classes),
            client_tests=tests,
            num_classes=num_classes,
        )
        data.check_public()
        return data
