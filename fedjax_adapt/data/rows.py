"""Examples, and the rows of them that clients hold: checks, counts and tables."""

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


def as_array(name: str, values: Any) -> np.ndarray:
    """`values` as an array in this machine's byte order; their numbers stay as they are.

    Raises:
      SettingError: they are lists of different lengths, or a mask hides some.
    """
    if np.ma.is_masked(values):
        raise SettingError(
            f"{name} is a masked array, whose hidden values would be trained on; fill them "
            "in with .filled(value), or leave such examples out."
        )
    try:
        array = np.asarray(values)
    except ValueError:
        raise SettingError(
            f"{name} holds lists of different lengths; give one array [examples, ...], "
            "shorter examples padded."
        ) from None
    return array.astype(array.dtype.newbyteorder("="), copy=False)


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


MOST_CLASSES = 1_000_000  # where examples are fewer; every client counts each class
BLOCK = 4096  # examples looked at together, so that copies stay small


def count_labels(y: np.ndarray, rows: Sequence, num_classes: int) -> Array | None:
    """[clients, classes] int32, or None where labels are not integers."""
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        return None
    return jnp.asarray(label_table(y, rows, num_classes), jnp.int32)


def label_table(y: np.ndarray, rows: Sequence, num_classes: int) -> np.ndarray:
    """How many examples of each label a client holds, [clients, classes] int64."""
    counts = [np.bincount(y[np.asarray(r, int)], minlength=num_classes) for r in rows]
    return np.stack(counts)


def check_values(example: str, x: Any, y: Any, num_classes: int | None) -> int:
    """Checks inputs and labels that are to lie on the device; returns how many classes.

    Raises:
      SettingError: one is no number, NaN, infinite or an integer too large for that, or
        a label is out of range; the sentence calls it as in "test example 3".
    """
    x, y = np.asarray(x), np.asarray(y)
    _check_numbers(example, x, y)
    num_classes = _num_classes_of(y, num_classes, example)
    _check_finite(x, y, example)
    return num_classes


def _num_classes_of(y: np.ndarray, num_classes: int | None, example: str) -> int:
    """Checks integer labels against `num_classes`, or counts them."""
    if not np.issubdtype(y.dtype, np.integer) or y.size == 0:
        return num_classes or 0  # regression targets, or no labels to look at
    low, high = int(y.min()), int(y.max())
    if num_classes is None:
        num_classes = high + 1
        if high >= max(len(y), MOST_CLASSES):
            row = _holder(y, high)
            raise SettingError(
                f"label {high} ({example} {row}) would make {high + 1} classes of "
                f"{len(y)} examples; write labels from 0 on, as np.unique(y, "
                "return_inverse=True)[1], or floats to regress on."
            )
    if low < 0:
        row = _holder(y, low)
        raise SettingError(
            f"label {low} ({example} {row}) is negative; write labels from 0 on, and a "
            "token of the vocabulary where a sequence is padded."
        )
    if high >= num_classes:
        row = _holder(y, high)
        raise SettingError(
            f"label {high} ({example} {row}) is out of range: num_classes={num_classes} "
            f"allows 0 to {num_classes - 1}."
        )
    return num_classes


def _holder(y: np.ndarray, label: int) -> int:
    """The first example that has the label, or one of its labels."""
    return int((y.reshape(len(y), -1) == label).any(1).argmax())


def largest_pixel(x: np.ndarray) -> float:
    """What inputs are divided by to be pixels in [0, 1]; 1 where they are no integers.

    Integers reach from 0 to the largest in `x`: 255 in photographs, 16 in the digits.
    """
    return float(x.max() or 1) if x.size and np.issubdtype(x.dtype, np.integer) else 1.0


def _check_finite(x: np.ndarray, y: np.ndarray, example: str) -> None:
    """Raises SettingError on the first example with a NaN or infinite number in it."""
    for what, values in (("input", x), ("target", y)):
        if not jnp.issubdtype(values.dtype, jnp.floating) or not values.size:
            continue  # integers always are
        dtype = jax.dtypes.canonicalize_dtype(values.dtype)  # on the device
        for begin in range(0, len(values), BLOCK):
            with np.errstate(over="ignore"):  # what overflows is named below
                block = values[begin : begin + BLOCK].astype(dtype)
            finite = np.isfinite(block.reshape(len(block), -1)).all(1)
            if not finite.all():
                row = int(np.argmin(finite))
                bad = block[row].reshape(-1)
                raise SettingError(
                    f"{example} {begin + row} has the {what} "
                    f"{bad[np.argmin(np.isfinite(bad))]} in {dtype}; leave such examples "
                    "out, or put numbers there with numpy.nan_to_num."
                )


