import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from helpers import CLASSES, WIDTH, close, keys, make_clients, make_data, same, start
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedjax_adapt import (
    Batch,
    LocalView,
    Outputs,
    Plan,
    Task,
    epochs,
    with_steps,
)
from fedjax_adapt.algorithms import fedavg, moon
from fedjax_adapt.algorithms.moon import MoonClient, cosine

HIDDEN, MU, T = 5, 0.7, 0.5
PLAN = Plan(cohort_size=4, batch_size=3, lr=0.3, lr_decay=0.9, shuffle="none")


def two_layer_task(dtype=jnp.float32):
    """logits = (x U) V with features x U."""

    def init(key):
        one, two = jax.random.split(key)
        return {
            "u": jax.random.normal(one, (WIDTH, HIDDEN), dtype),
            "v": jax.random.normal(two, (HIDDEN, CLASSES), dtype),
        }

    def apply(params, x):
        features = x @ params["u"]
        return Outputs(features @ params["v"], features)

    return Task(init, apply, optax.softmax_cross_entropy_with_integer_labels)


def gradient(u, v, x, y, z_global, z_previous, mu):
    """Of CE + mu mean softplus((s_p - s_g) / T), by the chain rule."""
    z = x @ u
    p = np.exp(z @ v - (z @ v).max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    d_logits = p / len(y)
    d_z = d_logits @ v.T

    def similarity(other):
        """cos(z, other) and its gradient in z, row by row."""
        a = np.linalg.norm(z, axis=1, keepdims=True)
        b = np.linalg.norm(other, axis=1, keepdims=True)
        s = (z * other).sum(1, keepdims=True) / (a * b)
        return s, other / (a * b) - s * z / a**2

    s_g, d_g = similarity(z_global)
    s_p, d_p = similarity(z_previous)
    slope = 1 / (1 + np.exp(-(s_p - s_g) / T)) / T
    d_z = d_z + mu * slope * (d_p - d_g) / len(y)
    return x.T @ d_z, z.T @ d_logits


@pytest.mark.parametrize("first", ["none", "init"])
def test_follows_the_numpy_oracle(x64, first):
    data = make_data(dtype=np.float64)
    algorithm = with_steps(moon(MU, T, first), epochs(2))
    round_fn, state = start(algorithm, two_layer_task(jnp.float64), data, PLAN)
    clients = make_clients(dtype=np.float64)
    theta = tuple(np.asarray(state.params[name]) for name in "uv")
    previous, begin = {}, theta
    step = jax.jit(round_fn)
    for t, key in enumerate(keys(4)):
        state, info = step(state, key)
        cohort = np.asarray(info.cohort)
        ends, lr = [], PLAN.lr * PLAN.lr_decay**t
        for i in cohort:
            u, v = theta
            last = previous.get(i, begin if first == "init" else None)
            for x, y in oracle.batches(*clients[i], PLAN.batch_size, 2):
                mu, z_p = (0, x @ u) if last is None else (MU, x @ last[0])
                g_u, g_v = gradient(u, v, x, y, x @ theta[0], z_p, mu)
                u, v = u - lr * g_u, v - lr * g_v
            ends.append((u, v))
            previous[i] = (u, v)
        n = [len(clients[i][1]) for i in cohort]
        theta = tuple(np.average([end[k] for end in ends], 0, n) for k in (0, 1))
        np.testing.assert_allclose(state.params["u"], theta[0], atol=1e-11)
        np.testing.assert_allclose(state.params["v"], theta[1], atol=1e-11)
    assert len(previous) == 6 and t == 3  # everybody came, some came again


@pytest.mark.slow
def test_first_visits_and_mu_zero_are_fedavg_to_the_bit(data):
    task, ends = two_layer_task(), {}
    for name, algorithm, rounds in (
        ("fedavg", fedavg(), 1),
        ("moon", moon(MU), 1),
        ("fedavg, 3 rounds", fedavg(), 3),
        ("mu = 0", moon(0.0), 3),
    ):
        round_fn, state = start(algorithm, task, data, PLAN)
        step = jax.jit(round_fn)
        for key in keys(rounds):
            state, _ = step(state, key)
        ends[name] = state.params
    assert same(ends["fedavg"], ends["moon"])
    assert same(ends["fedavg, 3 rounds"], ends["mu = 0"])


def show(features):
    """A task that shows given features, whatever the input, and costs nothing."""
    return Task(
        init=lambda key: features,
        apply=lambda params, x: Outputs(jnp.zeros((len(x), 2)), params),
        loss=lambda logits, y: jnp.zeros(len(y)),
    )


@jax.jit
def contrast(z, z_global, z_previous):
    """What `moon(1.0)` minimises, one row of features at a time."""

    def one(z, z_global, z_previous):
        batch = Batch(jnp.zeros((1, 1)), jnp.zeros(1, int), jnp.ones(1))
        view = LocalView(
            task=show(z),
            params=z,
            anchor=z_global,
            client=MoonClient(z_previous, jnp.asarray(True)),
            server=(),
            batch=batch,
            step=0,
            size_ratio=1.0,
            setting=None,
        )
        return moon(1.0, T).local.objective(z[None], view, None)

    rows = [leaf[:, None] for leaf in (z_global, z_previous)]
    return jax.vmap(one)(z, *rows)


vectors = arrays(np.float64, (3, 4), elements=st.floats(-5, 5))


@settings(deadline=None, max_examples=50)
@given(vectors, vectors, vectors, st.floats(0.01, 100))
def test_the_contrast_is_bounded_and_blind_to_scale(z, z_global, z_previous, scale):
    loss = np.asarray(contrast(z, z_global, z_previous))
    bound = np.log1p(np.exp(2 / T))
    assert (loss <= bound + 1e-5).all() and (loss >= bound - 2 / T - 1e-5).all()
    if (np.linalg.norm(z, axis=1) > 0.1).all():
        np.testing.assert_allclose(
            contrast(scale * z, z_global, z_previous), loss, atol=1e-4
        )


def test_equal_references_cost_log_two_and_pull_nowhere():
    z = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)))
    other = z[::-1]
    np.testing.assert_allclose(contrast(z, other, other), np.log(2), rtol=1e-6)
    pull = jax.grad(lambda z: contrast(z, other, other).sum())(z)
    np.testing.assert_allclose(pull, 0, atol=1e-7)


