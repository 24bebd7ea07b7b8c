import math
from functools import cache
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import close, keys, quadratic_task, same, start
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt import (
    FederatedDataset,
    Plan,
    bernoulli,
    constant_steps,
    gift_steps,
    train,
    with_steps,
)
from fedjax_adapt.algorithms import fedavg, gift
from fedjax_adapt.algorithms.gift import consistency
from fedjax_adapt.core import Cohort, Outcome, Upload
from fedjax_adapt.engine.cohort import with_num_steps


def observe(policy, state, updates, active=None):
    """The policy's state after a round with `updates` [clients, ...]."""
    cohort = Cohort(*[None] * 8, mean_epoch_steps=None)._replace(
        active=jnp.ones(len(updates), bool) if active is None else active
    )
    sent = {"u": updates.mean(0)}, {"u": jnp.abs(updates).mean(0)}
    outcome = Outcome(*[None] * 5, sent=sent)
    return policy.update(state, cohort, None, outcome)


def follow(policy, rounds, like):
    """(the states after each round stacked) of a scan over `rounds` [rounds, ...]."""

    def one(state, updates):
        state = observe(policy, state, updates)
        return state, state

    state = policy.init({"u": like}, len(rounds[0]))
    state = jax.tree.map(jnp.asarray, state)
    return jax.lax.scan(one, state, rounds)[1]


# --- C ---------------------------------------------------------------------------------


def of_one(policy, updates):
    return float(follow(policy, updates[None], updates[0]).consistency[0])


@pytest.mark.slow
def test_c_is_one_when_all_agree_and_zero_when_they_cancel_or_stand_still():
    rng = np.random.default_rng(0)
    sign = np.sign(rng.normal(size=20))
    agree = jnp.asarray(sign * np.abs(rng.normal(size=(3, 20))), jnp.float32)
    half = jnp.asarray(rng.normal(size=(2, 20)), jnp.float32)
    cancel = jnp.concatenate([half, -half])
    assert of_one(gift_steps(), agree) == pytest.approx(1)
    assert of_one(gift_steps(), cancel) == pytest.approx(0, abs=1e-6)
    assert of_one(gift_steps(), 0 * agree) == 0
    assert of_one(gift_steps(theta=0.0), half[:1]) == pytest.approx(1)
    state = follow(gift_steps(), jnp.stack([agree] * 4), agree[0])
    close(state.consistency, np.ones(4, np.float32))


def reduced(a, b, layers, reduce):
    ratio = np.divide(a, b, out=np.zeros_like(a), where=b > 0)
    return {
        "mean_abs_ratio": np.abs(ratio).mean(),
        "ratio_of_sums": np.abs(a).sum() / b.sum(),
        "exclude_zero": np.abs(ratio)[b > 0].mean(),
        "per_layer_mean": np.mean([np.abs(part).mean() for part in layers(ratio)]),
        "signed_mean": ratio.mean(),
    }[reduce]


REDUCERS = (
    "mean_abs_ratio", "ratio_of_sums", "exclude_zero", "per_layer_mean", "signed_mean",
)  # fmt: skip


def test_c_of_positive_and_negative_parts_scaled_and_bias_corrected_is_c(x64):
    """The paper's eq. (1) in NumPy: P and N kept apart, client by client."""
    rng = np.random.default_rng(1)
    u = rng.normal(size=(6, 4, 10)) + 0.3  # rounds, clients, coordinates
    u[..., :2] = 0
    u[..., 3] *= 1e5  # which neither the scale of all nor of one coordinate can tell
    positive = negative = np.zeros(10)
    for r in range(6):
        positive = 0.7 * positive + 0.3 * np.maximum(u[r], 0).sum(0)
        negative = 0.7 * negative + 0.3 * -np.maximum(-u[r], 0).sum(0)
    a, b = positive + negative, positive - negative
    layers = lambda x: (x[:7], x[7:])
    tree = lambda x: dict(zip("vw", map(jnp.asarray, layers(x)), strict=True))
    for reduce in REDUCERS:
        expected = reduced(a, b, layers, reduce)
        for factor in (1, 1 / (1 - 0.7**6), 1e-3):
            got = consistency(tree(factor * a), tree(factor * b), reduce)
            np.testing.assert_allclose(got, expected, rtol=1e-12)
    last = jax.tree.map(
        lambda leaf: leaf[-1], follow(gift_steps(theta=0.7), jnp.asarray(u), u[0, 0])
    )
    close(4 * last.signed["u"], a, atol=1e-12)
    close(4 * last.size["u"], b, atol=1e-12)


