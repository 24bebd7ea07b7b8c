import numpy as np
import pytest

from fedjax_adapt.data import skew


def test_skew_counts_what_clients_hold():
    labels = np.array([0, 0, 1, 1, 2, 2])
    rows = [np.array([0, 2, 4]), np.array([1]), np.array([], int), np.array([3, 5])]
    found = skew(rows, labels, 4)
    np.testing.assert_array_equal(found.sizes, [3, 1, 0, 2])
    np.testing.assert_array_equal(
        found.label_counts, [[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    )
    np.testing.assert_allclose(
        found.label_entropy, [np.log(3), 0, 0, np.log(2)], atol=1e-12
    )
    np.testing.assert_allclose(found.label_distance, [0, 2 / 3, 0, 1 / 3], atol=1e-12)
    assert found.mean_entropy == pytest.approx((np.log(3) + np.log(2)) / 3)
    assert found.summary().split("\n")[1] == (
        "labels per client of the 3 with examples 1 to 3 of 4 (mean 2.0), label entropy "
        "0.60 of 1.10 nats, distance from the whole 0.33"
    )


def test_the_summary_is_two_lines_with_the_numbers():
    labels = np.repeat([0, 1], 50)
    lines = skew([np.arange(70), np.arange(70, 100)], labels, 2).summary().split("\n")
    assert lines[0] == (
        "2 clients with 30 to 70 examples (mean 50.0, std 20.0, 100 in all)"
    )
    assert lines[1].startswith(
        "labels per client 1 to 2 of 2 (mean 1.5), label entropy"
    )
    assert "of 0.69 nats" in lines[1]


@pytest.mark.parametrize("num_classes", [2, 5])
def test_labels_nobody_holds_change_no_entropy(num_classes):
    found = skew([np.array([0, 1])], np.array([0, 1]), num_classes)
    assert found.label_entropy[0] == pytest.approx(np.log(2))
