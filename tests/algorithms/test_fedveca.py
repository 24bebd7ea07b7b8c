from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from helpers import (
    SIZES,
    WIDTH,
    close,
    fast,
    keys,
    linear_task,
    make_clients,
    make_data,
    make_task,
    quadratic_task,
    same,
    start,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import flat

from fedjax_adapt import (
    FederatedDataset,
    Plan,
    bernoulli,
    constant_steps,
    train,
    veca_steps,
    with_steps,
)
from fedjax_adapt.algorithms import fedavg, fednova, fedveca, moon, scaffold
from fedjax_adapt.algorithms.fedveca import VecaProbe
from fedjax_adapt.core import Cohort, LocalRun, Outcome, Upload

norm = np.linalg.norm


def equation_16(A, alpha, max_steps):
    """tau of clients whose A is finite; the smallest A takes 1 / (1 - alpha)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        tau = np.floor(A / (A - alpha * A.min()) + 1e-6)
    tau[tau <= 1] = 2
    return np.where(A == 0, max_steps, np.minimum(tau, max_steps)).astype(int)


class Oracle:
    """Algorithms 1 and 2 in NumPy. `gradient(i, w, step)`; step None: all local data."""

    def __init__(self, gradient, sizes, w, lr, alpha=0.95, max_steps=50, full=False):
        self.gradient, self.sizes, self.w, self.lr = gradient, np.array(sizes), w, lr
        self.alpha, self.max_steps, self.full = alpha, max_steps, full
        self.tau = np.full(len(sizes), 2)
        self.models, self.gradients, self.L, self.taken = [], [], 0.0, 0

    def round(self, cohort, accepts=lambda proposed, ends: True):
        k, w, lr = len(self.models), self.w, self.lr(len(self.models))
        p = self.sizes[cohort] / self.sizes[cohort].sum()
        tau = self.tau[cohort]
        firsts, directions, betas, numerators, ends = [], [], [], [], []
        for i, steps in zip(cohort, tau, strict=True):
            path, gs = [w], []
            for step in range(steps):
                gs.append(self.gradient(i, path[-1], step))
                path.append(path[-1] - lr * gs[-1])
            first = self.gradient(i, w, None) if self.full else gs[0]
            later = range(1, steps)
            betas.append(max(norm(first - gs[s]) / norm(w - path[s]) for s in later))
            numerators.append(max(norm(sum(gs[: s + 1])) ** 2 / (s + 1) for s in later))
            firsts.append(first)
            directions.append(np.mean(gs, 0))
            ends.append(path[-1])
        seen = {"tau_bar": p @ tau, "beta": np.array(betas)}
        if k:
            delta = np.array(numerators) / norm(self.gradients[-1]) ** 2
            A = lr * seen["beta"] ** 2 * delta
            self.tau[cohort] = equation_16(A, self.alpha, self.max_steps)
            top, bottom = self.gradients[-1], self.models[-1]
            if k > 1:
                top, bottom = top - self.gradients[-2], bottom - self.models[-2]
            if norm(bottom) > 0:
                self.L = max(self.L, norm(top) / norm(bottom))
            seen |= {"delta": delta, "A": A}
        seen |= {"tau": self.tau[cohort], "L": self.L}
        seen["premise"] = lr * seen["tau_bar"] * self.L
        self.models.append(w)
        self.gradients.append(p @ np.array(firsts))
        proposed = w - lr * seen["tau_bar"] * (p @ np.array(directions))
        taken = accepts(proposed, ends)
        self.w = proposed if taken else w
        self.taken += taken
        return seen | {"accepted_rounds": self.taken}


def assert_shows(info, seen):
    for name, value in seen.items():
        np.testing.assert_allclose(info.policy[name], value, rtol=1e-8, err_msg=name)


def softmax_loss(w, x, y):
    weight, b = w[:-3].reshape(WIDTH, 3), w[-3:]
    z = x @ weight + b
    return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y])


@pytest.mark.parametrize(
    "accept, full",
    fast(
        {"off": ("off", False), "local": ("local", False), "all data": ("local", True)},
        "local",
    ),
)
def test_follows_the_numpy_oracle_on_mini_batches(x64, accept, full):
    """Unequal clients, two thirds of them a round, weight decay, falling lr."""
    wd = 0.05
    clients = make_clients(dtype=np.float64)
    plan = Plan(
        cohort_size=4, batch_size=3, lr=0.5, lr_decay=0.9, weight_decay=wd,
        shuffle="none", lanes=2,
    )  # fmt: skip

    def batch(i, step):
        x, y = clients[i]
        if step is None:
            return x, y
        begin = 3 * (step % -(-len(y) // 3))
        return x[begin : begin + 3], y[begin : begin + 3]

    def gradient(i, w, step):
        return oracle.gradient(w, *batch(i, step)) + wd * w

    algorithm = fedveca(0.9, max_steps=7, accept=accept, full_gradient=full)
    data = make_data(dtype=np.float64)
    round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
    lr = lambda k: 0.5 * 0.9**k
    expected = Oracle(gradient, SIZES, flat(state.params), lr, 0.9, 7, full)
    best, step = np.inf, jax.jit(round_fn)
    for key in keys(6):
        state, info = step(state, key)
        cohort = np.asarray(info.cohort)

        def accepts(proposed, ends, cohort=cohort):
            nonlocal best
            if accept == "off":
                return True
            first = None if full else 0
            losses = [
                softmax_loss(end, *batch(i, first))
                for i, end in zip(cohort, ends, strict=True)
            ]
            F = np.average(losses, weights=np.array(SIZES)[cohort])
            best, taken = min(best, F), best >= F
            return taken

        seen = expected.round(cohort, accepts)
        assert_shows(info, seen)
        np.testing.assert_allclose(flat(state.params), expected.w, rtol=1e-9)
        np.testing.assert_array_equal(np.minimum(state.policy.tau, 7), expected.tau)
        if accept != "off":
            np.testing.assert_allclose(state.server, best, rtol=1e-9)
    assert {2, 7} <= set(expected.tau)
    assert (expected.taken == 6) == (accept == "off")
    assert int(info.policy["nonfinite"]) == 0


CURVATURES = (0.9, 1.2, 1.0, 0.8)


def quadratics(curvatures, sizes, seed=3):
    rng = np.random.default_rng(seed)
    optima = rng.normal(size=(len(sizes), WIDTH))
    clients = [
        (np.tile(t, (n, 1)), np.full(n, float(c)))
        for t, n, c in zip(optima, sizes, curvatures, strict=True)
    ]
    return optima, FederatedDataset.from_clients(clients)


def test_on_quadratics_beta_is_the_curvature_and_delta_has_a_closed_form(x64):
    curvatures, sizes, lr = np.array(CURVATURES), (2, 6, 4, 8), 1.5
    optima, data = quadratics(curvatures, sizes)
    plan = Plan(batch_size=None, lr=lr)
    round_fn, state = start(fedveca(0.8), quadratic_task(jnp.float64), data, plan)
    p, step, before = np.array(sizes) / sum(sizes), jax.jit(round_fn), None
    several = False
    for k, key in enumerate(keys(6)):
        w, tau = np.asarray(state.params), np.asarray(state.policy.tau)
        state, info = step(state, key)
        away = w - optima
        if k:
            # sum_{s <= l} g(w_s) = (1 - (1 - lr c)^(l+1)) / lr (w - t)
            l = np.arange(1, tau.max())[:, None]
            shrunk = (1 - (1 - lr * curvatures) ** (l + 1)) / lr
            rises = np.where(l < tau, shrunk**2 / (l + 1), 0).max(0)
            delta = rises * (away**2).sum(1) / (before**2).sum()
            A = lr * curvatures**2 * delta
            tau = equation_16(A, 0.8, 50)
            assert_shows(info, {"beta": curvatures, "delta": delta, "A": A, "tau": tau})
        before = (p * curvatures) @ away  # grad F(w)
        several |= len(set(tau)) > 2
    assert several


@pytest.mark.slow
def test_identical_clients_all_take_one_over_one_minus_alpha_steps_for_any_traced_alpha():
    """In float32, where 1 / (1 - 0.95) is a little below 20."""
    x, y = make_clients((8,))[0]
    data = FederatedDataset.from_clients([(x, y)] * 3)
    plan = Plan(batch_size=None, lr=0.05)
    alphas = np.array([0, 0.3, 0.5, 0.75, 0.8, 0.9, 0.95, 0.96, 0.98, 0.995])

    @jax.jit
    @jax.vmap
    def taken(alpha):
        round_fn, state = start(fedveca(alpha), make_task(), data, plan)
        _, infos = jax.lax.scan(round_fn, state, keys(4))
        return infos.num_steps, infos.cut

    bounds = [2, 2, 2, 4, 5, 10, 20, 25, 50, 50]
    taken, cut = taken(jnp.asarray(alphas, jnp.float32))
    assert not cut[:-1].any() and not cut[-1, :2].any()
    np.testing.assert_array_equal(cut[-1, 2:], 200 - 50)  # at alpha = 0.995
    np.testing.assert_array_equal(taken[:, :2], 2)
    expected = np.broadcast_to(np.array(bounds)[:, None, None], (10, 2, 3))
    np.testing.assert_array_equal(taken[:, 2:], expected)


BASES = {"fednova": fednova, "fedavg with data weights": lambda: fedavg("data")}


@pytest.mark.slow
@pytest.mark.parametrize("base", fast(BASES, "fednova"))
def test_at_alpha_zero_it_is_its_base_with_two_steps(task, data, base):
    ends = []
    for algorithm in (fedveca(alpha=0), with_steps(base(), constant_steps(2))):
        round_fn, state = start(algorithm, task, data)
        ends.append(train(round_fn, state, keys(4))[0].params)
    close(*ends, atol=1e-5)


@pytest.mark.slow
def test_on_fednova_it_is_what_it_is_without_a_base(task, data):
    ends = []
    for algorithm in (
        fedveca(0.9, max_steps=7),
        fedveca(0.9, max_steps=7, base=fednova()),
    ):
        round_fn, state = start(algorithm, task, data)
        ends.append(train(round_fn, state, keys(6)))
    (alone, infos), (based, other_infos) = ends
    np.testing.assert_array_equal(infos.num_steps, other_infos.num_steps)
    close(alone.params, based.params)
    assert np.max(infos.num_steps) > 2
    with pytest.raises(
        ValueError, match="accept='local' is about FedVeca's own server"
    ):
        fedveca(accept="local", base=fednova())
    with pytest.raises(ValueError, match="without what its base adds"):
        fedveca(full_gradient=True, base=moon())


@pytest.mark.slow
def test_with_one_batch_the_full_gradient_is_the_first_on_scaffold_too(task, data):
    """What SCAFFOLD adds to gradients is in both."""
    plan = Plan(cohort_size=3, batch_size=None, lr=0.3, weight_decay=0.1)
    ends = []
    for full in (False, True):
        algorithm = fedveca(0.9, max_steps=7, full_gradient=full, base=scaffold())
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(train(round_fn, state, keys(4)))
    close(*ends, rtol=1e-4, atol=1e-5)
    assert len(np.unique(ends[0][1].num_steps)) > 1


@pytest.mark.slow
def test_a_policy_that_keeps_two_steps_is_its_base_to_the_bit(task, data):
    plan = Plan(participation=bernoulli(0.6), batch_size=4)
    ends = []
    for policy in (veca_steps(alpha=0), constant_steps(2)):
        round_fn, state = start(with_steps(scaffold(), policy), task, data, plan)
        state, _ = train(round_fn, state, keys(4))
        ends.append(state._replace(policy=()))
    assert same(*ends)


@pytest.mark.slow
@pytest.mark.parametrize("base", [scaffold, fednova, fedavg], ids=lambda b: b.__name__)
def test_it_gives_any_base_unequal_steps(task, data, base):
    plan = Plan(participation=bernoulli(0.6), batch_size=4)
    algorithm = with_steps(base(), veca_steps(0.9, max_steps=7))
    round_fn, state = start(algorithm, task, data, plan)
    state, infos = train(round_fn, state, keys(8))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    steps = np.asarray(infos.num_steps)[np.asarray(infos.num_steps) > 0]
    assert steps.min() == 2 and steps.max() == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "accept", ["global", pytest.param("local", marks=pytest.mark.slow)]
)
def test_with_acceptance_the_loss_to_beat_never_rises_and_tau_moves_on(x64, accept):
    optima, data = quadratics(CURVATURES, (2, 6, 4, 8))
    plan = Plan(batch_size=None, lr=1.5, lanes=2)  # too far for some rounds
    algorithm = fedveca(0.9, max_steps=12, accept=accept)
    round_fn, state = start(algorithm, quadratic_task(jnp.float64), data, plan)
    step, accepted, moved_on = jax.jit(round_fn), [], 0
    for key in keys(10):
        before = state
        state, info = step(state, key)
        accepted.append(int(info.policy["accepted_rounds"]) - sum(accepted))
        assert state.server <= before.server
        if accepted[-1]:
            assert state.server < before.server
            if accept == "global":
                away = ((np.asarray(state.params) - optima) ** 2).sum(1)
                terms = 0.5 * np.array(CURVATURES) * away
                loss = np.average(terms, weights=(2, 6, 4, 8))
                np.testing.assert_allclose(state.server, loss, rtol=1e-10)
        else:
            assert same(state.params, before.params)
            assert same(state.server, before.server)
            moved_on += not same(state.policy.tau, before.policy.tau)
    assert 0 < sum(accepted) < 10 and moved_on > 0


@pytest.mark.parametrize("accept", ["off", "local", "global"])
def test_what_is_not_finite_is_never_applied(accept):
    rule = fedveca(accept=accept).server
    params = {"w": jnp.ones(3)}
    good, bad = {"w": jnp.full(3, -0.1)}, {"w": jnp.array([0.0, np.nan, 0.0])}

    def after(delta, loss, best):
        upload = Upload(delta, (jnp.asarray(2.0), jnp.asarray(loss)))
        cohort = SimpleNamespace(train_loss=lambda params: jnp.asarray(loss))
        return rule.update(params, best, upload, cohort)

    best = () if accept == "off" else jnp.asarray(5.0)
    moved, kept = after(good, 4.0, best)
    close(moved["w"], jnp.full(3, 0.8))
    assert accept == "off" or float(kept) == 4
    if accept != "off":  # F <= F_m, line 8 of Algorithm 1
        assert same(after(good, 5.0, best)[0], moved)
    for delta, loss in ((bad, 4.0), (good, np.nan), (good, -np.inf), (good, 6.0)):
        if accept == "off" and delta is good:
            continue
        stayed, kept = after(delta, loss, best)
        assert same(stayed, params) and same(kept, best)


NUM_CLIENTS = 7


def known_state(policy, tau=9):
    state = policy.init(jnp.ones(2), NUM_CLIENTS)
    return state._replace(
        tau=jnp.full(NUM_CLIENTS, tau, jnp.int32),
        gradient=jnp.array([1.0, 0.0]),
        known=jnp.array(True),
    )


def told(policy, state, beta, numerator, ids=None, num_steps=None, gradient=2.0):
    """The policy's state after a round in which clients measured this, at lr 1."""
    beta, numerator = np.array(beta, np.float32), np.array(numerator, np.float32)
    ids = np.arange(len(beta)) if ids is None else np.array(ids)
    num_steps = np.full(len(beta), 3) if num_steps is None else np.array(num_steps)
    return _told(policy)(state, beta, numerator, ids, num_steps, gradient)


def _told(policy):
    @jax.jit
    def update(state, beta, numerator, ids, num_steps, gradient):
        cohort = Cohort(
            ids, num_steps, num_steps, num_steps, num_steps > 0, jnp.int32(1),
            NUM_CLIENTS, NUM_CLIENTS, jnp.int32(1),
        )  # fmt: skip
        probe = VecaProbe((), (), beta, numerator)
        runs = LocalRun((), (), (), (), num_steps, beta, probe, beta, ())
        setting = SimpleNamespace(lr=jnp.float32(1))
        sent = (jnp.float32(1), jnp.full(2, gradient))
        at = jnp.full(2, 3.0)
        outcome = Outcome(at, at, (), Upload(at), setting, sent)
        return policy.update(state, cohort, runs, outcome)

    return update


MEASURED = st.sampled_from([0.0, np.nan, np.inf, 1e30]) | st.floats(0.125, 10, width=32)


def test_tau_stays_in_its_bounds_whatever_is_measured():
    policy = veca_steps(0.95, max_steps=30)
    state = known_state(policy)
    update = _told(policy)
    steps = np.full(NUM_CLIENTS, 3)

    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.tuples(MEASURED, MEASURED), min_size=7, max_size=7))
    def check(pairs):
        beta, numerator = np.array(pairs, np.float32).T
        after = update(state, beta, numerator, np.arange(7), steps, 2.0)
        with np.errstate(all="ignore"):
            A = beta**2 * numerator
        finite = np.isfinite(A) & np.isfinite(beta) & np.isfinite(numerator)
        expected = np.full(7, 9)
        if finite.any():
            expected[finite] = equation_16(A[finite].astype(np.float64), 0.95, 30)
        tau = np.minimum(after.tau, 30)
        # a bound within rounding of an integer may fall on either side of it
        assert (np.abs(tau - expected) <= 1).all() and (tau[~finite] == 9).all()
        assert ((tau >= 2) & (tau <= 30)).all()
        assert int(after.nonfinite) == (~finite).sum()

    check()


