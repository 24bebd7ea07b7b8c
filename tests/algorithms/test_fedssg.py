from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import KBAR, PLAN, ROUNDS, assert_follows, distance_to_optimum, run
from helpers import close, fast, keys, linear_task, make_data, same, start

from fedjax_adapt import Plan, bernoulli, constant_steps, train, with_steps
from fedjax_adapt.algorithms import fedavg, feddc, fedssg, scaffold
from fedjax_adapt.experiment import Config, read_run
from fedjax_adapt.experiment import run as run_config

ALPHA, T, Q = 0.4, 10, 0.5

OPTIONS = {
    "authors' code": {},
    "gate": {"gate": "current"},
    "gate map logistic, beta and no memory at the server": {
        "gate_map": "alpha_logistic",
        "beta": 0.0,
        "aggregate": "sel",
    },
    "gate map clip and no correction": {
        "gate_map": "clip01",
        "total_rounds": 3,
        "correction": "none",
        "aggregate": "cohort_theta_plus_h",
    },
    "align": {"align": "prox", "gate_alignment": True},
    "correction": {"correction": "last_diff", "correction_gated": False},
    "no alignment and the gated last difference": {
        "align": "none",
        "aggregate": "literal_sum_over_n",
        "correction": "last_diff",
    },
    "gated inner product and correction scale": {
        "gate_alignment": True,
        "correction_lr": "round",
        "correction_steps": "actual",
    },
    "gated by the logistic": {"gate_alignment": True, "gate_map": "alpha_logistic"},
    "no gate": {"gate": "none", "align": "prox"},
}
BERNOULLI = {
    "authors' code": {},
    "rate": {"rate": "realised"},
    "correction": OPTIONS["correction"],
    "no alignment": {"align": "none", "aggregate": "literal_sum_over_n"},
}


PADDED = replace(PLAN, cohort_size=None, participation=bernoulli(0.6), devices=2)
CASES = {name: (options, PLAN) for name, options in OPTIONS.items()} | {
    f"{name}, Bernoulli cohorts": (options, PADDED)
    for name, options in BERNOULLI.items()
}


@pytest.mark.parametrize(
    "options, plan",
    fast(
        CASES,
        "gate",
        "align",
        "correction",
        "gated by the logistic",
        "no gate",
        "authors' code, Bernoulli cohorts",
    ),
)
def test_follows_the_numpy_oracle(x64, options, plan):
    share = 0.6 if plan is PADDED else 4 / 6  # of this plan
    o = {"alpha": ALPHA, "total_rounds": T, "participation": share, **options}
    clients, theta, history = run(fedssg(**o), plan)
    gates = [np.asarray(info.clients["gate"]) for _, info in history]
    ratio, d, n = oracle.size_ratios(clients), theta.size, len(clients)
    h, s, s_g, cnt = np.zeros((n, d)), np.zeros((n, d)), np.zeros(d), np.zeros(n)

    def gate(i, t, m):
        if o.get("gate") == "none":
            return 1.0
        q = m / n if o.get("rate") == "realised" else share
        if o.get("gate") == "current":
            r = cnt[i] / (q * (t + 1) + 1e-6)
        else:
            r = cnt[i] / (o["total_rounds"] * q)
        if o.get("gate_map") == "alpha_logistic":
            r = ALPHA / (1 + np.exp(-r))
        if o.get("gate_map") == "clip01":
            r = min(max(r, 0), 1)
        return r + o.get("beta", 1.0)

    def follow(t, cohort):
        nonlocal theta, s_g
        w, ends, new_s, raw = theta, [], {}, o.get("correction", "scaffold2")
        for slot, i in enumerate(cohort):
            cnt[i] += 1
            p = gate(i, t, len(cohort))
            np.testing.assert_allclose(gates[t][slot], p, rtol=1e-12)
            # eq. 8: phi itself, of which alpha is a part by eq. 6 alone
            weight = (p if o.get("gate_alignment") else ALPHA) / ratio[i]
            weight = 0 if o.get("align") == "none" else weight
            pull = 1 if o.get("align") == "prox" else 0
            bias = {
                "scaffold2": -s[i] + s_g / ratio[i],
                "last_diff": -s[i] + s_g,
                "none": 0,
            }[raw]
            fixed = weight * h[i] + bias

            def correct(theta, fixed=fixed, weight=weight, pull=pull):
                return fixed + pull * weight * (theta - w)

            end = oracle.sgd(w, clients[i], PLAN, t, correct)
            gated = p * (end - w)
            h[i] += gated
            moved = gated if o.get("correction_gated", True) else end - w
            lr, k = PLAN.lr, KBAR
            if o.get("correction_lr") == "round":
                lr = PLAN.lr * PLAN.lr_decay**t
            if o.get("correction_steps") == "actual":
                k = oracle.num_batches(len(clients[i][1]), PLAN.batch_size, 2)
            kept = s[i] - s_g / ratio[i] if raw == "scaffold2" else 0
            new_s[i] = kept - moved / (k * lr)
            ends.append(end)
        if raw == "scaffold2":
            s_g = s_g + sum(ratio[i] * (v - s[i]) for i, v in new_s.items()) / n
        else:
            s_g = np.mean(list(new_s.values()), 0)
        for i, v in new_s.items():
            s[i] = v
        theta = {
            "sel_plus_allh": np.mean(ends, 0) + h.mean(0),
            "cohort_theta_plus_h": np.mean(ends, 0) + h[cohort].mean(0),
            "literal_sum_over_n": (np.sum(ends, 0) + h[cohort].sum(0)) / n,
            "sel": np.mean(ends, 0),
        }[o.get("aggregate", "sel_plus_allh")]
        return theta

    assert_follows(history, follow)


