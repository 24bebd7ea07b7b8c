"""Moments of per-example gradients against the gradients themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import WIDTH, close, fast, make_task

import fedjax_adapt as fa
from fedjax_adapt import models
from fedjax_adapt.moments import gradient_moments, gradient_parts
from fedjax_adapt.moments.sums import (
    Moments,
    Products,
    leaves_of,
    merge,
    merge_parts,
    moments_of,
    pooled,
    second_moments,
)

BATCH = 7


def batch_of(shape, dtype=np.float64, seed=0, near=None, classes=3):
    """Seven examples of which the last two are padding."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, *shape))
    if near is not None:
        x = rng.normal(size=shape) + near * x
    y = rng.integers(0, classes, BATCH) if near is None else np.ones(BATCH, int)
    return fa.Batch(
        jnp.asarray(x, dtype), jnp.asarray(y), jnp.array([1.0] * 5 + [0, 0])
    )


def in_double(task):
    double = lambda key: jax.tree.map(lambda a: a.astype(jnp.float64), task.init(key))
    return task._replace(init=double)


def task_of(build, shape):
    return in_double(fa.classification(build(shape, 3), shape))


def by_hand(init, apply):
    loss = optax.softmax_cross_entropy_with_integer_labels
    return fa.Task(init, lambda params, x: fa.Outputs(apply(params, x)), loss)


def tied():
    """One matrix read twice, one inside a jitted function, and one by nobody."""

    def init(key):
        matrix = jax.random.normal(key, (4, 4), jnp.float64)
        return {"tied": matrix, "own": matrix[:3] + 1, "unread": matrix}

    inner = jax.jit(lambda w, h: h @ w.T)
    deep = lambda p, x: jnp.tanh(jnp.tanh(x @ p["tied"]) @ p["tied"])
    return by_hand(init, lambda p, x: inner(p["own"], deep(p, x)))


def filtered():
    """A convolution with a bias per filter, then a matrix."""

    def init(key):
        draw = lambda i, *shape: jax.random.normal(
            jax.random.fold_in(key, i), shape, jnp.float64
        )
        return {"k": draw(0, 2, 2, 1, 3), "b": draw(1, 3), "w": draw(2, 12, 3)}

    def apply(p, x):
        y = models.conv(x, p["k"]) + p["b"][None, None, None]
        return jnp.tanh(y).reshape(len(x), -1) @ p["w"]

    return by_hand(init, apply)


def expected(task, params, batch):
    """From every example's gradient, in NumPy."""

    def loss(params, x, y):
        return task.loss(task.apply(params, x[None]).logits, y[None])[0]

    grads = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(params, batch.x, batch.y)
    real = jax.tree.map(lambda g: np.asarray(g)[np.asarray(batch.weight) > 0], grads)
    mean = jax.tree.map(lambda g: g.mean(0), real)
    return Moments(mean, jax.tree.map(lambda g: g.var(0), real), np.float64(5))


