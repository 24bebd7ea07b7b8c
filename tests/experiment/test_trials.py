import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import same

from fedjax_adapt.core import State
from fedjax_adapt.engine import memory
from fedjax_adapt.experiment.sweeps import compiled_group
from fedjax_adapt.experiment.sweeps.compiled_group import Layout


def one(shared, own, x):
    """A loop whose length is the trial's own."""
    return jax.lax.fori_loop(0, own, lambda i, x: x * shared + i, x), own


@pytest.mark.parametrize("layout", [Layout(1, 4), Layout(4, 1), Layout(2, 2)])
def test_trials_beside_each_other_are_trials_alone(layout):
    own, x = jnp.arange(4) + 1, jnp.linspace(0.5, 2.0, 4)
    alone = [one(3.0, n, start) for n, start in zip(own, x, strict=True)]
    alone = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    placed = compiled_group.placed((own, x), layout)
    assert same(jax.jit(compiled_group.over(one, layout))(3.0, *placed), alone)


def test_one_trial_on_a_device_is_not_batched():
    traced = jax.make_jaxpr(compiled_group.over(lambda w, x: x @ w, Layout(1, 1)))
    text = str(traced(jnp.ones((3, 3)), jnp.ones((1, 2, 3))))
    assert "dot_general" in text and "f32[2,3] = dot_general" in text


STATE = State({"w": jax.ShapeDtypeStruct((1000,), np.float32)}, (), (), (), ())


def chosen(side_by_side, num_trials, devices=1, lanes=1, batch=(20, 4), state=STATE):
    return compiled_group.choose_layout(
        side_by_side, num_trials, devices, lambda devices: lanes, state, batch
    )


def test_a_cpu_has_as_many_models_at_once_as_clients_of_one_run():
    assert chosen("auto", 30) == Layout(1, 10)
    assert chosen("auto", 12) == Layout(1, 6)  # evenly
    assert chosen("auto", 30, lanes=5) == Layout(1, 2)
    assert chosen("auto", 30, lanes=10) == Layout(1, 1)
    assert chosen("auto", 30, batch=(50, 4)) == Layout(1, 1)
    assert chosen("auto", 30, devices=4) == Layout(4, 1)  # cores with one model each


def test_an_accelerator_has_all_that_fit(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert chosen("auto", 30, lanes=3).each == 30
    assert chosen("auto", 30, devices=4).each == 8
    each = memory.guessed_bytes(STATE, 3, (20, 4))
    monkeypatch.setattr(memory, "free_memory", lambda: 12 * each)
    assert chosen("auto", 30, lanes=3).each == 8  # 4 calls of at most 9
    monkeypatch.setattr(memory, "free_memory", lambda: 0)
    assert chosen("auto", 30).each == 1


def test_who_says_how_many_gets_no_more_than_there_are():
    assert chosen(4, 30) == Layout(1, 4)
    assert chosen(100, 30) == Layout(1, 30)
    assert chosen(5, 8, devices=2) == Layout(2, 4)
    assert chosen(3, 9, devices=2) == Layout(2, 3)  # 5 on a device: 3 and 2
    with pytest.raises(ValueError, match="devices=99 but JAX sees 4"):
        chosen(1, 100, devices=99)
