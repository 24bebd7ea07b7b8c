"""Label skew by counting: every client holds so many labels, or so many shards.

Nothing is drawn again, and nothing can lock up.
"""

import numpy as np

from .. import check
from ..errors import SettingError
from .rows import (
    Rows,
    apportion,
    begin_split,
    by_label,
    check_sizes,
    cut,
    join,
)


def labels_per_client(
    labels: np.ndarray,
    num_clients: int,
    *,
    num_labels: int = 2,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """Every client holds the same number of labels ("Label k").

    Client i holds label i mod K and others at random; a label's rows are split equally
    among its holders. As NIID-Bench splits ("noniid-#label"; Li et al., "Federated
    Learning on Non-IID Data Silos", ICDE 2022, https://arxiv.org/abs/2102.02079).

    Every row is held. Departs from the paper only where it would leave rows out or a
    client with less: with fewer clients than labels the last clients take the labels
    no client has; a label has no more holders than rows.

    Args:
      num_labels: labels each client holds.
      min_size: rows every client must get; only checked.
    """
    rows, rng = _begin(labels, num_clients, num_labels, seed, min_size)
    room = np.array([len(r) for r in rows])
    holds = label_holders(rng, room, num_clients, num_labels)
    parts = [[] for _ in range(num_clients)]
    for label, of_label in enumerate(rows):
        holders = rng.permutation(np.flatnonzero(holds[:, label]))
        pieces = np.array_split(of_label, len(holders))
        for i, piece in zip(holders, pieces, strict=True):
            parts[i].append(piece)
    return check_sizes(join(rng, parts), min_size)


def label_quantity(
    labels: np.ndarray,
    num_clients: int,
    *,
    num_labels: int = 2,
    concentration: float = 0.5,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """So many labels per client, in unequal amounts: label and quantity skew at once.

    Client i holds label i mod K and others at random, so that all labels have equally
    many holders (give or take 1); a label's rows are split among them in proportions
    Dir(concentration). As NIID-Bench's code splits ("mixed", 10 clients, 10 labels,
    https://github.com/Xtra-Computing/NIID-Bench), whose draw of holders can lock up; its
    quantities per client are drawn there but not used, and left out here.

    Every row is held. Before the proportions every holder of a label gets
    min_size / num_labels of its rows, so that no client is left with less.

    Args:
      num_labels: labels each client holds.
      concentration: small is skewed, large is equal shares.
      min_size: rows every client must get.
    """
    check.positive("concentration", concentration, any_size=True)
    rows, rng = _begin(labels, num_clients, num_labels, seed, min_size)
    counts = np.array([len(r) for r in rows])
    each, more = divmod(num_clients * num_labels, len(rows))
    room = np.full(len(rows), each)
    order = rng.permutation(len(rows))  # those that come first more often before others
    order = order[np.argsort(order >= num_clients % len(rows), kind="stable")]
    room[order[:more]] += 1
    least = -(-min_size // num_labels)
    if (room * least > counts).any():
        rare = int((counts - room * least).argmin())
        raise SettingError(
            f"partition=label_quantity gives a label to {room[rare]} of num_clients="
            f"{num_clients}, {least} examples each, but one has {counts[rare]}; write "
            "fewer clients, or a smaller num_labels or min_size."
        )
    holds = label_holders(rng, room, num_clients, num_labels)
    parts = [[] for _ in range(num_clients)]
    for label, of_label in enumerate(rows):
        holders = np.flatnonzero(holds[:, label])
        share = rng.dirichlet(np.full(len(holders), float(concentration)))
        sizes = apportion(len(of_label), share, least)
        for i, part in zip(holders, cut(of_label, sizes), strict=True):
            parts[i].append(part)
    return join(rng, parts)


def shards(
    labels: np.ndarray,
    num_clients: int,
    *,
    shards_per_client: int = 2,
    seed: int = 0,
    min_size: int = 1,
) -> Rows:
    """Sorts by label, cuts into equal shards and gives so many to each client.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", AISTATS 2017, section 3, https://arxiv.org/abs/1602.05629. Every row is held;
    shards differ by at most one row.

    Args:
      shards_per_client: of which the published split has 2.
      min_size: rows every client must get; only checked.
    """
    check.at_least("shards_per_client", shards_per_client, 1)
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    count = num_clients * shards_per_client
    if count > len(labels):
        raise SettingError(
            f"shards_per_client={shards_per_client} for num_clients={num_clients} makes "
            f"{count} shards of {len(labels)} examples; write shards_per_client="
            f"{len(labels) // num_clients} or less."
        )
    pieces = np.array_split(np.concatenate(by_label(rng, labels)), count)
    drawn = rng.permutation(count).reshape(num_clients, shards_per_client)
    rows = join(rng, [[pieces[shard] for shard in chosen] for chosen in drawn])
    least = shards_per_client * (len(labels) // count)
    return check_sizes(rows, min_size, f"write min_size={least} or less")


def _begin(labels, num_clients: int, num_labels: int, seed: int, min_size: int):
    """The shuffled rows of each label that occurs, and a generator; checks arguments."""
    check.at_least("num_labels", num_labels, 1)
    labels, rng = begin_split(labels, num_clients, seed, min_size)
    rows = by_label(rng, labels)
    if num_labels > len(rows):
        raise SettingError(
            f"num_labels={num_labels} but the training set has {len(rows)} labels; "
            f"write num_labels={len(rows)} or less."
        )
    if num_labels * num_clients < len(rows):
        raise SettingError(
            f"num_labels={num_labels} for each of num_clients={num_clients} covers at "
            f"most {num_labels * num_clients} of {len(rows)} labels; write num_labels="
            f"{-(-len(rows) // num_clients)} or more."
        )
    return rows, rng


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
    holds = np.zeros((num_clients, K), bool)
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
                if holds[i].sum() >= wanted:
                    break
                if holds[i, k] or (scarce[k] and budget == 0):
                    continue
                holds[i, k] = True
                budget -= scarce[k]
        room -= holds[i]
        new &= ~holds[i]
    assert holds.sum(1).min() == num_labels and not new.any()
    return holds