def test_c_of_a_model_in_half_precision_falls_by_little():
    signed = jnp.ones(2000, jnp.bfloat16)
    c = [consistency(signed.at[:n].set(0), jnp.ones_like(signed)) for n in range(5)]
    np.testing.assert_allclose(c, 1 - np.arange(5) / 2000, rtol=1e-6)


@pytest.mark.parametrize("num_clients", [10, 40])
def test_noise_alone_gives_the_floor_of_the_formula(num_clients):
    theta, rounds = 0.9, 40
    noise = jax.random.normal(jax.random.key(0), (rounds, num_clients, 2000))
    c = follow(gift_steps(theta=theta), noise, noise[0, 0]).consistency
    r = np.arange(1, rounds + 1)
    share = (1 - theta) / (1 + theta) * (1 + theta**r) / (1 - theta**r)
    np.testing.assert_allclose(c, np.sqrt(share / num_clients), rtol=0.05)


# --- the detectors ---------------------------------------------------------------------


@cache
def compiled(detector, rounding):
    """One program for all numbers: they may be traced."""
    fixed = dict(theta=0.0, detector=detector, rounding=rounding)
    run = lambda updates, options: follow(
        gift_steps(**fixed, **options), updates, updates[0, 0]
    )
    return jax.jit(run)


def on_sequence(sequence, detector, rounding, **options):
    """tau and the count of changes after each C of `sequence`, by the policy itself."""
    # with theta = 0, two clients that take steps of 1 and 2c - 1 have C = c
    c = np.asarray(sequence)[:, None]
    updates = jnp.asarray(np.stack([np.ones_like(c), 2 * c - 1], 1))
    states = compiled(detector, rounding)(updates, options)
    mean, size = updates.mean(1), jnp.abs(updates).mean(1)
    np.testing.assert_allclose(states.consistency, (mean / size)[:, 0], atol=1e-12)
    got = np.asarray(states.tau).tolist(), np.asarray(states.triggers).tolist()
    return np.asarray(states.consistency).tolist(), got


def oracle(
    sequence, initial_steps, gamma, detector, rounding, window, grow_window, warmup,
    relax, relax_after, relax_by, max_steps,
):  # fmt: skip
    """The detectors as loops, from their description alone; taus before the cap."""
    tau, triggers, taus, counts = initial_steps, 0, [], []
    asked = tau
    before, best, marked, running = math.inf, 1.1, 0, 0
    for r, c in enumerate(sequence, 1):
        old = tau
        if detector == "patience":
            first = best == 1.1
            fell = c < best
            if fell:
                best, marked = c, r
            fires = not fell and r - marked > window and r > warmup
        else:
            first = before == math.inf
            fell, fires = c < before, c >= before
            before = c
        running = running + 1 if fell and not first else 0
        if fires and tau > 1:
            part = tau / gamma
            tau = math.ceil(part) if rounding == "ceil" else math.floor(part)
            asked = tau = max(1, min(tau, old - 1))
            triggers += 1
            if detector == "patience":
                best, marked = 1.1, r
                window = gamma * window if grow_window else window
        elif relax and running >= relax_after:
            asked = tau + relax_by
            tau = min(asked, max_steps)
            running = 0
        if tau != old:
            running = 0
            if detector == "literal_guard":
                before = math.inf
        taus.append(asked)
        counts.append(triggers)
    return taus, counts


