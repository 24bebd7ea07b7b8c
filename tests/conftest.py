"""Strict JAX for every test: ranks never promote silently, warnings are errors."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import pytest
from helpers import make_data, make_task

jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.local_devices()  # begin now: a run of the command line would choose as many as cores


@pytest.fixture
def x64():
    """Double precision, for comparisons with float64 NumPy."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def task():
    return make_task()


@pytest.fixture(scope="session")
def data():
    return make_data()
