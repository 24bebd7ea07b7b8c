"""Protocols: where a public set comes from.

    holdout      out of the training set, before it is split among the clients
    split_test   one part of the test set; only the other part is the test set then
    published    the test set itself, as FNR-FL's released code has it: what is called its
                 accuracy is TRAINING accuracy, and compares with nobody's test accuracy

All draws are stratified: every label keeps its share, give or take one example.

References:
  FNR-FL, https://github.com/LonelyMoonDesert/FNR-FL, whose refinement, selection and test
  use one and the same 10,000 images of CIFAR-10.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .. import check
from ..errors import SettingError
from .public import PublicSet
from .rows import apportion, by_label, generator
from .source import Source

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

    Args:
      source: the data set; its mean and deviation stay as they are.
      examples: of the public set; None: a tenth of the training set, 5000 at most.
      validation: further examples of the training set, to choose a model by.
      seed: of the draw. The public set does not depend on `validation`.

    Raises:
      ValueError: there are not as many.
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

    Second best: the public set has the very distribution that is tested on.

    Args:
      source: the data set.
      examples: of the public set; None: half of the test set, 5000 at most.
      validation: examples of the training set, to choose a model by.
      seed: of the draw.

    Raises:
      ValueError: there are not as many, or fewer are left to test on than there are labels.
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

    For reproducing FNR-FL's published figures, and for nothing else.

    Args:
      source: the data set.
      examples: None: this protocol takes them all.
      validation: examples of the training set, to choose a model by.
      seed: of the draw of `validation`.

    Raises:
      ValueError: `examples` are asked for, or there are not enough to validate.
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
    rows = by_label(rng, np.asarray(labels))[1]
    sizes = apportion(count, np.array([len(r) for r in rows]))
    taken = [r[:size] for r, size in zip(rows, sizes, strict=True)]
    taken = rng.permutation(np.concatenate(taken))
    return np.setdiff1d(np.arange(len(labels)), taken), taken


def _training(source: Source, rows: np.ndarray) -> Source:
    """The source with these rows of its training set alone."""
    clients = None if source.clients is None else source.clients[rows]
    return source._replace(
        x_train=source.x_train[rows], y_train=source.y_train[rows], clients=clients
    )
