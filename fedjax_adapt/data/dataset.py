"""A federated data set: every pixel once, clients are rows of an index matrix."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .examples import check_finite, count_labels, num_classes_of
from .noise import ClientNoise
from .public import PublicSet, check_apart, public_set

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class FederatedDataset:
    """Examples and who holds them. A pytree; `num_classes` is static.

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
      num_classes: number of labels.
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
    num_classes: int = field(default=0, metadata={"static": True})

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
        index = np.asarray(self.index)
        return [row[:n] for row, n in zip(index, np.asarray(self.size), strict=True)]

    def with_changed(self, **changes: Any) -> "FederatedDataset":
        """Some of x, y, index and size replaced, and what follows from them."""
        data = replace(self, **changes)
        return replace(
            data,
            holders=jnp.asarray(np.flatnonzero(data.size), jnp.int32),
            label_counts=count_labels(
                np.asarray(data.y), data.rows(), data.num_classes
            ),
        )

    def check_public(self) -> None:
        """Raises ValueError if the public set holds test examples and does not say so.

        `from_clients` and `from_rows` have looked already, `dataclasses.replace` has not.
        """
        check_apart(self.public, self.test)

    def pooled(self) -> "FederatedDataset":
        """One client that holds every row some client holds, once, without noise.

        Local SGD on it is SGD on the pooled data: the reference line of a comparison.
        """
        return FederatedDataset.from_rows(
            self.x,
            self.y,
            [np.unique(np.concatenate(self.rows()))],
            test=self.test,
            public=self.public,
            num_classes=self.num_classes,
        )

    @classmethod
    def from_clients(
        cls,
        clients: Sequence[tuple[Any, Any]],
        test: tuple[Any, Any] | None = None,
        public: Any = None,
        num_classes: int | None = None,
    ) -> "FederatedDataset":
        """Builds a data set from one (x, y) per client; keeps the dtypes given.

        Args:
          clients: (x [n_i, ...], y [n_i, ...]) of each client; n_i may be 0.
          test: (x, y) for evaluation.
          public: for refinements: a `PublicSet`, (x, y), or x alone; y may be None.
          num_classes: number of labels; None: the largest integer label plus 1.

        Raises:
          ValueError: a client's x and y differ in length, the clients' shapes differ, or
            a label lies outside [0, num_classes); or as `from_rows`.
        """
        clients = [(np.asarray(x), np.asarray(y)) for x, y in clients]
        if not clients:
            raise ValueError("from_clients got no clients; give one (x, y) per client.")
        for i, (x, y) in enumerate(clients):
            if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
                raise ValueError(
                    f"client {i} has x of shape {x.shape} and y of shape {y.shape}; "
                    "their first axes must be equal."
                )
            if x.shape[1:] != clients[0][0].shape[1:] or x.dtype != clients[0][0].dtype:
                raise ValueError(
                    f"client {i} has inputs {x.dtype}{list(x.shape[1:])} but client 0 has "
                    f"{clients[0][0].dtype}{list(clients[0][0].shape[1:])}; give every "
                    "client the same."
                )
            if y.shape[1:] != clients[0][1].shape[1:]:
                raise ValueError(
                    f"client {i} has labels of shape {list(y.shape[1:])} but client 0 has "
                    f"{list(clients[0][1].shape[1:])}; give every client the same."
                )
        sizes = [len(y) for _, y in clients]
        ends = np.cumsum(sizes)
        rows = [np.arange(end - n, end) for n, end in zip(sizes, ends, strict=True)]
        x = np.concatenate([x for x, _ in clients])
        y = np.concatenate([y for _, y in clients])
        return cls.from_rows(
            x, y, rows, test=test, public=public, num_classes=num_classes
        )

    @classmethod
    def from_rows(
        cls,
        x: Any,
        y: Any,
        rows: Sequence[Any],
        test: tuple[Any, Any] | None = None,
        public: Any = None,
        num_classes: int | None = None,
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

        Raises:
          ValueError: nobody holds a row, a label lies outside [0, num_classes), or an
            input or a target is NaN or infinite; or `public` is not of the clients' kind,
            or holds examples of `test`.
        """
        x, y = np.asarray(x), np.asarray(y)
        index, size = table_of(rows)
        num_classes = num_classes_of(y, num_classes)
        check_finite(x, y, "training example")
        if test is not None:
            num_classes_of(np.asarray(test[1]), num_classes, "test example")
            check_finite(*test, "test example")
        on_device = lambda tree: jax.tree.map(jnp.asarray, tree)
        return cls(
            x=jax.device_put(x),  # jnp.asarray would copy it twice
            y=jnp.asarray(y),
            index=jnp.asarray(index),
            size=jnp.asarray(size),
            holders=jnp.asarray(np.flatnonzero(size), jnp.int32),
            label_counts=count_labels(y, rows, num_classes),
            test=None if test is None else on_device(tuple(test)),
            public=public_set(public, x, test, num_classes),
            num_classes=num_classes,
        )


def table_of(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """`index` and `size` of clients that hold these rows, on the host.

    Raises:
      ValueError: nobody holds a row.
    """
    size = np.array([len(r) for r in rows], np.int32)
    if not len(size) or size.max() == 0:
        raise ValueError(f"{len(size)} clients hold no example; give them some.")
    index = np.zeros((len(size), size.max()), np.int32)
    for i, r in enumerate(rows):
        if len(r):
            index[i] = r[0]
            index[i, : len(r)] = r
    return index, size