def _check_numbers(example: str, x: np.ndarray, y: np.ndarray) -> None:
    """Raises SettingError unless they are real numbers that the device holds as they are.

    A float64 may lose digits there; an integer that lost some would be another label or
    token.
    """
    for what, values in (("inputs", x), ("targets", y)):
        kinds = (np.bool_, np.integer, np.floating)
        if not any(jnp.issubdtype(values.dtype, kind) for kind in kinds):
            raise SettingError(
                f"the {what} of {example}s are {values.dtype}; give real numbers, and of "
                "text the place of each in a list, from 0 on."
            )
        dtype = jax.dtypes.canonicalize_dtype(values.dtype)
        if dtype == values.dtype or not (
            values.size and jnp.issubdtype(dtype, jnp.integer)
        ):
            continue
        limits, values = np.iinfo(dtype), values.reshape(len(values), -1)
        for bound in (values.min(), values.max()):
            if not limits.min <= bound <= limits.max:
                row = _holder(values, bound)
                raise SettingError(
                    f"{example} {row} has {bound} among its {what}, more than {dtype} "
                    f"holds, {limits.min} to {limits.max}; write smaller integers."
                )


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


def as_pairs(who: str, given: Iterable[Any]) -> list[tuple[np.ndarray, np.ndarray]]:
    """One (x, y) per client as arrays; `who` is whose they are, as in "client {i}"."""
    pairs = []
    for i, pair in enumerate(given):
        named = who.format(i=i)
        if not check.pair(pair):
            raise SettingError(
                f"{named} is {check.kind_of(pair)}; give it a pair (x, y), of no examples "
                "where it has none."
            )
        for what, values in zip("xy", pair, strict=True):
            if isinstance(values, dict):
                raise SettingError(
                    f"{named} has a dict for {what}; give one array [examples, ...], with "
                    "what belongs to an example side by side."
                )
        x, y = pair
        pairs.append((as_array(f"x of {named}", x), as_array(f"y of {named}", y)))
    # of [] NumPy makes floats without a shape
    held = [(x[:0], y[:0]) for x, y in pairs if x.ndim and y.ndim and y.size]
    if not held:
        return pairs
    no_x, no_y = held[0]
    no_like = lambda array, like: like if array.shape == (0,) else array
    filled = lambda x, y: (no_like(x, no_x), no_like(y, no_y).astype(no_y.dtype))
    return [(x, y) if y.size else filled(x, y) for x, y in pairs]


def check_columns(given: dict[str, Any]) -> None:
    """Raises SettingError if tables have other columns, or the same in another order.

    Args:
      given: owner -> (x, y), or x alone. Arrays without column names are not compared.
    """
    for place, what in enumerate(("columns", "label columns")):
        first, wanted = "", []
        for who, pair in given.items():
            tables = pair if check.pair(pair) else (pair, None)
            names = _column_names(tables[place])
            if names and wanted and names != wanted:
                raise SettingError(
                    f"{who} has the {what} {', '.join(map(str, names))} but {first} has "
                    f"{', '.join(map(str, wanted))}; give all the same columns in one "
                    "order."
                )
            if names and not wanted:
                first, wanted = who, names


def _column_names(x: Any) -> list[Any]:
    """Those of a table of pandas, polars or pyarrow; none of an array."""
    return [*getattr(x, "column_names", getattr(x, "columns", ()))]


def check_like(
    who: str,
    x: np.ndarray,
    y: np.ndarray | None,
    like: tuple[np.ndarray, np.ndarray | None],
    others: str = "client 0 has",
    on_device: bool = False,
) -> None:
    """Raises SettingError unless `who` has one label per input, both of the kind of `like`.

    Args:
      who: whose examples they are, as the sentence begins: "client 3".
      x: inputs.
      y: labels; None: there are none.
      like: (x, y) of others; y None: theirs may be of any kind.
      others: who they are.
      on_device: dtypes that are one there are alike.
    """
    if y is not None and (x.ndim == 0 or y.ndim == 0 or len(x) != len(y)):
        raise SettingError(
            f"{who} has x of shape {x.shape} and y of shape {y.shape}; give one label per "
            "input."
        )
    dtypes = {x.dtype, like[0].dtype}
    if on_device:
        dtypes = {*map(jax.dtypes.canonicalize_dtype, dtypes)}
    if (x.ndim, *x.shape[1:]) != (like[0].ndim, *like[0].shape[1:]) or len(dtypes) > 1:
        raise SettingError(
            f"{who} has inputs {x.dtype}{list(x.shape[1:])} but {others} "
            f"{like[0].dtype}{list(like[0].shape[1:])}; give it inputs like theirs."
        )
    if y is None or like[1] is None:
        return
    is_float = lambda dtype: jnp.issubdtype(dtype, jnp.floating)
    kinds = is_float(y.dtype), is_float(like[1].dtype)
    # int64 and uint64 together are float64 to NumPy
    if kinds[0] != kinds[1] or kinds[0] != is_float(np.result_type(y, like[1])):
        raise SettingError(
            f"{who} has labels {y.dtype} but {others} {like[1].dtype}; give all the same."
        )
    if y.shape[1:] != like[1].shape[1:]:
        raise SettingError(
            f"{who} has labels of shape {list(y.shape[1:])} but {others} "
            f"{list(like[1].shape[1:])}; give all the same."
        )


def concatenated(
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """All inputs, all labels, and the rows of them that each (x, y) became."""
    sizes = [len(y) for _, y in pairs]
    ends = np.cumsum(sizes)
    rows = [np.arange(end - n, end) for n, end in zip(sizes, ends, strict=True)]
    x = np.concatenate([x for x, _ in pairs])
    return x, np.concatenate([y for _, y in pairs]), rows


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
