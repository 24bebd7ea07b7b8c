"""Who holds which rows: partitions of a training set among clients.

A partition is a function `f(labels, num_clients, *, seed, ...) -> rows`: for each
client an int64 array of row numbers in random order. Each gets at least `min_size` of
them, the same seed gives the same split, and all of them end after a number of steps known
beforehand. Clients share no row, but of `copies` and where `allow_reuse` says so.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import check
from ..errors import SettingError
from .class_counts import nonbalance, pareto
from .dirichlet import dirichlet, dirichlet_classes
from .labels import label_quantity, labels_per_client, shards
from .mixes import copies, fedveca_case, gift_mix
from .rows import Rows, check_ids, generator, group
from .sizes import iid, quantity_dirichlet


def natural(
    labels: np.ndarray,
    num_clients: int | None = None,
    *,
    clients: np.ndarray | None = None,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """Every client holds the rows it owns in the source (`Source.clients`).

    Args:
      labels: of the training set, [n] integers.
      num_clients: how many clients; None: every owner. Less than there are owners: so
        many of them, drawn at random; the rows of the others are left out.
      clients: the owner of each row, [n] integers >= 0.
      seed: of the choice of owners and of the order of rows.
      min_size: rows an owner must have to become a client; at least 1.
    """
    if clients is None:
        raise SettingError(
            "partition=natural needs data whose rows have owners (synthetic, leaf_femnist, "
            "leaf_shakespeare, an .npz file with an array clients, or tfds:NAME with "
            "client_feature); write partition=iid or dirichlet."
        )
    labels, clients = check_ids("labels", labels), check_ids("clients", clients)
    if len(clients) != len(labels):
        raise SettingError(
            f"clients has {len(clients)} owners but labels has {len(labels)} rows; "
            "give every row one owner."
        )
    check.at_least("min_size", min_size, 1)
    check.at_least("seed", seed, 0, most=math.inf)
    owners = np.flatnonzero(np.bincount(clients) >= min_size)
    check.at_least("num_clients", num_clients, 1, none="every owner")
    if num_clients is None:
        num_clients = len(owners)
    if num_clients > len(owners) or not len(owners):
        raise SettingError(
            f"num_clients={num_clients} but {len(owners)} owners have at least "
            f"min_size={min_size} rows; write num_clients={len(owners)} or fewer, leave it "
            "out for all, or write a smaller min_size."
        )
    rng = generator(seed)
    if num_clients < len(owners):
        owners = np.sort(rng.choice(owners, num_clients, replace=False))
    order = rng.permutation(len(labels))
    order = order[np.isin(clients[order], owners)]
    return group(order, np.searchsorted(owners, clients[order]), num_clients)


PARTITIONS: dict[str, Callable[..., Rows]] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "dirichlet_classes": dirichlet_classes,
    "labels_per_client": labels_per_client,
    "label_quantity": label_quantity,
    "shards": shards,
    "quantity_dirichlet": quantity_dirichlet,
    "nonbalance": nonbalance,
    "pareto": pareto,
    "fedveca_case": fedveca_case,
    "gift_mix": gift_mix,
    "copies": copies,
    "natural": natural,
}


def split(
    partition: str,
    labels: np.ndarray,
    num_clients: int | None,
    *,
    seed: int = 0,
    clients: np.ndarray | None = None,
    **options: Any,
) -> Rows:
    """Splits a training set by the name of a partition.

    Args:
      partition: one of `PARTITIONS`.
      labels: of the training set, [n] integers.
      num_clients: how many clients; None only for "natural".
      seed: of the split.
      clients: `Source.clients`; only a partition that takes it sees it.
      **options: keyword options of the partition, e.g. concentration=0.3.

    Returns:
      For each client the rows it holds.

    Raises:
      ValueError: one sentence: an unknown name or option (with the nearest), a value
        out of range, or too few rows for so many clients.
    """
    check.one_of("partition", partition, PARTITIONS)
    function = PARTITIONS[partition]
    check.options(f"partition={partition}", function, options)
    if "clients" in check.option_names(function):
        options["clients"] = clients
    return function(labels, num_clients, seed=seed, **options)