TASKS = {
    "dense": (lambda: task_of(lambda *a: models.mlp(*a, widths=(5,)), (6,)), (6,)),
    "convolution": (filtered, (3, 3, 1)),
    "cnn": (lambda: task_of(models.fedveca_cnn, (4, 4, 1)), (4, 4, 1)),
    "tied": (tied, (4,)),
    "recurrent": (lambda: task_of(models.lstm, (3, 2)), (3, 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("make, shape", fast(TASKS, "dense", "convolution", "tied"))
def test_moments_are_those_of_the_gradients(x64, make, shape):
    task, batch = make(), batch_of(shape)
    params = task.init(jax.random.key(0))
    want = expected(task, params, batch)
    found = jax.jit(gradient_moments, static_argnums=(0, 3))(task, params, batch, 2)
    close(found, want, atol=1e-13, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch", [None, 1, 3])
def test_the_generic_way_says_the_same(x64, micro_batch):
    task, batch = filtered(), batch_of((3, 3, 1))
    params = task.init(jax.random.key(0))
    found = jax.jit(gradient_moments, static_argnums=(0, 3, 4))(
        task, params, batch, micro_batch, True
    )
    close(found, expected(task, params, batch), atol=1e-13, rtol=1e-10)


@pytest.mark.parametrize("size", [1, 6])
def test_a_model_in_half_precision_has_moments_in_float32(size):
    half, batch = make_task(jnp.bfloat16), batch_of((WIDTH,), np.float32)
    batch = jax.tree.map(lambda leaf: leaf[:size], batch)
    params = half.init(jax.random.key(0))
    of = jax.jit(lambda *given: gradient_moments(*given, 2, True), static_argnums=0)
    found = of(half, params, batch)
    exact = of(make_task(), optax.tree.cast(params, float), batch)
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
    close(found, exact, atol=0.01, rtol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("generic", [False, True])
def test_a_variance_far_below_the_squared_mean_survives_float32(generic):
    near = batch_of((6,), np.float32, near=1e-4)
    task = fa.classification(models.linear((6,), 3), (6,))
    params = task.init(jax.random.key(0))
    found = gradient_moments(task, params, near, 2, generic)
    with jax.enable_x64(True):
        double = lambda tree: jax.tree.map(
            lambda a: jnp.asarray(np.asarray(a, np.float64)), tree
        )
        exact = expected(task, double(params), near._replace(x=double(near.x)))
    kernel, want = found.var["out"]["kernel"], exact.var["out"]["kernel"]
    assert (want < 1e-6 * np.square(exact.mean["out"]["kernel"])).all()
    np.testing.assert_allclose(kernel, want, rtol=2e-2)


@pytest.mark.parametrize(
    "changes, options, says",
    [
        ({}, {"micro_batch": 0}, "micro_batch=0 must be an integer >= 1, or None"),
        ({}, {"generic": "no"}, "got 'no' for generic"),
        ({"weight": jnp.ones(1)}, {}, r"x\[7, 4\], y\[7\] and weight\[1\]; give every"),
        ({"y": jnp.zeros(1, int)}, {}, r"y\[1\] and weight\[7\]"),
        ({"weight": jnp.full(7, 0.1)}, {}, r"a weight of 0.1.* \(example 0\); write 1"),
        ({"weight": jnp.ones(7).at[2].set(-1)}, {}, r"of -1.0 \(example 2\)"),
        ({"weight": jnp.ones(7).at[6].set(jnp.nan)}, {}, r"of nan \(example 6\)"),
    ],
)
def test_a_mistake_is_one_sentence(task, changes, options, says):
    batch = batch_of((4,), np.float32)._replace(**changes)
    with pytest.raises(ValueError, match=says):
        gradient_moments(task, task.init(jax.random.key(0)), batch, **options)


def test_a_pair_is_no_batch(task):
    with pytest.raises(
        ValueError, match=r"got a tuple for batch; write .*Batch\(x, y, w"
    ):
        gradient_moments(task, task.init(jax.random.key(0)), (1, 2))


@pytest.mark.slow
def test_a_mask_says_which_examples_count(task):
    batch, params = batch_of((4,), np.float32), task.init(jax.random.key(0))
    masked = batch._replace(weight=batch.weight > 0)
    of = lambda batch: gradient_moments(task, params, batch, 2, True)
    close(of(masked), of(batch))


@pytest.mark.slow
def test_one_example_has_no_variance():
    task = fa.classification(models.linear((6,), 3), (6,))
    params = task.init(jax.random.key(0))
    batch = batch_of((6,), np.float32)
    one = jax.tree.map(lambda a: a[:1], batch)
    loss = lambda params: task.loss(task.apply(params, one.x).logits, one.y)[0]
    alone = batch._replace(weight=jnp.eye(BATCH)[0])
    for some in (one, alone):
        found = jax.jit(gradient_moments, static_argnums=0)(task, params, some)
        close(found.mean, jax.grad(loss)(params))
        assert all((v == 0).all() for v in jax.tree.leaves(found.var))


def test_parts_merge_to_the_whole_and_an_empty_one_adds_nothing():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 3)), 5 + rng.normal(size=(9, 3))
    of = lambda g: Moments(jnp.array(g.mean(0)), jnp.array(g.var(0)), jnp.array(len(g)))
    close(merge(of(a), of(b)), of(np.concatenate([a, b])), rtol=1e-5)
    empty = Moments(jnp.zeros(3), jnp.zeros(3), jnp.array(0))
    close(merge(empty, of(b)), of(b))
    close(merge(empty, empty), empty)


@pytest.mark.slow
def test_an_accelerator_does_not_wait_for_a_condition(monkeypatch):
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)
    part = Products(values, 2 + values, np.ones((2, 3), np.float32))
    share = np.full(2, 0.5, np.float32)
    text = lambda: str(jax.make_jaxpr(lambda *given: pooled(*given))(part, share))
    on_cpu = pooled(part, share)
    assert " cond[" in text()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert " cond[" not in text()
    close(pooled(part, share), on_cpu)


@pytest.mark.slow
def test_parts_say_what_the_moments_say(x64):
    """Of one set of examples, of two merged, and of several clients' pooled."""
    task = task_of(lambda *a: models.mlp(*a, widths=(5,)), (6,))
    params = task.init(jax.random.key(0))
    batches = [batch_of((6,), seed=seed) for seed in range(3)]
    parts = [gradient_parts(task, params, batch) for batch in batches]
    kinds = {type(part) for part in leaves_of(parts[0])}
    assert kinds == {Products, Moments}  # matrices and biases
    exact = [expected(task, params, batch) for batch in batches]
    for part, mean, var in zip(
        leaves_of(parts[0]), *map(jax.tree.leaves, exact[0][:2]), strict=True
    ):
        close(moments_of(part)[:2], (mean, var), rtol=1e-10, atol=1e-13)
        square = jnp.square(mean).sum(), var.sum()
        close(second_moments(part), square, rtol=1e-10, atol=1e-13)
    both = merge(*(Moments(*exact[i]) for i in (0, 1)))
    for part, mean, var in zip(
        leaves_of(merge_parts(*parts[:2])), *map(jax.tree.leaves, both[:2]), strict=True
    ):
        close(moments_of(part)[:2], (mean, var), rtol=1e-10, atol=1e-13)
    p = np.array([0.2, 0.0, 0.8])
    of_clients = jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts)
    for i, part in enumerate(leaves_of(of_clients)):
        mean, var = (
            np.stack([jax.tree.leaves(e[which])[i] for e in exact]) for which in (0, 1)
        )
        mean_g = np.tensordot(p, mean, 1)
        var_g = np.tensordot(p, var + (mean - mean_g) ** 2, 1)
        found = pooled(part, jnp.asarray(p))
        close(found[:2], (mean_g, var_g), rtol=1e-10, atol=1e-13)
