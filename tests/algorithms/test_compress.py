import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, fast, keys, make_data, make_task, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    fedavg,
    feddisco,
    feddyn,
    fedexp,
    fednova,
    fedprox,
    public_only,
    scaffold,
)
from fedjax_adapt.costs import messages, traffic_of
from fedjax_adapt.engine.round import checked

COMPRESSORS = {"top_k": fa.top_k(0.2), "qsgd": fa.qsgd(9), "sign": fa.sign()}
NUM = 4 * 3 + 3  # of the tiny model, in two tensors


def tree(seed=0):
    rng = np.random.default_rng(seed)
    return {
        "w": jnp.asarray(rng.normal(size=(4, 3)) ** 3, jnp.float32),
        "b": jnp.asarray(rng.normal(size=3), jnp.float32),
    }


def vector(t):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(t)])


def largest(u, k):
    """Top-k in NumPy."""
    out = np.zeros_like(u)
    rows = np.argsort(-np.abs(u), kind="stable")[:k]
    out[rows] = u[rows]
    return out


def signed(u):
    """Scaled signs in NumPy, of the weights and the biases."""
    parts = np.split(u, [12])
    return np.concatenate([np.abs(p).mean() * np.where(p < 0, -1, 1) for p in parts])


ORACLES = {"top_k": lambda u: largest(u, 3), "sign": signed}


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("name", ORACLES)
def test_follows_the_numpy_oracle(x64, name, feedback):
    algorithm = fa.with_compression(fedavg(), COMPRESSORS[name], feedback)
    clients, theta, history = run(algorithm)
    errors = np.zeros((6, theta.size))

    def follow(t, cohort):
        nonlocal theta
        sent = []
        for i in cohort:
            wanted = oracle.sgd(theta, clients[i], PLAN, t) - theta + errors[i]
            sent.append(ORACLES[name](wanted))
            if feedback:
                errors[i] = wanted - sent[-1]
        theta = theta + np.average(sent, 0, [len(clients[i][1]) for i in cohort])
        return theta

    assert_follows(history, follow)
    if feedback:
        kept = history[-1][0].clients.error
        for i in range(6):
            row = oracle.flat(jax.tree.map(lambda leaf, i=i: leaf[i], kept))
            np.testing.assert_allclose(row, errors[i], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPRESSORS)
def test_an_error_is_within_the_bound(name):
    """E||C(x) - x||^2 <= variance ||x||^2, here and for a single number that is not 0."""
    compressor = COMPRESSORS[name]
    lone = jax.tree.map(jnp.zeros_like, tree())
    lone["w"] = lone["w"].at[1, 2].set(-2.0)
    for x in (tree(), tree(1), lone):
        many = jax.vmap(lambda key, x=x: compressor.compress(x, key))(keys(500))
        lost = sum(
            ((leaf - own[None]) ** 2).reshape(500, -1).sum(1)
            for leaf, own in zip(jax.tree.leaves(many), jax.tree.leaves(x), strict=True)
        )
        bound = compressor.variance(x) * (vector(x) ** 2).sum()
        assert np.mean(lost) <= bound * (1 + 1e-5) + 1e-12
    assert compressor.variance(x) < 1


def test_signs_of_a_lone_number_lose_exactly_the_bound():
    x = {"b": jnp.array([0.0, 3.0, 0.0])}
    sent = fa.sign().compress(x, keys(1)[0])["b"]
    np.testing.assert_allclose(sent, [1, 1, 1])
    assert fa.sign().variance(x) * 9 == pytest.approx(6)


def test_qsgd_is_its_numpy_twin_and_has_no_bias():
    x, levels = tree(), 3
    many = jax.vmap(lambda key: fa.qsgd(levels).compress(x, key))(keys(4000))
    for name, leaf in x.items():
        norm = np.linalg.norm(leaf)
        got = np.asarray(many[name]) / norm * levels
        np.testing.assert_allclose(got, np.round(got), atol=1e-4)  # levels alone
        assert np.abs(got).max() <= levels
        exact = np.asarray(leaf) / norm * levels
        up = np.abs(exact) - np.floor(np.abs(exact))
        deviation = np.sqrt(up * (1 - up) / 4000)
        assert (np.abs(got.mean(0) - exact) < 4.5 * deviation + 1e-4).all()
        np.testing.assert_allclose(got.var(0), up * (1 - up), atol=0.04)


