"""What is compiled is let go: a process that trains many runs would end in an abort.

And what tells XLA an order changes no number.
"""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_adapt.engine import xla


def num_programs():
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


@pytest.mark.slow
def test_only_the_newest_programs_are_kept(monkeypatch):
    most, compiled = 3, []
    monkeypatch.setattr(xla, "MOST_PROGRAMS", most)

    @xla.jit_newest(static=1)
    def times(factor, x):
        compiled.append(factor)
        return factor * x

    jax.clear_caches()  # of some thousand programs JAX lets the oldest go as well
    x = jnp.arange(3)
    before = num_programs()
    for factor in range(most + 4):
        for _ in range(2):
            assert times(factor, x).tolist() == [0, factor, 2 * factor]
    assert compiled == list(range(most + 4))
    assert num_programs() - before == most
    times(0, x)
    assert compiled[-1] == 0  # again: it was let go
    del times
    assert num_programs() == before


@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, np.nan, np.inf])
def test_an_index_that_waits_for_numbers_stays_what_it_is(value):
    """Whatever they are: clients' measurements may be NaN."""
    made = {"first": jnp.full((2, 3), value), "none": jnp.zeros((0, 3))}
    made |= {"whole": jnp.arange(2), "half": jnp.full(2, value, jnp.bfloat16)}
    for index in (jnp.int32(3), jnp.arange(4), jnp.zeros(2, jnp.int32)):
        waits = jax.jit(xla.known_after)(index, made)
        assert waits.dtype == index.dtype
        np.testing.assert_array_equal(waits, index)
