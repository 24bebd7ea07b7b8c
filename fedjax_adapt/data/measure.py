"""How unequal the clients of a partition are."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


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

    def summary(self) -> str:
        """Two lines for a person: sizes, then labels; a third where rows are left over."""
        unheld = self.num_unheld
        sizes, labels = self.sizes, (self.label_counts > 0).sum(axis=1)
        whole = _entropy(self.label_counts.sum(axis=0))
        return (
            f"{len(sizes)} clients with {sizes.min()} to {sizes.max()} examples "
            f"(mean {sizes.mean():.1f}, std {sizes.std():.1f}, {sizes.sum()} in all)\n"
            f"labels per client {labels.min()} to {labels.max()} of "
            f"{self.label_counts.shape[1]} (mean {labels.mean():.1f}), label entropy "
            f"{self.label_entropy.mean():.2f} of {whole:.2f} nats, distance from the "
            f"whole {self.label_distance.mean():.2f}"
            + (f"\n{unheld} training examples are nobody's" if unheld else "")
        )


def skew(rows: Sequence[np.ndarray], labels: np.ndarray, num_classes: int) -> Skew:
    """Measures a partition.

    Args:
      rows: for each client the rows it holds.
      labels: of the training set, [n] integers in [0, num_classes).
      num_classes: number of labels.
    """
    sizes = np.array([len(r) for r in rows])
    owner = np.repeat(np.arange(len(rows)), sizes)
    every = np.concatenate([np.asarray(r, int) for r in rows])
    held = np.asarray(labels)[every]
    counts = np.bincount(owner * num_classes + held, minlength=len(rows) * num_classes)
    counts = counts.reshape(len(rows), num_classes)
    share = counts / np.maximum(sizes, 1)[:, None]
    whole = counts.sum(axis=0) / max(sizes.sum(), 1)
    distance = np.abs(share - whole).sum(axis=1) / 2
    return Skew(
        sizes=sizes,
        label_counts=counts,
        label_entropy=_entropy(counts),
        label_distance=np.where(sizes > 0, distance, 0.0),
        num_unheld=len(labels) - len(np.unique(every)),
    )


def _entropy(counts: np.ndarray) -> np.ndarray:
    """Entropy in nats of counts [..., K]; 0 for no counts."""
    share = counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
    return 0.0 - (share * np.log(np.where(share > 0, share, 1.0))).sum(axis=-1)
