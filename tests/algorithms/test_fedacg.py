import jax
import numpy as np
import optax
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import close, fast, keys, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedacg, fedavg

LAM, BETA = 0.7, 0.2


@pytest.mark.parametrize("weights", ["uniform", "data"])
def test_follows_the_numpy_oracle(x64, weights):
    clients, theta, history = run(fedacg(LAM, BETA, weights))
    m = np.zeros_like(theta)

    def follow(t, cohort):
        nonlocal theta, m
        begin = theta + LAM * m
        n = [len(clients[i][1]) for i in cohort] if weights == "data" else None
        pull = lambda here: BETA * (here - begin)
        ends = [oracle.sgd(begin, clients[i], PLAN, t, pull) for i in cohort]
        m = LAM * m + np.average(ends, 0, n) - begin
        theta = theta + m
        np.testing.assert_allclose(theta, np.average(ends, 0, n), atol=1e-12)
        return theta

    assert_follows(history, follow)
    np.testing.assert_allclose(oracle.flat(history[-1][0].server), m, atol=1e-12)


@pytest.mark.slow
def test_without_momentum_and_penalty_it_is_uniform_fedavg(task, data):
    ends = []
    for algorithm in (fedacg(0.0, 0.0), fedavg("uniform")):
        round_fn, state = start(algorithm, task, data)
        step = jax.jit(round_fn)
        for key in keys(3):
            state, _ = step(state, key)
        ends.append(state.params)
    assert same(*ends)


@pytest.mark.slow
def test_momentum_goes_on_where_nobody_learns(task, data):
    """At lr = 0 clients send back what they were sent: w goes to w + lam m."""
    algorithm = fa.with_steps(fedacg(0.5), fa.constant_steps(1))
    round_fn, state = start(algorithm, task, data)
    state, _ = round_fn(state, keys(1)[0])
    still, _ = start(
        algorithm, task, data, fa.Plan(cohort_size=3, batch_size=4, lr=1e-30)
    )
    after, _ = still(state, keys(1)[0])
    ahead = jax.tree.map(lambda w, m: w + 0.5 * m, state.params, state.server)
    close(after.params, ahead)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="lam=1 must lie in"):
        fedacg(1)
    with pytest.raises(ValueError, match="beta=-1 must be a finite number of at"):
        fedacg(beta=-1)


def disco():  # of a base of one's own: none of ours that it takes has a memory
    base = fedacg()
    return fa.algorithms.feddisco(
        base=base._replace(server=base.server._replace(adds_mean=True))
    )


MOVED = {
    "fedacg": (fedacg,),
    "fedcm": (fa.algorithms.fedcm,),
    "pfedme": (fa.algorithms.pfedme,),
    "fedexp": (fa.algorithms.fedexp,),
    "afl": (lambda: fa.algorithms.afl(1e6),),
    "feddisco": (disco,),
    "optimizer": (lambda: fa.with_server_optimizer(fedavg(), optax.sgd(1.0)),),
    "personal": (lambda: fa.with_personal(fedavg(), "b"),),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build",), fast(MOVED, "fedacg", "fedcm", "pfedme", "feddisco")
)
def test_a_model_refined_by_a_constant_moves_by_it(build, task, data):
    """Its mean counts in place of what clients had sent, in the server's memory too."""

    def ten(view, key):
        moved = jax.tree.map(lambda leaf: leaf + 10.0, view.runs.params)
        return fa.Refined(moved, np.ones(6, np.int32) + 0 * view.cohort.ids, {})

    base = build()
    ends = []
    for refine in (None, fa.Refinement(clients=ten, needs_public=False)):
        algorithm = fa.with_refinement(base, refine)
        round_fn, state = start(algorithm, task, data, fa.Plan(batch_size=4))
        ends.append(jax.jit(round_fn)(state, keys(1)[0])[0])
    plain, refined = ends
    moved = jax.tree.map(lambda leaf: np.full_like(leaf, 10.0), plain.params)
    if build is MOVED["personal"][0]:
        moved["b"][:] = 0  # which the server keeps as it is
    close(jax.tree.map(np.subtract, refined.params, plain.params), moved, atol=1e-4)
    if jax.tree.leaves(plain.server):
        assert not same(refined.server, plain.server)
