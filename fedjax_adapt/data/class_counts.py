"""Clients that see unequal numbers of classes, in equal amounts: FedGSNR's two splits.

The papers give no client sizes. Here every client is to have n / N examples, spread
evenly over its classes. Of a class that is asked for more often than it has examples
every client gets in proportion less; with `allow_reuse` the rest is drawn from it again, so
that clients share rows.
"""

import numpy as np

from .. import check
from .rows import Rows, apportion, by_label, check_sizes, check_split, generator, join


def nonbalance(
    labels: np.ndarray,
    num_clients: int,
    *,
    allow_reuse: bool = False,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """A tenth of the clients see all classes, four tenths half of them, half a fifth.

    The split "NonBalance" of FedGSNR (part counts rounded up, at least 1 class); which
    classes is drawn at random, the clients come in this order. Rows of a class that is
    not asked for often enough are left out.

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      allow_reuse: fill every client up to n // N with rows that others hold too.
      seed: of everything.
      min_size: rows every client must get; only checked.
    """
    labels = check_split(labels, num_clients, seed, min_size)
    num_classes = len(np.unique(labels))
    all_, half, fifth = apportion(num_clients, np.array([1, 4, 5]))
    seen = np.repeat(
        [num_classes, -(-num_classes // 2), -(-num_classes // 5)], [all_, half, fifth]
    )
    return _spread(generator(seed), labels, seen, allow_reuse, min_size)


def pareto(
    labels: np.ndarray,
    num_clients: int,
    *,
    shape: float = 1.16,
    allow_reuse: bool = False,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """Few clients see many classes, most see one: numbers of classes from a Pareto law.

        x_i ~ Pareto(shape, 1),  classes_i = max(1, round(K x_i / max_j x_j))

    The split "Pareto" of FedGSNR, which gives no shape; 1.16 is the law of 80 and 20.
    Which classes is drawn at random. Rows of a class that is not asked for often enough
    are left out.

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      shape: small is skewed (one client sees all), large is alike.
      allow_reuse: fill every client up to n // N with rows that others hold too.
      seed: of everything.
      min_size: rows every client must get; only checked.
    """
    check.positive("shape", shape)
    labels = check_split(labels, num_clients, seed, min_size)
    num_classes, rng = len(np.unique(labels)), generator(seed)
    log_x = rng.standard_exponential(num_clients)  # times shape, which may be tiny
    ratio = np.exp((log_x - log_x.max()) / shape)
    seen = np.maximum(np.rint(num_classes * ratio).astype(np.int64), 1)
    return _spread(rng, labels, seen, allow_reuse, min_size)


def _spread(
    rng, labels: np.ndarray, seen: np.ndarray, allow_reuse: bool, min_size: int
) -> Rows:
    """n // N rows for every client, evenly from seen[i] random classes."""
    rows = by_label(rng, labels)[1]
    quota, K = len(labels) // len(seen), len(rows)
    asked = np.zeros((len(seen), K), np.int64)
    for i, count in enumerate(seen):
        classes = rng.permutation(K)[:count]
        asked[i, classes] = quota // count + (np.arange(count) < quota % count)
    parts = [[] for _ in seen]
    for k, of_class in enumerate(rows):
        wish = asked[:, k]
        got = wish if wish.sum() <= len(of_class) else apportion(len(of_class), wish)
        ends = np.cumsum(got)
        for i in np.flatnonzero(wish):
            parts[i].append(of_class[ends[i] - got[i] : ends[i]])
            if allow_reuse and got[i] < wish[i]:
                parts[i].append(rng.choice(of_class, wish[i] - got[i]))
    hint = "write allow_reuse=true, fewer clients or a smaller min_size"
    return check_sizes(join(rng, parts), min_size, hint)
