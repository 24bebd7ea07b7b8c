from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import KBAR, PLAN, assert_follows, distance_to_optimum, run
from helpers import close, fast, keys, start

from fedjax_adapt import Plan, bernoulli
from fedjax_adapt.algorithms import feddc, feddyn, fedprox, fedssg

ALPHA = 0.4

OPTIONS = {
    "authors' code": {},
    "last difference": {"correction": "last_diff"},
    "no correction": {"correction": "none"},
    "the paper": {"aggregate": "cohort", "correction": "last_diff"},
    "cohort and correction scale": {
        "aggregate": "cohort",
        "correction_lr": "round",
        "correction_steps": "actual",
    },
}


@pytest.mark.parametrize("options", fast(OPTIONS, "authors' code", "the paper"))
def test_follows_the_numpy_oracle(x64, options):
    clients, theta, history = run(feddc(ALPHA, **options))
    kind = options.get("correction", "scaffold2")
    ratio, n, d = oracle.size_ratios(clients), len(clients), theta.size
    sizes = np.array([len(y) for _, y in clients], float)
    h, s, s_g = np.zeros((n, d)), np.zeros((n, d)), np.zeros(d)

    def follow(t, cohort):
        nonlocal theta, s_g
        w, ends, new = theta, [], {}
        for i in cohort:
            bias = {
                "scaffold2": -s[i] + s_g / ratio[i],
                "last_diff": -s[i] + s_g,
                "none": 0,
            }[kind]
            old, alpha = h[i].copy(), ALPHA / ratio[i]

            def correct(theta, alpha=alpha, old=old, bias=bias):
                return alpha * (theta - w + old) + bias

            end = oracle.sgd(w, clients[i], PLAN, t, correct)
            lr, k = PLAN.lr, KBAR
            if options.get("correction_lr") == "round":
                lr = PLAN.lr * PLAN.lr_decay**t
            if options.get("correction_steps") == "actual":
                k = oracle.num_batches(int(sizes[i]), PLAN.batch_size, 2)
            kept = s[i] - s_g / ratio[i] if kind == "scaffold2" else 0
            new[i] = kept - (end - w) / (k * lr)
            h[i] += end - w
            ends.append(end)
        if kind == "scaffold2":
            s_g = s_g + sum(ratio[i] * (v - s[i]) for i, v in new.items()) / n
        else:
            s_g = np.mean(list(new.values()), 0)
        for i, v in new.items():
            s[i] = v
        theta = np.mean(ends, 0) + h.mean(0)
        if options.get("aggregate") == "cohort":
            theta = np.average(ends + h[cohort], 0, sizes[cohort])
        return theta

    assert_follows(history, follow)


@pytest.mark.slow
def test_without_correction_and_clip_it_is_feddyn(x64):
    plan = replace(PLAN, clip_norm=None)
    dc = run(feddc(ALPHA, correction="none"), plan)[2]
    dyn = run(feddyn(ALPHA), plan)[2]
    for (a, _), (b, _) in zip(dc, dyn, strict=True):
        close(a.params, b.params, atol=1e-12)


@pytest.mark.slow
def test_it_is_fedssg_with_an_open_gate_and_proximal_alignment(x64):
    """p = 1: beta 1 and a horizon so long that the count never shows."""
    ssg = fedssg(ALPHA, total_rounds=10**15, beta=1.0, align="prox")
    dc = run(feddc(ALPHA))[2]
    for (a, _), (b, _) in zip(dc, run(ssg)[2], strict=True):
        close(a.params, b.params, atol=1e-12)


@pytest.mark.slow
def test_the_first_round_is_fedprox_with_a_longer_server_step(x64):
    plan = replace(PLAN, clip_norm=None)
    equal = (8,) * 5
    dc, prox = (
        run(a, plan, equal, 1) for a in (feddc(ALPHA), fedprox(ALPHA, "uniform"))
    )
    begin, ends = (
        dc[1],
        [oracle.flat(history[0][0].params) for *_, history in (dc, prox)],
    )
    np.testing.assert_allclose(
        ends[0] - begin, (1 + 4 / 5) * (ends[1] - begin), atol=1e-12
    )


@pytest.mark.slow
def test_the_server_holds_the_means_of_the_clients(task, data):
    plan = Plan(participation=bernoulli(0.5), batch_size=4)
    round_fn, state = start(feddc(0.1), task, data, plan)
    ratio = np.asarray(data.size) / 8
    step = jax.jit(round_fn)
    for key in keys(5):
        state, _ = step(state, key)
        weigh = lambda leaf: np.tensordot(ratio, leaf, 1) / 6
        control = jax.tree.map(weigh, state.clients.control)
        close(state.server.control, control, atol=1e-5)
        memory = jax.tree.map(lambda leaf: leaf.mean(0), state.clients.memory)
        close(state.server.memory, memory, atol=1e-5)
    assert float(jnp.abs(state.server.control["w"]).max()) > 1e-2


@pytest.mark.slow
def test_half_participation_reaches_the_weighted_optimum(x64):
    assert distance_to_optimum(feddc(0.1)) < 1e-5
    assert not distance_to_optimum(feddc(0.1, correction="last_diff")) < 1e-4


def test_every_wrong_option_is_refused():
    for name in ("correction", "correction_lr", "correction_steps", "aggregate"):
        with pytest.raises(ValueError, match=f"{name}='wrong' is unknown"):
            feddc(**{name: "wrong"})
