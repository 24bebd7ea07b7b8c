"""Corrupted clients, for contribution evaluation and for attacks.

Each function takes a data set and returns another, in which the clients named have bad
data and all others have what they had: rows that clients share are copied first. They
compose: `random_inputs(label_shift(data, [0]), [1])`. The test set stays as it is. What
is random depends on the seed and the client, not on who else is named.

Inputs are put where the model sees them: with `mean` and `std` those of the task, a value
v of a corrupted input is mean + std v in the data set. No integer holds that, so the
inputs of all clients become float32, at four times the memory of uint8 pixels; the task
makes the same numbers of both.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .dataset import FederatedDataset
from .rows import generator

Clients = Iterable[int]


def label_shift(
    data: FederatedDataset, clients: Clients, shift: int = 5
) -> FederatedDataset:
    """Labels l become (l + shift) mod K; FedGSNR's first attack (shift 5, or 3)."""
    num_labels = _num_labels(data, "label_shift")
    check.at_least("shift", shift, 1)
    if shift % num_labels == 0:
        raise SettingError(
            f"shift={shift} changes no label of {num_labels}; write 1 to {num_labels - 1}."
        )
    data, ids = owned(data, clients)
    y = np.array(data.y)
    for _, rows in rows_of(data, ids, seed=0):
        # a sum in 8 bits would wrap round
        y[rows] = (y[rows].astype(np.int64) + shift) % num_labels
    return data.with_changed(y=jnp.asarray(y))


def random_labels(
    data: FederatedDataset, clients: Clients, share: float = 1.0, *, seed: int = 0
) -> FederatedDataset:
    """A random `share` of each client's labels is drawn again, uniformly from all K."""
    check.between("share", share, 0, 1)
    num_labels = _num_labels(data, "random_labels")
    data, ids = owned(data, clients)
    y = np.array(data.y)
    for rng, rows in rows_of(data, ids, seed):
        chosen = rows[rng.permutation(len(rows))[: round(share * len(rows))]]
        y[chosen] = rng.integers(0, num_labels, (len(chosen), *y.shape[1:]))
    return data.with_changed(y=jnp.asarray(y))


def random_inputs(
    data: FederatedDataset,
    clients: Clients,
    bound: float = 1.0,
    *,
    mean: Any = 0.0,
    std: Any = 1.0,
    seed: int = 0,
) -> FederatedDataset:
    """Inputs are replaced by what the model sees as U(-bound, bound) in every number.

    FedGSNR's second attack, with bound 1.
    """
    check.positive("bound", bound)
    mean, std = np.asarray(mean), np.asarray(std)
    uniform = lambda rng, x: mean + std * rng.uniform(-bound, bound, x.shape)
    return _with_inputs(data, clients, uniform, seed)


def noisy_inputs(
    data: FederatedDataset,
    clients: Clients,
    level: float = 1.0,
    *,
    std: Any = 1.0,
    seed: int = 0,
) -> FederatedDataset:
    """Inputs get Gaussian noise of deviation `level` as the model sees them, drawn once.

    Noise that is drawn again at every access is `feature_noise`.
    """
    check.nonnegative("level", level)
    std = np.asarray(std)
    noisy = lambda rng, x: x + std * level * rng.standard_normal(x.shape)
    return _with_inputs(data, clients, noisy, seed)


