import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, fast, keys, start

from fedjax_adapt import with_server_optimizer
from fedjax_adapt.algorithms import (
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    feddc,
    fedssg,
    fedyogi,
    scaffold,
)
from fedjax_adapt.core import Upload

LR, B1, B2, TAU = 0.2, 0.8, 0.9, 0.01
BASES = {f.__name__: f for f in (fedavg, scaffold, feddc)}
BASES["fedssg"] = lambda: fedssg(total_rounds=3)
SECOND = {
    fedadagrad: lambda v, d: v + d**2,
    fedadam: lambda v, d: B2 * v + (1 - B2) * d**2,
    fedyogi: lambda v, d: v - (1 - B2) * d**2 * np.sign(v - d**2),
}


def mean_move(clients, theta, t, cohort):
    ends = [oracle.sgd(theta, clients[i], PLAN, t) for i in cohort]
    n = [len(clients[i][1]) for i in cohort]
    return np.average(ends, 0, n) - theta


@pytest.mark.parametrize("constructor", SECOND)
def test_adaptive_servers_follow_the_numpy_oracle(x64, constructor):
    more = {} if constructor is fedadagrad else {"b2": B2}
    clients, theta, history = run(constructor(LR, B1, tau=TAU, **more))
    m, v = 0, np.full_like(theta, TAU**2)

    def follow(t, cohort):
        nonlocal theta, m, v
        d = mean_move(clients, theta, t, cohort)
        m = B1 * m + (1 - B1) * d
        v = SECOND[constructor](v, d)
        theta = theta + LR * m / (np.sqrt(v) + TAU)
        return theta

    assert_follows(history, follow)


@pytest.mark.parametrize("nesterov", [False, True])
def test_fedavgm_follows_the_numpy_oracle(x64, nesterov):
    clients, theta, history = run(fedavgm(0.8, 0.7, nesterov))
    v = 0

    def follow(t, cohort):
        nonlocal theta, v
        d = mean_move(clients, theta, t, cohort)
        v = 0.7 * v + d
        theta = theta + 0.8 * (d + 0.7 * v if nesterov else v)
        return theta

    assert_follows(history, follow)


def test_adam_of_the_server_does_not_divide_by_0_in_float16():
    """Where its epsilon is 0, as is the square of a small move."""
    server = with_server_optimizer(fedavg(), optax.adam(0.1)).server
    params = jnp.zeros(2, jnp.float16)
    upload = Upload(jnp.asarray([0, 1e-4], jnp.float16))
    new, extra = params, server.init(params)
    for _ in range(2):
        new, extra = server.update(new, extra, upload, None)
    np.testing.assert_allclose(new, [0, 0.2], rtol=1e-2)
    assert new.dtype == jnp.float16


def test_an_optimizer_of_the_server_is_given_a_model_that_is_widened():
    """The trust ratio of LARS is by the model's norm, infinite in float16 above 256."""
    ratio = with_server_optimizer(fedavg(), optax.scale_by_trust_ratio()).server
    params = jnp.full(4, 512, jnp.float16)
    upload = Upload(jnp.full(4, -1, jnp.float16))
    new, _ = ratio.update(params, ratio.init(params), upload, None)
    np.testing.assert_array_equal(new, 1024)


def ends(algorithms, task, data, rounds=3):
    for algorithm in algorithms:
        round_fn, state = start(algorithm, task, data)
        step = jax.jit(round_fn)
        for key in keys(rounds):
            state, _ = step(state, key)
        yield state


@pytest.mark.slow
@pytest.mark.parametrize("build", fast(BASES, "fedssg"))
def test_a_plain_step_of_one_is_the_base_itself(task, data, build):
    base = build()
    wrapped = with_server_optimizer(base, optax.sgd(1.0))
    one, other = ends((wrapped, base), task, data)
    close(one.params, other.params)
    close(one.server.inner, other.server)
    close(one.clients, other.clients)


@pytest.mark.slow
def test_without_momentum_fedavgm_is_fedavg(task, data):
    one, other = ends((fedavgm(1.0, 0.0), fedavg()), task, data)
    close(one.params, other.params)


def test_a_wrapper_does_not_make_the_engine_keep_models(task):
    assert fedadam().policy.update is None and fedadam().refine is None


def test_wrong_arguments_are_refused():
    with pytest.raises(
        ValueError, match="got the function fedavg for algorithm; call it: "
    ):
        with_server_optimizer(fedavg, optax.sgd(1.0))
    with pytest.raises(ValueError, match="got 0.1 for optimizer; write with_server"):
        with_server_optimizer(fedavg(), 0.1)
    with pytest.raises(ValueError, match="b2=1 must lie in"):
        fedyogi(b2=1)
    with pytest.raises(ValueError, match="tau=0 must be a finite number above 0"):
        fedadagrad(tau=0)
