import sys
from inspect import signature
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import (
    WIDTH,
    close,
    fast,
    keys,
    linear_task,
    make_data,
    quadratic_task,
    same,
    start,
)
from helpers import broken as broken_data

from fedjax_adapt import (
    Batch,
    Clock,
    FederatedDataset,
    LocalView,
    Outputs,
    Plan,
    Task,
    Upload,
    afl_best,
    afl_constants,
    afl_fixed,
    afl_online,
    bernoulli,
    constant_steps,
    train,
    with_steps,
)
from fedjax_adapt.algorithms import afl, scaffold
from fedjax_adapt.algorithms.afl import Remembered, bounds, drifts, estimate
from fedjax_adapt.experiment import checkpoint

C, B = 0.5, 2.0  # seconds of a step and of an aggregation
COSTS = dict(step_seconds=C, aggregation_seconds=B)


# --- h, T and G ------------------------------------------------------------------------


def test_h_is_the_papers_and_exactly_zero_for_one_step(x64):
    x, lr, beta, delta = np.arange(1, 31), 0.02, 3.0, 1.7
    h = drifts(beta, delta, lr, 30)
    paper = delta / beta * ((lr * beta + 1.0) ** x - 1) - lr * delta * x
    np.testing.assert_allclose(h, paper, atol=1e-14)
    small = drifts(1e-4, delta, lr, 30)
    np.testing.assert_allclose(small, delta * lr**2 * 1e-4 * x * (x - 1) / 2, rtol=1e-4)
    with jax.enable_x64(False):  # where the paper's difference would be all error
        h = np.asarray(drifts(1e-5, delta, 1e-3, 1000))
    assert h[0] == 0 and (np.diff(h) > 0).all()


def test_without_drift_g_is_the_time_left_alone(x64):
    g = bounds(2.0, 0.0, 5.0, 0.1, 0.02, (40.0, C, B), 20)
    x = np.arange(1, 21)
    total = (40 - B - C) * x / (C * x + B)
    np.testing.assert_allclose(g, 1 / (0.1 * 0.02 * total), rtol=1e-12)


def fixed(beta, delta, rho, **options):
    policy = afl_fixed(beta, delta, rho, **{"budget": 40.0, "lr": 0.1, **options})
    return int(policy.mean_steps(jnp.int32(1)))


@pytest.mark.slow
def test_fixed_tau_is_the_first_minimiser_of_g():
    assert fixed(2.0, 0.0, 5.0) == 100  # nothing drifts, each aggregation costs
    assert fixed(2.0, 1.0, 5.0, aggregation_seconds=0.0) == 1  # aggregations are free
    assert fixed(0.0, 0.0, 0.0, aggregation_seconds=0.0) == 1  # all are as good
    assert fixed(50.0, 1e9, 0.0, max_steps=20) == 20  # a huge h that costs nothing
    more = [fixed(2.0, delta, 5.0, phi=0.025, **COSTS) for delta in (0.1, 1.0, 10.0)]
    assert 100 > more[0] > more[1] > more[2] >= 1
    traced = jax.vmap(
        lambda delta: afl_fixed(
            2.0,
            delta,
            5.0,
            40.0,
            lr=0.1,
            phi=0.025,
            step_seconds=C,
            aggregation_seconds=B,
        ).mean_steps(jnp.int32(1))
    )(jnp.array([0.1, 1.0, 10.0]))
    assert traced.tolist() == more


# --- the controller --------------------------------------------------------------------

SIZES, CURVATURES = (2, 6, 4), np.array([0.5, 2.0, 1.0])
LR, PHI, BUDGET = 0.1, 0.001, 100.0


def quadratics(seed=3, identical=False, times=1):
    """Clients with one optimum each, and their optima."""
    optima = np.random.default_rng(seed).normal(size=(3 * times, WIDTH))
    optima = np.tile(optima[:1], (3, 1)) if identical else optima
    clients = [
        (np.tile(x, (n, 1)), np.full(n, 1.0 if identical else c))
        for x, n, c in zip(
            optima, SIZES * times, np.tile(CURVATURES, times), strict=True
        )
    ]
    return FederatedDataset.from_clients(clients), optima


