import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SIZES, broken, close, fast, keys, linear_task, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, feddisco, fednova
from fedjax_adapt.valuation import cohort_weights

TEST = (jnp.eye(4), jnp.zeros(4, jnp.int32))
WEIGHTS = jnp.array([1.0, 2.0, 0.0, 3.0])


def deltas():
    return jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)), jnp.float32)


def worth(members):
    """- mean loss of the coalition's model, in NumPy: the loss is linear."""
    members = [k for k in members if WEIGHTS[k] > 0]
    if not members:
        return 0.0
    return -np.average(
        np.asarray(deltas())[members], 0, WEIGHTS[jnp.array(members)]
    ).mean()


@pytest.mark.slow
def test_leaving_one_out_is_what_it_says():
    found = fa.leave_one_out(linear_task(), jnp.zeros(4), deltas(), WEIGHTS, TEST)
    everyone = set(range(4))
    expected = [worth(everyone) - worth(everyone - {k}) for k in range(4)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found[2] == 0  # who has no weight


@pytest.mark.slow
def test_who_was_left_out_has_no_weight_and_no_value(task, data):
    algorithm, data = fa.show_deltas(fedavg()), broken(data, 3)
    plan = fa.Plan(batch_size=4, nonfinite_updates="leave_out")
    round_fn, state = start(algorithm, task, data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    weights = cohort_weights(algorithm, data, plan, info, 0)
    sizes = np.array(SIZES) * (np.arange(6) != 3)
    np.testing.assert_allclose(weights, sizes / sizes.sum(), rtol=1e-6)
    values = fa.leave_one_out(task, state.params, info.clients, weights, data.test)
    assert values[3] == 0 and np.isfinite(values).all()


@pytest.mark.slow
def test_shapley_values_are_those_of_all_orders():
    arguments = (
        linear_task(),
        jnp.zeros(4),
        deltas(),
        WEIGHTS,
        TEST,
        jax.random.key(0),
    )
    found = jax.jit(lambda: fa.shapley(*arguments, num_orders=3000))()
    exact = np.zeros(4)
    for order in itertools.permutations(range(4)):
        for j, k in enumerate(order):
            exact[k] += worth(order[: j + 1]) - worth(order[:j])
    np.testing.assert_allclose(found, exact / math.factorial(4), atol=0.02)
    np.testing.assert_allclose(found.sum(), worth(range(4)), atol=1e-4)
    # so wide a tolerance stops every order after its first client
    first = fa.shapley(*arguments, num_orders=3000, tolerance=100.0)
    alone = [worth([k]) / 4 for k in range(4)]
    np.testing.assert_allclose(first, alone, atol=0.05)


@pytest.mark.slow
def test_a_value_that_is_met_on_the_way_ends_no_order():
    """Accuracy: the first client alone already has what all have together."""
    task = fa.Task(
        init=lambda key: jnp.zeros(2),
        apply=lambda params, x: fa.Outputs(x @ jnp.diag(params)),
        loss=lambda logits, y: logits.sum(1),
    )
    test = jnp.eye(2), jnp.arange(2)
    deltas = jnp.array([[1.0, 2.0], [-4.0, 1.0], [4.0, -1.0]])
    arguments = (task, jnp.zeros(2), deltas, jnp.ones(3), test)

    def accuracy(members):
        params = deltas[jnp.array(members)].mean(0) if members else jnp.zeros(2)
        return float(fa.evaluate(task, params, test).accuracy)

    exact = np.zeros(3)
    for order in itertools.permutations(range(3)):
        for j, k in enumerate(order):
            exact[k] += accuracy(order[: j + 1]) - accuracy(order[:j])
    found = fa.shapley(*arguments, jax.random.key(0), num_orders=2000, value="accuracy")
    np.testing.assert_allclose(found, exact / 6, atol=0.03)


@pytest.mark.slow
def test_what_fednova_sends_is_no_displacement(task, data):
    ends = []
    for base in (fednova(), fedavg()):  # with steps alike they are the same
        algorithm = fa.with_steps(base, fa.constant_steps(3))
        round_fn, state = start(fa.show_deltas(algorithm), task, data)
        ends.append(jax.jit(round_fn)(state, keys(1)[0])[1].clients)
    close(*ends)


CASES = {
    "fedavg": fedavg,
    "uniform": lambda: fedavg("uniform"),
    "feddisco": feddisco,
}


@pytest.mark.slow
@pytest.mark.parametrize("make", fast(CASES, "fedavg"))
def test_a_round_shows_the_deltas_its_server_averages(task, data, make):
    algorithm = make()
    plan = fa.Plan(participation=fa.bernoulli(0.5), batch_size=4)
    round_fn, state = start(fa.show_deltas(algorithm), task, data, plan)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    weights = cohort_weights(algorithm, data, plan, info, 0)
    idle = info.num_steps == 0
    assert idle.any() and not weights[idle].any()
    if make is fedavg:
        sizes = np.append(data.size, 0)[info.cohort]
        np.testing.assert_allclose(weights, sizes / sizes.sum(), rtol=1e-6)
    mean = jax.tree.map(lambda leaf: np.average(leaf, 0, weights), info.clients)
    close(jax.tree.map(jnp.add, state.params, mean), after.params)


@pytest.mark.slow
def test_the_weights_of_a_private_mean_are_of_the_clients_that_are_expected(task, data):
    algorithm = fa.with_privacy(fedavg(), 1e6, 0.0)  # clips nothing
    plan = fa.Plan(participation=fa.bernoulli(0.2), batch_size=4)
    round_fn, state = start(fa.show_deltas(algorithm), task, data, plan)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    weights = cohort_weights(algorithm, data, plan, info, 0)
    come = 0.2 * 6 / (1 - 0.8**6)
    np.testing.assert_allclose(weights, (info.num_steps > 0) / come, rtol=1e-6)
    moved = jax.tree.map(lambda leaf: np.tensordot(weights, leaf, 1), info.clients)
    close(jax.tree.map(jnp.add, state.params, moved), after.params)


def test_a_cohort_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="there are 3 weights but deltas of 4 clients"):
        fa.leave_one_out(linear_task(), jnp.zeros(4), deltas(), WEIGHTS[:3], TEST)
    for weight in (-0.5, np.nan):
        bad = WEIGHTS.at[2].set(weight)
        with pytest.raises(ValueError, match=r"weights\[2\] is .* of at least 0"):
            fa.shapley(linear_task(), jnp.zeros(4), deltas(), bad, TEST, keys(1)[0])
    with pytest.raises(ValueError, match="value='wrong' is unknown"):
        fa.leave_one_out(
            linear_task(), jnp.zeros(4), deltas(), WEIGHTS, TEST, value="wrong"
        )


@pytest.mark.parametrize(
    "weights, moves, says",
    [
        (WEIGHTS[:, None], deltas(), r"weights have shape \[4, 1\]; write one number"),
        (
            WEIGHTS,
            deltas()[:, :1],
            r"deltas are float32\[4, 1\] for .* float32\[4\]; give",
        ),
        (WEIGHTS, {"w": deltas()}, "deltas are {'w': .* show_deltas"),
    ],
)
def test_deltas_of_another_model_are_refused(weights, moves, says):
    with pytest.raises(ValueError, match=says):
        fa.leave_one_out(linear_task(), jnp.zeros(4), moves, weights, TEST)


def test_what_is_no_key_is_refused():
    with pytest.raises(ValueError, match="shapley got an array for key; write shapley"):
        fa.shapley(linear_task(), jnp.zeros(4), deltas(), WEIGHTS, TEST, keys(2))
