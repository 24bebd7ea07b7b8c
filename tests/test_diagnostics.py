"""What figures of papers show, against NumPy, by hand and against rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import linear_task, make_data, quadratic_task, start

import fedjax_adapt as fa
from fedjax_adapt import diagnostics
from fedjax_adapt.engine.mesh import sharding
from fedjax_adapt.errors import SettingError


@pytest.mark.slow
def test_central_params_are_those_of_sgd_on_all_data(x64):
    data, task = make_data(dtype=np.float64), quadratic_task(jnp.float64)
    curvature = np.asarray(data.y, np.float64)
    plan = fa.Plan(batch_size=None, lr=0.05, weight_decay=0.01, cohort_size=2)
    params = jnp.arange(data.x.shape[1], dtype=jnp.float64)
    found = diagnostics.central_params(
        task, data, plan, params, jax.random.key(0), num_steps=3
    )
    theta, x = np.array(params), np.asarray(data.x, np.float64)
    for _ in range(3):
        gradient = (curvature[:, None] * (theta - x)).mean(0)
        theta = theta - 0.05 * (gradient + 0.01 * theta)
    np.testing.assert_allclose(found, theta, rtol=1e-12)


def test_distance_is_euclidean():
    a = {"w": jnp.array([[1.0, 2.0]]), "b": jnp.array(0.0)}
    b = {"w": jnp.array([[3.0, 2.0]]), "b": jnp.array(1.5)}
    assert float(diagnostics.distance(a, b)) == pytest.approx(2.5)


@pytest.mark.parametrize("shape", [(3, 2), (1,), (2, 1)])
def test_there_is_no_distance_to_a_model_of_another_shape(shape):
    with pytest.raises(SettingError, match="give two of the same parameters"):
        diagnostics.distance({"w": jnp.ones(2)}, {"w": jnp.ones(shape)})


def test_models_of_plans_on_other_devices_have_a_distance():
    model = {"w": jnp.arange(3.0), "b": jnp.ones(())}
    one, four = (jax.device_put(model, sharding(n)) for n in (1, 4))
    assert diagnostics.distance(one, four) == 0
    assert diagnostics.distance(four, one) == 0
    assert jax.jit(diagnostics.distance)(four, four) == 0


def test_consistency_is_of_each_layer():
    deltas = {
        "agree": jnp.array([[1.0, -2.0], [3.0, -1.0]]),
        "cancel": jnp.array([[1.0], [-1.0]]),
        "mixed": jnp.array([[3.0, 0.0], [-1.0, 0.0]]),  # |2| by 4, and 0/0 = 0
    }
    found = diagnostics.consistency_by_layer(deltas)
    assert found == {
        "agree": pytest.approx(1.0),
        "cancel": pytest.approx(0.0),
        "mixed": pytest.approx(0.25),
    }


@pytest.mark.slow
def test_consistency_of_a_round_is_what_gift_sees(task, data):
    algorithm = fa.show_deltas(
        fa.algorithms.gift(2, theta=0.0, reduce="mean_abs_ratio")
    )
    plan = fa.Plan(batch_size=4)
    round_fn, state = start(algorithm, task, data, plan)
    after, info = jax.jit(round_fn)(state, jax.random.key(3))
    by_layer = diagnostics.consistency_by_layer(info.clients)
    sizes = {"w": state.params["w"].size, "b": state.params["b"].size}
    mean = sum(by_layer[n] * sizes[n] for n in sizes) / sum(sizes.values())
    np.testing.assert_allclose(after.policy.consistency, mean, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps, nats",
    [([5, 5, 5, 5], np.log(4)), ([7, 0, 0], 0), ([0, 0], 0), ([3, 1], 0.5623)],
)
def test_entropy_of_steps(steps, nats):
    np.testing.assert_allclose(diagnostics.step_entropy(steps), nats, atol=1e-4)
    both = diagnostics.step_entropy([steps, steps])
    np.testing.assert_allclose(both, [nats, nats], atol=1e-4)


@pytest.mark.slow
def test_refinement_by_class_is_of_the_round_without_and_with_it(task, data):
    plan, key = fa.Plan(batch_size=4), jax.random.key(5)
    refined, plain = fa.algorithms.fnr(epochs=3, weight=0.1), fa.algorithms.fedavg()
    round_fn, state = start(refined, task, data, plan)
    before, after = diagnostics.refinement_by_class(
        refined, task, data, plan, state, key
    )
    of = lambda params: fa.class_accuracy(task, params, data.test, data.num_classes)
    np.testing.assert_array_equal(after, of(jax.jit(round_fn)(state, key)[0].params))
    other, begin = start(plain, task, data, plan)
    begin = begin._replace(params=state.params)
    np.testing.assert_array_equal(before, of(jax.jit(other)(begin, key)[0].params))
    assert (np.asarray(before) != np.asarray(after)).any()


@pytest.mark.slow
def test_a_refinement_that_keeps_something_can_be_left_out(task, data):
    plan, key = fa.Plan(batch_size=4), jax.random.key(5)
    fedgen = fa.algorithms.fedgen(hidden=4, generator_steps=1)
    round_fn, state = start(fedgen, task, data, plan)
    state, _ = jax.jit(round_fn)(state, key)  # clients read what it keeps from here on
    before, after = diagnostics.refinement_by_class(
        fedgen, task, data, plan, state, key
    )
    np.testing.assert_array_equal(before, after)  # it changes the generator alone


def test_mistakes_are_told(task, data):
    plan, key = fa.Plan(batch_size=4), jax.random.key(5)
    _, state = start(fa.algorithms.fedavg(), task, data, plan)
    with pytest.raises(SettingError, match="without a refinement; write"):
        diagnostics.refinement_by_class(
            fa.algorithms.fedavg(), task, data, plan, state, key
        )
    with pytest.raises(SettingError, match="num_steps=0"):
        diagnostics.central_params(task, data, plan, state.params, key, 0)


@pytest.mark.slow
def test_central_params_know_no_cap_and_no_clock(task, data):
    plan, key = fa.Plan(batch_size=4), jax.random.key(5)
    params = task.init(key)
    capped = fa.Plan(batch_size=4, max_steps=1, clock=fa.Clock(step_seconds=1.0))
    found = [
        diagnostics.central_params(task, data, which, params, key, 3)
        for which in (plan, capped)
    ]
    np.testing.assert_array_equal(found[0]["w"], found[1]["w"])


@pytest.mark.slow
@pytest.mark.parametrize("base", [fa.algorithms.fedavg(), fa.algorithms.adacomm(3)])
def test_the_distance_to_gradient_descent_on_all_data_is_shown(base, x64):
    data, task = make_data(dtype=np.float64), quadratic_task(jnp.float64)
    plan = fa.Plan(batch_size=4, lr=0.05, lr_decay=0.5)
    algorithm = diagnostics.show_distance(base, 3)
    round_fn, state = start(algorithm, task, data, plan)
    other, plain = start(base, task, data, plan)
    x, curvature = np.asarray(data.x), np.asarray(data.y, np.float64)
    for lr in (0.05, 0.025):
        theta = np.array(state.params)
        for _ in range(3):
            theta -= lr * (curvature[:, None] * (theta - x)).mean(0)
        key = jax.random.key(int(1000 * lr))
        state, info = jax.jit(round_fn)(state, key)
        plain, own = jax.jit(other)(plain, key)
        np.testing.assert_array_equal(state.params, plain.params)
        found = info.policy["ideal_distance"]
        expected = np.linalg.norm(np.asarray(state.params) - theta)
        np.testing.assert_allclose(found, expected, rtol=1e-9)
        assert set(info.policy) == {*own.policy, "ideal_distance"}


def test_the_distance_of_a_model_in_half_precision_is_shown(data):
    algorithm = diagnostics.show_distance(fa.algorithms.fedavg(), 3)
    round_fn, state = start(algorithm, linear_task(jnp.bfloat16), data)
    _, info = jax.eval_shape(round_fn, state, jax.random.key(1))
    assert info.policy["ideal_distance"].shape == ()


def test_gradient_descent_on_the_data_of_one_client_that_holds_all_is_the_ideal(x64):
    """Full batches of the pooled data are what the distance is to."""
    data, task = make_data(dtype=np.float64).pooled(), quadratic_task(jnp.float64)
    plan = fa.Plan(batch_size=None, lr=0.05)
    algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.constant_steps(5))
    algorithm = diagnostics.show_distance(algorithm, 5)
    round_fn, state = start(algorithm, task, data, plan)
    _, info = jax.jit(round_fn)(state, jax.random.key(1))
    np.testing.assert_allclose(info.policy["ideal_distance"], 0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("base", [fa.algorithms.fednova(), fa.algorithms.gift(4)])
def test_watched_parameters_are_the_models_and_gradients_what_clients_followed(
    base, x64
):
    """Of all entries, in whatever order they are drawn; full batches in NumPy."""
    data, task = make_data(dtype=np.float64), quadratic_task(jnp.float64)
    plan = fa.Plan(batch_size=None, lr=0.05)
    algorithm = diagnostics.show_parameters(base, 4)
    round_fn, state = start(algorithm, task, data, plan)
    other, plain = start(base, task, data, plan)
    after, info = jax.jit(round_fn)(state, jax.random.key(3))
    own, was = jax.jit(other)(plain, jax.random.key(3))
    np.testing.assert_array_equal(after.params, own.params)
    shown = [float(info.policy[f"parameter_{i}"]) for i in range(4)]
    order = [shown.index(value) for value in np.asarray(after.params)]
    gradients = np.array([info.clients[f"gradient_{i}"] for i in order])
    x, curvature = np.asarray(data.x), np.asarray(data.y, np.float64)
    for client, rows in enumerate(data.rows()):
        theta, seen = np.array(state.params), []
        for _ in range(int(info.num_steps[client])):
            seen.append((curvature[rows, None] * (theta - x[rows])).mean(0))
            theta = theta - 0.05 * seen[-1]
        np.testing.assert_allclose(gradients[:, client], np.mean(seen, 0), rtol=1e-9)
    assert set(info.policy) == {*was.policy, *(f"parameter_{i}" for i in range(4))}
    own = dict(was.clients or {})
    assert set(info.clients) == {*own, *(f"gradient_{i}" for i in range(4))}


@pytest.mark.slow
def test_gradients_under_momentum_are_of_as_far_as_its_steps_go(data):
    """A gradient that never changes is shown as it is, whatever the momentum."""
    shown = []
    for momentum in (0.0, 0.9):
        plan = fa.Plan(batch_size=None, lr=0.1, momentum=momentum)
        steady = linear_task()
        algorithm = fa.with_steps(fa.algorithms.fedavg(), fa.constant_steps(3))
        round_fn, state = start(
            diagnostics.show_parameters(algorithm, 2), steady, data, plan
        )
        _, info = jax.jit(round_fn)(state, jax.random.key(3))
        shown.append(info.clients["gradient_1"])
    np.testing.assert_allclose(*shown, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [16, 10**9])  # of which no list could be made
def test_no_more_parameters_than_there_are(task, data, count):
    algorithm = diagnostics.show_parameters(fa.algorithms.fedavg(), count)
    says = f"{count} parameters are to be shown but the model has 15; ask for fewer"
    with pytest.raises(SettingError, match=says):
        start(algorithm, task, data, fa.Plan(batch_size=4))