@pytest.fixture(scope="module")
def trained(task, data):
    """The default, five rounds of Bernoulli cohorts: (data, [(before, after, info)])."""
    plan = Plan(participation=bernoulli(0.5), batch_size=4)
    round_fn, state = start(fedssg(0.1, T, Q), task, data, plan)
    step, history = jax.jit(round_fn), []
    for key in keys(5):
        before = state
        state, info = step(state, key)
        history.append((before, state, info))
    return data, history


@pytest.mark.slow
@pytest.mark.parametrize("given", [None, 0.01, 0.01 / (1 - 0.99**6)])
def test_few_coins_are_thrown_again_so_that_a_client_is_expected_more_often(
    task, data, given
):
    """cnt_i / (T q): q is 0.17 of 6 clients, one of whom always comes, and not 0.01."""
    plan = Plan(participation=bernoulli(0.01), batch_size=4, rounds=4)
    round_fn, state = start(fedssg(participation=given), task, data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    q = given or 0.01 / (1 - 0.99**6)
    seen = np.asarray(info.num_steps) > 0
    np.testing.assert_allclose(info.clients["gate"][seen], 1 / (4 * q) + 1, rtol=1e-5)


@pytest.mark.slow
def test_a_run_by_name_goes_by_who_takes_part_too(tmp_path):
    few = {"num_clients": 10, "participation": 0.01, "rounds": 3, "model": "linear"}
    config = Config(algorithm="fedssg", folder=str(tmp_path / "run"), **few)
    run_config(config)
    gate = read_run(tmp_path / "run").clients["gate"].to_numpy()
    q = 0.01 / (1 - 0.99**10)
    np.testing.assert_allclose(gate.min(), 1 / (3 * q) + 1, rtol=1e-5)


@pytest.mark.slow
def test_server_memory_and_control_are_means_over_all_clients(trained):
    data, history = trained
    ratio = np.asarray(data.size) / 8
    for _, state, _ in history:
        over_all = lambda weights, tree: jax.tree.map(
            lambda leaf: np.tensordot(weights, leaf, 1) / 6, tree
        )
        memory = over_all(np.ones(6), state.clients.memory)
        close(state.server.memory, memory, atol=1e-5)
        close(state.server.control, over_all(ratio, state.clients.control), atol=1e-5)


def test_counts_are_visits_and_set_the_gate(trained):
    _, history = trained
    visits = np.zeros(6)
    for _, state, info in history:
        cohort = np.asarray(info.cohort)
        present = cohort < 6
        visits[cohort[present]] += 1
        np.testing.assert_array_equal(state.clients.count, visits)
        gates = np.asarray(info.clients["gate"])[present]
        np.testing.assert_allclose(gates, visits[cohort[present]] / (T * Q) + 1, 1e-6)


@pytest.mark.slow
def test_clients_that_sit_out_keep_all_their_rows_to_the_bit(trained):
    _, history = trained
    for before, after, info in history:
        visited = set(np.asarray(info.cohort).tolist())
        for i in range(6):
            row = lambda tree, i=i: jax.tree.map(lambda leaf: leaf[i], tree)
            unchanged = same(row(before.clients), row(after.clients))
            assert unchanged == (i not in visited)


@pytest.mark.slow
def test_a_closed_gate_makes_it_uniform_fedavg(task, data):
    def end(total_rounds):
        algorithm = fedssg(0.3, total_rounds, Q, beta=0.0)
        round_fn, state = start(algorithm, task, data)
        return train(round_fn, state, keys(3))[0]

    closed = jax.vmap(end)(jnp.array([jnp.inf]))  # p = cnt / inf = 0, exactly
    closed = jax.tree.map(lambda leaf: leaf[0], closed)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(closed.server))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(closed.clients.memory))
    round_fn, state = start(fedavg("uniform"), task, data)
    close(closed.params, train(round_fn, state, keys(3))[0].params)