def test_qsgd_has_no_bias_in_half_precision():
    x = {"w": jnp.ones(4000, jnp.bfloat16)}
    sent = jax.vmap(lambda key: fa.qsgd(4).compress(x, key)["w"])(keys(50))
    assert sent.dtype == jnp.bfloat16
    np.testing.assert_allclose(sent.astype(float).mean(), 1, rtol=0.03)


def after(algorithm, task, data, rounds=3, plan=None):
    round_fn, state = start(algorithm, task, data, plan)
    step, infos = jax.jit(round_fn), []
    for key in keys(rounds):
        state, info = step(state, key)
        infos.append(info)
    return state, infos


BASES = {f.__name__: f for f in (fedavg, fedprox, scaffold, fednova)}


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(BASES, "fednova"))
def test_all_of_a_model_is_the_base_itself(task, data, build):
    state, infos = after(fa.with_compression(build(), fa.top_k(1.0)), task, data)
    expected, plain = after(build(), task, data)
    assert same(state.params, expected.params)
    assert same(state.server, expected.server)
    assert same(state.clients.inner, expected.clients)
    assert not vector(state.clients.error).any()
    assert infos[0].bytes_up == plain[0].bytes_up  # dense is shorter


@pytest.mark.slow
def test_what_was_sent_and_what_is_left_is_all_that_was_wanted(x64):
    """sum of C(u) + e = sum of D, where a client's D does not depend on the model."""
    data, plan = make_data(dtype=np.float64), fa.Plan(batch_size=None, lr=0.1)
    task = make_task(jnp.float64)
    # the server stays where it is, so that a client wants the same in every round
    base = fa.with_steps(fedavg("uniform"), fa.constant_steps(2))
    round_fn, state = start(totals(base), task, data, plan)
    once = vector(jax.jit(round_fn)(state, keys(1)[0])[0].server)
    for compressor in (fa.top_k(0.1), fa.qsgd(4), fa.sign()):
        algorithm = totals(fa.with_compression(base, compressor))
        round_fn, state = start(algorithm, task, data, plan)
        step = jax.jit(round_fn)
        for key in keys(5):
            state, _ = step(state, key)
        left = vector(jax.tree.map(lambda leaf: leaf.mean(0), state.clients.error))
        got = vector(state.server) + left
        np.testing.assert_allclose(got, 5 * once, rtol=1e-9, atol=1e-12)
        assert np.abs(left).max() > 1e-3


def totals(algorithm):
    """The server keeps the sum of the means that it was sent, and no other model."""

    def update(params, total, upload, cohort):
        return params, jax.tree.map(jnp.add, total, upload.delta)

    init = lambda params: jax.tree.map(jnp.zeros_like, params)
    rule = algorithm.server._replace(init=init, update=update)
    return algorithm._replace(server=rule)


def test_bytes_are_those_of_the_message():
    task, data = make_task(), make_data()
    params = jax.eval_shape(task.init, jax.random.key(0))
    model = 4 * NUM

    def up(algorithm):
        algorithm = checked(algorithm, task, data, fa.Plan())
        return messages(traffic_of(algorithm), params)[1]

    sent = lambda base, c: up(fa.with_compression(base, c, error_feedback=False))
    assert sent(fedavg(), fa.top_k(0.2)) == 3 * (4 + 4)
    assert sent(fedavg(), fa.top_k(0.21)) == 4 * (4 + 4)
    assert sent(fedavg(), fa.top_k(0.9)) == model  # no indices, then
    # 12 and 3 numbers of 3 bits: 36 bits in 5 bytes, 9 in 2; a norm for each tensor
    assert sent(fedavg(), fa.qsgd(3)) == 5 + 2 + 2 * 4
    assert sent(fedavg(), fa.qsgd(4)) == 6 + 2 + 2 * 4  # nine levels are 4 bits
    assert sent(fedavg(), fa.sign()) == 2 + 1 + 2 * 4
    assert sent(scaffold(), fa.sign()) == model + 2 + 1 + 2 * 4
    assert sent(fednova(), fa.sign()) == 4 + 2 + 1 + 2 * 4
    around = fedexp(base=fa.with_compression(fedavg(), fa.sign()))
    assert up(around) == 4 + 2 + 1 + 2 * 4
    gsnr = fa.with_steps(fedavg(), fa.gsnr_steps(5))
    assert sent(gsnr, fa.sign()) == up(gsnr) - model + 2 + 1 + 2 * 4