@pytest.mark.parametrize("detector", ["patience", "literal_guard", "literal"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    relax=st.booleans(),
    rounding=st.sampled_from(["ceil", "floor"]),
    gamma=st.sampled_from([1.5, 2.0, 3.0, 10.0]),
    grow_window=st.booleans(),
)
def test_detectors_follow_their_loops(
    detector, seed, relax, rounding, gamma, grow_window
):
    rng = np.random.default_rng(seed)
    # coarse, so that equal values occur, and falling now and then
    sequence = np.round(rng.random(60) * np.exp(-rng.random() * np.arange(60) / 20), 2)
    options = dict(
        initial_steps=100, gamma=gamma, detector=detector, rounding=rounding,
        window=int(rng.integers(0, 4)), grow_window=grow_window,
        warmup=int(rng.integers(0, 9)), relax=relax, relax_after=int(rng.integers(1, 4)),
        relax_by=5, max_steps=110,
    )  # fmt: skip
    with jax.enable_x64(True):
        seen, got = on_sequence(sequence, **options)
    assert got == oracle(seen, **options)
    if not relax:
        assert all(a >= b >= 1 for a, b in pairwise([100, *got[0]]))


def test_what_the_cap_cuts_is_counted_and_tau_falls_from_the_cap():
    c = jnp.asarray([0.9, 0.8, 0.7, 0.6, 0.6, 0.6])[:, None]
    updates = jnp.stack([c + 1, c - 1], 1)  # C = c
    options = dict(relax=True, relax_after=2, relax_by=5, max_steps=10)
    policy = gift_steps(8, theta=0.0, detector="literal", **options)
    states = follow(policy, updates, updates[0, 0])
    cohort = Cohort(*[None] * 8, mean_epoch_steps=None)._replace(
        ids=jnp.arange(2), num_examples=jnp.ones(2, int)
    )

    def engine(state):
        steps = policy.steps(state, cohort, ())
        cohort_with, cut = with_num_steps(cohort, steps, Plan(), policy)
        report = policy.report(state, cohort, ())
        return cohort_with.num_steps[0], cut[0], report["tau"]

    taken, cut, shown = map(
        np.ndarray.tolist, map(np.asarray, jax.vmap(engine)(states))
    )
    assert taken == shown == [8, 8, 10, 10, 5, 3]
    assert cut == [0, 0, 3, 3, 0, 0]


STAIRS = {
    "2 ceil": (2, "ceil", [50, 25, 13, 7, 4, 2, 1, 1]),
    "2 floor": (2, "floor", [50, 25, 12, 6, 3, 1, 1]),
    "3 ceil": (3, "ceil", [34, 12, 4, 2, 1]),
    "3 floor": (3, "floor", [33, 11, 3, 1]),
    "10": (10, "ceil", [10, 1, 1]),
    "slow": (1.2, "ceil", [84, 70, 59, 50, 42, 35, 30, 25]),
}


@pytest.mark.parametrize("gamma, rounding, stairs", STAIRS.values(), ids=STAIRS)
def test_a_flat_c_leads_down_the_stairs_and_rests_at_one(gamma, rounding, stairs):
    flat = jnp.ones((len(stairs) + 1, 1, 1))
    options = dict(gamma=gamma, rounding=rounding, detector="literal")
    states = follow(gift_steps(**options), flat, flat[0, 0])
    assert states.tau.tolist() == [100, *stairs]
    assert int(states.triggers[-1]) == len(stairs) - stairs.count(1) + (1 in stairs)


def test_at_one_step_patience_keeps_its_averages():
    flat = jnp.ones((9, 1, 1))
    policy = gift_steps(1, window=0, warmup=0)
    last = jax.tree.map(lambda leaf: leaf[-1], follow(policy, flat, flat[0, 0]))
    assert int(last.tau) == 1 and int(last.triggers) == 0
    assert float(last.size["u"][0]) == pytest.approx(1 - 0.9**9)


@pytest.mark.slow
def test_on_noise_a_reset_makes_the_literal_rule_cascade_and_patience_wait():
    noise = jax.random.normal(jax.random.key(3), (240, 10, 500))

    def changes(**options):
        tau = follow(gift_steps(**options), noise, noise[0, 0]).tau
        return np.flatnonzero(np.diff(tau, prepend=100))

    literal = changes(detector="literal", reset_ema=True)
    assert (np.diff(literal) == 1).any()
    patience = changes(detector="patience")
    assert len(patience) >= 2
    # the window doubles with each change
    assert (np.diff(patience) > 5 * 2 ** np.arange(1, len(patience))).all()
    assert patience[0] >= 50


# --- in rounds -------------------------------------------------------------------------


@pytest.mark.slow
def test_the_toy_of_fig_1_stops_where_its_closed_form_says(x64):
    """L1 = (w + 2)^2 and L2 = (w - 10)^2 / 5, one client each, from w = -100."""
    lr, taus = 0.1, np.array([1, 2, 5, 10, 50, 500])
    one = lambda x, curvature: (np.full((1, 4), float(x)), np.array([curvature]))
    data = FederatedDataset.from_clients([one(-2, 2.0), one(10, 0.4)])
    plan, task = Plan(batch_size=None, lr=lr), quadratic_task(jnp.float64)

    def rounds(tau):
        round_fn, state = start(gift(tau, warmup=10**6), task, data, plan)
        state = state._replace(params=jnp.full(4, -100.0))

        def one(state, key):
            state, info = round_fn(state, key)
            return state, info.policy["consistency"]

        return jax.lax.scan(one, state, keys(220))

    state, c = jax.jit(jax.vmap(rounds))(jnp.asarray(taus))
    a, b = (1 - 2 * lr) ** taus, (1 - 0.4 * lr) ** taus
    fixed = (8 + 2 * a - 10 * b) / (2 - a - b)
    np.testing.assert_allclose(fixed[[0, 2, 4, 5]], [0, 0.5854, 3.583, 4], atol=1e-3)
    np.testing.assert_allclose(state.params, np.tile(fixed, (4, 1)).T, atol=1e-4)
    np.testing.assert_array_equal(c[:, 0], 1)
    assert (c[:, -1] < 1e-3).all()
    # what stops it: the two updates cancel
    np.testing.assert_allclose((1 - a) * (-2 - fixed), -(1 - b) * (10 - fixed))


def ends(algorithms, task, data, plan=None):
    for algorithm in algorithms:
        round_fn, state = start(algorithm, task, data, plan)
        step = jax.jit(round_fn)
        for key in keys(3):
            state, info = step(state, key)
        yield state.params, state.clients, state.server, info.loss


def test_all_clients_weigh_the_same_whatever_they_hold():
    """public-set.md E2: the mean of those that reported is not weighted."""
    cohort = Cohort(*[None] * 8, mean_epoch_steps=None)._replace(
        active=jnp.array([True, True, False, True]),
        num_examples=jnp.array([90, 5, 40, 5]),
    )
    upload = Upload(jnp.array([3.0, 6.0, 100.0, 9.0]))
    close(gift().server.combine(upload, cohort).delta, jnp.float32(6))


@pytest.mark.slow
def test_a_tau_that_never_moves_is_uniform_fedavg_to_the_bit(task, data):
    same_steps = with_steps(fedavg("uniform"), constant_steps(7))
    assert same(*ends((gift(7, warmup=10**6), same_steps), task, data))


@pytest.mark.slow
def test_all_clients_take_tau_steps_and_empty_slots_change_nothing(task, data):
    plan = Plan(participation=bernoulli(0.4), batch_size=4)
    algorithm = gift(8, window=0, warmup=0, grow_window=False)
    round_fn, state = start(algorithm, task, data, plan)
    state, infos = train(round_fn, state, keys(30))
    tau = np.r_[8, infos.policy["tau"]]
    assert (np.diff(tau) < 0).sum() == int(state.policy.triggers) == 3  # 8, 4, 2, 1
    present = np.asarray(infos.cohort) < data.num_clients
    assert not present.all()
    np.testing.assert_array_equal(infos.num_steps, present * tau[:-1, None])
    assert np.isfinite(infos.policy["consistency"]).all()
    assert not np.asarray(infos.policy["nonfinite"]).any()


@pytest.mark.slow
def test_updates_that_are_not_finite_are_counted_and_idle_rounds_are_not():
    policy = gift_steps(detector="literal")
    state = policy.init({"u": jnp.zeros(3)}, 2)
    state = observe(policy, state, jnp.array([[1.0, -1.0, 0.5], [1.0, 1.0, 0.5]]))
    broken = jnp.full((2, 3), 1.0).at[0, 1].set(jnp.nan)
    after = observe(policy, state, broken)
    assert int(after.nonfinite) == 1
    assert same(after._replace(nonfinite=state.nonfinite), state)
    nobody = jnp.zeros(2, bool)
    assert same(observe(policy, state, broken, nobody), state)
    assert int(observe(policy, state, jnp.ones((2, 3))).tau) == 50  # it goes on


@pytest.mark.slow
def test_theta_and_gamma_may_be_traced():
    flat = jnp.ones((3, 1, 1))
    flat = flat.at[1].set(-1.0)

    def ends(theta, gamma):
        policy = gift_steps(theta=theta, gamma=gamma, detector="literal")
        states = follow(policy, flat, flat[0, 0])
        return states.tau[-1], states.consistency[-1]

    traced = jax.vmap(ends)(jnp.array([0.0, 0.9]), jnp.array([2.0, 10.0]))
    apart = [ends(0.0, 2.0), ends(0.9, 10.0)]
    close(traced, jax.tree.map(lambda *leaves: jnp.stack(leaves), *apart))


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(gamma=1), r"gamma=1 must lie in \(1, "),
        (dict(theta=1.0), r"theta=1.0 must lie in \[0, 1\)"),
        (dict(initial_steps=0), "initial_steps=0 must be an integer >= 1"),
        (dict(initial_steps=9, max_steps=8), r"initial_steps=9 must lie in \[1, 8\]"),
        (dict(detector="patient"), "did you mean 'patience'"),
        (dict(reduce="mean"), "reduce='mean' is unknown"),
        (dict(rounding="up"), "rounding='up' is unknown"),
        (dict(window=-1), "window=-1 must be a finite number"),
        (dict(warmup=-1), "warmup=-1 must be an integer"),
        (dict(relax_after=0), "relax_after=0 must be an integer"),
        (dict(relax_by=0), "relax_by=0 must be an integer"),
    ],
)
def test_every_wrong_option_is_one_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        gift(**options)
