import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt.data import PARTITIONS, skew, split

DEALT = ["iid", "dirichlet", "dirichlet_classes"]
CIFAR10 = np.repeat(np.arange(10), 5000)


def options(partition, concentration):
    return {} if partition == "iid" else {"concentration": concentration}


def assert_holds_all_once(rows, n):
    np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(n))


@st.composite
def cases(draw):
    """Any labels (some of them absent), any number of clients, any skew."""
    n = draw(st.integers(1, 200))
    num_classes = draw(st.integers(1, 12))
    labels = np.random.default_rng(draw(st.integers(0, 9))).integers(0, num_classes, n)
    num_clients = draw(st.integers(1, n))
    concentration = draw(st.sampled_from([1e-300, 1e-3, 0.1, 1.0, 1e6, 1e300]))
    return labels, num_clients, concentration, draw(st.integers(0, 2**64))


@pytest.mark.parametrize("partition", DEALT)
@settings(deadline=None, max_examples=60)
@given(case=cases())
def test_every_row_is_held_by_exactly_one_client(partition, case):
    labels, num_clients, concentration, seed = case
    chosen = options(partition, concentration)
    rows = split(partition, labels, num_clients, seed=seed, **chosen)
    assert len(rows) == num_clients
    assert_holds_all_once(rows, len(labels))
    assert min(len(r) for r in rows) >= min(10, len(labels) // num_clients) or (
        partition != "dirichlet_classes" and min(len(r) for r in rows) >= 1
    )
    if partition != "dirichlet_classes":
        assert max(len(r) for r in rows) - min(len(r) for r in rows) <= 1


