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

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .dataset import FederatedDataset
from .own import Clients, client_ids, owned, rows_of


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
    for _, own in rows_of(data, ids, seed=0):
        y[own] = (y[own] + int(shift)) % num_labels
    return data.with_changed(y=jnp.asarray(y))


def random_labels(
    data: FederatedDataset, clients: Clients, share: float = 1.0, *, seed: int = 0
) -> FederatedDataset:
    """A random `share` of each client's labels is drawn again, uniformly from all K."""
    check.between("share", share, 0, 1)
    num_labels = _num_labels(data, "random_labels")
    data, ids = owned(data, clients)
    y = np.array(data.y)
    for rng, own in rows_of(data, ids, seed):
        chosen = own[rng.permutation(len(own))[: round(share * len(own))]]
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
        kept = max(-(-n // int(times)), 1)
        index[i] = index[i, np.arange(index.shape[1]) % kept]
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
      ValueError: an unknown name, a client that does not exist, a strength out of range.
    """
    check.one_of("corrupt", corruption, CORRUPTIONS)
    function = CORRUPTIONS[corruption]
    known = {"mean": mean, "std": std, "seed": seed}
    options = {name: known[name] for name in check.option_names(function)}
    return function(data, clients, *([] if strength is None else [strength]), **options)


def _with_inputs(data: FederatedDataset, clients, change, seed) -> FederatedDataset:
    """With the inputs of these clients put through change(rng, x), client by client."""
    data, ids = owned(data, clients)
    x = np.array(data.x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(np.float32)
    for rng, own in rows_of(data, ids, seed):
        x[own] = change(rng, x[own])
    return data.with_changed(x=jnp.asarray(x))


def _num_labels(data: FederatedDataset, corruption: str) -> int:
    if not jnp.issubdtype(data.y.dtype, jnp.integer) or data.num_classes < 2:
        raise SettingError(
            f"{corruption} needs integer labels of 2 classes or more, but the labels are "
            f"{data.y.dtype} with num_classes={data.num_classes}."
        )
    return data.num_classes
