"""benchmarks/fnr_table.py: its runs can be asked for, its table has no leakage in it."""

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest

from fedjax_adapt.experiment.build import build, build_algorithm
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.federation import uses_public

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def fnr_table():
    sys.path.insert(0, str(FOLDER))
    try:
        import fnr_table  # pyright: ignore[reportMissingImports]

        yield fnr_table
    finally:
        sys.path.remove(str(FOLDER))


def test_every_method_can_be_built_and_the_controls_use_what_they_control(fnr_table):
    for name, settings in fnr_table.METHODS.items():
        config = from_settings(fnr_table.COMMON | settings)
        asks = uses_public(build_algorithm(config))
        assert asks == ("FNR" in name or "control" in name), name


# what skews a client's labels, its number of examples and its inputs
EXPECTED = {
    "label": (True, True, False),
    "quantity": (False, True, False),
    "feature": (False, False, True),
    "label+feature": (True, True, True),
    "label+quantity": (True, True, False),
}


@pytest.mark.parametrize("skew", EXPECTED)
def test_the_five_skews_are_skewed_as_they_are_called(fnr_table, skew):
    small = {"dataset": "digits", "model": "linear", "num_clients": 10}
    found = build(from_settings(small | fnr_table.SKEWS[skew]))
    labels, sizes, inputs = EXPECTED[skew]
    # of log 10 = 2.3 nats, and of 144 examples
    assert (found.skew.label_entropy.mean() < 2.0) == labels
    assert (np.ptp(found.skew.sizes) > 20) == sizes
    assert found.skew.sizes.min() >= (1 if skew == "label+quantity" else 10)
    if not inputs:
        assert found.data.noise is None
        return
    ramp = 16 * 0.5 * np.arange(10) / 9  # digits reach from 0 to 16
    np.testing.assert_allclose(found.data.noise.std, ramp, rtol=1e-6)
    assert found.data.test[0].dtype == np.uint8  # and the test is clean


def line(fnr_table, method, accuracy, seed=0, trained=False, skew="label"):
    measured = {"accuracy": accuracy, "loss": 1.0}
    return {
        **{"method": method, "skew": skew, "seed": seed, "auxiliary": []},
        **{"bytes_up": 2**20, "bytes_down": 2**20},
        **{"local_steps": 12, "public_steps": 3},
        **({fnr_table.TRAINED: measured} if trained else measured),
    }


def test_training_accuracy_is_in_no_row_of_the_table(fnr_table):
    lines = [
        line(fnr_table, "FedAvg", 0.50),
        line(fnr_table, "FedAvg", 0.60, seed=1),
        line(fnr_table, fnr_table.PUBLISHED, 0.99, trained=True),
        line(fnr_table, fnr_table.EQUAL, 0.77),
    ]
    text = fnr_table.table(lines, ["label", "quantity"])
    assert "| FedAvg | nothing | 55.00 ± 5.00 |  | 2 | 12 | 3 | 2 |" in text
    assert "99" not in text and "77" not in text and "published" not in text
    below = fnr_table.leaks(lines)
    assert "training accuracy on the public set 99.00 %" in below
    assert "no test accuracy" in below and "FedAvg" not in below
    assert "held out, label skew, seed 0: test accuracy 77.00 %." in below


def test_the_pair_that_shows_leakage_differs_in_the_protocol_alone(fnr_table):
    """As many examples at the clients, in the public set and in the test set."""
    arguments = argparse.Namespace(
        seeds=[0], skews=[], only=[], published=True, rounds=2, train_examples=300
    )
    cells = fnr_table.cells_of(arguments)
    equal, leaky = (fnr_table.settings_of(cell, arguments) for cell in cells)
    assert equal.items() - leaky.items() == {
        ("public", "holdout"),
        ("public_examples", 10_000),  # CIFAR-10's test set
        ("train_examples", 10_300),
    }
    assert leaky.items() - equal.items() == {
        ("public", "published"),
        ("train_examples", 300),
    }
