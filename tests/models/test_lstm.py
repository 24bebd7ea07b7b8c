"""The recurrent network against its equations in NumPy."""

import jax
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.models import lstm

SHAPE, WIDTH = (4, 3), 5  # time, features


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_layer(layer, x):
    """[batch, time, features] to the states [batch, time, width], in float64."""
    h = c = np.zeros((len(x), WIDTH))
    states = []
    for t in range(x.shape[1]):
        gates = x[:, t] @ layer["input"]["kernel"] + layer["input"]["bias"]
        gates += h @ layer["recurrent"]["kernel"] + layer["recurrent"]["bias"]
        i, f, g, o = np.split(gates, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        states.append(h)
    return np.stack(states, axis=1)


@pytest.mark.slow
def test_it_is_the_equations_and_its_features_are_the_last_state():
    task = fa.classification(lstm(SHAPE, 2, width=WIDTH, layers=2), SHAPE)
    params = jax.jit(task.init)(jax.random.key(0))
    x = np.random.default_rng(0).normal(size=(6, *SHAPE)).astype(np.float32)
    outputs = jax.jit(task.apply)(params, x)
    layers, out = jax.tree.map(np.float64, (params["layers"], params["out"]))
    features = lstm_layer(layers["1"], lstm_layer(layers["0"], x))[:, -1]
    np.testing.assert_allclose(outputs.features, features, atol=1e-6)
    logits = features @ out["kernel"] + out["bias"]
    np.testing.assert_allclose(outputs.logits, logits, atol=1e-6)
    for leaf in jax.tree.leaves(params):
        assert 0.2 < abs(leaf).max() * WIDTH**0.5 <= 1