def run(algorithm, data, rounds, clock=None):
    plan = Plan(batch_size=None, lr=LR, clock=clock)
    round_fn, state = start(algorithm, quadratic_task(jnp.float64), data, plan)
    return state, *train(round_fn, state, keys(rounds), chunk_size=rounds)


@pytest.mark.slow
def test_a_client_compares_with_its_own_last_model_or_not_at_all(x64):
    """public-set.md D1 with cohorts of two of six: theta_i is where client i ended.

    The constants are means over the rounds in which one of the two had trained before.
    """
    data, optima = quadratics(times=2)
    sizes, curvatures = np.tile(SIZES, 2), np.tile(CURVATURES, 2)
    plan = Plan(batch_size=None, lr=LR, cohort_size=2)
    algorithm = afl(trial_steps=2)
    round_fn, state = start(algorithm, quadratic_task(jnp.float64), data, plan)
    loss = lambda i, w: curvatures[i] / 2 * ((w - optima[i]) ** 2).sum()
    theta, shown, infos, partly, estimates = {}, np.zeros(3), [], 0, []
    for key in keys(12):
        w = np.asarray(state.params)
        state, info = jax.jit(round_fn)(state, key)
        infos.append(info)
        cohort = np.asarray(info.cohort).tolist()
        before = [i for i in cohort if i in theta]
        partly += len(before) == 1
        if before:
            apart = [np.linalg.norm(theta[i] - w) for i in before]
            slopes = [
                abs(loss(i, theta[i]) - loss(i, w)) / far
                for i, far in zip(before, apart, strict=True)
            ]
            gradients = curvatures[cohort, None] * (w - optima[cohort])
            mean = np.average(gradients, 0, weights=sizes[cohort])
            off = np.linalg.norm(gradients - mean, axis=1)
            shown = np.array(
                [
                    np.average(curvatures[before], weights=sizes[before]),
                    np.average(off, weights=sizes[cohort]),
                    np.average(slopes, weights=sizes[before]),
                ]
            )
            estimates.append(shown)
        got = [info.policy[name] for name in ("beta", "delta", "rho")]
        np.testing.assert_allclose(got, shown, rtol=1e-9)
        assert int(info.policy["estimates"]) == len(estimates)
        for i in cohort:
            theta[i] = optima[i] + (1 - LR * curvatures[i]) ** 2 * (w - optima[i])
    assert partly  # a client came for the first time beside one that had trained
    assert len(estimates) < len(infos) - 1  # and a round but the first gave nothing
    infos = jax.tree.map(lambda *leaves: jnp.stack(leaves), *infos)
    constants = afl_constants(infos)
    got = [constants[name] for name in ("beta", "delta", "rho")]
    np.testing.assert_allclose(got, np.mean(estimates, 0), rtol=1e-9)
    traced = jax.jit(afl_constants)(infos)
    assert same(traced, constants)
    with pytest.raises(ValueError, match="got 1 rounds of which none gave an estimate"):
        afl_constants(jax.tree.map(lambda leaf: leaf[:1], infos))


class Earlier(NamedTuple):
    """What a client kept as commit f6fc3f1 wrote it; before it had trained, w_0."""

    inner: Any
    model: Any


@pytest.mark.slow
def test_a_state_of_an_earlier_version_goes_on_as_it_would_have(x64, tmp_path):
    """Every client has trained, the last one until it diverged."""
    data, _ = quadratics()
    plan = Plan(batch_size=None, lr=LR)
    algorithm = afl(BUDGET, phi=PHI, **COSTS)
    round_fn, state = start(algorithm, quadratic_task(jnp.float64), data, plan)
    abstract = jax.eval_shape(lambda: state)
    state, _ = train(round_fn, state, keys(3))
    model = state.clients.model
    step = jax.jit(round_fn)
    for broken in (model, model.at[2].set(jnp.nan)):
        state = state._replace(clients=state.clients._replace(model=broken))
        then = state._replace(clients=Earlier(state.clients.inner, broken))
        checkpoint.save(tmp_path, then, 3)
        restored, _ = checkpoint.restore(tmp_path, abstract)
        (resumed, info), (uninterrupted, other) = (
            step(one, keys(1)[0]) for one in (restored, state)
        )
        assert same((resumed, info.policy), (uninterrupted, other.policy))
    assert int(resumed.policy.nonfinite) == 1