@pytest.mark.slow
def test_without_gate_alpha_and_memory_it_is_scaffold(task, data):
    """drift.md 5.6: p = 1, alpha = 0, h kept out of the server's update."""
    ssg = fedssg(alpha=0.0, gate="none", aggregate="sel", participation=Q)
    plan = Plan(cohort_size=3, batch_size=4, lr_decay=0.9)
    ends = []
    for algorithm in (ssg, scaffold(control_lr="base", control_steps="mean")):
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(train(round_fn, state, keys(4))[0].params)
    close(*ends, atol=1e-5)


LEFT_OUT = {
    "gate": dict(gate_map="alpha_logistic", rate="realised", beta=0.5),
    "align": dict(gate_alignment=True),
    "correction": dict(
        correction_gated=False, correction_lr="round", correction_steps="actual"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "without, options", fast({n: (n, o) for n, o in LEFT_OUT.items()}, "gate")
)
def test_options_of_what_is_left_out_change_nothing(without, options, task, data):
    """As their help says; with it they do."""
    plan = Plan(cohort_size=3, batch_size=4, lr_decay=0.9)

    def end(**options):
        algorithm = fedssg(0.2, total_rounds=3, **options)
        round_fn, state = start(algorithm, task, data, plan)
        return train(round_fn, state, keys(3))[0].params

    left_out = {without: "none"}
    assert same(end(**left_out, **options), end(**left_out))
    assert not same(end(**options), end())


@pytest.mark.slow
def test_without_gate_and_with_the_proximal_form_it_is_feddc(task, data):
    """drift.md 5.6: p = 1, align prox; whatever beta is."""
    plan = Plan(cohort_size=3, batch_size=4, lr_decay=0.9)
    ends = []
    ssg = fedssg(0.2, gate="none", align="prox", participation=Q, beta=3.0)
    for algorithm in (ssg, feddc(0.2)):
        round_fn, state = start(algorithm, task, data, plan)
        ends.append(train(round_fn, state, keys(4))[0].params)
    close(*ends, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"correction_lr": "round"}, {"correction_gated": False}],
    ids=["authors' code", "lr of the round", "not gated"],
)
def test_k_identity_pins_the_bookkeeping(x64, options):
    """Without clipping s_i' = (1 - k)(s_i - s_g / w_i) + k (mean local gradient)."""
    data = make_data(dtype=np.float64)
    plan = Plan(cohort_size=3, batch_size=None, lr=0.1, lr_decay=0.8)
    steps, alpha = 3, 0.4
    algorithm = with_steps(fedssg(alpha, T, Q, **options), constant_steps(steps))
    round_fn, state = start(algorithm, linear_task(jnp.float64), data, plan)
    ratio = np.asarray(data.size) / 8
    ends = np.cumsum(data.size)
    gradients = [
        np.asarray(data.x)[end - n : end].mean(0)
        for n, end in zip(data.size, ends, strict=True)
    ]
    for t, key in enumerate(keys(ROUNDS)):
        before = state
        state, info = jax.jit(round_fn)(state, key)
        for slot, i in enumerate(np.asarray(info.cohort)):
            k = info.clients["gate"][slot] * 0.8**t  # tau_i = Kbar here
            if options:
                k /= (
                    0.8**t if "correction_lr" in options else info.clients["gate"][slot]
                )
            close(info.clients["k"][slot], k)
            kept = before.clients.control[i] - before.server.control / ratio[i]
            mean = gradients[i] + alpha / ratio[i] * before.clients.memory[i]
            expected = (1 - k) * kept + k * mean
            close(state.clients.control[i], expected, atol=1e-12)


@pytest.mark.slow
def test_half_participation_reaches_the_weighted_optimum(x64):
    assert distance_to_optimum(fedssg(0.1, 600, 0.5)) < 1e-5


def test_without_correction_there_is_no_second_table(task, data):
    _, state = start(fedssg(correction="none"), task, data)
    assert state.clients.control == ()
    assert state.server.control == ()


def test_every_wrong_option_is_refused():
    for name in (
        "gate",
        "gate_map",
        "rate",
        "align",
        "correction",
        "correction_lr",
        "correction_steps",
        "aggregate",
    ):
        with pytest.raises(ValueError, match=f"{name}='wrong' is unknown"):
            fedssg(**{name: "wrong"})
    with pytest.raises(ValueError, match=r"participation=1.5 must lie in \(0, 1\]"):
        fedssg(participation=1.5)
    with pytest.raises(ValueError, match="total_rounds=0 must be an integer >= 1"):
        fedssg(total_rounds=0)
