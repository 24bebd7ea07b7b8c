"""AFL's and FedVeca's support vector machine: its loss, its logits and its labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.models import svm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RNG.normal(size=8) < 0).astype(np.int32)
W = np.arange(4.0) / 2
TASK = fa.classification(svm((4,), 2), (4,))
PARAMS = {"out": {"kernel": jnp.asarray(W, jnp.float32)[:, None]}}


def expected_loss(w, x, y):
    """0.05 ||w||^2 + half the squared hinge of each example; even is +1, odd -1."""
    slack = np.maximum(0, 1 - np.where(y == 0, 1, -1) * (x @ w))
    return 0.05 * w @ w + slack**2 / 2


def expected_gradient(w, x, y):
    sign = np.where(y == 0, 1, -1)
    return 0.1 * w - (sign * np.maximum(0, 1 - sign * (x @ w))) @ x / len(y)


def test_it_has_as_many_parameters_as_inputs_and_all_are_0_at_first():
    task = fa.classification(svm((28, 28, 1), 2), (28, 28, 1))
    params = task.init(jax.random.key(0))
    assert fa.num_parameters(params) == 784
    assert not any(leaf.any() for leaf in jax.tree.leaves(params))


@pytest.mark.slow
def test_the_logits_tell_the_score_and_the_loss_has_the_norm_of_the_weights():
    score = X @ W
    outputs = TASK.apply(PARAMS, X)
    expected = np.stack([score, -score], 1) / 2 + 0.05 * W @ W
    np.testing.assert_allclose(outputs.logits, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(outputs.features, X)
    for label in (0, 1):
        y = np.full(8, label, np.int32)
        losses = TASK.loss(outputs.logits, y)
        np.testing.assert_allclose(losses, expected_loss(W, X, y), rtol=1e-4, atol=1e-6)
    found = fa.evaluate(TASK, PARAMS, (X, Y))
    assert found.accuracy == np.mean((score > 0) == (Y == 0))
    np.testing.assert_allclose(found.loss, expected_loss(W, X, Y).mean(), rtol=1e-5)


@pytest.mark.slow
def test_five_rounds_are_those_of_a_program_in_float64():
    data = fa.FederatedDataset.from_clients(
        [(X[:5], Y[:5]), (X[5:], Y[5:])], num_classes=2
    )
    algorithm = fa.with_steps(fedavg(), fa.constant_steps(3))
    plan = fa.Plan(batch_size=None, lr=0.3)
    state = fa.init_state(algorithm, TASK, data, plan, jax.random.key(0))
    round_fn = jax.jit(fa.make_round(algorithm, TASK, data, plan))
    w = np.zeros(4)
    for key in jax.random.split(jax.random.key(1), 5):
        state, info = round_fn(state, key)
        local, losses = [], []
        for own in (slice(0, 5), slice(5, 8)):
            x, y, v = X[own].astype(float), Y[own], w
            of_steps = []
            for _ in range(3):
                of_steps.append(expected_loss(v, x, y).mean())
                v = v - 0.3 * expected_gradient(v, x, y)
            local.append(v)
            losses.append(np.mean(of_steps))
        w = (5 * local[0] + 3 * local[1]) / 8
        np.testing.assert_allclose(info.loss, losses, rtol=1e-5)
        np.testing.assert_allclose(
            state.params["out"]["kernel"][:, 0], w, rtol=1e-5, atol=1e-6
        )
    assert abs(w).max() > 0.1


@pytest.mark.slow
def test_gradient_moments_see_the_term_that_no_example_has_its_own_of():
    batch = fa.Batch(jnp.asarray(X), jnp.asarray(Y), jnp.ones(8))
    found = fa.gradient_moments(TASK, PARAMS, batch)
    each = np.stack([expected_gradient(W, X[[i]], Y[[i]]) for i in range(8)])
    mean, var = (tree["out"]["kernel"][:, 0] for tree in (found.mean, found.var))
    np.testing.assert_allclose(mean, each.mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var, each.var(0), rtol=1e-4, atol=1e-6)


def test_more_classes_are_refused_with_what_to_write():
    with pytest.raises(ValueError, match="2 classes apart.*have 10; write labels=par"):
        svm((4,), 10)