def duplicated(
    data: FederatedDataset, clients: Clients, times: int = 10
) -> FederatedDataset:
    """One in `times` of a client's examples, that often each: as many, but less to learn.

    It keeps the first ceil(n_i / times) of its rows, which come in random order.
    """
    check.at_least("times", times, 1)
    index = np.array(data.index)
    for i in client_ids(data, clients):
        n = int(data.size[i])
        num_kept = max(-(-n // times), 1)
        index[i] = index[i, np.arange(index.shape[1]) % num_kept]
        index[i, n:] = index[i, 0]
    return data.with_changed(index=jnp.asarray(index))


CORRUPTIONS: dict[str, Callable[..., FederatedDataset]] = {
    "label_shift": label_shift,
    "random_labels": random_labels,
    "random_inputs": random_inputs,
    "noisy_inputs": noisy_inputs,
    "duplicated": duplicated,
}


def corrupt(
    data: FederatedDataset,
    corruption: str,
    clients: Clients,
    strength: float | None = None,
    *,
    mean: Any = 0.0,
    std: Any = 1.0,
    seed: int = 0,
) -> FederatedDataset:
    """Corrupts clients by the name of a corruption.

    Args:
      data: the data set; it stays as it is.
      corruption: one of `CORRUPTIONS`.
      clients: whom.
      strength: its third argument: shift, share, bound, level or times; None: its default.
      mean: of the task's normalisation, in the units of `data.x`.
      std: likewise.
      seed: of what is random.

    Raises:
      SettingError: an unknown name, a client that does not exist, a strength out of range.
    """
    check.one_of("corrupt", corruption, CORRUPTIONS)
    function = CORRUPTIONS[corruption]
    known = {"mean": mean, "std": std, "seed": seed}
    options = {name: known[name] for name in check.option_names(function)}
    given = [] if strength is None else [strength]
    if isinstance(strength, float | np.floating) and strength.is_integer():
        given = [int(strength)]  # runs have a number for all of them
    try:
        return function(data, clients, *given, **options)
    except SettingError as error:
        _, _, third, *_ = inspect.signature(function).parameters
        if error.setting != third:
            raise
        raise SettingError(f"strength of {corruption}: {error}") from None


def _with_inputs(data: FederatedDataset, clients, change, seed) -> FederatedDataset:
    """With the inputs of these clients put through change(rng, x), client by client."""
    data, ids = owned(data, clients)
    x = np.array(data.x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(np.float32)
    for rng, rows in rows_of(data, ids, seed):
        x[rows] = change(rng, x[rows])
    return data.with_changed(x=jnp.asarray(x))


def _num_labels(data: FederatedDataset, corruption: str) -> int:
    if not jnp.issubdtype(data.y.dtype, jnp.integer) or data.num_classes < 2:
        raise SettingError(
            f"{corruption} needs integer labels of 2 classes or more, but the labels are "
            f"{data.y.dtype} with num_classes={data.num_classes}."
        )
    return data.num_classes


def owned(
    data: FederatedDataset, clients: Clients
) -> tuple[FederatedDataset, np.ndarray]:
    """The data set with rows of their own for these clients, and their ids.

    A row that is held more than once, by whomever, is copied to the end for each of them.
    """
    ids = client_ids(data, clients)
    index, size = np.array(data.index), np.asarray(data.size)
    real = np.arange(index.shape[1]) < size[:, None]
    holders = np.bincount(index[real], minlength=data.x.shape[0])
    chosen = np.isin(np.arange(len(index)), ids)[:, None] & real
    shared = chosen & (holders[index] > 1)
    copied = index[shared]
    index[shared] = len(holders) + np.arange(len(copied))
    index = np.where(real, index, index[:, :1])  # the padding is the first row
    if len(copied):
        more = lambda leaf: jnp.concatenate([leaf, leaf[copied]])
        data = data.with_changed(x=more(data.x), y=more(data.y))
    return data.with_changed(index=jnp.asarray(index)), ids


def rows_of(
    data: FederatedDataset, ids: np.ndarray, seed: int
) -> Iterator[tuple[np.random.Generator, np.ndarray]]:
    """A generator and the rows of each client."""
    index, size = np.asarray(data.index), np.asarray(data.size)
    for i in ids:
        yield generator([seed, i]), index[i, : size[i]]


def client_ids(data: FederatedDataset, clients: Clients) -> np.ndarray:
    """The ids without repetition, in order, checked."""
    if not np.iterable(clients):
        raise SettingError(
            f"clients={clients!r} is not a list of ids; write [{clients!r}]."
        )
    ids = np.unique(np.asarray(list(clients)))
    if not len(ids):
        raise SettingError("no client to corrupt is named; give ids, e.g. [0].")
    if not np.issubdtype(ids.dtype, np.integer):
        raise SettingError(
            f"client ids to corrupt must be integers, not {ids.tolist()}."
        )
    if ids[0] < 0 or ids[-1] >= data.num_clients:
        bad = ids[0] if ids[0] < 0 else ids[-1]
        raise SettingError(
            f"client {bad} cannot be corrupted: there are {data.num_clients} clients, 0 "
            f"to {data.num_clients - 1}."
        )
    return ids
