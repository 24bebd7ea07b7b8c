"""Splits of single papers: FedGSNR's two, GIFT's mixes and copies, FedVeca's cases.

FedGSNR gives no client sizes. Here every client is to have n / N examples, spread evenly
over its classes. Of a class that is asked for more often than it has examples every client
gets in proportion less; with `allow_reuse` the rest is drawn from it again, so that clients
share rows.
"""

from typing import Literal

import numpy as np

from .. import check
from ..errors import SettingError
from .dirichlet import dirichlet, draw_labels
from .rows import (
    Rows,
    apportion,
    begin_split,
    by_label,
    check_ids,
    check_sizes,
    generator,
    group,
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
      allow_reuse: fill every client up to n // N with rows that others hold too.
      min_size: rows every client must get; only checked.
    """
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    num_classes = len(np.unique(labels))
    all_, half, fifth = apportion(num_clients, np.array([1, 4, 5]))
    seen = np.repeat(
        [num_classes, -(-num_classes // 2), -(-num_classes // 5)], [all_, half, fifth]
    )
    return _spread(rng, labels, seen, allow_reuse, min_size)


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
      shape: small is skewed (one client sees all), large is alike.
      allow_reuse: fill every client up to n // N with rows that others hold too.
      min_size: rows every client must get; only checked.
    """
    check.positive("shape", shape, any_size=True)
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    num_classes = len(np.unique(labels))
    log_x = rng.standard_exponential(num_clients)  # times shape, which may be tiny
    ratio = np.exp((log_x - log_x.max()) / shape)
    seen = np.maximum(np.rint(num_classes * ratio).astype(np.int64), 1)
    return _spread(rng, labels, seen, allow_reuse, min_size)


def _spread(
    rng, labels: np.ndarray, seen: np.ndarray, allow_reuse: bool, min_size: int
) -> Rows:
    """n // N rows for every client, evenly from seen[i] random classes."""
    rows = by_label(rng, labels)
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
      concentration: small is skewed (towards one label per client), large is iid.
      allow_reuse: let clients draw independently of each other.
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
    check.positive("concentration", concentration, any_size=True)
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    rows = by_label(rng, labels)
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
      seed: of the order of rows.
      min_size: rows every client must get; only checked.
    """
    n = len(check_ids("labels", labels))
    check.at_least("num_clients", num_clients, 1)
    check.at_least("min_size", min_size, 0)
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
    """FedVeca's three cases, which it has from AFL: 1 iid, 2 by label, 3 half and half.

        1  row i goes to client i mod N
        2  a row of label l to client l mod N
        3  rows of the first half of the labels, l < (K - 1) / 2, to client i mod h,
           h = ceil(N / 2), the others to client h + l mod (N - h)

    Labels are counted from the smallest, and K is how many numbers there are up to the
    largest. With 5 clients and 10 labels, clients 0 to 2 of case 3 hold labels 0 to 4
    alike, client 3 has 6 and 8, client 4 has 5, 7 and 9. With more clients than labels,
    cases 2 and 3 find a place as for K clients, and the row goes to the emptiest of the
    clients n with n mod K at that place. Every row is held.

    References:
      Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing
      Systems", JSAC 2019, https://arxiv.org/abs/1804.05271. Cases 1, 2 and 4 of its code,
      https://github.com/IBM/adaptive-federated-learning, util/utils.py.

    Args:
      num_clients: how many clients, N.
      case: 1, 2 or 3.
      seed: of the order of each client's rows; nothing else is drawn.
      min_size: rows every client must get.
    """
    if case not in (1, 2, 3):
        raise SettingError(f"case={case!r} is unknown; write 1, 2 or 3.")
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    row, label = np.arange(len(labels)), labels.astype(np.int64) - labels.min()
    num_labels = int(label.max()) + 1
    num_places = min(num_clients, num_labels)
    if case == 1:
        owner = row % num_clients
    elif case == 2:
        owner = _round_robin(label % num_places, num_places, num_clients)
    else:
        if num_places < 2:
            raise SettingError(
                f"case=3 halves labels and clients, but there are {num_labels} labels and "
                f"num_clients={num_clients}; give 2 of each or more, or write case=2."
            )
        h = (num_places + 1) // 2
        by_row = 2 * label < num_labels - 1
        place = np.where(by_row, row % h, h + label % (num_places - h))
        owner = _round_robin(place, num_places, num_clients)
    parts = [[rows] for rows in group(row, owner, num_clients)]
    return check_sizes(join(rng, parts), min_size)


def _round_robin(place: np.ndarray, num_places: int, num_clients: int) -> np.ndarray:
    """The client of each row, [n]: the emptiest of those with n mod places at its place.

    All of them are empty at first, so that is one after the other.
    """
    owner = np.empty_like(place)
    for number in range(num_places):
        here = place == number
        owner[here] = np.resize(np.arange(number, num_clients, num_places), here.sum())
    return owner