def test_a_measurement_that_is_not_finite_keeps_tau_and_is_counted():
    policy = veca_steps(0.9)
    state = known_state(policy)
    after = told(policy, state, [1, np.nan, 1, np.inf], [1, 1, 3, 1])
    np.testing.assert_array_equal(after.tau, [10, 9, 2, 9, 9, 9, 9])
    assert int(after.nonfinite) == 2
    assert int(told(policy, after, [1, np.nan], [1, 1]).nonfinite) == 3
    # a gradient that is not finite is forgotten, not handed to the next round
    lost = told(policy, state, [1, 1], [1, 1], gradient=np.nan)
    assert same(lost.gradient, state.gradient) and same(lost.params, state.params)
    assert np.isfinite(lost.lipschitz)


def test_a_client_whose_gradient_does_not_change_takes_the_most_steps():
    policy = veca_steps(0.9, max_steps=30)
    after = told(policy, known_state(policy), [1, 0, 2], [1, 1, 0])
    np.testing.assert_array_equal(after.tau[:3], [2, 30, 30])


def test_clients_outside_the_cohort_and_empty_slots_change_nothing():
    policy = veca_steps(0.9)
    state = known_state(policy)
    nan = np.nan
    after = told(
        policy, state, [1, nan, 2, nan], [1, nan, 1, nan], [5, 1, 2, 7], [3, 0, 3, 0]
    )
    np.testing.assert_array_equal(after.tau, [9, 9, 2, 9, 9, 10, 9])
    assert int(after.nonfinite) == 0
    for name, values in after.clients.items():
        assert np.isfinite(values).all(), name
    nobody = told(policy, state, [nan] * 2, [nan] * 2, num_steps=[0, 0])
    shown = nobody._replace(shown=state.shown, lipschitz=state.lipschitz)
    assert same(shown, state)


