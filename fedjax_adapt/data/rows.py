"""The rows of examples that clients hold: how they are split, counted and tabled."""

import math
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError

Array = jax.Array
Rows = list[np.ndarray]  # for each client the rows it holds, int64


def begin_split(
    labels, num_clients: int, seed: int, min_size: int
) -> tuple[np.ndarray, np.random.Generator]:
    """The labels as an array, and the generator of the split.

    Raises:
      SettingError: they do not serve so many clients, or the seed is none.
    """
    labels = check_ids("labels", labels)
    check.at_least("num_clients", num_clients, 1)
    check.at_least("min_size", min_size, 0)
    n = len(labels)
    if not n:
        raise SettingError("labels is empty; give one label per training example.")
    if num_clients > n:
        raise SettingError(
            f"num_clients={num_clients} but there are only {n} training examples; "
            f"write num_clients={n} or fewer."
        )
    if min_size * num_clients > n:
        raise SettingError(
            f"min_size={min_size} for each of num_clients={num_clients} needs "
            f"{min_size * num_clients} examples but there are {n}; write min_size="
            f"{n // num_clients} or less, or num_clients={n // min_size} or fewer."
        )
    return labels, generator(seed)


def check_ids(name: str, ids) -> np.ndarray:
    """`ids` as an array; raises SettingError unless they are integers >= 0, [n]."""
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise SettingError(
            f"{name} is {ids.dtype}{list(ids.shape)} but must be integers, one per row."
        )
    if ids.size and ids.min() < 0:
        raise SettingError(
            f"{name}[{ids.argmin()}] is {ids.min()}; it must be at least 0."
        )
    return ids


def generator(seed: int | list[int]) -> np.random.Generator:
    """PCG64, whatever numpy's default becomes; raises SettingError for what is no seed."""
    for part in seed if isinstance(seed, list) else [seed]:
        check.at_least("seed", part, 0, most=math.inf)
    return np.random.Generator(np.random.PCG64(seed))


def group(rows: np.ndarray, owner: np.ndarray, num_clients: int) -> Rows:
    """The rows of each client, in the order they come in; `owner[j]` owns `rows[j]`."""
    sizes = np.bincount(owner, minlength=num_clients)
    ordered = rows[np.argsort(owner, kind="stable")]
    return np.split(ordered, np.cumsum(sizes)[:-1])


def numbered(values: Iterable[Hashable]) -> tuple[tuple[Any, ...], np.ndarray]:
    """The different values in sorted order, and the place of each in it, int32 [n]."""
    values = list(values)
    names = tuple(sorted(set(values)))
    return names, places(names, values)


def places(names: Sequence[Hashable], values: Iterable[Hashable]) -> np.ndarray:
    """The place of each value in `names`, int32 [n]; -1: it has none."""
    number = {name: i for i, name in enumerate(names)}
    return np.array([number.get(value, -1) for value in values], np.int32)


