"""Sizes and labels drawn from a law: equal, lognormal or Dirichlet.

All end after a number of steps known beforehand, where the published programs draw until
they are lucky.
"""

import numpy as np

from .. import check
from ..errors import SettingError
from .rows import (
    Rows,
    apportion,
    at_least,
    begin_split,
    cut,
    from_richest,
    group,
)

# Sizes are shares of a whole, so beyond this one client has all there is to have.
MAX_SIGMA = 100.0

TRIES = 1000  # draws of sizes before one is repaired


def client_sizes(
    rng: np.random.Generator, total: int, num_clients: int, sigma: float, min_size: int
) -> np.ndarray:
    """Sizes [num_clients] that sum to `total`, in proportion to lognormal(0, sigma).

    As the code of FedDyn, FedDC and FedSSG draws them, but what rounding leaves goes to
    the largest remainders, not to client 0. A client below `min_size` is raised to it at
    the expense of the richest. With sigma=0 the first `total % num_clients` get one more.
    """
    if sigma == 0:
        return np.full(num_clients, total // num_clients) + (
            np.arange(num_clients) < total % num_clients
        )
    logs = sigma * rng.standard_normal(num_clients)
    return at_least(rng, apportion(total, np.exp(logs - logs.max())), min_size)


def legacy_sizes(
    rng: np.random.Generator, total: int, num_clients: int, sigma: float, min_size: int
) -> np.ndarray:
    """Sizes [num_clients] as the code of FedDyn, FedDC and FedSSG truncates them.

    All clients but the first may lose a row to rounding, and the first gets those: 599
    and 99 times 499 for 50,000 rows, 100 clients and sigma 0.
    """
    sizes = rng.lognormal(np.log(total // num_clients), sigma, num_clients)
    sizes = (sizes / sizes.sum() * total).astype(int)
    sizes[0] += total - sizes.sum()
    if sizes.min() < min_size:
        raise SettingError(
            f"legacy_float_sizes gives some of num_clients={num_clients} only "
            f"{sizes.min()} of {total} rows but min_size={min_size}; leave it out."
        )
    return sizes


def quantity_dirichlet(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float = 0.5,
    seed: int = 0,
    min_size: int | None = None,
) -> Rows:
    """Shuffles and cuts in Dirichlet proportions: sizes differ, labels do not.

        q ~ Dir(concentration * 1_N) given min_i q_i n >= min_size;  client i has q_i n

    As NIID-Bench splits ("iid-diff-quantity"; Li et al., "Federated Learning on Non-IID
    Data Silos", ICDE 2022, https://arxiv.org/abs/2102.02079). Every row is held.

    Its code draws until no client is below 10 rows, which for many clients never
    happens. Here at most 1000 draws are made, and the first that will do is taken. The
    draws are independent, so its law is that of the published split; with 50,000 rows and
    concentration 0.5, 7 of 10 draws will do for 10 clients, 1 of 70 for 50. If none does,
    as with 100 clients, every client gets `min_size` rows and the last draw shares out the
    rest; for concentration 1 that too is the law above.

    Args:
      concentration: small is skewed, large is equal sizes.
      min_size: rows every client must get; None: 10, as published, or n // num_clients
        if that is less.
    """
    check.positive("concentration", concentration, any_size=True)
    labels, rng = begin_split(labels, num_clients, seed, min_size or 0)
    n = len(labels)
    if min_size is None:
        min_size = min(10, n // num_clients)
    rows = rng.permutation(n)
    for _ in range(TRIES):
        share = rng.dirichlet(np.full(num_clients, float(concentration)))
        ends = (np.cumsum(share) * n).astype(np.int64)
        ends[-1] = n  # which a sum of floats may miss
        sizes = np.diff(np.minimum(ends, n), prepend=0)
        # and which may fall short by a row of what it must be
        if share.min() * n >= min_size and sizes.min() >= min_size:
            return cut(rows, sizes)
    return cut(rows, apportion(n, share, least=min_size))


def dirichlet(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float = 0.3,
    seed: int = 0,
    min_size: int = 1,
    size_sigma: float = 0.0,
    drop_remainder: bool = False,
    legacy_float_sizes: bool = False,
) -> Rows:
    """Every client draws its labels from its own Dirichlet prior; equal sizes, or not.

        prior_i ~ Dir(concentration * 1_K)                 one per client
        label ~ prior_i restricted to the labels with rows left, without replacement

    The prior of Hsu, Qi & Brown, "Measuring the Effects of Non-Identical Data
    Distribution for Federated Visual Classification", 2019,
    https://arxiv.org/abs/1909.06335, which FedGSNR takes. Labels run out as in the code of
    FedDyn, FedDC and FedSSG (Acar et al., "Federated Learning
    Based on Dynamic Regularization", ICLR 2021, https://arxiv.org/abs/2111.04263). That
    code redraws a label until one with rows left comes up, which may never happen;
    restricting the prior to those labels is the same distribution and always ends.
    Where a prior has no mass on them, the label is drawn in proportion to the rows
    left. Late draws find few labels; clients take turns in random order, so that this
    distorts all priors alike. Every order of the turns is equally likely here; the
    published code gives each turn to any client that is not full, with equal chances.

    Args:
      concentration: small is skewed (towards one label per client), large is iid.
      min_size: rows every client must get.
      size_sigma: 0 is equal sizes; above, sizes are lognormal with this sigma (the
        published code has 0 and 0.3).
      drop_remainder: n % num_clients rows are left out. Otherwise, with equal sizes, the
        first n % num_clients clients get one row more.
      legacy_float_sizes: sizes as the published code truncates them: all clients but
        the first may lose a row to rounding, and the first gets those (CIFAR-10 with
        100 clients: 599 and 99 times 499).
    """
    check.positive("concentration", concentration, any_size=True)
    check.between("size_sigma", size_sigma, 0, MAX_SIGMA)
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    n = len(labels)
    if legacy_float_sizes:
        sizes = legacy_sizes(rng, n, num_clients, size_sigma, min_size)
    else:
        total = n - n % num_clients if drop_remainder else n
        sizes = client_sizes(rng, total, num_clients, size_sigma, min_size)
    left = np.bincount(labels)
    priors = rng.dirichlet(np.full(len(left), float(concentration)), num_clients)
    turns = rng.permutation(np.repeat(np.arange(num_clients), sizes))
    drawn = draw_labels(rng, turns, priors, left)

    # The t-th turn that draws label k takes the t-th of k's shuffled rows.
    shuffled = rng.permutation(n)
    by_label = shuffled[np.argsort(labels[shuffled], kind="stable")]
    start = np.cumsum(left) - left
    taken = np.bincount(drawn, minlength=len(left))
    drawn_rows = [by_label[s : s + m] for s, m in zip(start, taken, strict=True)]
    rows = np.empty(len(turns), np.int64)
    rows[np.argsort(drawn, kind="stable")] = np.concatenate(drawn_rows)
    return group(rows, turns, num_clients)


def draw_labels(rng, turns, priors, left) -> np.ndarray:
    """For every turn a label from its client's prior, restricted to what is left.

    Draws a block of turns at once. If a label runs out inside it, the turns before that
    stand and the next block starts there, without the label: at most
    len(turns) / block + len(left) blocks.
    """
    left, block = left.copy(), 4096  # 4096 x 100 labels fit the cache
    drawn = np.empty(len(turns), np.int64)
    done = 0
    while done < len(turns):
        prior = np.where(left > 0, priors[turns[done : done + block]], 0.0)
        mass = prior.sum(axis=1, keepdims=True)
        cumulative = np.cumsum(np.where(mass > 0, prior, left), axis=1)
        u = rng.random((len(prior), 1)) * cumulative[:, -1:]
        label = np.minimum((u >= cumulative).sum(axis=1), len(left) - 1)
        # Rounding may lift u to the total, past the last label with rows left.
        label = np.where(left[label] > 0, label, np.flatnonzero(left)[-1])
        stands = len(label)
        for k in np.flatnonzero(np.bincount(label, minlength=len(left)) > left):
            stands = min(stands, np.flatnonzero(label == k)[left[k]])
        drawn[done : done + stands] = label[:stands]
        left -= np.bincount(label[:stands], minlength=len(left))
        done += stands
    return drawn


def dirichlet_classes(
    labels: np.ndarray,
    num_clients: int,
    *,
    concentration: float = 0.5,
    seed: int = 0,
    min_size: int | None = None,
    balance: bool = True,
) -> Rows:
    """Every label is divided among the clients in Dirichlet proportions; sizes are unequal.

        share_k ~ Dir(concentration * 1_N)                 one per label k

    As NIID-Bench splits (Li et al., "Federated Learning on Non-IID Data Silos", ICDE
    2022, https://arxiv.org/abs/2102.02079). Every row is held.

    Its code starts again until every client has 10 rows, which for many clients never
    happens. Here one draw is repaired: the richest clients are lowered to one common
    size, as little as will do, and random rows of theirs fill every client below
    `min_size` up to it. So the largest sizes are levelled, the poorest get a mixture of
    the labels the richest have, and no other client changes. With 500 clients,
    concentration 0.1 and CIFAR-10's labels, about 45 clients get 220 of the 50,000 rows
    from 3 or 4 others.

    Args:
      concentration: small is skewed, large is iid.
      min_size: rows every client must get; None: 10, as published, or n // num_clients
        if that is less.
      balance: as published, a client that holds n / num_clients rows gets none of the
        labels still to be divided, which bounds the largest clients.
    """
    check.positive("concentration", concentration, any_size=True)
    labels, rng = begin_split(labels, num_clients, seed, min_size or 0)
    n = len(labels)
    if min_size is None:
        min_size = min(10, n // num_clients)
    owner = np.empty(n, np.int64)
    sizes = np.zeros(num_clients, np.int64)
    for k in range(labels.max() + 1):
        rows = rng.permutation(np.flatnonzero(labels == k))
        share = rng.dirichlet(np.full(num_clients, float(concentration)))
        takes = sizes < n / num_clients if balance else np.full(num_clients, True)
        share = np.where(takes, share, 0.0)
        if not share.sum() > 0:  # all the mass lies on clients that take no more
            share = takes.astype(float)
        cuts = (np.cumsum(share) / share.sum() * len(rows)).astype(int)
        # A sum of floats may end just below 1: what it leaves is the last taker's.
        cuts[np.flatnonzero(share)[-1] :] = len(rows)
        counts = np.diff(cuts, prepend=0)
        owner[rows] = np.repeat(np.arange(num_clients), counts)
        sizes += counts
    _top_up(rng, owner, sizes, min_size)
    order = rng.permutation(n)
    return group(order, owner[order], num_clients)


def _top_up(rng, owner: np.ndarray, sizes: np.ndarray, min_size: int) -> None:
    """Moves rows from the richest clients to those below `min_size`, in `owner`."""
    need = np.maximum(min_size - sizes, 0)
    # which is possible because min_size * num_clients <= n
    give = from_richest(rng, sizes, need.sum(), min_size)
    order = rng.permutation(len(owner))
    order = order[np.argsort(owner[order], kind="stable")]
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    moved = order[rank < np.repeat(give, sizes)]
    owner[rng.permutation(moved)] = np.repeat(np.arange(len(sizes)), need)
