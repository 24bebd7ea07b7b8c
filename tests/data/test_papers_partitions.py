"""What the partitions of single papers add to what all of them promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt.data import skew, split

CIFAR10 = np.repeat(np.arange(10), 5000)


def counts_of(partition, labels, num_clients, **options):
    """Examples per client and label, and the sizes."""
    rows = split(partition, labels, num_clients, **options)
    found = skew(rows, labels, int(labels.max()) + 1)
    return found.label_counts, found.sizes


# --- labels per client ---------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(
    counts=st.lists(st.integers(1, 12), min_size=1, max_size=7),
    num_clients=st.integers(1, 20),
    k=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_every_client_holds_exactly_k_labels_whenever_that_can_be(
    counts, num_clients, k, seed
):
    labels = np.repeat(np.arange(len(counts)), counts)
    pairs = sum(min(c, num_clients) for c in counts)  # Gale and Ryser's condition
    possible = (
        num_clients <= len(labels) and k <= len(counts) <= k * num_clients <= pairs
    )
    if not possible:
        with pytest.raises(
            ValueError, match=rf"num_clients={num_clients}|num_labels={k}"
        ):
            split("labels_per_client", labels, num_clients, num_labels=k, seed=seed)
        return
    found, sizes = counts_of(
        "labels_per_client", labels, num_clients, num_labels=k, seed=seed
    )
    assert ((found > 0).sum(1) == k).all()
    assert sizes.sum() == len(labels)
    for label in range(len(counts)):  # equal shares among the holders
        share = found[found[:, label] > 0, label]
        assert share.max() - share.min() <= 1


@pytest.mark.slow
def test_client_i_holds_label_i_mod_K_and_others_at_random():
    draws = np.stack(
        [counts_of("labels_per_client", CIFAR10, 20, seed=s)[0] > 0 for s in range(40)]
    )
    first = np.arange(20) % 10
    assert draws[:, np.arange(20), first].all()
    others = draws.mean(axis=(0, 1))  # 1/10 from the first, 1/9 of the others' 9/10
    np.testing.assert_allclose(others, 0.2, atol=0.04)


@pytest.mark.slow
def test_mixed_gives_every_label_as_many_holders_and_unequal_shares():
    for seed in range(30):
        found, sizes = counts_of("label_quantity", CIFAR10, 10, seed=seed)
        assert ((found > 0).sum(0) == 2).all() and ((found > 0).sum(1) == 2).all()
        assert (found[np.arange(10), np.arange(10)] > 0).all()
    assert sizes.max() > 3 * sizes.min()
    uneven = counts_of("label_quantity", CIFAR10, 13, num_labels=3)[0] > 0
    assert np.ptp(uneven.sum(0)) <= 1 and (uneven.sum(1) == 3).all()


def test_nobody_in_mixed_is_below_the_minimum():
    chosen = {"concentration": 1e-3, "min_size": 9}
    assert counts_of("label_quantity", CIFAR10, 30, **chosen)[1].min() >= 9


def test_shards_are_equal_runs_of_the_sorted_labels():
    found, sizes = counts_of("shards", CIFAR10, 100)
    assert set(sizes) == {500} and set(found.ravel()) <= {0, 250, 500}
    assert (found > 0).sum(1).max() == 2


# --- quantity ------------------------------------------------------------------------


def test_sizes_are_dirichlet_given_the_minimum():
    # one share of Dir(1, 1) given both at least 1/4 is uniform on [1/4, 3/4]
    labels = np.zeros(400, int)
    chosen = {"concentration": 1.0, "min_size": 100}
    shares = [
        len(split("quantity_dirichlet", labels, 2, seed=s, **chosen)[0]) / 400
        for s in range(400)
    ]
    assert 0.25 <= min(shares) and max(shares) <= 0.75
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)
    assert np.std(shares) == pytest.approx(0.5 / np.sqrt(12), rel=0.1)


def test_where_no_draw_will_do_the_minimum_is_kept_all_the_same():
    chosen = {"concentration": 1e-3}
    sizes = counts_of("quantity_dirichlet", CIFAR10, 200, **chosen)[1]
    assert sizes.min() == 10 and sizes.sum() == 50_000
    assert sizes.max() > 10_000  # and the skew is not levelled


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_lognormal_sizes_have_their_sigma(partition):
    sizes = counts_of(partition, CIFAR10, 400, size_sigma=0.3)[1]
    assert np.log(sizes).std() == pytest.approx(0.3, rel=0.15)
    assert sizes.sum() == 50_000
    assert (
        counts_of(partition, CIFAR10, 400, size_sigma=5.0, min_size=20)[1].min() == 20
    )


def test_fedgsnrs_dirichlet_is_a_prior_of_each_client():
    """local-steps.md 1.9, Hsu et al.: E sum_k q_k^2 = (a + 1) / (K a + 1), equal sizes."""
    for concentration in (0.1, 0.5, 5.0):
        chosen = {"concentration": concentration}
        found, sizes = counts_of("dirichlet", CIFAR10, 100, **chosen)
        assert set(sizes) == {500}
        purity = np.square(found / 500).sum(1).mean()
        expected = (concentration + 1) / (10 * concentration + 1)
        # labels that run out and finite draws move it a little
        assert purity == pytest.approx(expected, rel=0.2)
    # NIID-Bench's draw of each class is another: sizes are unequal
    assert np.ptp(counts_of("dirichlet_classes", CIFAR10, 100, **chosen)[1]) > 50


# --- numbers of classes --------------------------------------------------------------


def test_nonbalance_is_a_tenth_four_tenths_and_half():
    found, sizes = counts_of("nonbalance", CIFAR10, 30)
    assert (found > 0).sum(1).tolist() == [10] * 3 + [5] * 12 + [2] * 15
    assert sizes.max() <= 50_000 // 30
    reused = counts_of("nonbalance", CIFAR10, 30, allow_reuse=True)[1]
    assert set(reused) == {50_000 // 30}


def test_halves_and_fifths_of_the_classes_are_rounded_up():
    """local-steps.md 1.9, with 12 classes: 12, 6, and 2.4 that become 3."""
    labels = np.repeat(np.arange(12), 100)
    found = counts_of("nonbalance", labels, 10, allow_reuse=True)[0]
    assert (found > 0).sum(1).tolist() == [12] + [6] * 4 + [3] * 5
    few = counts_of("nonbalance", labels[labels < 3], 10, allow_reuse=True)[0]
    assert (few > 0).sum(1).tolist() == [3] + [2] * 4 + [1] * 5


def test_a_quota_is_spread_evenly_over_a_clients_classes():
    found = counts_of("nonbalance", CIFAR10, 30, allow_reuse=True)[0]
    for row in found:
        assert np.ptp(row[row > 0]) <= 1


def test_pareto_gives_one_client_all_classes_and_most_of_them_one():
    seen = (counts_of("pareto", CIFAR10, 100, allow_reuse=True)[0] > 0).sum(1)
    assert seen.max() == 10 and np.median(seen) == 1
    assert (counts_of("pareto", CIFAR10, 20, shape=1e300)[0] > 0).all()


@pytest.mark.slow
def test_numbers_of_classes_are_rounded_ratios_of_the_pareto_law():
    """Of two clients the ratio x / max x of the smaller is U^(1/shape), U ~ U(0, 1)."""
    labels = np.repeat(np.arange(10), 10)

    def of_the_smaller(**shape):
        found = [
            counts_of("pareto", labels, 2, allow_reuse=True, seed=seed, **shape)[0]
            for seed in range(600)
        ]
        return np.array([(one > 0).sum(1).min() for one in found])

    classes = of_the_smaller(shape=1.0)  # round(10 U), at least 1
    shares = np.bincount(classes, minlength=11) / 600
    np.testing.assert_allclose(shares, [0, 0.15, *[0.1] * 8, 0.05], atol=0.035)
    # the law of 80 and 20: U^(1/1.16) has the mean 1.16 / 2.16
    assert of_the_smaller().mean() == pytest.approx(10 * 1.16 / 2.16, abs=0.4)


# --- FedVeca, GIFT -------------------------------------------------------------------


DIGITS = np.array([0, 5, 9, 1, 0, 6, 4, 7, 8, 5, 2, 3, 3, 0, 9, 6, 1, 4, 7, 8, 5, 5])


@pytest.mark.parametrize(
    "case, num_clients, owners",
    [
        # row i to client i mod N
        (1, 5, [0, 1, 2, 3, 4] * 4 + [0, 1]),
        (1, 10, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 2 + [0, 1]),
        (1, 12, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        # label mod N; of 12 clients, labels 0 and 1 have two each, one after the other
        (2, 5, [0, 0, 4, 1, 0, 1, 4, 2, 3, 0, 2, 3, 3, 0, 4, 1, 1, 4, 2, 3, 0, 0]),
        (2, 10, DIGITS),
        (2, 12, [0, 5, 9, 1, 10, 6, 4, 7, 8, 5, 2, 3, 3, 0, 9, 6, 11, 4, 7, 8, 5, 5]),
        # 0 to 4 by i mod 3; 6 and 8 to client 3; 5, 7 and 9 to client 4
        (3, 5, [0, 4, 4, 0, 1, 3, 0, 4, 3, 4, 1, 2, 0, 1, 4, 3, 1, 2, 4, 3, 4, 4]),
        # 0 to 4 by i mod 5; 5 to 9 each to a client of its own
        (3, 10, [0, 5, 9, 3, 4, 6, 1, 7, 8, 5, 0, 1, 2, 3, 9, 6, 1, 2, 7, 8, 5, 5]),
        # as for 10; places 0 and 1 have clients 10 and 11 as well
        (3, 12, [0, 5, 9, 3, 4, 6, 1, 7, 8, 5, 10, 11, 2, 3, 9, 6, 1, 2, 7, 8, 5, 5]),
    ],
)
def test_every_row_goes_where_fedvecas_case_says(case, num_clients, owners):
    rows = split("fedveca_case", DIGITS, num_clients, case=case, seed=3, min_size=0)
    assert len(rows) == num_clients
    for client, own in enumerate(rows):
        np.testing.assert_array_equal(
            np.sort(own), np.flatnonzero(np.array(owners) == client)
        )


def test_who_holds_which_rows_of_a_case_does_not_hang_on_the_seed():
    for case in (1, 2, 3):
        one, other = (
            split("fedveca_case", CIFAR10, 7, case=case, seed=seed) for seed in (0, 1)
        )
        for a, b in zip(one, other, strict=True):
            assert not np.array_equal(a, b)
            np.testing.assert_array_equal(np.sort(a), np.sort(b))


def test_30_clients_of_case_2_have_one_label_and_three_have_each():
    found, sizes = counts_of("fedveca_case", CIFAR10, 30, case=2)
    assert ((found > 0).sum(1) == 1).all() and ((found > 0).sum(0) == 3).all()
    assert np.ptp(sizes) <= 1


@pytest.mark.parametrize("allow_reuse", [False, True])
def test_a_gift_client_has_equal_shares_and_its_own_mix(allow_reuse):
    found, sizes = counts_of("gift_mix", CIFAR10, 60, allow_reuse=allow_reuse)
    assert set(sizes) == {50_000 // 60}
    # E[share^2] of Dir(1_10) is 2 / (10 * 11); rows that run out only mix
    square = np.mean((found / sizes[:, None]) ** 2)
    assert square == pytest.approx(2 / 110, rel=0.15 if allow_reuse else 0.3)


def test_copies_are_the_whole_set_for_everyone():
    for own in split("copies", np.arange(50) % 3, 4):
        np.testing.assert_array_equal(np.sort(own), np.arange(50))


@pytest.mark.parametrize(
    "partition, num_clients, chosen, match",
    [
        ("labels_per_client", 4, {"num_labels": 4}, "num_labels=4 but .* has 3 labels"),
        (
            "labels_per_client",
            1,
            {"num_labels": 2},
            "at most 2 of 3 labels; .*labels=3",
        ),
        ("labels_per_client", 4, {"num_labels": 0}, "num_labels=0 must be an integer"),
        ("labels_per_client", 15, {"num_labels": 3}, "needs 45 pairs .* only 30; "),
        ("label_quantity", 15, {"min_size": 20}, "min_size=20 .* needs 300 examples"),
        ("shards", 20, {}, "makes 40 shards of 30 .*shards_per_client=1 or less"),
        ("shards", 15, {"min_size": 3}, "min_size=3 .*needs 45"),
        ("nonbalance", 30, {}, "client .* would get 0 examples .*allow_reuse=true"),
        ("pareto", 4, {"shape": 0}, "shape=0 must be a finite number above 0"),
        ("fedveca_case", 4, {"case": 4}, "case=4 is unknown; write 1, 2 or 3"),
        ("fedveca_case", 1, {"case": 3}, "3 labels and num_clients=1; give 2"),
        ("quantity_dirichlet", 4, {"min_size": 8}, "min_size=8 .*needs 32 .*are 30"),
        ("iid", 4, {"size_sigma": -1}, r"size_sigma=-1 must lie in \[0, 100"),
        ("copies", 4, {"min_size": 31}, "min_size=31 but there are 30"),
        ("copies", 0, {}, "num_clients=0"),
    ],
    ids=str,
)
def test_what_cannot_be_is_said_with_the_numbers(partition, num_clients, chosen, match):
    labels = np.arange(30) % 3
    with pytest.raises(ValueError, match=match) as error:
        split(partition, labels, num_clients, **chosen)
    assert "\n" not in str(error.value) and str(error.value).endswith(".")


def test_of_an_odd_number_of_labels_the_middle_one_is_in_the_second_half():
    labels = np.repeat(np.arange(5), 4)
    rows = split("fedveca_case", labels, num_clients=4, case=3)
    # h = 2; below (5 - 1) / 2: labels 0 and 1; the others by 2 + label mod 2
    held = [sorted(set(labels[own].tolist())) for own in rows]
    assert held == [[0, 1], [0, 1], [2, 4], [3]]


@pytest.mark.slow
def test_two_holders_share_a_label_by_a_dirichlet_of_one_half():
    labels, shares = np.repeat(np.arange(10), 500), []
    for seed in range(60):
        found, _ = counts_of("label_quantity", labels, 10, seed=seed, min_size=0)
        shares += [held[held > 0][0] / 500 for held in found.T]
    assert np.var(shares) == pytest.approx(1 / 8, rel=0.15)  # 1 / (4 (2 * 0.5 + 1))
