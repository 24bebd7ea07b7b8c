"""FedVeca's support vector machine: the squared hinge, its logits and its labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg
from fedjax_adapt.models import svm

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 4)).astype(np.float32)
Y = (X[:, 0] + 0.3 * RNG.normal(size=8) > 0).astype(np.int32)
TASK = fa.classification(svm((4,), 2), (4,))
PARAMS = {"out": {"kernel": jnp.arange(4.0)[:, None] / 2, "bias": jnp.full(1, 0.1)}}


def test_it_has_as_many_parameters_as_inputs_and_one():
    task = fa.classification(svm((28, 28, 1), 2), (28, 28, 1))
    assert fa.num_parameters(jax.eval_shape(task.init, jax.random.key(0))) == 785


def test_the_logits_are_the_score_and_the_loss_is_its_squared_hinge():
    score = X @ np.arange(4.0) / 2 + 0.1
    outputs = TASK.apply(PARAMS, X)
    np.testing.assert_allclose(
        outputs.logits, np.stack([-score, score], 1) / 2, rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(outputs.features, X)
    for label, sign in ((0, -1), (1, 1)):
        losses = TASK.loss(outputs.logits, np.full(8, label, np.int32))
        hinge = np.maximum(0, 1 - sign * score) ** 2
        np.testing.assert_allclose(losses, hinge, rtol=1e-4, atol=1e-6)
    accuracy = fa.evaluate(TASK, PARAMS, (X, Y)).accuracy
    assert accuracy == np.mean((score > 0) == Y)


def test_a_round_is_a_step_along_the_hinges_gradient():
    data = fa.FederatedDataset.from_clients(
        [(X[:4], Y[:4]), (X[4:], Y[4:])], num_classes=2
    )
    plan = fa.Plan(batch_size=None, lr=0.1, weight_decay=0.5)
    state = fa.init_state(fedavg(), TASK, data, plan, jax.random.key(0))
    state = state._replace(params=PARAMS)
    after, info = jax.jit(fa.make_round(fedavg(), TASK, data, plan))(
        state, jax.random.key(1)
    )
    w, sign = np.r_[np.arange(4.0) / 2, 0.1], 2.0 * Y - 1
    x = np.c_[X, np.ones(8)]
    slack = np.maximum(0, 1 - sign * (x @ w))
    gradient = -2 * (slack * sign) @ x / 8 + 0.5 * w
    moved = np.r_[after.params["out"]["kernel"][:, 0], after.params["out"]["bias"]]
    np.testing.assert_allclose(moved, w - 0.1 * gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(info.loss.mean(), (slack**2).mean(), rtol=1e-5)


def test_more_classes_are_refused_with_what_to_write():
    with pytest.raises(ValueError, match="2 classes apart.*have 10; write labels=par"):
        svm((4,), 10)
