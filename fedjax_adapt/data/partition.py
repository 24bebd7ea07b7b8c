"""Partitions of a training set among clients, by name, and how unequal one is.

A partition is a function `f(labels, num_clients, *, seed, ...) -> rows` of the labels of
the training set, integers [n], for so many clients: for each of them an int64 array of row
numbers in random order. Each gets at least `min_size` of them, the same seed gives the same
split, and all of them end after a number of steps known beforehand. Clients share no row,
but of `copies` and where `allow_reuse` says so.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import check
from ..errors import SettingError
from .dirichlet import (
    MAX_SIGMA,
    client_sizes,
    dirichlet,
    dirichlet_classes,
    legacy_sizes,
    quantity_dirichlet,
)
from .labels import label_quantity, labels_per_client, shards
from .papers import copies, fedveca_case, gift_mix, nonbalance, pareto
from .rows import (
    Rows,
    begin_split,
    by_label,
    check_ids,
    cut,
    generator,
    group,
    join,
    label_table,
)


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
      size_sigma: 0 is equal sizes; above, sizes are in proportion to lognormal(0, sigma).
      legacy_float_sizes: sizes as the published code truncates them (CIFAR-10 with 100
        clients: 599 and 99 times 499).
      stratified: assign the rows of one label after the other, so that all clients hold
        each label equally often (give or take 1), as that code does for CIFAR-100.
      min_size: rows every client must get; the richest give what the poorest lack.

    Example:
      >>> rows = iid(np.zeros(10, int), 3)
      >>> [len(of_client) for of_client in rows]
      [4, 3, 3]
    """
    check.between("size_sigma", size_sigma, 0, MAX_SIGMA)
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    if stratified:
        if size_sigma or legacy_float_sizes:
            raise SettingError(
                "stratified=True makes equal sizes; leave size_sigma and "
                "legacy_float_sizes out."
            )
        rows = np.concatenate(by_label(rng, labels))
        return join(rng, [[rows[i::num_clients]] for i in range(num_clients)])
    rows = rng.permutation(len(labels))
    sizes = legacy_sizes if legacy_float_sizes else client_sizes
    return cut(rows, sizes(rng, len(rows), num_clients, size_sigma, min_size))


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
    sizes = np.bincount(clients)
    owners = np.flatnonzero(sizes >= min_size)
    check.at_least("num_clients", num_clients, 1, none="every owner")
    if not len(owners) and len(clients):
        most = sizes.max()
        raise SettingError(
            f"min_size={min_size} but no owner has more than {most} rows; write "
            f"min_size={most} or less."
        )
    if num_clients is None:
        num_clients = len(owners)
    if num_clients > len(owners) or not len(owners):
        raise SettingError(
            f"num_clients={num_clients} but {len(owners)} owners have at least "
            f"min_size={min_size} rows; write num_clients={len(owners)} or fewer, or a "
            "smaller min_size."
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
      labels: of the training set, integers [n].
      num_clients: how many clients; None only for "natural".
      seed: of the split.
      clients: `Source.clients`; only a partition that takes it sees it.
      **options: keyword options of the partition, e.g. concentration=0.3.

    Returns:
      For each client the rows it holds.

    Raises:
      SettingError: one sentence: an unknown name or option (with the nearest), a value
        out of range, or too few rows for so many clients.
    """
    check.one_of("partition", partition, PARTITIONS)
    function = PARTITIONS[partition]
    check.options(f"partition={partition}", function, options)
    if "clients" in check.option_names(function):
        options["clients"] = clients
    return function(labels, num_clients, seed=seed, **options)


class Skew(NamedTuple):
    """What clients hold. Leading axis: clients.

    Attributes:
      sizes: examples per client, [N] int64.
      label_counts: examples per client and label, [N, K] int64.
      label_entropy: of each client's labels, in nats, [N]; 0 for one label or none, at
        most log K.
      label_distance: total variation between a client's labels and those of all clients
        together, [N]: 0 is the same mix, 1 is nothing in common; 0 for no examples.
      num_unheld: training examples that no client holds.
    """

    sizes: np.ndarray
    label_counts: np.ndarray
    label_entropy: np.ndarray
    label_distance: np.ndarray
    num_unheld: int = 0

    @property
    def mean_entropy(self) -> float:
        """The mean entropy of labels, over the clients that hold examples."""
        return float(self.label_entropy[self.sizes > 0].mean())

    def summary(self) -> str:
        """Two lines for a person: sizes, then labels; a third where rows are left over.

        What it says of labels is of the clients that hold examples.
        """
        unheld, sizes, held = self.num_unheld, self.sizes, self.sizes > 0
        labels = (self.label_counts[held] > 0).sum(axis=1)
        whole = _entropy(self.label_counts.sum(axis=0))
        who = "client" if held.all() else f"client of the {held.sum()} with examples"
        return (
            f"{len(sizes)} clients with {sizes.min()} to {sizes.max()} examples "
            f"(mean {sizes.mean():.1f}, std {sizes.std():.1f}, {sizes.sum()} in all)\n"
            f"labels per {who} {labels.min()} to {labels.max()} of "
            f"{self.label_counts.shape[1]} (mean {labels.mean():.1f}), label entropy "
            f"{self.mean_entropy:.2f} of {whole:.2f} nats, distance from the "
            f"whole {self.label_distance[held].mean():.2f}"
            + (f"\n{unheld} training examples belong to no client" if unheld else "")
        )


def skew(rows: Sequence[np.ndarray], labels: np.ndarray, num_classes: int) -> Skew:
    """Measures a partition.

    Args:
      rows: for each client the rows it holds.
      labels: of the training set, [n] integers in [0, num_classes).
      num_classes: number of labels.
    """
    sizes = np.array([len(r) for r in rows])
    held = np.unique(np.concatenate([np.asarray(r, int) for r in rows]))
    counts = label_table(np.asarray(labels), rows, num_classes)
    share = counts / np.maximum(sizes, 1)[:, None]
    whole = counts.sum(axis=0) / max(sizes.sum(), 1)
    distance = np.abs(share - whole).sum(axis=1) / 2
    return Skew(
        sizes=sizes,
        label_counts=counts,
        label_entropy=_entropy(counts),
        label_distance=np.where(sizes > 0, distance, 0.0),
        num_unheld=len(labels) - len(held),
    )


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy in nats of counts [..., K]; 0 for no counts."""
    share = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return 0.0 - (share * np.log(np.where(share > 0, share, 1.0))).sum(axis=-1)
