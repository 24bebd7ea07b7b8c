"""What every partition needs: checked arguments, a generator, rows by owner."""

import numpy as np

from .. import check

Rows = list[np.ndarray]  # for each client the rows it holds, int64


def check_split(labels, num_clients: int, seed: int, min_size: int) -> np.ndarray:
    """The labels as an array; raises ValueError unless they serve so many clients."""
    labels = check_ids("labels", labels)
    check.at_least("num_clients", num_clients, 1)
    check.at_least("seed", seed, 0)
    check.at_least("min_size", min_size, 0)
    n = len(labels)
    if num_clients > n:
        raise ValueError(
            f"num_clients={num_clients} but there are only {n} training examples; "
            f"write num_clients={n} or fewer."
        )
    if min_size * num_clients > n:
        raise ValueError(
            f"min_size={min_size} for each of num_clients={num_clients} needs "
            f"{min_size * num_clients} examples but there are {n}; write min_size="
            f"{n // num_clients} or less, or num_clients={n // min_size} or fewer."
        )
    return labels


def check_ids(name: str, ids) -> np.ndarray:
    """`ids` as an array; raises ValueError unless they are integers >= 0, [n]."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(
            f"{name} is {ids.dtype}{list(ids.shape)} but must be integers, one per row."
        )
    if ids.size and ids.min() < 0:
        raise ValueError(
            f"{name}[{ids.argmin()}] is {ids.min()}; it must be at least 0."
        )
    return ids


def generator(seed: int) -> np.random.Generator:
    """The generator of a split: PCG64, whatever numpy's default becomes."""
    return np.random.Generator(np.random.PCG64(seed))


def group(rows: np.ndarray, owner: np.ndarray, num_clients: int) -> Rows:
    """The rows of each client, in the order they come in; `owner[j]` owns `rows[j]`."""
    sizes = np.bincount(owner, minlength=num_clients)
    ordered = rows[np.argsort(owner, kind="stable")]
    return np.split(ordered, np.cumsum(sizes)[:-1])