@pytest.mark.slow
def test_who_never_trained_is_told_from_who_diverged(x64):
    """Nothing is computed of a model that is not there; one that overflowed is seen."""
    data, _ = quadratics()
    plan = Plan(batch_size=None, lr=LR)
    algorithm = afl(trial_steps=1)
    round_fn, begin = start(algorithm, quadratic_task(jnp.float64), data, plan)
    with jax.debug_nans(True), jax.debug_infs(True):
        state, info = jax.jit(round_fn)(begin, keys(1)[0])
    assert int(info.policy["nonfinite"]) == 0
    for value in (jnp.nan, jnp.inf, -jnp.inf):
        model = state.clients.model.at[0].set(value)
        broken = state._replace(clients=state.clients._replace(model=model))
        _, info = jax.jit(round_fn)(broken, keys(1)[0])
        assert int(info.policy["nonfinite"]) == 1, value


@pytest.mark.slow
def test_a_gradient_that_does_not_turn_has_the_least_beta(x64):
    """public-set.md D1: beta_i is at least 1e-5, where the client has moved at all."""
    data = make_data(dtype=np.float64)
    plan = Plan(batch_size=None, lr=LR)
    round_fn, state = start(afl(trial_steps=2), linear_task(jnp.float64), data, plan)
    _, infos = train(round_fn, state, keys(3))
    np.testing.assert_allclose(infos.policy["beta"], [0, 1e-5, 1e-5], rtol=1e-9)
    assert (np.asarray(infos.policy["rho"])[1:] > 1e-3).all()


def by_clock(tau):
    """c, b and the seconds of a round of `CLOCK`: two gradients are measured before."""
    model = 8 * WIDTH  # bytes; two models and three scalars go up
    ends = (tau + 2) * STEPS + 8 * (2 * model + 3 * 4) / UPLOADS + 0.25 + DELAYS
    return STEPS.max(), ends.max() - STEPS.max() * tau, ends.max()


STEPS, UPLOADS = np.array([0.3, 0.5, 0.2]), np.array([1e3, 9e2, 4e2])
DELAYS = np.array([0.1, 0.0, 0.9])
CLOCK = Clock(STEPS, UPLOADS, latency=0.25, delay=DELAYS)


def oracle(w, optima, hold, max_steps, costs):
    """Algorithms 2 and 3 in NumPy: (tau, beta, delta, rho, w) of each round, and best.

    `costs(tau)` are c, b and the seconds of a round.
    """
    p = np.array(SIZES) / sum(SIZES)
    loss = lambda w: CURVATURES / 2 * ((w - optima) ** 2).sum(1)
    gradient = lambda w: CURVATURES[:, None] * (w - optima)
    theta, tau, spent, stage, best = None, 1, 0.0, "trains", (np.inf, None)
    held, rows = None, []
    while stage != "over":
        f, g = loss(w), gradient(w)
        if p @ f < best[0]:
            best = p @ f, w
        delta = p @ np.linalg.norm(g - p @ g, axis=1)
        if theta is not None:
            apart = np.linalg.norm(theta - w, axis=1)
            rho = p @ (
                np.abs(CURVATURES / 2 * ((theta - optima) ** 2).sum(1) - f) / apart
            )
            turned = CURVATURES[:, None] * (theta - optima) - g
            beta = p @ (np.linalg.norm(turned, axis=1) / apart)
            new = np.array([beta, delta, rho])
            held = new if held is None else hold * held + (1 - hold) * new
        shrink = ((1 - LR * CURVATURES) ** tau)[:, None]
        theta = optima + shrink * (w - optima)
        C, B, seconds = costs(tau)
        w, spent, took = p @ theta, spent + seconds, tau
        if stage == "trains":
            if held is None:
                tau = 1
            else:
                beta, delta, rho = held
                x = np.arange(1, 10 * tau + 1)
                h = delta / beta * ((LR * beta + 1) ** x - 1) - LR * delta * x
                half = 1 / (2 * LR * PHI * (BUDGET - B - C) * x / (C * x + B))
                g = half + np.sqrt(half**2 + rho * h / (LR * PHI * x)) + rho * h
                tau = min(1 + int(g.argmin()), max_steps)
            if spent + C * (tau + 1) + 2 * B >= BUDGET:
                tau = int(np.clip(int((BUDGET - spent - 2 * B - C) / C), 1, tau))
                stage = "last"
        else:
            stage, tau = ("scores", 1) if stage == "last" else ("over", 0)
        rows.append((took, *(np.zeros(3) if held is None else held), w))
    return rows, best[1], spent


