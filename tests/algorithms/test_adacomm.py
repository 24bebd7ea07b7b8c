import math
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import keys as round_keys
from helpers import start
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt import (
    Clock,
    Plan,
    adacomm_steps,
    bernoulli,
    evaluate_clients,
    train,
)
from fedjax_adapt.algorithms import adacomm
from fedjax_adapt.core import Cohort, Outcome, Setting
from fedjax_adapt.engine.cohort import with_num_steps


def taus(losses, lrs=None, seconds=0.0, active=True, w0=None, **options):
    """tau after each round with a mean loss of `losses`, by the policy itself."""
    lrs = [0.5] * len(losses) if lrs is None else lrs

    def train_loss(params):
        del params
        return jnp.asarray(0.0 if w0 is None else w0)

    def one(state, round):
        loss, lr, active = round
        cohort = Cohort(*[None] * 8, mean_epoch_steps=None, train_loss=train_loss)
        cohort = cohort._replace(active=active[None])
        setting = Setting(*[None] * 8)._replace(lr=lr, base_lr=lrs[0])
        outcome = Outcome(*[None] * 4, setting, sent=loss, seconds=seconds)
        outcome = outcome._replace(step_seconds=jnp.ones(1))
        state = policy.update(state, cohort, None, outcome)
        return state, state

    policy = adacomm_steps(**options)
    active = jnp.broadcast_to(jnp.asarray(active), (len(losses),))
    rounds = jnp.asarray(losses, float), jnp.asarray(lrs, float), active
    return jax.lax.scan(one, policy.init(None, 1), rounds)[1]


def final(losses, **options):
    return int(taus(losses, **{"every_rounds": 1, **options}).tau[-1])


def test_without_the_fix_tau_is_the_root_of_the_loss_ratio():
    assert final([2.0, 2.0], fix=False) == 100
    assert final([2.0, 0.5], fix=False) == 50
    assert final([2.0, 0.5], fix=False, initial_steps=25) == 13  # the root times tau_0
    assert final([2.0, 1e-9], fix=False) == 1
    assert final([2.0, 8.0], fix=False) == 200  # it may grow
    assert final([4.0, 3.0, 1.0], fix=False) == 50  # F_0 and not F_{l-1}


def test_what_the_cap_cuts_is_counted_and_the_fix_halves_the_cap():
    options = dict(max_steps=120, every_rounds=1, trigger="loss_not_decreasing")
    losses = [2.0, 1.0, 8.0, 7.0, 9.0]
    assert taus(losses, **options).tau.tolist() == [100, 71, 36, 188, 60]
    policy = adacomm_steps(**options)
    state = policy.init(None, 1)._replace(tau=jnp.int32(188))
    cohort = Cohort(*[None] * 8, mean_epoch_steps=None)._replace(
        ids=jnp.arange(2), num_examples=jnp.array([3, 0])
    )
    steps = policy.steps(state, cohort, ())
    taken, cut = with_num_steps(cohort, steps, Plan(), policy)
    assert taken.num_steps.tolist() == [120, 0] and cut.tolist() == [68, 0]
    assert int(policy.report(state, cohort, ())["tau"]) == 120


def test_with_the_fix_tau_falls_in_every_interval_until_it_is_one():
    assert taus([1.0] * 9, every_rounds=1).tau.tolist() == [
        100, 50, 25, 13, 7, 4, 2, 1, 1,
    ]  # fmt: skip
    slowly = taus([1.0] * 6, every_rounds=1, gamma=0.9, initial_steps=4).tau
    assert slowly.tolist() == [4, 3, 2, 1, 1, 1]
    assert (
        taus([1.0, 0.9, 0.5], every_rounds=1, initial_steps=1).tau.tolist() == [1] * 3
    )


def test_the_triggers_differ_where_rounding_hides_that_the_loss_fell():
    losses = dict(losses=[1.0, 0.99], initial_steps=10)
    assert final(**losses) == 5
    assert final(**losses, trigger="loss_not_decreasing") == 10
    assert final([1.0, 0.5, 0.6], trigger="loss_not_decreasing") == 36  # half of 71
    assert final([1.0, 0.5, 0.45], trigger="loss_not_decreasing") == 68


def test_a_smaller_learning_rate_lengthens_tau():
    options = dict(fix=False, lrs=[0.4, 0.1], initial_steps=10)
    assert final([1.0, 1.0], **options) == 10
    assert final([1.0, 1.0], **options, lr_coupling="practical") == 20
    assert final([1.0, 1.0], **options, lr_coupling="exact") == 80


def test_intervals_are_counted_in_rounds_or_in_simulated_seconds():
    falls = lambda state: np.flatnonzero(np.diff(state.tau)).tolist()
    assert falls(taus([1.0] * 9, every_rounds=3)) == [1, 4, 7]
    assert falls(taus([1.0] * 31)) == [8, 18, 28]  # every ten
    assert falls(taus([1.0] * 9, every_seconds=60, seconds=25.0)) == [1, 3, 6]
    assert falls(taus([1.0] * 9, every_seconds=60, seconds=0.0)) == []
    assert falls(taus([1.0] * 3, every_seconds=60, seconds=150.0)) == [0, 1]


def test_the_loss_of_an_interval_is_that_of_its_last_round():
    assert taus([4.0, 9.0, 1.0], every_rounds=3, fix=False).tau.tolist() == [
        100,
        100,
        50,
    ]
    assert final([9.0, 1.0], fix=False, start="global", w0=4.0) == 50
    assert final([1.0], fix=False, start="global", w0=4.0) == 50


