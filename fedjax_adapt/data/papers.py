"""Splits of single papers: FedGSNR's two, GIFT's mixes and copies, FedVeca's cases.

FedGSNR gives no client sizes. Here every client is to have n / N examples, spread evenly
over its classes. Of a class that is asked for more often than it has examples every client
gets in proportion less; with `allow_reuse` the rest is drawn from it again, so that clients
share rows.
"""

import math
from typing import Literal

import numpy as np

from .. import check
from ..errors import SettingError
from .dirichlet import dirichlet, draw_labels
from .rows import (
    Rows,
    apportion,
    by_label,
    check_ids,
    check_sizes,
    check_split,
    generator,
    join,
)


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


def gift_mix(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float = 1.0,
    allow_reuse: bool = False,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """n // N rows each, in label proportions of the client's own, as GIFT splits.

        prior_i ~ Dir(concentration * 1_K)                 one per client

    After Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for
    Federated Visual Classification", 2019, https://arxiv.org/abs/1909.06335. Clients
    share no row: this is `dirichlet` with its remainder dropped. With `allow_reuse` each
    client draws from the whole training set, whatever the others have: its labels follow
    its prior more closely, and clients share rows.

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      concentration: small is skewed (towards one label per client), large is iid.
      allow_reuse: let clients draw independently of each other.
      seed: of everything.
      min_size: rows every client must get; only checked, since sizes are equal.
    """
    if not allow_reuse:
        return dirichlet(
            labels,
            num_clients,
            concentration=concentration,
            seed=seed,
            min_size=min_size,
            drop_remainder=True,
        )
    check.positive("concentration", concentration)
    labels = check_split(labels, num_clients, seed, min_size)
    rng = generator(seed)
    rows = by_label(rng, labels)[1]
    counts = np.array([len(r) for r in rows])
    turns = np.zeros(len(labels) // num_clients, np.int64)
    parts = []
    for _ in range(num_clients):
        prior = rng.dirichlet(np.full(len(rows), float(concentration)), 1)
        taken = np.bincount(draw_labels(rng, turns, prior, counts), minlength=len(rows))
        parts.append(
            [rng.choice(r, m, replace=False) for r, m in zip(rows, taken, strict=True)]
        )
    return join(rng, parts)


def copies(
    labels: np.ndarray, num_clients: int, *, seed: int = 0, min_size: int = 1
) -> Rows:
    """Every client holds the whole training set, as in GIFT's runs without skew.

    Clients share all rows, and differ in the order in which they see them.

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      seed: of the order of rows.
      min_size: rows every client must get; only checked.
    """
    n = len(check_ids("labels", labels))
    check.at_least("num_clients", num_clients, 1)
    check.at_least("seed", seed, 0, most=math.inf)
    if not max(min_size, 1) <= n:
        raise SettingError(f"min_size={min_size} but there are {n} training examples.")
    rng = generator(seed)
    return [rng.permutation(n) for _ in range(num_clients)]


def fedveca_case(
    labels: np.ndarray,
    num_clients: int,
    *,
    case: Literal[1, 2, 3] = 3,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """FedVeca's three cases: 1 iid, 2 by label, 3 half and half.

        1  equal random shares
        2  no two clients share a label, or no client has two: whichever is possible
        3  the first half of the labels as 1 over the first half of the clients, the rest
           as 2 over the others (with 5 clients: 2 and 3)

    The paper says no more. Here labels go to clients in order: with fewer clients than
    labels each takes a run of them, with more a label's rows are split equally among
    clients, whose number follows its rows. Every row is held.

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      case: 1, 2 or 3.
      seed: of everything.
      min_size: rows every client must get.
    """
    if case not in (1, 2, 3):
        raise SettingError(f"case={case!r} is unknown; write 1, 2 or 3.")
    labels = check_split(labels, num_clients, seed, min_size)
    rng = generator(seed)
    rows = by_label(rng, labels)[1]
    if case == 1:
        parts = _equal(rng, rows, num_clients)
    elif case == 2:
        parts = _by_label(rows, num_clients)
    else:
        K, N = len(rows) // 2, num_clients // 2
        if not (K and N):
            raise SettingError(
                f"case=3 halves labels and clients, but there are {len(rows)} labels and "
                f"num_clients={num_clients}; give 2 of each or more, or write case=2."
            )
        parts = _equal(rng, rows[:K], N) + _by_label(rows[K:], num_clients - N)
    hint = "write a smaller min_size, or fewer clients"
    return check_sizes(join(rng, parts), min_size, hint)


def _equal(rng, rows: Rows, num_clients: int) -> list[Rows]:
    """Equal random shares of all the rows."""
    shuffled = rng.permutation(np.concatenate(rows))
    return [[part] for part in np.array_split(shuffled, num_clients)]


def _by_label(rows: Rows, num_clients: int) -> list[Rows]:
    """Several labels for each client, or several clients for each label."""
    if num_clients <= len(rows):
        runs = np.array_split(np.arange(len(rows)), num_clients)
        return [[rows[label] for label in run] for run in runs]
    # a label's first row is for its first client: so no label has more of them than rows
    more = np.array([len(r) - 1 for r in rows])
    holders = apportion(num_clients, more, least=1)
    pieces = zip(rows, holders, strict=True)
    return [[part] for of, count in pieces for part in np.array_split(of, count)]
