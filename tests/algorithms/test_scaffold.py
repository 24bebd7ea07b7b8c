import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, distance_to_optimum, run
from helpers import (
    close,
    fast,
    keys,
    linear_task,
    make_data,
    make_task,
    same,
    start,
)

from fedjax_adapt import (
    Plan,
    bernoulli,
    constant_steps,
    train,
    with_steps,
)
from fedjax_adapt.algorithms import fedavg, scaffold
from fedjax_adapt.core import send_delta

KBAR = oracle.num_batches(8, PLAN.batch_size, 2)  # 48 examples, 6 clients: mean size 8


OPTIONS = {
    "II": ("II", "size", "round", "actual", "uniform"),
    "I": ("I", "size", "round", "actual", "uniform"),
    "the codes": ("II", "legacy", "base", "actual", "uniform"),
    "mean steps": ("II", "size", "round", "mean", "uniform"),
    "equal clients": ("II", "none", "round", "actual", "data"),
}


@pytest.mark.parametrize(
    "option, scale, control_lr, control_steps, weights",
    fast(OPTIONS, "I", "the codes"),
)
def test_follows_the_numpy_oracle(
    x64, option, scale, control_lr, control_steps, weights
):
    algorithm = scaffold(1.5, option, weights, scale, control_lr, control_steps)
    clients, theta, history = run(algorithm)
    ratio = np.ones(6) if scale == "none" else oracle.size_ratios(clients)
    own, common = np.zeros((6, theta.size)), np.zeros(theta.size)

    def follow(round, cohort):
        nonlocal theta, common
        w, lr, changes, ends = theta, PLAN.lr * PLAN.lr_decay**round, [], []
        for i in cohort:
            bias = -own[i] + common / ratio[i]
            end = oracle.sgd(w, clients[i], PLAN, round, lambda _, bias=bias: bias)
            if option == "I":
                new = oracle.gradient(w, *clients[i]) + PLAN.weight_decay * w
            else:
                k = oracle.num_batches(len(clients[i][1]), PLAN.batch_size, 2)
                k = KBAR if control_steps == "mean" else k
                rate = PLAN.lr if control_lr == "base" else lr
                seen = common if scale == "legacy" else common / ratio[i]
                new = own[i] - seen + (w - end) / (k * rate)
            changes.append(ratio[i] * (new - own[i]))
            own[i] = new
            ends.append(end)
        sizes = [len(clients[i][1]) for i in cohort]
        average = np.average(ends, 0, sizes if weights == "data" else None)
        theta = w + 1.5 * (average - w)
        common = common + np.sum(changes, 0) / 6
        return theta

    assert_follows(history, follow)


@pytest.mark.slow
def test_first_round_is_uniform_fedavg(task, data):
    ends = []
    for algorithm in (scaffold(), fedavg("uniform")):
        round_fn, state = start(algorithm, task, data)
        ends.append(round_fn(state, keys(1)[0])[0].params)
    assert same(*ends)


@pytest.mark.slow
def test_controls_frozen_at_zero_make_it_uniform_fedavg(task, data):
    rule = scaffold()
    local = rule.local._replace(finish=lambda run: (send_delta(run)[0], run.client))
    server = rule.server._replace(update=None)
    frozen = rule._replace(local=local, server=server)
    ends = []
    for algorithm in (frozen, fedavg("uniform")):
        round_fn, state = start(algorithm, task, data)
        ends.append(train(round_fn, state, keys(3))[0].params)
    close(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["size", "none"])
def test_server_control_is_the_mean_of_the_clients(task, data, scale):
    plan = Plan(participation=bernoulli(0.5), batch_size=4)
    round_fn, state = start(scaffold(scale=scale), task, data, plan)
    ratio = np.asarray(data.size) / 8 if scale == "size" else np.ones(6)
    step = jax.jit(round_fn)
    for key in keys(5):
        state, _ = step(state, key)
        average = jax.tree.map(
            lambda leaf: np.tensordot(ratio, leaf, 1) / 6, state.clients
        )
        close(state.server, average, atol=1e-5)
    assert float(jnp.abs(state.server["w"]).max()) > 1e-2


@pytest.mark.slow
def test_clients_that_sit_out_keep_their_control_to_the_bit(task, data):
    round_fn, state = start(scaffold(), task, data)
    state, _ = train(round_fn, state, keys(2))
    after, info = jax.jit(round_fn)(state, keys(3)[2])
    visited = set(np.asarray(info.cohort).tolist())
    for i in range(data.num_clients):
        row = lambda tree, i=i: jax.tree.map(lambda leaf: leaf[i], tree)
        assert same(row(state.clients), row(after.clients)) == (i not in visited)


@pytest.mark.parametrize("option", ["I", "II"])
def test_linear_loss_finds_each_gradient_and_stops_the_drift(x64, option):
    data = make_data(dtype=np.float64, sizes=(8,) * 5)
    plan = Plan(batch_size=None, lr=0.1)
    algorithm = with_steps(scaffold(option=option), constant_steps(3))
    round_fn, state = start(algorithm, linear_task(jnp.float64), data, plan)
    gradients = np.asarray(data.x).reshape(5, 8, -1).mean(1)
    first, _ = jax.jit(round_fn)(state, keys(1)[0])
    close(first.clients, gradients, atol=1e-12)
    second, _ = jax.jit(round_fn)(first, keys(1)[0])
    expected = np.asarray(first.params) - 3 * 0.1 * gradients.mean(0)
    close(second.params, expected, atol=1e-12)


@pytest.mark.slow
def test_half_participation_reaches_the_weighted_optimum_fedavg_does_not(x64):
    assert distance_to_optimum(scaffold()) < 1e-5
    assert distance_to_optimum(fedavg()) > 1e-2


@pytest.mark.slow
def test_option_one_and_two_agree_after_one_full_batch_step(x64):
    data = make_data(dtype=np.float64)
    plan = Plan(batch_size=None, lr=0.1, weight_decay=0.1)
    states = []
    for option in ("I", "II"):
        algorithm = with_steps(scaffold(option=option), constant_steps(1))
        round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
        for key in keys(2):
            state, _ = jax.jit(round_fn)(state, key)
        states.append(state)
    close(states[0], states[1], atol=1e-12)


def test_every_wrong_option_is_refused():
    for name in ("option", "weights", "scale", "control_lr", "control_steps"):
        with pytest.raises(ValueError, match=f"{name}='wrong' is unknown"):
            scaffold(**{name: "wrong"})
    with pytest.raises(ValueError, match="server_lr=0 must be a finite number above 0"):
        scaffold(server_lr=0)