@settings(deadline=None, max_examples=40)
@given(case=cases(), data=st.data())
def test_no_client_of_dirichlet_classes_is_below_the_minimum(case, data):
    labels, num_clients, concentration, seed = case
    min_size = data.draw(st.integers(0, len(labels) // num_clients))
    chosen = {"concentration": concentration, "min_size": min_size, "seed": seed}
    rows = split("dirichlet_classes", labels, num_clients, **chosen)
    assert_holds_all_once(rows, len(labels))
    assert min(len(r) for r in rows) >= min_size


@pytest.mark.parametrize("partition", DEALT)
@pytest.mark.parametrize("concentration", [1e-3, 0.1, 1e6])
def test_500_clients_on_cifar10_labels_end_in_time(partition, concentration):
    start = time.perf_counter()
    rows = split(partition, CIFAR10, 500, **options(partition, concentration))
    assert time.perf_counter() - start < 2
    assert_holds_all_once(rows, 50_000)
    assert min(len(r) for r in rows) >= 10


@pytest.mark.parametrize("partition", DEALT)
def test_as_many_clients_as_examples_get_one_each(partition):
    labels = np.arange(20_000) % 10
    rows = split(partition, labels, 20_000, **options(partition, 1e-3))
    assert {len(r) for r in rows} == {1}
    assert_holds_all_once(rows, 20_000)


@pytest.mark.parametrize("partition", DEALT)
def test_same_seed_gives_same_split_and_another_seed_another(partition):
    labels = np.arange(600) % 7
    first, again, other = (split(partition, labels, 9, seed=s) for s in (3, 3, 4))
    for a, b in zip(first, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("partition", DEALT)
def test_rows_of_a_client_come_in_random_order(partition):
    rows = split(partition, CIFAR10, 10)[0]
    # In order, all of these differences would be positive.
    assert 0.4 < np.mean(np.diff(rows) > 0) < 0.6


@pytest.mark.parametrize("partition", ["dirichlet", "dirichlet_classes"])
def test_a_smaller_concentration_is_more_skewed(partition):
    def entropy(concentration):
        rows = split(partition, CIFAR10, 50, concentration=concentration)
        return skew(rows, CIFAR10, 10).label_entropy.mean()

    entropies = [entropy(c) for c in (0.01, 0.1, 1.0, 1e6)]
    assert entropies == sorted(entropies)
    assert entropies[0] < 0.7 and entropies[3] > np.log(10) - 0.03


# --- one Dirichlet prior per client --------------------------------------------------


def draw_one_by_one(rng, turns, priors, left):
    """The slow twin of `draw_labels`: a turn at a time, as the published code does."""
    left, drawn = left.copy(), []
    for client in turns:
        prior = priors[client] * (left > 0)
        prior = prior / prior.sum() if prior.sum() > 0 else left / left.sum()
        label = rng.choice(len(left), p=prior)
        left[label] -= 1
        drawn.append(label)
    return np.array(drawn)


@pytest.mark.slow
def test_drawing_in_blocks_is_drawing_one_by_one():
    from fedjax_adapt.data.dirichlet import draw_labels

    turns = np.array([0, 1, 0, 2, 1, 2, 2, 0])
    priors = np.array([[0.7, 0.3, 0.0], [0.1, 0.1, 0.8], [1.0, 0.0, 0.0]])
    left = np.array([3, 3, 2])

    def distribution(draw):
        """How often each label comes at each turn."""
        rng = np.random.default_rng(0)
        draws = np.array([draw(rng, turns, priors, left) for _ in range(4000)])
        assert (np.sort(draws, axis=1) == np.repeat([0, 1, 2], left)).all()
        return np.stack([(draws == k).mean(axis=0) for k in range(3)])

    difference = distribution(draw_labels) - distribution(draw_one_by_one)
    # Two means of 4000 draws differ by .011 (one deviation) at most.
    assert np.abs(difference).max() < 0.045


def test_labels_follow_the_priors_while_all_are_left():
    # With far more rows than clients need of any label, nothing is exhausted.
    labels = np.repeat(np.arange(4), 4000)
    rows = split("dirichlet", labels, 1600, concentration=0.5)
    share = skew(rows, labels, 4).label_counts / 10
    # A draw of 10 labels from Dir(.5 * 1_4): E[share^2] of the Dirichlet-multinomial.
    a, total, n = 0.5, 2.0, 10
    square = (a / total) * (1 / n + (1 - 1 / n) * (a + 1) / (total + 1))
    assert np.mean(share**2) == pytest.approx(square, rel=0.06)


def test_the_remainder_is_dealt_or_dropped():
    labels = np.arange(107) % 3
    sizes = [len(r) for r in split("dirichlet", labels, 10)]
    assert sizes == [11] * 7 + [10] * 3
    dropped = split("dirichlet", labels, 10, drop_remainder=True)
    assert [len(r) for r in dropped] == [10] * 10
    assert len(np.unique(np.concatenate(dropped))) == 100


@pytest.mark.parametrize(
    ("n", "num_clients", "first", "others"),
    [
        (50_000, 100, 599, 499),
        (60_000, 500, 619, 119),
        (48_000, 500, 96, 96),
        (60_000, 100, 600, 600),
    ],
)
def test_legacy_sizes_are_those_of_the_published_code(n, num_clients, first, others):
    labels = np.arange(n) % 10
    rows = split("dirichlet", labels, num_clients, legacy_float_sizes=True)
    assert [len(r) for r in rows] == [first] + [others] * (num_clients - 1)
    assert_holds_all_once(rows, n)


# --- one Dirichlet share per label ---------------------------------------------------


def test_a_repair_touches_only_the_richest_and_the_poorest():
    chosen = {"concentration": 0.1, "seed": 0}
    before = split("dirichlet_classes", CIFAR10, 500, min_size=0, **chosen)
    after = split("dirichlet_classes", CIFAR10, 500, min_size=10, **chosen)
    old, new = (np.array([len(r) for r in rows]) for rows in (before, after))
    poor, rich = old < 10, new < old
    assert poor.sum() > 20 and (new[poor] == 10).all()
    # The donors are the richest, and lowered to one size (give or take one row).
    assert old[rich].min() > old[~rich].max() - 1
    assert np.ptp(new[rich]) <= 1 and new[rich].min() >= new[~rich].max() - 1
    for i in np.flatnonzero(~poor & ~rich):
        assert set(before[i]) == set(after[i])
    for i in np.flatnonzero(poor):
        assert set(before[i]) <= set(after[i])


def test_shares_of_labels_are_dirichlet():
    labels = np.repeat(np.arange(100), 400)
    chosen = {"concentration": 0.5, "min_size": 0, "balance": False}
    rows = split("dirichlet_classes", labels, 8, **chosen)
    share = skew(rows, labels, 100).label_counts / 400  # [clients, labels]
    # E[share^2] of Dir(.5 * 1_8): a (a + 1) / (A (A + 1)), A = 8 a.
    assert np.mean(share**2) == pytest.approx(0.5 * 1.5 / (4 * 5), rel=0.1)


def test_balance_keeps_a_client_from_growing_after_its_share():
    labels = np.arange(20_000) % 100

    def largest(balance):
        chosen = {"concentration": 0.2, "balance": balance}
        return max(len(r) for r in split("dirichlet_classes", labels, 20, **chosen))

    # Below its share of 1000 a client takes one label more, at most all its 200 rows.
    assert largest(True) < 1200 < largest(False)


# --- owners --------------------------------------------------------------------------


def test_natural_gives_every_owner_its_rows():
    clients = np.array([2, 0, 2, 5, 0, 2])
    labels = np.zeros(6, int)
    rows = split("natural", labels, None, clients=clients)
    assert [sorted(r.tolist()) for r in rows] == [[1, 4], [0, 2, 5], [3]]
    some = split("natural", labels, None, clients=clients, min_size=2)
    assert [sorted(r.tolist()) for r in some] == [[1, 4], [0, 2, 5]]


def test_fewer_clients_than_owners_are_drawn_by_the_seed():
    clients = np.arange(300) // 3
    labels = np.zeros(300, int)

    def chosen(seed):
        rows = split("natural", labels, 10, clients=clients, seed=seed)
        assert all(len(set(clients[r])) == 1 and len(r) == 3 for r in rows)
        return [clients[r[0]] for r in rows]

    assert chosen(0) == chosen(0) != chosen(1)
    assert len(set(chosen(0))) == 10


# --- mistakes ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("partition", "num_clients", "chosen", "match"),
    [
        (
            "iid",
            31,
            {},
            "num_clients=31 but there are only 30 training ex",
        ),
        ("iid", 0, {}, "num_clients=0 must be an integer >= 1"),
        ("iid", 2.5, {}, "num_clients=2.5"),
        ("iid", None, {}, "num_clients=None"),
        ("iid", 4, {"min_size": 8}, "min_size=8 .*num_clients=4 needs 32 .* are 30"),
        ("iid", 4, {"seed": -1}, "seed=-1"),
        ("dirichlet", 4, {"concentration": 0}, "concentration=0 must be a finite num"),
        ("dirichlet", 4, {"concentration": float("nan")}, "concentration=nan"),
        ("dirichlet_classes", 4, {"concentration": -1}, "concentration=-1"),
        ("dirichlet_classes", 4, {"min_size": 8}, "write min_size=7 or less, or num_c"),
        ("dirichlet", 30, {"legacy_float_sizes": True, "min_size": 2}, "needs 60"),
        ("dirichlet", 4, {"concentraton": 1}, "did you mean 'concentration'"),
        (
            "iid",
            4,
            {"concentration": 1},
            "partition=iid takes no option 'concentra",
        ),
        ("dirichlett", 4, {}, "did you mean 'dirichlet'"),
        ("natural", 4, {}, "partition=natural needs data whose rows have owners"),
        ("natural", 4, {"clients": np.arange(30) % 3}, "num_clients=4 but 3 owners"),
        (
            *("natural", None, {"clients": np.arange(30) % 3, "min_size": 11}),
            "min_size=11 but no owner has more than 10 rows; write min_size=10 or less",
        ),
        ("natural", 2, {"clients": np.arange(29) % 3}, "29 owners but labels has 30"),
        ("natural", 2, {"clients": np.arange(30) - 1}, r"clients\[0\] is -1"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(partition, num_clients, chosen, match):
    with pytest.raises(ValueError, match=match) as error:
        split(partition, np.arange(30) % 3, num_clients, **chosen)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_labels_must_be_a_row_of_integers():
    with pytest.raises(ValueError, match=r"labels is float64\[4\]"):
        split("iid", np.zeros(4), 2)
    with pytest.raises(ValueError, match=r"labels is int64\[2, 2\]"):
        split("dirichlet", np.zeros((2, 2), int), 2)
    with pytest.raises(ValueError, match=r"labels\[1\] is -3"):
        split("dirichlet", np.array([1, -3, 2]), 2)
    with pytest.raises(ValueError, match="labels is empty; give one label per train"):
        split("dirichlet", np.zeros(0, int), 2)


def test_every_partition_takes_labels_clients_and_a_seed():
    labels = np.arange(40) % 4
    for function in PARTITIONS.values():
        kwargs = (
            {"clients": np.arange(40) % 5} if function.__name__ == "natural" else {}
        )
        rows = function(labels, 5, seed=1, **kwargs)
        assert len(rows) == 5 and all(r.dtype == np.int64 for r in rows)


@pytest.mark.parametrize("clients", [100, 500])
def test_stratified_clients_hold_as_many_rows_of_each_label(clients):
    labels = np.repeat(np.arange(100), 500)
    rows = split("iid", labels, clients, stratified=True)
    assert (skew(rows, labels, 100).label_counts == 500 // clients).all()