CASES = {
    "held": (0.5, 100, None, COSTS),
    "capped": (0.0, 4, None, COSTS),
    "by the clock": (0.0, 100, CLOCK, {}),
}


@pytest.mark.parametrize(
    "hold, max_steps, clock, given", fast(CASES, *list(CASES)[::2])
)
def test_the_controller_follows_the_numpy_oracle_to_the_end(
    x64, hold, max_steps, clock, given
):
    data, optima = quadratics()
    rounds = 30
    algorithm = afl(BUDGET, phi=PHI, hold=hold, **given, max_steps=max_steps)
    begin, state, infos = run(algorithm, data, rounds, clock)
    costs = by_clock if clock else lambda tau: (C, B, C * tau + B)
    w = np.asarray(begin.params)
    rows, best, spent = oracle(w, optima, hold, max_steps, costs)
    assert 5 < len(rows) < rounds  # and idle rounds after the end
    tau, beta, delta, rho, w = map(np.array, zip(*rows, strict=True))
    assert tau[:2].tolist() == [1, 1] and 1 < tau.max() <= max_steps
    idle = [0] * (rounds - len(rows))
    np.testing.assert_array_equal(infos.num_steps, np.tile([*tau, *idle], (3, 1)).T)
    for name, expected in (("beta", beta), ("delta", delta), ("rho", rho)):
        got = infos.policy[name][: len(rows)]
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12)
    close(state.params, w[-1], atol=1e-10)
    close(afl_best(state), best, atol=1e-10)
    np.testing.assert_allclose(state.policy.spent, spent)
    last = costs(1)
    assert spent <= BUDGET + last[2]  # the last round takes a step at least
    np.testing.assert_allclose(state.policy.step_seconds, last[0])
    np.testing.assert_allclose(state.policy.aggregation_seconds, last[1])


