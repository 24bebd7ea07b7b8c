import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_adapt.models.xla import apart


def doubled(x):
    return apart(lambda y: {"flat": y.reshape(-1) * 2}, x + 1)["flat"]


@pytest.mark.parametrize(
    ("function", "shape"), [(doubled, (3, 4)), (jax.vmap(doubled), (2, 3, 4))]
)
def test_a_branch_that_xla_keeps_is_always_taken(function, shape):
    x = jnp.arange(float(np.prod(shape))).reshape(shape)
    program = jax.jit(function).lower(x).compile()
    assert " conditional(" in program.as_text()
    flat = np.reshape(2 * np.asarray(x) + 2, (*shape[:-2], -1))
    np.testing.assert_array_equal(program(x), flat)


def test_on_an_accelerator_nobody_waits_for_the_host(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    # a function of its own: JAX keeps what it traced of the other on a CPU
    jaxpr = str(jax.make_jaxpr(lambda x: doubled(x))(jnp.ones((3, 4))))
    assert "cond" not in jaxpr
    np.testing.assert_array_equal(doubled(jnp.ones((3, 4))), np.full(12, 4))
