"""The examples in docstrings print what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa

PACKAGE = Path(fa.__file__).parent
MODULES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_what_an_example_prints_is_what_it_says(name):
    if name.endswith("privacy"):
        pytest.importorskip("dp_accounting")
    module, names = import_module(name), {"fa": fa, "jnp": jnp, "np": np}
    found = doctest.testmod(module, extraglobs=names)
    assert found.attempted > 0 and found.failed == 0


def test_there_are_examples():
    assert len(MODULES) >= 9