@pytest.mark.slow
def test_what_is_given_is_believed_and_the_budget_is_spent_by_the_clock(x64):
    data, _ = quadratics()
    _, state, infos = run(afl(BUDGET, phi=PHI, **COSTS), data, 40, CLOCK)
    spent = np.cumsum(infos.seconds)
    np.testing.assert_allclose(infos.policy["spent"], spent)
    assert (infos.policy["step_seconds"] == C).all()
    assert (infos.policy["aggregation_seconds"] == B).all()
    assert infos.num_active[-1] == 0
    off = 2 * (B + C) + by_clock(1)[2]  # what the last rounds take, and more or less
    assert -off < spent[-1] - BUDGET < off


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(1,), (0, 1, 2)])
def test_seconds_of_those_who_are_left_out_are_spent(lost):
    """The server has waited for them, and cannot know before whose numbers are none."""
    data = broken_data(make_data(sizes=(4, 4, 4)), *lost)
    clock = Clock(np.array([0.1, 0.4, 0.2]))
    plan = Plan(batch_size=4, clock=clock, nonfinite_updates="leave_out")
    round_fn, state = start(afl(budget=1e3), linear_task(), data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    assert np.flatnonzero(info.left_out).tolist() == list(lost)
    found = {name: float(value) for name, value in info.policy.items()}
    assert found["spent"] == pytest.approx(float(info.seconds)) and found["spent"] > 0.4
    if len(lost) < 3:  # who learns nothing of a round estimates nothing
        assert found["step_seconds"] == pytest.approx(0.4)
        assert found["aggregation_seconds"] == pytest.approx(found["spent"] - 0.4)


def test_a_budget_that_one_round_exceeds_is_refused_once_no_clock_is_known(task, data):
    with pytest.raises(ValueError, match="budget=0.1 is over before the first round"):
        start(afl(budget=0.1), task, data)


@pytest.mark.slow
def test_identical_clients_diverge_nowhere_and_tau_grows_tenfold(x64):
    data, _ = quadratics(identical=True)
    algorithm = afl(1e6, phi=PHI, **COSTS)
    _, state, infos = run(algorithm, data, 5)
    assert infos.num_steps[:, 0].tolist() == [1, 1, 10, 100, 100]
    assert infos.cut[:, 0].tolist() == [0, 0, 0, 0, 900]  # of ten times 100
    np.testing.assert_allclose(infos.policy["delta"], 0, atol=1e-14)
    np.testing.assert_allclose(infos.policy["beta"][1], 0, atol=1e-5)  # none moved away


@pytest.mark.slow
def test_a_trial_gives_the_constants_of_the_fixed_tau(x64):
    data, optima = quadratics()
    _, state, infos = run(afl(trial_steps=3, **COSTS), data, 6)
    assert (np.asarray(infos.num_steps) == 3).all()
    constants = afl_constants(infos)
    expected = np.average(CURVATURES, weights=SIZES)
    np.testing.assert_allclose(constants["beta"], expected, rtol=1e-9)
    assert np.isclose(constants["rho"], infos.policy["rho"][1:].mean())
    policy = afl_fixed(**constants, budget=BUDGET, lr=LR, phi=PHI, **COSTS)
    assert isinstance(policy.mean_steps(jnp.int32(1)).item(), int)


@pytest.mark.slow
def test_what_is_not_finite_never_reaches_tau_or_the_model(x64):
    data, _ = quadratics()
    algorithm = afl(BUDGET, phi=PHI, **COSTS)
    plan = Plan(batch_size=None, lr=LR)
    round_fn, state = start(algorithm, quadratic_task(jnp.float64), data, plan)
    step = jax.jit(round_fn)
    for key in keys(3):
        state, _ = step(state, key)
    assert int(state.policy.tau) > 1 and int(state.policy.nonfinite) == 0
    # a client whose last model is broken: its estimates are left out
    model = state.clients.model.at[1].set(jnp.nan)
    broken = state._replace(clients=state.clients._replace(model=model))
    after, info = step(broken, keys(1)[0])
    assert int(after.policy.tau) == int(state.policy.tau)
    assert int(after.policy.nonfinite) == 1
    close(after.policy.beta, state.policy.beta)
    # an aggregate that is broken: w stays, and one step follows
    far = state._replace(params=jnp.full(WIDTH, 1e308))
    after, _ = step(far, keys(1)[0])
    assert same(after.params, far.params)
    assert int(after.policy.tau) == 1 and int(after.policy.nonfinite) == 1
    assert np.isfinite(after.policy.best).all()
    server = algorithm.server
    update = server.update(state.params, state.server, Upload(model[1]), None)
    assert same(update, (state.params, state.server))


@pytest.mark.optimised
@pytest.mark.slow
def test_a_trial_is_its_base_to_the_bit(task, data):
    plan = Plan(participation=bernoulli(0.5), batch_size=4)
    round_fn, state = start(afl(trial_steps=3, base=scaffold()), task, data, plan)
    state, infos = train(round_fn, state, keys(3))
    plain_fn, plain = start(with_steps(scaffold(), constant_steps(3)), task, data, plan)
    plain, plain_infos = train(plain_fn, plain, keys(3))
    assert same(
        (state.params, state.server, state.clients.inner, infos.loss),
        (plain.params, plain.server, plain.clients, plain_infos.loss),
    )
    assert all(np.isfinite(infos.policy[name]).all() for name in infos.policy)


def test_the_seconds_of_a_step_may_be_traced(task, data):
    def tau(seconds):
        round_fn, state = start(afl(9.0, step_seconds=seconds), task, data)
        return jax.eval_shape(round_fn, state, keys(1)[0])[1].policy["tau"]

    assert jax.eval_shape(tau, 0.1).shape == ()


def test_clients_that_forget_their_model_are_refused(task, data):
    with pytest.raises(ValueError, match=r"write afl\(budget=..., base=scaffold\(\)\)"):
        start(with_steps(scaffold(), afl_online(9.0)), task, data)


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(), "for a budget but budget is missing; write the seconds"),
        (dict(budget=-1), r"budget=-1 must lie in \[1e-09, 1e\+15\]"),
        (
            dict(budget=0.1, step_seconds=0.1, aggregation_seconds=0.1),
            "budget=0.1 is over before the first round ends, which takes 0",
        ),
        (dict(budget=9, phi=0), r"phi=0 must lie in \[1e-09, 1e\+15\]"),
        (dict(budget=9, hold=1), r"hold=1 must lie in \[0, 1\)"),
        (
            dict(budget=9, step_seconds=0),
            r"step_seconds=0 must lie in \[1e-09, 1e\+15\]",
        ),
        (
            dict(budget=9, aggregation_seconds=-1),
            "aggregation_seconds=-1 must be a fin",
        ),
        (dict(budget=9, max_steps=0), "max_steps=0 must be an integer >= 1"),
        (
            dict(budget=9, max_steps=10**8),
            "max_steps=100000000 must be at most 1000000",
        ),
        (dict(budget=1e39), r"budget=1e\+39 must lie in \[1e-09, 1e\+15\]"),
        (dict(budget=9, phi=1e-300), "phi=1e-300 must lie in"),
        (
            dict(trial_steps=200),
            "trial_steps=200 must be at most 100, or None for a run",
        ),
        (
            dict(trial_steps=0),
            "trial_steps=0 must be an integer >= 1, or None for a run",
        ),
    ],
)
def test_every_wrong_option_is_one_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        afl(**options)
    if not {"hold", "trial_steps"} & set(options):
        with pytest.raises(ValueError, match=says):
            afl_fixed(1.0, 1.0, 1.0, **options)
    with pytest.raises(ValueError, match=r"delta=-1 must lie in \[0, 1e\+15\]"):
        afl_fixed(1.0, -1, 1.0, 15.0)


