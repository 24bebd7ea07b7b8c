"""What every partition promises, over all of them; what each adds is tested elsewhere."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt.data import PARTITIONS, skew, split

CIFAR10 = np.repeat(np.arange(10), 5000)
FLOATS = [1e-300, 1e-3, 0.5, 1.0, 1e6, 1e300]

# hostile options, by partition and by option
OPTIONS = {
    "iid": {"size_sigma": [0.0, 0.3, 100.0]},
    "dirichlet": {
        "concentration": FLOATS,
        "size_sigma": [0.0, 0.3, 100.0],
        "drop_remainder": [False, True],
    },
    "dirichlet_classes": {"concentration": FLOATS, "balance": [False, True]},
    "labels_per_client": {"num_labels": [1, 2, 3, 5]},
    "label_quantity": {"num_labels": [1, 2, 3], "concentration": FLOATS},
    "shards": {"shards_per_client": [1, 2, 7]},
    "quantity_dirichlet": {"concentration": FLOATS},
    "nonbalance": {"allow_reuse": [False, True]},
    "pareto": {"shape": FLOATS, "allow_reuse": [False, True]},
    "fedveca_case": {"case": [1, 2, 3]},
    "gift_mix": {"concentration": FLOATS, "allow_reuse": [False, True]},
    "copies": {},
    "natural": {},
}
LEAVE_ROWS = {"nonbalance", "pareto", "gift_mix", "copies", "natural"}
CAN_BE_IMPOSSIBLE = {
    "labels_per_client", "label_quantity", "shards", "nonbalance", "pareto",
    "fedveca_case",
}  # fmt: skip


def test_the_table_has_every_partition():
    assert set(OPTIONS) == set(PARTITIONS)


@st.composite
def cases(draw, partition):
    """Any labels (some of them absent), any number of clients, any options."""
    n = draw(st.integers(1, 120))
    num_classes = draw(st.integers(1, 9))
    labels = np.random.default_rng(draw(st.integers(0, 9))).integers(0, num_classes, n)
    options = {k: draw(st.sampled_from(v)) for k, v in OPTIONS[partition].items()}
    num_clients = draw(st.integers(1, n))
    if partition == "natural":
        options["clients"] = np.arange(n) % num_clients
    return labels, num_clients, options, draw(st.integers(0, 2**64))


def test_rounding_leaves_no_client_without_rows():
    rows = split("quantity_dirichlet", np.zeros(48, int), 48, concentration=1e300)
    assert [len(r) for r in rows] == [1] * 48


@pytest.mark.parametrize("partition", PARTITIONS)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_a_partition_keeps_its_promises_or_says_why_there_is_none(partition, data):
    labels, num_clients, options, seed = data.draw(cases(partition))
    try:
        rows = split(partition, labels, num_clients, seed=seed, **options)
    except ValueError as error:
        assert partition in CAN_BE_IMPOSSIBLE and not options.get("allow_reuse")
        assert "\n" not in str(error) and str(error).endswith(".")
        assert any(character.isdigit() for character in str(error))
        return
    assert len(rows) == num_clients and min(len(r) for r in rows) >= 1
    assert all(r.dtype == np.int64 for r in rows)
    held = np.concatenate(rows)
    assert held.min() >= 0 and held.max() < len(labels)
    shares = options.get("allow_reuse", partition == "copies")
    if not shares:
        assert len(np.unique(held)) == len(held)
    if not shares and partition not in LEAVE_ROWS and not options.get("drop_remainder"):
        assert len(held) == len(labels)
    again = split(partition, labels, num_clients, seed=seed, **options)
    for a, b in zip(rows, again, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("partition", [p for p in PARTITIONS if p != "natural"])
def test_500_clients_end_in_time_and_another_seed_is_another_split(partition):
    start = time.perf_counter()
    rows = split(partition, CIFAR10, 500)
    assert time.perf_counter() - start < 5
    # in order, all of these differences would be positive
    assert 0.3 < np.mean(np.diff(rows[3]) > 0) < 0.7
    other = split(partition, CIFAR10, 500, seed=1)
    assert any(not np.array_equal(a, b) for a, b in zip(rows, other, strict=True))


@pytest.mark.parametrize("partition", ["labels_per_client", "label_quantity", "pareto"])
def test_as_many_clients_as_examples_end_too(partition):
    options = {"allow_reuse": True} if partition == "pareto" else {"num_labels": 1}
    rows = split(partition, np.arange(5000) % 10, 5000, **options)
    assert {len(r) for r in rows} == {1}


def measured(what, partition, **options):
    found = skew(split(partition, CIFAR10, 50, **options), CIFAR10, 10)
    return {
        "labels": (found.label_counts > 0).sum(1).mean(),
        "entropy": found.label_entropy.mean(),
        "evenness": -found.sizes.std(),
    }[what]


@pytest.mark.parametrize(
    "partition, option, values, what",
    [
        ("iid", "size_sigma", (2.0, 0.5, 0.1, 0.0), "evenness"),
        ("dirichlet", "size_sigma", (2.0, 0.5, 0.1, 0.0), "evenness"),
        ("quantity_dirichlet", "concentration", (0.02, 0.5, 5.0, 500.0), "evenness"),
        ("labels_per_client", "num_labels", (1, 2, 5, 10), "labels"),
        ("label_quantity", "num_labels", (1, 2, 5, 10), "labels"),
        ("label_quantity", "concentration", (0.01, 0.5, 5.0, 500.0), "evenness"),
        ("shards", "shards_per_client", (1, 2, 5, 50), "labels"),
        ("pareto", "shape", (0.1, 1.16, 5.0, 50.0), "labels"),
        ("fedveca_case", "case", (2, 3, 1), "labels"),
        ("gift_mix", "concentration", (0.01, 0.1, 1.0, 100.0), "entropy"),
    ],
)
def test_skew_falls_with_its_parameter(partition, option, values, what):
    found = [measured(what, partition, **{option: value}) for value in values]
    assert found == sorted(found) and found[0] < found[-1]
