"""Reads the real files, where FEDJAX_ADAPT_DATA says there are some."""

import os

import numpy as np
import pytest

from fedjax_adapt.data import load


def load_or_skip(name, **options):
    if not os.environ.get("FEDJAX_ADAPT_DATA"):
        pytest.skip("FEDJAX_ADAPT_DATA is not set")
    try:
        return load(name, **options)
    except ValueError as error:
        if "not found" in str(error) or "no files found" in str(error):
            pytest.skip(f"no {name} in FEDJAX_ADAPT_DATA")
        raise


def test_mnist_has_its_published_sizes_and_moments():
    source = load_or_skip("mnist")
    assert source.x_train.shape == (60_000, 28, 28, 1)
    assert source.x_test.shape == (10_000, 28, 28, 1)
    assert source.x_train.mean() == pytest.approx(source.mean, rel=1e-3)
    assert source.x_train.std() == pytest.approx(source.std, rel=1e-3)
    assert np.bincount(source.y_test).tolist()[:3] == [980, 1135, 1032]


def test_emnist_letters_is_the_published_subset():
    source = load_or_skip("emnist_letters")
    assert np.bincount(source.y_train).tolist() == [4800] * 10
    assert np.bincount(source.y_test).tolist() == [800] * 10


def test_cifar10_has_its_published_sizes_and_moments():
    source = load_or_skip("cifar10")
    assert np.bincount(source.y_train).tolist() == [5000] * 10
    assert source.x_test.shape == (10_000, 32, 32, 3)
    assert source.x_train[::7].mean((0, 1, 2)) == pytest.approx(source.mean, rel=1e-2)