def test_a_client_that_took_one_step_measured_nothing_and_goes_on_with_two():
    policy = veca_steps(0.9, initial_steps=1)
    state = known_state(policy, tau=1)
    after = told(policy, state, [0, 0, 1], [0, 0, 1], num_steps=[1, 1, 3])
    np.testing.assert_array_equal(after.tau, [2, 2, 10, 1, 1, 1, 1])
    assert int(after.nonfinite) == 0


@pytest.mark.slow
def test_from_one_step_on_it_begins_to_measure(task, data):
    round_fn, begin = start(fedveca(initial_steps=1), task, data, Plan(batch_size=4))
    _, infos = train(round_fn, begin, keys(5))
    assert np.asarray(infos.num_steps)[:, 0].tolist()[:3] == [1, 1, 2]
    assert np.asarray(infos.num_steps)[4].max() > 2


@pytest.mark.slow
def test_a_loss_without_curvature_gives_everyone_the_most_steps():
    """beta is 0: the gradient is the same wherever the client stands."""
    plan = Plan(batch_size=None, lr=0.5)
    round_fn, state = start(fedveca(0.9, max_steps=6), linear_task(), make_data(), plan)
    _, infos = train(round_fn, state, keys(4))
    np.testing.assert_array_equal(infos.num_steps[:, 0], [2, 2, 6, 6])


