"""Central arrays, before anyone is a client, and where a public set comes from.

A protocol takes the public set out of a source:

    holdout      out of the training set, before it is split among the clients
    split_test   one part of the test set; only the other part is the test set then
    published    the test set itself, as FNR-FL's released code has it: what is called its
                 accuracy is TRAINING accuracy, and compares with no test accuracy

Each takes the number of public examples, that of further examples of the training set to
choose a model by, and a seed; it raises SettingError where there are not so many. All draws
are stratified: every label keeps its share, give or take one example.

References:
  FNR-FL, https://github.com/LonelyMoonDesert/FNR-FL, whose refinement, selection and test
  use one and the same 10,000 images of CIFAR-10.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..errors import SettingError
from .dataset import FederatedDataset
from .examples import largest_pixel
from .public import PublicSet
from .rows import apportion, by_label, generator, owners_of

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
      validates: whether the test rows are of the authors' training set, see `validating`.
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
    validates: bool = False

    def __repr__(self) -> str:
        x = np.asarray(self.x_train)
        return (
            f"Source({self.name!r}, {len(self.y_train)} training and {len(self.y_test)} "
            f"{'validation' if self.validates else 'test'} examples "
            f"{x.dtype}{list(x.shape[1:])}, {self.num_classes} classes)"
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one example."""
        return self.x_train.shape[1:]

    def test_counts(self) -> np.ndarray:
        """How many test examples each label has, [num_classes]."""
        return np.bincount(self.y_test, minlength=self.num_classes)

    def first(self, num_examples: int) -> "Source":
        """The first examples of the training set; all the test set and its moments."""
        if num_examples > len(self.y_train):
            raise SettingError(
                f"train_examples={num_examples} is more than the {len(self.y_train)} "
                f"training examples of {self.name}; write fewer, or none for all."
            )
        return _training(self, slice(num_examples))

    def validating(self) -> "Source":
        """The source with a tenth of its training set, 5000 at most, as its test set.

        That is a tenth of the examples of every label, the same whatever seed a run has.
        Nothing is left of what was the test set; the moments stay.
        """
        count = default_size(self.y_train)
        if count < self.num_classes:
            raise SettingError(
                f"evaluate_on=validation takes {count} of {len(self.y_train)} training "
                f"examples of {self.name}, which has {self.num_classes} labels; give at "
                f"least {10 * self.num_classes} training examples, or write "
                "evaluate_on=test."
            )
        rest, taken = _draw(self.y_train, count, seed=0)
        owned = self.test_clients is not None and self.clients is not None
        return _training(self, rest)._replace(
            x_test=self.x_train[taken],
            y_test=self.y_train[taken],
            test_clients=self.clients[taken] if owned else None,
            validates=True,
        )

    def parity(self) -> "Source":
        """The same examples labelled 0 where their label is even and 1 where it is odd."""
        return self._replace(
            y_train=self.y_train % 2, y_test=self.y_test % 2, num_classes=2
        )

    def of_pixels(self) -> "Source":
        """The same examples, which tasks are to scale to pixels in [0, 1] and no more."""
        return self._replace(mean=0.0, std=largest_pixel(self.x_train))

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
        test = (self.x_test, self.y_test)
        owned = test_rows is not None and any(map(len, test_rows))
        return FederatedDataset.from_rows(
            self.x_train,
            self.y_train,
            rows,
            test=test,
            public=public,
            num_classes=self.num_classes,
            client_tests=(*test, test_rows) if owned else None,
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


def source_of(
    name: str,
    train: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    num_classes: int,
    constants: tuple[Moment, Moment] | None = None,
    owners: tuple[Iterable[Hashable], Iterable[Hashable] | None] | None = None,
) -> Source:
    """The source of (x, y) to train and (x, y) to test on.

    Args:
      name: what it is loaded by.
      train: inputs and labels.
      test: likewise.
      num_classes: number of labels.
      constants: mean and deviation; None: those of the training inputs.
      owners: whose each row of both parts is, by any names; None: they have no owners.
    """
    mean, std = constants or moments(train[0])
    clients, test_clients = owners_of(*owners) if owners else (None, None)
    return Source(name, *train, *test, num_classes, mean, std, clients, test_clients)


def check_labels(
    path: Path | str, y: np.ndarray, num_classes: int, lowest: int = 0
) -> None:
    """Raises SettingError unless lowest <= y < lowest + num_classes; names the first."""
    bad = np.flatnonzero((y < lowest) | (y >= lowest + num_classes))
    if len(bad):
        raise SettingError(
            f"{path}: label {y[bad[0]]} of example {bad[0]} is out of range; labels "
            f"must be {lowest} to {lowest + num_classes - 1}."
        )


MOST = 5000  # public examples unless more are asked for, a tenth of CIFAR-10's
STREAM = 5  # of the seed: no partition of that seed draws from it


def default_size(labels: np.ndarray) -> int:
    """Of a part taken out of a training set: a tenth, 5000 at most."""
    return min(len(labels) // 10, MOST)


class Held(NamedTuple):
    """What a protocol makes of a data set."""

    source: Source  # what is left to train and to test on
    public: PublicSet


def holdout(
    source: Source, examples: int | None = None, validation: int = 0, seed: int = 0
) -> Held:
    """Takes the public set out of the training set, before anyone is a client.

    By default a tenth of it, 5000 at most. The source's mean and deviation stay as they
    are, and the public set does not depend on `validation`.
    """
    n = len(source.y_train)
    examples = default_size(source.y_train) if examples is None else examples
    _check("public_examples", examples, n, "training", least=1)
    rest, taken = _draw(source.y_train, examples, seed)
    public = PublicSet(source.x_train[taken], source.y_train[taken], None, "holdout")
    return _validated(_training(source, rest), public, validation, seed)


def split_test(
    source: Source, examples: int | None = None, validation: int = 0, seed: int = 0
) -> Held:
    """Takes the public set out of the test set; the rest of it is the test set.

    Second best: the public set has the very distribution that is tested on. By default half
    of the test set, 5000 at most; as many as there are labels are left to test on.
    """
    m = len(source.y_test)
    examples = min(m // 2, MOST) if examples is None else examples
    _check("public_examples", examples, m, "test", least=1)
    if m - examples < source.num_classes <= m // 2:
        raise SettingError(
            f"public_examples={examples} leaves {m - examples} of {m} test examples for "
            f"{source.num_classes} labels; write public_examples={m // 2} or so."
        )
    rest, taken = _draw(source.y_test, examples, seed)
    public = PublicSet(source.x_test[taken], source.y_test[taken], None, "split_test")
    owners = source.test_clients
    left = source._replace(
        x_test=source.x_test[rest],
        y_test=source.y_test[rest],
        test_clients=None if owners is None else owners[rest],
    )
    return _validated(left, public, validation, seed)


def published(
    source: Source, examples: int | None = None, validation: int = 0, seed: int = 0
) -> Held:
    """The public set is the whole test set: what is measured on it is training accuracy.

    For reproducing FNR-FL's published figures, and for nothing else; takes no `examples`.
    """
    if examples is not None:
        raise SettingError(
            f"public_examples={examples} but public=published takes the whole test set; "
            "leave public_examples out, or write public=split_test."
        )
    public = PublicSet(source.x_test, source.y_test, None, "published")
    return _validated(source, public, validation, seed)


PROTOCOLS: dict[str, Callable[..., Held]] = {
    "holdout": holdout,
    "split_test": split_test,
    "published": published,
}


def _validated(source: Source, public: PublicSet, count: int, seed: int) -> Held:
    """Both, with `count` examples moved from the training set to `public.validation`."""
    _check("validation_examples", count, len(source.y_train), "remaining training")
    if not count:
        return Held(source, public)
    rest, taken = _draw(source.y_train, count, seed)
    judged = (source.x_train[taken], source.y_train[taken])
    return Held(_training(source, rest), replace(public, validation=judged))


def _check(name: str, count: int, there: int, kind: str, least: int = 0) -> None:
    check.at_least(name, count, least, most=math.inf)
    if count >= there:
        raise SettingError(
            f"{name}={count} leaves nothing of {there} {kind} examples; write "
            f"{name}={max(there // 10, least)} or so."
        )


def _draw(labels: np.ndarray, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """All rows in two stratified parts: the rest in order, and `count` in random order."""
    rng = generator([STREAM, seed])
    rows = by_label(rng, np.asarray(labels))
    sizes = apportion(count, np.array([len(r) for r in rows]))
    taken = [r[:size] for r, size in zip(rows, sizes, strict=True)]
    taken = rng.permutation(np.concatenate(taken))
    return np.setdiff1d(np.arange(len(labels)), taken), taken


def _training(source: Source, rows: np.ndarray | slice) -> Source:
    """The source with these rows of its training set alone."""
    clients = None if source.clients is None else source.clients[rows]
    return source._replace(
        x_train=source.x_train[rows], y_train=source.y_train[rows], clients=clients
    )
