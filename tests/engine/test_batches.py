import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SIZES, close, keys, make_data, make_task
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import jaxprs_in_params

import fedjax_adapt as fa
from fedjax_adapt import Plan
from fedjax_adapt.engine.batches import batch_at, permuted

PERMUTE = jax.jit(
    jax.vmap(permuted, in_axes=(0, None, None)),
)


@pytest.mark.slow
@given(size=st.integers(1, 200), seed=st.integers(0, 2**31 - 1))
@settings(deadline=None, max_examples=30)
def test_a_shuffle_is_a_permutation_of_any_size(size, seed):
    positions = jnp.minimum(jnp.arange(200), size - 1)  # one shape: compiled once
    keys = jax.random.key(seed)[None]
    order = np.asarray(PERMUTE(keys, positions, jnp.int32(size)))[0, :size]
    assert sorted(order) == list(range(size))


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_orders_are_equally_likely(size):
    draws = 24_000
    keys = jax.random.split(jax.random.key(5), draws)
    orders = np.asarray(PERMUTE(keys, jnp.arange(size), jnp.int32(size)))
    code = orders @ (size ** np.arange(size))
    counts = [
        (code == np.array(p) @ (size ** np.arange(size))).sum()
        for p in itertools.permutations(range(size))
    ]
    expected = draws / math.factorial(size)
    chi2 = ((np.array(counts) - expected) ** 2 / expected).sum()
    freedom = len(counts) - 1
    assert chi2 < freedom + 5 * math.sqrt(2 * freedom)  # five standard deviations


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_a_shuffle_is_that_of_its_paper_in_plain_python(backend, monkeypatch):
    """On an accelerator as well, where the swaps are no loop."""
    size, key = 11, jax.random.key(9)
    mirrors, salts = map(np.ndarray.tolist, np.asarray(jax.random.bits(key, (2, 32))))
    places = []
    for place in range(size):
        for mirror, salt in zip(mirrors, salts, strict=True):
            other = (mirror % size - place) % size
            h = ((max(place, other) ^ salt) * 0x85EBCA6B) % 2**32
            h = ((h ^ (h >> 13)) * 0xC2B2AE35) % 2**32
            place = other if h >= 2**31 else place
        places.append(place)
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    found = permuted(key, jnp.arange(size), jnp.int32(size))
    np.testing.assert_array_equal(found, places)


def test_every_example_is_equally_likely_at_every_place():
    draws, size = 4000, 60
    keys = jax.random.split(jax.random.key(6), draws)
    orders = np.asarray(PERMUTE(keys, jnp.arange(size), jnp.int32(size)))
    counts = np.stack([np.bincount(orders[:, j], minlength=size) for j in range(size)])
    chi2 = ((counts - draws / size) ** 2 / (draws / size)).sum()
    freedom = size * (size - 1)
    assert abs(chi2 - freedom) < 5 * math.sqrt(2 * freedom)


def rows_of(batch):
    """The x of a batch that counts, as sortable tuples."""
    kept = np.asarray(batch.weight) > 0
    return [tuple(row) for row in np.asarray(batch.x)[kept]]


@pytest.mark.parametrize("shuffle", ["epoch", "none"])
@pytest.mark.parametrize("client", [0, 1, 4])  # 12, 5 and 3 examples
def test_an_epoch_takes_every_example_once(data, shuffle, client):
    plan = Plan(batch_size=4, shuffle=shuffle)
    batch = jax.jit(lambda step: batch_at(data, plan, client, jax.random.key(1), step))
    steps = -(-SIZES[client] // 4)
    held = np.asarray(data.x[data.index[client, : SIZES[client]]])
    epochs = []
    for epoch in range(2):
        rows = [row for i in range(steps) for row in rows_of(batch(epoch * steps + i))]
        assert sorted(rows) == sorted(map(tuple, held))
        epochs.append(rows)
    if client == 0:  # 12! orders: two shuffles do not agree by chance
        assert (epochs[0] == epochs[1]) == (shuffle == "none")


def test_batches_carry_the_labels_of_their_rows(data):
    batch = batch_at(data, Plan(batch_size=4), 3, jax.random.key(1), 2)
    labels = {tuple(x): int(y) for x, y in zip(np.asarray(data.x), data.y, strict=True)}
    assert [labels[tuple(x)] for x in np.asarray(batch.x)] == list(np.asarray(batch.y))


def test_replacement_draws_full_batches_of_the_clients_own_examples(data):
    plan = Plan(batch_size=4, shuffle="replacement")
    held = set(map(tuple, np.asarray(data.x[data.index[4, :3]])))
    batch = jax.jit(lambda step: batch_at(data, plan, 4, jax.random.key(1), step))
    drawn = [row for step in range(20) for row in rows_of(batch(step))]
    assert len(drawn) == 80
    assert set(drawn) == held


def test_full_batches_hold_everything(data):
    batch = batch_at(data, Plan(batch_size=None), 1, jax.random.key(0), 7)
    held = np.asarray(data.x[data.index[1, :5]])
    assert rows_of(batch) == list(map(tuple, held))


def test_pixels_keep_their_dtype():
    data = make_data(dtype=np.uint8)
    assert data.x.dtype == jnp.uint8
    assert batch_at(data, Plan(), 0, jax.random.key(0), 0).x.dtype == jnp.uint8


@pytest.fixture
def images(monkeypatch):
    """Data whose inputs are [2, 2], and a round on it, its state and key on a platform."""
    flat, data = make_task(), make_data()
    data = data.with_changed(x=data.x.reshape(-1, 2, 2))
    apply = lambda params, x: flat.apply(params, x.reshape(len(x), 4))
    algorithm, task = fa.algorithms.fedavg(), flat._replace(apply=apply)
    plan = Plan(cohort_size=4, batch_size=4, lr=0.1, lanes=2)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(1))

    def on(platform):
        monkeypatch.setattr(jax, "default_backend", lambda: platform)
        run = fa.make_round(algorithm, task, data, plan)
        return run, state, keys(1)[0]

    return data, on


@pytest.mark.slow
def test_examples_are_flat_rows_on_a_tpu_and_the_numbers_the_same(images):
    results = []
    for platform in ("gpu", "tpu"):
        run, state, key = images[1](platform)
        results.append(jax.jit(lambda run, *args: run(*args))(run, state, key))
    close(*results)


def equations(jaxpr):
    """All equations, those inside of others too."""
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jaxprs_in_params(eqn.params):
            yield from equations(getattr(inner, "jaxpr", inner))


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_no_loop_of_a_tpu_reads_examples_that_are_no_rows(images, platform):
    data, on = images
    run, state, key = on(platform)
    traced = jax.jit(lambda run, *args: run(*args)).trace(run, state, key)
    read = {"loop": set(), "optimization_barrier": set()}
    for eqn in equations(traced.jaxpr.jaxpr):
        name = eqn.primitive.name
        name = "loop" if name in ("while", "scan") else name
        read.get(name, set()).update(var.aval.shape for var in eqn.invars)
    as_given, flat = data.x.shape, (data.x.shape[0], 4)
    assert (as_given in read["loop"], flat in read["loop"]) == (
        platform == "gpu",
        platform == "tpu",
    )
    assert (flat in read["optimization_barrier"]) == (platform == "tpu")
