"""Central arrays, before anyone is a client."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import SettingError
from .dataset import FederatedDataset

Moment = float | tuple[float, ...]


class Source(NamedTuple):
    """A data set as its authors give it: a training set and a test set.

    Attributes:
      name: what it was loaded by.
      x_train: inputs [n, ...]; images are [n, height, width, channels], uint8 pixels
        are left as they are.
      y_train: labels [n] int32 in [0, num_classes).
      x_test: inputs [m, ...], in the dtype and the shape of an example of `x_train`.
      y_test: labels [m] int32.
      num_classes: number of labels.
      mean: of the training inputs, a number or one per channel, in the units of
        `x_train` (0 to 255 for pixels); the task computes (x - mean) / std in the step.
      std: their standard deviation, likewise; never 0.
      clients: the owner of each training row, [n] int32 in [0, number of owners), where
        the data are federated by nature; else None.
      test_clients: the owner of each test row, [m] int32, by the same numbers; -1: none of
        them. None where test rows have no owners.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    num_classes: int
    mean: Moment
    std: Moment
    clients: np.ndarray | None = None
    test_clients: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return self.x_train.shape[1:]

    def test_counts(self) -> np.ndarray:
        """How many test examples each label has, [num_classes]."""
        return np.bincount(self.y_test, minlength=self.num_classes)

    def first(self, num_examples: int) -> "Source":
        """The first examples of the training set; all the test set and its moments.

        Raises:
          ValueError: there are not so many.
        """
        if num_examples > len(self.y_train):
            raise SettingError(
                f"train_examples={num_examples} is more than the {len(self.y_train)} "
                f"training examples of {self.name}; write fewer, or none for all."
            )
        clients = None if self.clients is None else self.clients[:num_examples]
        return self._replace(
            x_train=self.x_train[:num_examples],
            y_train=self.y_train[:num_examples],
            clients=clients,
        )

    def parity(self) -> "Source":
        """The same examples labelled 0 where their label is even and 1 where it is odd."""
        return self._replace(
            y_train=self.y_train % 2, y_test=self.y_test % 2, num_classes=2
        )

    def tests_of(self, rows: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """The test rows of each client's owner; None where test rows have none.

        Args:
          rows: of the training set, for each client those of one owner, as the partition
            "natural" distributes them.
        """
        if self.clients is None or self.test_clients is None:
            return None
        owners = self.test_clients
        order = np.argsort(owners, kind="stable")
        first = lambda r, side: np.searchsorted(owners, self.clients[r[0]], side, order)
        return [order[first(r, "left") : first(r, "right")] for r in rows]

    def federated(
        self,
        rows: Sequence[Any],
        public: Any = None,
        test_rows: Sequence[Any] | None = None,
    ) -> FederatedDataset:
        """The data set on the device.

        Args:
          rows: those of the training set at each client.
          public: for refinements, or None.
          test_rows: those of the test set that are each client's own; None: no client has
            any.
        """
        tests = (self.x_test, self.y_test, test_rows)
        owned = test_rows is not None and any(map(len, test_rows))
        return FederatedDataset.from_rows(
            self.x_train,
            self.y_train,
            rows,
            test=(self.x_test, self.y_test),
            public=public,
            num_classes=self.num_classes,
            client_tests=tests if owned else None,
        )


def moments(x: np.ndarray) -> tuple[Moment, Moment]:
    """Mean and standard deviation of `x`, in its own units.

    One number per channel for colour images [n, height, width, channels > 1], else one
    number. A deviation of 0 is given as 1, so that dividing by it is safe.
    """
    colour = x.ndim == 4 and x.shape[-1] > 1
    flat = x.reshape(-1, x.shape[-1] if colour else 1)
    # Blocks: a float64 copy of all the pixels would be eight times their size.
    blocks = [flat[i : i + 2**20] for i in range(0, len(flat), 2**20)]
    mean = sum(b.sum(0, dtype=np.float64) for b in blocks) / len(flat)
    variance = sum(np.square(b - mean).sum(0) for b in blocks) / len(flat)
    std = np.sqrt(variance)
    std = np.where(std > 0, std, 1.0)
    if colour:
        return tuple(mean.tolist()), tuple(std.tolist())
    return float(mean[0]), float(std[0])
