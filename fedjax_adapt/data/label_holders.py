"""Which client holds which labels, drawn so that there is always enough for the next."""

import numpy as np

from ..errors import SettingError


def label_holders(
    rng: np.random.Generator, room: np.ndarray, num_clients: int, num_labels: int
) -> np.ndarray:
    """Which client holds which label, [clients, labels] bool.

    Every client holds `num_labels`, label k has 1 to room[k] holders. Such a table exists
    as long as sum_k min(room_k, t) >= num_labels t for the t clients that are left, and
    no more labels are new than they can take. Each client keeps both true: it takes
    enough new labels, and not too many of the scarce ones, which have room for fewer
    than all who are left. Within that, client i takes label i mod K and others at random,
    last of all those whose room later clients need for their own.
    """
    room, K = room.copy(), len(room)
    pairs = int(np.minimum(room, num_clients).sum())
    if pairs < num_labels * num_clients:
        raise SettingError(
            f"num_labels={num_labels} for each of num_clients={num_clients} needs "
            f"{num_labels * num_clients} pairs of a client and a label, but some labels "
            f"have so few examples that there are only {pairs}; write fewer clients or a "
            "smaller num_labels."
        )
    held = np.zeros((num_clients, K), bool)
    new = np.ones(K, bool)
    later = np.bincount(np.arange(num_clients) % K, minlength=K)
    for i in range(num_clients):
        left = num_clients - i
        scarce = room < left
        slack = np.minimum(room, left).sum() - num_labels * left
        budget = num_labels + slack - (~scarce).sum()
        later[i % K] -= 1
        order = rng.permutation(K)
        order = order[np.argsort((room <= later)[order], kind="stable")]
        order = np.concatenate([[i % K], order[order != i % K]])
        order = order[room[order] > 0]
        must = max(new.sum() - num_labels * (left - 1), 0)
        for wanted, candidates in ((must, order[new[order]]), (num_labels, order)):
            for k in candidates:
                if held[i].sum() >= wanted:
                    break
                if held[i, k] or (scarce[k] and budget == 0):
                    continue
                held[i, k] = True
                budget -= scarce[k]
        room -= held[i]
        new &= ~held[i]
    assert held.sum(1).min() == num_labels and not new.any()
    return held
