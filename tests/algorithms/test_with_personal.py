"""Parameters that stay at clients: the base to the bit, local SGD alone, or between."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import (
    CLASSES,
    WIDTH,
    close,
    fast,
    keys,
    make_clients,
    make_data,
    make_task,
    same,
    start,
)

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    feddf,
    feddisco,
    fedprox,
    fedssg,
    fnr,
    moon,
    scaffold,
)

HEAD = WIDTH * CLASSES  # where the biases begin in the flat vector


def with_spare(dtype=jnp.float32):
    """The tiny task with a parameter that the model does not use."""
    task = make_task(dtype)
    return task._replace(
        init=lambda key: {**task.init(key), "spare": jnp.zeros((2, 3), dtype)}
    )


BASES = {
    "fedavg": fa.Algorithm,
    "fedprox": lambda: fedprox(0.5),
    "scaffold": scaffold,
    "fedssg": lambda: fedssg(total_rounds=9),
    "moon": moon,
    "feddisco": feddisco,
    "gsnr": lambda: fa.with_steps(scaffold(), fa.gsnr_steps(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(BASES, "scaffold", "moon"))
def test_where_nothing_that_counts_is_personal_it_is_the_base_to_the_bit(data, build):
    plan = fa.Plan(cohort_size=4, batch_size=4, lr=0.3, clip_norm=1.0)
    ends = []
    for algorithm in (build(), fa.with_personal(build(), "spare")):
        round_fn, state = start(algorithm, with_spare(), data, plan)
        ends.append(fa.train(round_fn, state, keys(3)))
    (state, infos), (other, other_infos) = ends
    assert same(other.params, state.params) and same(other.server, state.server)
    assert same(other.clients.inner, state.clients)
    assert list(other.clients.own) == ["spare"]
    less = {"bytes_up": infos.bytes_up, "bytes_down": infos.bytes_down}
    close(other_infos._replace(**less), infos)
    assert (np.asarray(other_infos.bytes_up) < np.asarray(infos.bytes_up)).all()


ADDING = {n: b for n, b in BASES.items() if n not in ("moon", "gsnr")}


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(ADDING, "fedprox", "scaffold"))
def test_where_all_that_counts_is_personal_clients_train_alone(x64, build):
    data, clients = make_data(dtype=np.float64), make_clients(dtype=np.float64)
    algorithm = fa.with_personal(build(), ("w", "b"))
    algorithm = fa.with_steps(algorithm, fa.epochs(2))
    round_fn, state = start(algorithm, with_spare(jnp.float64), data, PLAN)
    begin, step = oracle.flat(state.params), jax.jit(round_fn)
    own = [begin] * len(clients)
    for round, key in enumerate(keys(4)):
        state, info = step(state, key)
        for i in np.asarray(info.cohort):
            own[i] = oracle.sgd(own[i], clients[i], PLAN, round)
    assert same(oracle.flat(state.params), begin)
    models = fa.personal_models(algorithm, state)
    for i, theta in enumerate(own):
        found = oracle.flat(jax.tree.map(lambda leaf, i=i: leaf[i], models))
        np.testing.assert_allclose(found, theta, atol=1e-12)


def test_scaffold_with_personal_biases_follows_the_numpy_oracle(x64):
    algorithm = fa.with_personal(scaffold(weights="data", scale="none"), "b")
    clients, theta, history = run(algorithm)
    own, common = np.zeros((6, theta.size)), np.zeros(theta.size)
    heads = np.tile(theta[HEAD:], (6, 1))
    shared = np.arange(theta.size) < HEAD

    def follow(round, cohort):
        nonlocal theta, common
        lr, changes, ends = PLAN.lr * PLAN.lr_decay**round, [], []
        for i in cohort:
            bias = shared * (common - own[i])
            w = np.concatenate([theta[:HEAD], heads[i]])
            end = oracle.sgd(w, clients[i], PLAN, round, lambda _, bias=bias: bias)
            k = oracle.num_batches(len(clients[i][1]), PLAN.batch_size, 2)
            new = own[i] - common + (w - end) / (k * lr)
            changes.append(shared * (new - own[i]))
            own[i], heads[i] = new, end[HEAD:]
            ends.append(np.where(shared, end, theta))
        theta = np.average(ends, 0, [len(clients[i][1]) for i in cohort])
        common = common + np.sum(changes, 0) / 6
        return theta

    assert_follows(history, follow)
    last = history[-1][0]
    np.testing.assert_allclose(last.clients.own["b"], heads, atol=1e-12)
    assert not np.asarray(last.server["b"]).any()


@pytest.mark.slow
def test_adaptive_steps_lanes_and_host_memory_agree_with_the_slow_twin(task, data):
    algorithm = fa.with_steps(fa.with_personal(scaffold(), "b"), fa.gsnr_steps(3))
    algorithm = fa.with_server_optimizer(algorithm, optax.sgd(1.0))
    plan = fa.Plan(cohort_size=4, batch_size=4, lr=0.2, lanes=2, client_memory="host")
    round_fn, state = start(algorithm, task, data, plan)
    slow = fa.debug_round(algorithm, task, data, replace(plan, client_memory="device"))
    step, (first, second) = jax.jit(round_fn), keys(2)
    state, _ = step(state, first)
    before = jax.tree.map(jnp.asarray, jax.device_get(state))
    state, info = step(state, second)
    other, other_info = slow(before, second)
    close(jax.device_get(state), jax.device_get(other), atol=1e-5)
    close(info, other_info, atol=1e-5)


MOVING = {
    "server": lambda: feddf(distill_steps=3, distill_batch=4, validate_every=2),
    "clients": lambda: fnr(fraction=0.5),
    "decay": lambda: fa.with_server_optimizer(
        fa.Algorithm(), optax.chain(optax.add_decayed_weights(0.1), optax.sgd(1.0))
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(MOVING, "server", "clients", "decay"))
def test_whatever_the_server_does_its_personal_parameters_stay(task, data, build):
    round_fn, state = start(fa.with_personal(build(), "b"), task, data)
    begin = {**state.params, "b": state.params["b"] + 1}  # zeros do not decay
    after, _ = jax.jit(round_fn)(state._replace(params=begin), keys(1)[0])
    assert same(after.params["b"], begin["b"])
    assert not same(after.params["w"], begin["w"])


def test_parameters_are_chosen_by_text_function_or_several(task, data):
    shapes = jax.eval_shape(task.init, jax.random.key(0))
    params = {"hidden": [shapes, shapes], "out": shapes}
    full = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape), params)

    def chosen(personal):
        return sorted(fa.with_personal(fa.Algorithm(), personal).local.init(full).own)

    assert chosen("out") == ["out/b", "out/w"]
    assert chosen("hidden/1") == ["hidden/1/b", "hidden/1/w"]
    assert chosen(("hidden/0", "out/b")) == ["hidden/0/b", "hidden/0/w", "out/b"]
    assert chosen(["w"]) == ["hidden/0/w", "hidden/1/w", "out/w"]
    assert chosen(lambda path: path.startswith("hid")) == chosen("hidden")


def test_what_cannot_be_personal_is_refused(task, data):
    def refused(match, personal, algorithm=None):
        with pytest.raises(ValueError, match=match):
            algorithm = fa.with_personal(algorithm or fa.Algorithm(), personal)
            fa.make_round(algorithm, task, data, fa.Plan())

    refused("'head' is true of no parameter; name one or more of b, w", "head")
    refused("'head' is true of no parameter", ("b", "head"))
    refused("'b', 'w' is true of every parameter, so that none is shared", ("b", "w"))
    refused("got 3 for personal; write part of a path", 3)
    refused(r"got a tuple for personal; write", ())
    twice = fa.with_personal(fa.Algorithm(), "b")
    refused("start elsewhere than at the broadcast; give all", "w", twice)
    with pytest.raises(ValueError, match="got the function scaffold for algorithm"):
        fa.with_personal(scaffold, "b")


@pytest.mark.slow
def test_what_is_personal_takes_no_room_in_a_compressed_message(data):
    task, plan = make_task(), fa.Plan(cohort_size=1, batch_size=4, lr=0.3)
    moved, infos = {}, {}
    for name, base in {
        "whole": fa.Algorithm(),
        "top": fa.with_compression(fa.Algorithm(), fa.top_k(0.25)),
        "sign": fa.with_compression(fa.Algorithm(), fa.sign()),
    }.items():
        algorithm = fa.with_personal(base, "b")
        round_fn, state = start(algorithm, task, data, plan)
        after, infos[name] = round_fn(state, keys(1)[0])
        moved[name] = np.asarray(after.params["w"] - state.params["w"]).ravel()
    most = np.argsort(-np.abs(moved["whole"]))[: -(-HEAD // 4)]
    wanted = np.zeros(HEAD, np.float32)
    wanted[most] = moved["whole"][most]
    np.testing.assert_allclose(moved["top"], wanted, atol=1e-6)
    assert infos["top"].bytes_up == 8 * len(most)
    assert infos["sign"].bytes_up == -(-HEAD // 8) + 4


@pytest.mark.slow
def test_what_is_personal_has_no_part_in_the_clip_of_privacy(data):
    task, plan = make_task(), fa.Plan(cohort_size=1, batch_size=4, lr=0.3)
    private = lambda base: fa.with_privacy(base, clip=0.05, noise_multiplier=0.0)
    for algorithm in (
        fa.with_personal(private(fa.Algorithm()), "b"),
        private(fa.with_personal(fa.Algorithm(), "b")),
    ):
        round_fn, state = start(algorithm, task, data, plan)
        after, _ = round_fn(state, keys(1)[0])
        moved = np.linalg.norm(after.params["w"] - state.params["w"])
        np.testing.assert_allclose(moved, 0.05, rtol=1e-5)