def test_losses_that_are_not_finite_and_idle_rounds_leave_tau_alone():
    bad = taus([1.0, np.nan, np.inf, 0.25], every_rounds=1, fix=False)
    assert bad.tau.tolist() == [100, 100, 100, 50]
    assert bad.nonfinite.tolist() == [0, 1, 2, 2]
    zero = taus([0.0, 1.0], every_rounds=1)  # nothing to divide by
    assert zero.tau.tolist() == [100, 100] and zero.nonfinite.tolist() == [0, 1]
    idle = taus([1.0, np.nan, 0.0], every_rounds=1, active=[True, False, False])
    assert idle.tau.tolist() == [100] * 3 and int(idle.nonfinite[-1]) == 0
    assert int(idle.rounds[-1]) == 1


def oracle(losses, tau, fix, trigger, gamma, every_rounds):
    first = last = losses[0]
    start, got = tau, [tau]
    for r, loss in enumerate(losses[1:], 2):
        if r % every_rounds == 0:
            nu = max(math.ceil(math.sqrt(loss / first) * start), 1)
            by_loss = trigger == "loss_not_decreasing"
            stalls = loss >= last if by_loss else nu >= tau
            last = loss
            tau = max(1, min(math.ceil(gamma * tau), tau - 1)) if fix and stalls else nu
        got.append(tau)
    return got


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    fix=st.booleans(),
    trigger=st.sampled_from(["tau_not_smaller", "loss_not_decreasing"]),
    gamma=st.sampled_from([0.5, 0.3]),
    every_rounds=st.integers(2, 4),
)
def test_tau_follows_the_loop_in_numpy(seed, fix, trigger, gamma, every_rounds):
    rng = np.random.default_rng(seed)
    losses = rng.uniform(0.2, 1, 12) * np.exp(-np.arange(12) / 6)
    options = dict(fix=fix, trigger=trigger, gamma=gamma, every_rounds=every_rounds)
    with jax.enable_x64(True):
        got = taus(losses, **options).tau.tolist()
    assert got == oracle(losses.tolist(), 100, **options)
    if fix and trigger == "tau_not_smaller":
        stairs = got[every_rounds - 1 :: every_rounds]
        assert all(a > b or a == b == 1 for a, b in pairwise(stairs))


@pytest.mark.slow
def test_rounds_take_tau_steps_and_learn_from_the_mean_loss_of_the_clients(task, data):
    plan = Plan(participation=bernoulli(0.4), batch_size=4)
    algorithm = adacomm(8, fix=False, every_rounds=1, start="global")
    round_fn, state = start(algorithm, task, data, plan)
    after, infos = train(round_fn, state, round_keys(8))
    tau = np.r_[8, infos.policy["tau"]]
    active = np.asarray(infos.num_steps) > 0
    assert not active.all()
    np.testing.assert_array_equal(infos.num_steps, active * tau[:-1, None])
    w0 = np.average(
        evaluate_clients(task, state.params, data).loss, weights=np.asarray(data.size)
    )
    np.testing.assert_allclose(after.policy.first_loss, w0, rtol=1e-5)
    mean = np.array(
        [loss[on].mean() for loss, on in zip(infos.loss, active, strict=True)]
    )
    np.testing.assert_allclose(infos.policy["interval_loss"], mean, rtol=1e-5)
    np.testing.assert_array_equal(tau[1:], np.ceil(np.sqrt(mean / w0) * 8 - 1e-4))
    assert tau[-1] < 8


def test_seconds_that_never_pass_are_refused(task, data):
    algorithm = adacomm(8, every_seconds=20.0)
    with pytest.raises(
        ValueError, match="every_seconds=20.0 never pass without a clock"
    ):
        start(algorithm, task, data, Plan(batch_size=4))


@pytest.mark.slow
def test_intervals_end_by_the_clock_of_the_plan(task, data):
    plan = Plan(batch_size=4, clock=Clock(step_seconds=1.0, bandwidth=1e6))
    round_fn, state = start(adacomm(8, every_seconds=20.0), task, data, plan)
    _, infos = train(round_fn, state, round_keys(12))
    ends = np.diff(np.cumsum(infos.seconds) // 20, prepend=0) > 0
    tau = np.r_[8, infos.policy["tau"]]
    np.testing.assert_array_equal(np.diff(tau) < 0, ends & (tau[:-1] > 1))
    assert 2 <= ends.sum() < 12


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(initial_steps=0), "initial_steps=0 must be an integer >= 1"),
        (dict(initial_steps=9, max_steps=8), r"initial_steps=9 must lie in \[1, 8\]"),
        (dict(trigger="loss"), "trigger='loss' is unknown; write one of"),
        (dict(gamma=0), r"gamma=0 must lie in \(0, 1\]"),
        (dict(every_rounds=0), "every_rounds=0 must be an integer >= 1"),
        (dict(every_seconds=0), "every_seconds=0 must be a finite number above 0"),
        (dict(start="w0"), "start='w0' is unknown"),
        (
            dict(max_steps=0),
            "max_steps=0 must be an integer >= 1, or None for no limit",
        ),
        (dict(lr_coupling="on"), "lr_coupling='on' is unknown"),
    ],
)
def test_every_wrong_option_is_one_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        adacomm(**options)