def owners_of(
    train: Iterable[Hashable], test: Iterable[Hashable] | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """`Source.clients` and `Source.test_clients` of the names of owners, row by row.

    Owners are numbered in the sorted order of their names.
    """
    names, clients = numbered(train)
    owners = None if test is None else places(names, test)
    return clients, None if owners is None or (owners < 0).all() else owners


def apportion(total: int, weights: np.ndarray, least: int = 0) -> np.ndarray:
    """Whole numbers that sum to `total`, in proportion to `weights`, each >= `least`.

    Largest remainders (Hamilton's method) of what `least` leaves; exact for integer
    weights. All weights 0 count as equal. `least * len(weights)` must not exceed `total`.
    """
    weights = weights if weights.sum() > 0 else np.ones(len(weights), np.int64)
    rest = total - least * len(weights)
    whole, fraction = np.divmod(rest * weights, weights.sum())
    parts = whole.astype(np.int64)
    over = rest - parts.sum()  # fewer than weights; may be -1 where floats round up
    order = np.argsort(-fraction if over >= 0 else -parts, kind="stable")
    parts[order[: abs(over)]] += np.sign(over)
    return parts + least


def from_richest(
    rng: np.random.Generator, sizes: np.ndarray, need: int, floor: int
) -> np.ndarray:
    """How much each client gives so that `need` comes together and few notice.

    The richest are lowered to one common size, as little as will do, and never below
    `floor`, above which they must hold that much.
    """
    low, high = floor, max(floor, int(sizes.max()))
    while low < high:  # the highest ceiling that frees enough, by bisection
        middle = (low + high + 1) // 2
        if np.maximum(sizes - middle, 0).sum() >= need:
            low = middle
        else:
            high = middle - 1
    give = np.maximum(sizes - low, 0)
    # One row more than needed from some: fewer than there are donors, or the ceiling
    # could have been higher.
    spare = give.sum() - need
    give[rng.permutation(np.flatnonzero(give))[:spare]] -= 1
    return give


def at_least(rng: np.random.Generator, sizes: np.ndarray, min_size: int) -> np.ndarray:
    """`sizes` with every client raised to `min_size` at the expense of the richest."""
    need = np.maximum(min_size - sizes, 0)
    return sizes + need - from_richest(rng, sizes, need.sum(), min_size)


def cut(rows: np.ndarray, sizes: np.ndarray) -> Rows:
    """The first sizes[0] rows, the next sizes[1], ...; what is over is left out."""
    ends = np.cumsum(sizes)
    return np.split(rows[: ends[-1]], ends[:-1])


def by_label(rng: np.random.Generator, labels: np.ndarray) -> Rows:
    """The shuffled rows of each label that occurs, in the order of the labels."""
    _, label, counts = np.unique(labels, return_inverse=True, return_counts=True)
    order = rng.permutation(len(labels))
    return cut(order[np.argsort(label[order], kind="stable")], counts)


def join(rng: np.random.Generator, parts: list[Rows]) -> Rows:
    """One client's rows from its parts, in random order, for every client."""
    empty = np.empty(0, np.int64)
    return [rng.permutation(np.concatenate([empty, *part])) for part in parts]


def check_sizes(
    rows: Rows, min_size: int, hint: str = "write a smaller min_size, or fewer clients"
) -> Rows:
    """`rows`; raises SettingError if a client holds fewer than `min_size`."""
    sizes = np.array([len(r) for r in rows])
    if sizes.min() < min_size:
        poor = int(sizes.argmin())
        raise SettingError(
            f"client {poor} would get {sizes[poor]} examples but min_size={min_size}; "
            f"{hint}."
        )
    return rows


def count_labels(y: np.ndarray, rows: Sequence, num_classes: int) -> Array | None:
    """[clients, classes] int32, or None where labels are not integers."""
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        return None
    return jnp.asarray(label_table(y, rows, num_classes), jnp.int32)


def label_table(y: np.ndarray, rows: Sequence, num_classes: int) -> np.ndarray:
    """How many examples of each label a client holds, [clients, classes] int64."""
    counts = [np.bincount(y[np.asarray(r, int)], minlength=num_classes) for r in rows]
    return np.stack(counts)


def check_rows(rows: Sequence[Any], num_examples: int, given: str = "rows") -> None:
    """Raises SettingError unless `given` gives each client rows that there are."""
    for i, row in enumerate(rows):
        row = np.asarray(row)
        if row.ndim != 1 or (row.size and not np.issubdtype(row.dtype, np.integer)):
            hint = "np.flatnonzero of a mask" if row.dtype == bool else "such as [0, 3]"
            raise SettingError(
                f"{given} gives client {i} {row.dtype}{list(row.shape)}; give the numbers "
                f"of its rows, {hint}."
            )
        if row.size and not 0 <= row.min() <= row.max() < num_examples:
            bad = row.min() if row.min() < 0 else row.max()
            raise SettingError(
                f"{given} gives client {i} row {bad}, but its x has rows 0 to "
                f"{num_examples - 1}."
            )


def table_of(rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    """`index` and `size` of clients that hold these rows, on the host.

    Raises:
      SettingError: no client holds a row.
    """
    size = np.array([len(r) for r in rows], np.int32)
    if not len(size) or size.max() == 0:
        raise SettingError(f"{len(size)} clients hold no example; give them some.")
    index = np.zeros((len(size), size.max()), np.int32)
    for i, r in enumerate(rows):
        if len(r):
            index[i] = r[0]
            index[i, : len(r)] = r
    return index, size


def rows_in(index: Array, size: Array) -> list[np.ndarray]:
    """For each client the rows it holds; the inverse of `table_of`."""
    return [r[:n] for r, n in zip(np.asarray(index), np.asarray(size), strict=True)]