def test_wrong_options_are_refused_in_one_sentence():
    with pytest.raises(ValueError, match=r"alpha=1 must lie in \[0, 1\)\.$"):
        fedveca(alpha=1)
    with pytest.raises(ValueError, match="max_steps=1 must be an integer >= 2"):
        fedveca(max_steps=1)
    with pytest.raises(ValueError, match="initial_steps=9 is above max_steps=5"):
        veca_steps(max_steps=5, initial_steps=9)
    with pytest.raises(ValueError, match="accept='locl' is unknown; did you mean"):
        fedveca(accept="locl")


@pytest.mark.slow
def test_L_is_the_largest_ratio_of_later_rounds_too(x64):
    target, curvature = np.resize([1.0, 2, -1, 3], WIDTH), 1.5
    client = np.tile(target, (4, 1)), np.full(4, curvature)
    data = FederatedDataset.from_clients([client] * 2)
    plan = Plan(batch_size=None, lr=0.1)
    round_fn, state = start(fedveca(), quadratic_task(jnp.float64), data, plan)
    begin = jax.tree.map(lambda _: jnp.asarray(0.9 * target), state.params)
    state, shown = state._replace(params=begin), []
    for key in keys(4):
        state, info = jax.jit(round_fn)(state, key)
        shown.append(float(info.policy["L"]))
    # a round late; the first model, 0.9 target, is nine times as far from 0 as from it
    expected = [0, curvature / 9, curvature, curvature]
    np.testing.assert_allclose(shown, expected, rtol=1e-6)