def test_features_that_vanish_give_no_nan():
    z = jnp.zeros((2, 4))
    pull = jax.grad(lambda z: contrast(z, z + 1, z - 1).sum())(z)
    assert np.isfinite(pull).all()
    assert np.isfinite(cosine(z, z)).all()


def test_a_model_without_features_is_refused(data):
    with_logits_only = two_layer_task()
    task = with_logits_only._replace(
        apply=lambda params, x: Outputs(with_logits_only.apply(params, x).logits)
    )
    with pytest.raises(
        ValueError, match="moon compares features but the model has none"
    ):
        start(moon(), task, data)


def test_clients_remember_their_own_end_point(data):
    round_fn, state = start(moon(MU), two_layer_task(), data, PLAN)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    visited = np.zeros(6, bool)
    visited[np.asarray(info.cohort)] = True
    np.testing.assert_array_equal(after.clients.visited, visited)
    moved = np.abs(np.asarray(after.clients.previous["u"] - state.params["u"][None]))
    np.testing.assert_array_equal(moved.max((1, 2)) > 0, visited)
    n = np.asarray(data.size) * visited
    close(jnp.average(after.clients.previous["u"], 0, n), after.params["u"], atol=1e-5)


def test_both_references_are_in_evaluation_mode():
    model, anchor, last = np.random.default_rng(0).normal(size=(3, 4))
    features = lambda f, x: Outputs(jnp.zeros((len(x), 2)), f[None])
    task = Task(lambda key: model, features, lambda outputs, y: jnp.zeros(len(y)))
    task = task._replace(apply_train=lambda params, x, key: features(params + 1, x))
    view = LocalView(
        task=task,
        params=jnp.asarray(model),
        anchor=jnp.asarray(anchor),
        client=MoonClient(jnp.asarray(last), jnp.asarray(True)),
        server=(),
        batch=Batch(jnp.zeros((1, 1)), jnp.zeros(1, int), jnp.ones(1)),
        step=0,
        size_ratio=1.0,
        setting=None,
    )
    cos = lambda u, v: u @ v / np.linalg.norm(u) / np.linalg.norm(v)
    apart = cos(model + 1, last) - cos(model + 1, anchor)
    found = moon(1.0, T).local.objective(view.params, view, jax.random.key(0))
    np.testing.assert_allclose(found, np.log1p(np.exp(apart / T)), rtol=1e-5)


@pytest.mark.parametrize("length, expected", [(1e-7, 1), (1e-9, 0.1)])
def test_a_norm_below_1e_8_counts_as_1e_8(length, expected):
    e = jnp.array([[1.0, 0, 0]])
    np.testing.assert_allclose(cosine(length * e, e), expected, rtol=1e-5)
