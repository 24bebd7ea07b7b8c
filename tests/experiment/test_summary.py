import jax
import jax.numpy as jnp
import numpy as np
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
            "public_steps": [3 * i for i in range(n)],
            "bytes_down": [100 * i for i in range(n)],
            "bytes_up": [50 * i for i in range(n)],
            "simulated_seconds": [0.5 * i for i in range(n)],
            "seconds": [0.5 * (i + 1) for i in range(n)],
        }
    )


def test_a_target_is_reached_by_so_many_right_answers_exactly():
    for right, of, target in ((9000, 10000, 0.9), (9500, 10000, 0.95), (324, 360, 0.9)):
        accuracy = [float(np.float32(n) / np.float32(of)) for n in (right - 1, right)]
        assert summary.results(metrics(accuracy), (target,))["rounds_to"] == {
            f"{target:g}": 4
        }


def test_results_are_those_of_the_table():
    result = summary.results(metrics([0.1, 0.9, 0.5, 0.9]), (0.5, 0.9, 0.95))
    assert result["best_accuracy"] == 0.9 and result["best_round"] == 4
    assert result["rounds"] == 8 and result["accuracy"] == 0.9
    assert result["rounds_to"] == {"0.5": 4, "0.9": 4, "0.95": None}
    assert result["last_mean"] == pytest.approx(0.6)
    assert result["last_std"] == pytest.approx((0.44 / 4) ** 0.5)
    assert result["rounds_per_second"] == pytest.approx(4.0)
    assert (result["local_steps"], result["public_steps"]) == (30, 9)
    assert (result["wasted_bytes"], result["wasted_steps"]) == (0, 0)  # no such columns
    moved = (result["bytes_down"], result["bytes_up"])
    assert moved == (300, 150) and result["simulated_seconds"] == 1.5


def test_the_best_is_of_the_evaluations_that_have_a_number():
    result = summary.results(metrics([0.1, float("nan"), 0.5, 0.3]), (0.5,))
    assert (result["best_accuracy"], result["best_round"]) == (0.5, 6)
    assert result["rounds_to"] == {"0.5": 6}
    below = summary.results(metrics([-3.0, float("nan"), -2.0]), (0.5,))
    assert below["best_accuracy"] == -2.0  # of one's own, as minus an error


def test_other_models_have_figures_of_their_own():
    table = metrics([0.1, 0.9, 0.5, 0.9])
    for name, values in {"accuracy_sel": [0.2] * 4, "loss_sel": [2.0] * 4}.items():
        table = table.append_column(name, [values])
    result = summary.results(table, (0.2,))
    assert result["accuracy"] == 0.9 and list(result["models"]) == ["sel"]
    sel = result["models"]["sel"]
    assert sel["accuracy"] == sel["last_mean"] == pytest.approx(0.2)
    assert sel["loss"] == 2.0 and sel["rounds_to"] == {"0.2": 2}
    assert set(sel) < set(result)


def test_the_area_under_the_curve_is_a_mean_over_rounds():
    area = lambda *pairs: summary.area_under_curve(
        *map(np.array, zip(*pairs, strict=True))
    )
    assert area((7, 0.3)) == 0.3
    assert area((2, 0.0), (4, 1.0)) == 0.5
    assert area((2, 0.0), (4, 1.0), (10, 1.0)) == pytest.approx((1 + 6) / 8)
    assert area((1, 0.6), (5, 0.6), (6, 0.6)) == pytest.approx(0.6)


def test_clients_without_examples_are_in_no_mean():
    spread = summary.spread_over_clients([0.5, None, *[1.0] * 10])
    assert spread["min"] == 0.5 and spread["mean"] == pytest.approx(10.5 / 11)
    assert spread["worst_tenth"] == pytest.approx(0.75)  # of the worst 2 of 11
    assert spread["std"] == pytest.approx(np.std([0.5, *[1.0] * 10]))


def test_a_class_that_is_never_tested_has_no_accuracy(caplog):
    assert summary.known_shares([1.0, 0.0, 0.0], [2, 0, 1]) == [1.0, None, 0.0]
    # JAX compiles a program to take the elements of its array one by one
    fetched = jnp.array([0.5, 0.25])
    with jax.log_compiles(), caplog.at_level("WARNING"):
        assert summary.known_shares(fetched, np.array([2, 0])) == [0.5, None]
    assert not caplog.records


def test_the_mean_at_the_end_is_over_the_last_fifty():
    result = summary.results(metrics([0.0] * 30 + [0.5] * 50), ())
    assert (result["last_mean"], result["last_std"]) == (0.5, 0.0)
    assert result["last_count"] == 50


def test_the_evidence_names_the_machine_and_the_versions():
    assert summary.hardware()["platform"] == "cpu"
    assert summary.hardware()["cpu"] and summary.hardware()["cores"] >= 1
    assert {"jax", "jaxlib", "python", "fedjax-adapt"} <= set(summary.versions())


def test_what_is_reported_is_the_methods_own_and_of_the_last_round():
    columns = {"round": [1, 2], "accuracy": [0.1, 0.2], "loss_sel": [1.0, 2.0]}
    own = {
        "tau": [5.0, 4.0],
        "parameter_0": [0.1, 0.2],
        "parameter_1": [0.1, 0.2],
        "gone": [1.0, None],  # shown before the run was resumed, and no longer
        "nan": [0.0, float("nan")],
    }
    found = summary.reported(pa.table(columns | own), watched=1)
    assert found == {"tau": 4.0, "parameter_1": 0.2, "gone": None, "nan": None}
