"""How many rows each client gets: equal, lognormal or Dirichlet sizes."""

import numpy as np

from .. import check
from ..errors import SettingError
from .rows import (
    Rows,
    apportion,
    at_least,
    by_label,
    check_split,
    cut,
    generator,
    join,
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


def iid(
    labels: np.ndarray,
    num_clients: int,
    *,
    size_sigma: float = 0.0,
    legacy_float_sizes: bool = False,
    stratified: bool = False,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """Shuffles and divides: every row is held; equal sizes (give or take 1) or lognormal.

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      size_sigma: 0 is equal sizes; above, sizes are in proportion to lognormal(0, sigma).
      legacy_float_sizes: sizes as the published code truncates them (CIFAR-10 with 100
        clients: 599 and 99 times 499).
      stratified: assign the rows of one label after the other, so that all clients hold
        each label equally often (give or take 1), as that code does for CIFAR-100.
      seed: of everything.
      min_size: rows every client must get; the richest give what the poorest lack.
    """
    check.between("size_sigma", size_sigma, 0, MAX_SIGMA)
    labels = check_split(labels, num_clients, seed, min_size)
    rng = generator(seed)
    if stratified:
        if size_sigma or legacy_float_sizes:
            raise SettingError(
                "stratified=True makes equal sizes; leave size_sigma and "
                "legacy_float_sizes out."
            )
        rows = np.concatenate(by_label(rng, labels)[1])
        return join(rng, [[rows[i::num_clients]] for i in range(num_clients)])
    rows = rng.permutation(len(labels))
    sizes = legacy_sizes if legacy_float_sizes else client_sizes
    return cut(rows, sizes(rng, len(rows), num_clients, size_sigma, min_size))


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
      labels: of the training set, [n] integers.
      num_clients: how many clients.
      concentration: small is skewed, large is equal sizes.
      seed: of everything.
      min_size: rows every client must get; None: 10, as published, or n // num_clients
        if that is less.
    """
    check.positive("concentration", concentration)
    labels = check_split(labels, num_clients, seed, min_size or 0)
    n = len(labels)
    if min_size is None:
        min_size = min(10, n // num_clients)
    rng = generator(seed)
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
