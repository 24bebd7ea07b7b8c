"""What is compiled is let go: a process that trains many runs would end in an abort."""

import gc

import jax
import jax.numpy as jnp

from fedjax_adapt.engine import xla


def num_programs():
    gc.collect()
    return len(jax.devices()[0].client.live_executables())


def test_only_the_newest_programs_are_kept(monkeypatch):
    most, compiled = 3, []
    monkeypatch.setattr(xla, "MOST_PROGRAMS", most)

    @xla.jit_newest(static=1)
    def times(factor, x):
        compiled.append(factor)
        return factor * x

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
