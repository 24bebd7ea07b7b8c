import jax
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, fast, keys, same, start

from fedjax_adapt import Plan, with_steps
from fedjax_adapt.algorithms import fedavg, feddyn, fedexp, scaffold

EPSILON = 1e-3
BASES = {"data": fedavg, "uniform": lambda: fedavg("uniform")}


@pytest.mark.parametrize("base", BASES)
def test_follows_the_numpy_oracle(x64, base):
    clients, theta, history = run(fedexp(EPSILON, BASES[base]()))
    rates = []

    def follow(t, cohort):
        nonlocal theta
        ends = np.array([oracle.sgd(theta, clients[i], PLAN, t) for i in cohort])
        n = [len(clients[i][1]) for i in cohort] if base == "data" else None
        moves = ends - theta
        square = np.average((moves**2).sum(1), weights=n)
        move = np.average(moves, 0, n)
        rates.append(max(1, square / (2 * ((move**2).sum() + EPSILON))))
        theta = theta + rates[-1] * move
        return theta

    assert_follows(history, follow)
    shown = [float(info.server["server_lr"]) for _, info in history]
    np.testing.assert_allclose(shown, rates, rtol=1e-10)
    assert max(rates) > 1.02  # and it is no FedAvg


def after(algorithm, task, data, plan=None, rounds=3):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(rounds):
        state, info = step(state, key)
    return state, info


@pytest.mark.slow
@pytest.mark.parametrize("build", fast({"fedavg": fedavg, "feddyn": feddyn}, "feddyn"))
def test_with_a_large_epsilon_it_is_its_base(task, data, build):
    state, info = after(fedexp(1e9, build()), task, data)
    expected, _ = after(build(), task, data)
    assert same(state.params, expected.params) and same(state.clients, expected.clients)
    assert same(state.server, expected.server)
    assert float(info.server["server_lr"]) == 1


@pytest.mark.slow
def test_a_client_alone_agrees_with_itself(task, data):
    plan = Plan(cohort_size=1, batch_size=4)
    state, _ = after(fedexp(0.0), task, data, plan)
    close(state.params, after(fedavg(), task, data, plan)[0].params)


def test_a_base_that_adds_no_mean_is_refused(task, data):
    with pytest.raises(ValueError, match="fedexp goes further along the mean"):
        fedexp(base=scaffold())
    with pytest.raises(ValueError, match="epsilon=-1 must be a finite number of at"):
        fedexp(-1)
    base = fedavg()
    assert with_steps(fedexp(base=base), base.policy).policy is base.policy