@pytest.mark.parametrize(
    "options", [dict(beta=1.0), dict(beta=1.0, delta=1.0, rho=1.0, trial_steps=3)]
)
def test_constants_come_together_and_are_not_measured_again(options):
    with pytest.raises(
        ValueError, match="write the means of a trial run for the first"
    ):
        afl(budget=9.0, **options)
    fixed = afl(budget=9.0, beta=1.0, delta=1.0, rho=1.0, base=scaffold())
    assert fixed.policy.measure is None and fixed.local.init is scaffold().local.init


def test_the_method_hands_its_arguments_on_to_the_fixed_policy(monkeypatch):
    given = {name: i + 1.0 for i, name in enumerate(signature(afl_fixed).parameters)}
    handed = {}
    fixed = lambda **named: handed.update(named) or constant_steps(1)
    monkeypatch.setattr(sys.modules[afl.__module__], "afl_fixed", fixed)
    afl(**given)
    assert handed == given


def view_of_a_square(params, last, train_factor=1):
    """A client with the loss w^2, which sees `train_factor` w where it trains."""
    outputs = lambda w, x: Outputs(w[None] * jnp.ones((len(x), 1)))
    task = Task(lambda key: jnp.zeros(1), outputs, lambda out, y: out[:, 0] ** 2)
    seen = lambda w, x, key: outputs(train_factor * w, x)
    return LocalView(
        task=task._replace(apply_train=seen),
        params=jnp.full(1, params),
        anchor=jnp.full(1, params),
        client=Remembered((), jnp.full(1, last)),
        server=(),
        batch=Batch(jnp.zeros((2, 1)), jnp.zeros(2, int), jnp.ones(2)),
        step=0,
        size_ratio=1.0,
        setting=None,
    )


@pytest.mark.slow
@pytest.mark.parametrize("apart, beta", [(3e-10, 2), (3e-11, 0)])
def test_models_less_than_1e_10_apart_are_not_compared(x64, apart, beta):
    found = estimate(view_of_a_square(0.0, apart), None)
    np.testing.assert_allclose(found.beta, beta, rtol=1e-6)


def test_estimates_are_measured_in_evaluation_mode(x64):
    found = estimate(view_of_a_square(1.0, 2.0, train_factor=3), None)
    assert (found.loss, found.beta) == (1, 2)