@pytest.mark.slow
def test_a_round_counts_them_and_shows_the_error(task, data):
    algorithm = fa.with_compression(fednova(), fa.sign())
    _, infos = after(algorithm, task, data, rounds=2)
    assert infos[0].bytes_up == 3 * (4 + 2 + 1 + 2 * 4)
    error = infos[1].clients["compression_error"]
    assert error.shape == (3,) and (error > 0.05).all() and (error < 1).all()
    assert infos[1].clients["normaliser"].shape == (3,)


CASES = {
    "sign-scaffold": (fa.sign(), True, scaffold),
    "qsgd-fednova": (fa.qsgd(4), True, fednova),
    "top_k-fedprox": (fa.top_k(0.3), False, fedprox),
}


@pytest.mark.slow
@pytest.mark.parametrize("compressor, feedback, build", fast(CASES, "qsgd-fednova"))
def test_lanes_and_the_slow_twin_agree(task, data, compressor, feedback, build):
    algorithm = fa.with_compression(build(), compressor, feedback)
    algorithm = fa.with_steps(algorithm, fa.epochs(2))
    plan = fa.Plan(cohort_size=4, batch_size=4)  # one to three batches in an epoch
    round_fn, state = start(algorithm, task, data, plan)
    state, _ = jax.jit(round_fn)(state, keys(2)[0])
    expected = jax.jit(round_fn)(state, keys(2)[1])
    plan = fa.Plan(cohort_size=4, batch_size=4, lanes=3)
    laned = jax.jit(fa.make_round(algorithm, task, data, plan))
    close(laned(state, keys(2)[1]), expected)
    slow = fa.debug_round(algorithm, task, data, plan)
    close(slow(state, keys(2)[1]), expected)


def test_mistakes_are_one_sentence(task, data):
    for call, match in {
        lambda: fa.top_k(0): r"fraction=0 must lie in \(0, 1\]",
        lambda: fa.qsgd(0): "levels=0 must be an integer >= 1",
        lambda: fa.with_compression(
            fedavg(), fa.sign
        ): "got the function sign for comp",
        lambda: fa.with_compression(
            fedavg, fa.sign()
        ): "got the function fedavg for alg",
        lambda: fa.with_compression(fedavg(), fa.sign(), 1): "got 1 for error_feedback",
        lambda: fa.with_compression(
            public_only(epochs=1, lr=0.1), fa.sign()
        ): "there is none to c",
        lambda: start(
            fa.with_compression(fa.with_compression(fedavg(), fa.sign()), fa.sign()),
            task,
            data,
        ): "compressed already; write it once",
        lambda: jax.vmap(fa.top_k)(jnp.ones(2)): r"top_k\(fraction\) is traced",
    }.items():
        with pytest.raises(ValueError, match=match):
            call()
    growing = fa.with_compression(fedavg(), fa.qsgd(1))
    with pytest.raises(ValueError, match="error_feedback=False, or more levels"):
        start(growing, task, data)
    twice = fa.with_compression(feddisco(base=feddyn()), fa.sign())
    with pytest.raises(ValueError, match="write it around the algorithm inside"):
        start(twice, task, data)


def test_tensors_alike_are_rounded_each_by_chance_of_its_own():
    row = jnp.linspace(0.1, 0.9, 40)
    sent = fa.qsgd(2).compress({"a": row, "b": row}, jax.random.key(0))
    assert not np.array_equal(sent["a"], sent["b"])


@pytest.mark.slow
def test_an_error_stays_when_a_public_set_renews_the_rest(task, data):
    """Of a base whose clients remember their refined model."""
    base = fa.algorithms.moon()
    algorithm = fa.with_compression(base, fa.top_k(0.2))
    state, _ = after(algorithm, task, data, rounds=1)
    row = jax.tree.map(lambda leaf: leaf[0], state.clients)
    error = jax.tree.map(lambda leaf: leaf + 1.0, row.error)
    renewed = algorithm.local.refined(row._replace(error=error), state.params)
    assert same(renewed.error, error)
    assert same(renewed.inner, base.local.refined(row.inner, state.params))


def test_personal_parameters_are_kept_outside(task, data):
    with pytest.raises(ValueError, match=r"write it inside, as in fedper\(base="):
        fa.with_compression(fa.algorithms.fedper("b"), fa.sign())
    inside = fa.algorithms.fedper("b", base=fa.with_compression(fedavg(), fa.sign()))
    fa.make_round(inside, task, data, fa.Plan(batch_size=4))
    twice = fa.with_compression(fa.with_compression(scaffold(), fa.sign()), fa.sign())
    with pytest.raises(ValueError, match="compressed already; write it once"):
        start(twice, task, data)
