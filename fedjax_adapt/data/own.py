"""Rows of their own for some clients, so that changing them changes no other client's."""

import math
from collections.abc import Iterable, Iterator

import jax.numpy as jnp
import numpy as np

from .. import check
from ..errors import SettingError
from .dataset import FederatedDataset

Clients = Iterable[int]


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
    check.at_least("seed", seed, 0, most=math.inf)
    index, size = np.asarray(data.index), np.asarray(data.size)
    for i in ids:
        yield np.random.Generator(np.random.PCG64([seed, i])), index[i, : size[i]]


def client_ids(data: FederatedDataset, clients: Clients) -> np.ndarray:
    """The ids without repetition, in order, checked."""
    if not np.iterable(clients):
        raise SettingError(
            f"clients={clients!r} is no list of ids; write [{clients!r}]."
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
