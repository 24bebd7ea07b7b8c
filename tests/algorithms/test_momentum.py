"""Control variates under local momentum: they stay means of gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import distance_to_optimum
from helpers import fast, keys, linear_task, make_clients, make_data, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import feddc, fedssg, scaffold
from fedjax_adapt.core import effective_steps

OWN = {"correction_lr": "round", "correction_steps": "actual"}
ALGORITHMS = {
    "scaffold": scaffold,
    "feddc": partial(feddc, alpha=0, **OWN),
    "fedssg": partial(fedssg, total_rounds=300, **OWN, correction_gated=False),
}


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 7, 200])
def test_effective_steps_are_the_recursion_itself(x64, momentum, steps):
    distance = velocity = 0.0
    for _ in range(max(steps, 1)):
        velocity = momentum * velocity + 1
        distance += velocity
    found = float(effective_steps(jnp.int32(steps), momentum))
    assert found == pytest.approx(distance, rel=1e-12)
    if not momentum:
        assert found == max(steps, 1)


@pytest.mark.parametrize("make", fast(ALGORITHMS, "scaffold", "fedssg"))
def test_of_a_constant_gradient_they_are_that_gradient(x64, make):
    """The first round, where nothing corrects yet; client i's gradient is its mean x."""
    data = make_data(dtype=np.float64)
    plan = fa.Plan(lr=0.01, momentum=0.9, batch_size=None)
    algorithm = fa.with_steps(make(), fa.constant_steps(6))
    round_fn, state = start(algorithm, linear_task(jnp.float64), data, plan)
    state, _ = jax.jit(round_fn)(state, keys(1)[0])
    control = state.clients
    control = getattr(control, "control", control)
    expected = [x.mean(0) for x, _ in make_clients(dtype=np.float64)]
    np.testing.assert_allclose(control, expected, rtol=1e-9)


@pytest.mark.slow
def test_scaffold_reaches_the_optimum_with_momentum(x64):
    """With K in their place variates are ten times the gradients, and it diverges."""
    assert distance_to_optimum(scaffold(), momentum=0.9) < 1e-5
