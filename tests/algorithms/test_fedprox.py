import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, keys, same, start

from fedjax_adapt import constant_steps, train, with_steps
from fedjax_adapt.algorithms import fedavg, fedavgm, fedprox


def end(algorithm, task, data, rounds=3):
    round_fn, state = start(algorithm, task, data)
    return train(round_fn, state, keys(rounds))[0].params


@pytest.mark.parametrize("make", [fedprox, fedavgm])
def test_a_number_that_float32_does_not_hold_is_refused(make):
    with pytest.raises(
        ValueError, match=r"=1e\+40 is more than float32 holds; write at"
    ):
        make(1e40)


@pytest.mark.slow
def test_without_mu_it_is_fedavg_to_the_bit(task, data):
    assert same(end(fedprox(mu=0.0), task, data), end(fedavg(), task, data))


@pytest.mark.slow
def test_one_local_step_never_drifts_so_it_is_fedavg(task, data):
    prox = end(with_steps(fedprox(mu=3.0), constant_steps(1)), task, data)
    assert same(prox, end(with_steps(fedavg(), constant_steps(1)), task, data))


@pytest.mark.slow
def test_a_large_mu_holds_clients_near_the_broadcast_model(task, data):
    moves = []
    for mu in (0.0, 3.0):
        round_fn, state = start(with_steps(fedprox(mu), constant_steps(8)), task, data)
        moves.append(float(round_fn(state, keys(1)[0])[1].delta_norm))
    assert moves[1] < 0.6 * moves[0]


@pytest.mark.slow
def test_ssg_code_is_twice_the_pull(task, data):
    code = end(fedprox(0.1, variant="ssg_code"), task, data)
    close(code, end(fedprox(0.2), task, data))


@pytest.mark.parametrize("weights", ["data", "uniform"])
def test_follows_the_numpy_oracle(x64, weights):
    mu = 0.5
    clients, theta, history = run(fedprox(mu, weights))

    def follow(round, cohort):
        nonlocal theta
        w = theta
        ends = [
            oracle.sgd(w, clients[i], PLAN, round, lambda theta: mu * (theta - w))
            for i in cohort
        ]
        sizes = [len(clients[i][1]) for i in cohort]
        theta = np.average(ends, 0, sizes if weights == "data" else None)
        return theta

    assert_follows(history, follow)


def test_a_negative_mu_is_refused():
    with pytest.raises(ValueError, match="mu=-1 must be a finite number of at least 0"):
        fedprox(mu=-1)
