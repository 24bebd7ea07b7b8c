import pyarrow as pa
import pytest

from fedjax_adapt.experiment import summary


def metrics(accuracy):
    n = len(accuracy)
    return pa.table(
        {
            "round": [2 * i + 2 for i in range(n)],
            "accuracy": accuracy,
            "loss": [1.0] * n,
            "local_steps": [10 * i for i in range(n)],
            "seconds": [0.5 * (i + 1) for i in range(n)],
        }
    )


def test_results_are_those_of_the_table():
    result = summary.results(metrics([0.1, 0.9, 0.5, 0.9]), (0.5, 0.9, 0.95))
    assert result["best_accuracy"] == 0.9 and result["best_round"] == 4
    assert result["rounds"] == 8 and result["accuracy"] == 0.9
    assert result["rounds_to"] == {"0.5": 4, "0.9": 4, "0.95": None}
    assert result["last_mean"] == pytest.approx(0.6)
    assert result["last_std"] == pytest.approx((0.44 / 4) ** 0.5)
    assert result["rounds_per_second"] == pytest.approx(4.0)
    assert result["local_steps"] == 30


def test_the_mean_at_the_end_is_over_the_last_fifty():
    result = summary.results(metrics([0.0] * 30 + [0.5] * 50), ())
    assert (result["last_mean"], result["last_std"]) == (0.5, 0.0)
    assert result["last_count"] == 50


def test_the_evidence_names_the_machine_and_the_versions():
    assert summary.hardware()["platform"] == "cpu"
    assert summary.hardware()["cpu"] and summary.hardware()["cores"] >= 1
    assert {"jax", "jaxlib", "python", "fedjax-adapt"} <= set(summary.versions())
