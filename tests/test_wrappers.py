"""Every wrapper under every policy, around bases in turn: a round each, and its twin."""

import jax
import numpy as np
import optax
import pytest
from helpers import close, constructed, keys, same, start

import fedjax_adapt as fa
from fedjax_adapt import diagnostics
from fedjax_adapt.algorithms import ALGORITHMS
from fedjax_adapt.averaging import Averaged

WRAPPERS = {
    "top_k": lambda base: fa.with_compression(base, fa.top_k(0.2)),
    "qsgd": lambda base: fa.with_compression(base, fa.qsgd(8)),
    "sign": lambda base: fa.with_compression(base, fa.sign(), error_feedback=False),
    "privacy": lambda base: fa.with_privacy(base, 0.5, 0.1),
    "median": lambda base: fa.with_aggregation(base, fa.median()),
    "trimmed": lambda base: fa.with_aggregation(base, fa.trimmed_mean(0.2)),
    "krum": lambda base: fa.with_aggregation(base, fa.krum(1, 2)),
    "geometric": lambda base: fa.with_aggregation(base, fa.geometric_median(4)),
    "sign, then median": lambda base: fa.with_aggregation(
        fa.with_compression(base, fa.sign()), fa.median()
    ),
    "sign, then privacy": lambda base: fa.with_privacy(
        fa.with_compression(base, fa.sign()), 0.5, 0.1
    ),
}
BASES = ("fedavg", "fedprox", "scaffold", "fedssg")
POLICIES = {"epochs": lambda: fa.epochs(2), "gsnr": lambda: fa.gsnr_steps(3)}
PLAN = fa.Plan(cohort_size=5, batch_size=4, lr=0.1, lanes=2)
# krum, scaffold and the slow twin: a fast test of algorithms/test_robust.py as well
FAST = ("top_k-scaffold-gsnr", "privacy-fedprox-epochs")
TWINS = (
    "privacy-fedprox-epochs",
    "krum-scaffold-epochs",
    "qsgd-fedssg-gsnr",
    "sign, then median-fedprox-gsnr",
)


def cases():
    everything = [(w, b, p) for w in WRAPPERS for b in BASES for p in POLICIES]
    for i, case in enumerate(everything):
        # each wrapper under each policy around one base, the next wrapper around the next
        of_wrapper, place = divmod(i, len(BASES) * len(POLICIES))
        base, policy = divmod(place, len(POLICIES))
        in_turn = (of_wrapper + 2 * policy) % len(BASES) == base
        name = "-".join(case)
        if in_turn or "privacy" in name or name in (*FAST, *TWINS):  # some are refused
            marks = () if name in FAST else pytest.mark.slow
            yield pytest.param(*case, id=name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("wrapper", "base", "policy"), list(cases()))
def test_a_round_is_finite_and_that_of_the_slow_twin(wrapper, base, policy, task, data):
    wrap, own = WRAPPERS[wrapper], constructed(base)
    algorithm = fa.with_steps(own, POLICIES[policy]())
    private = "privacy" in wrapper
    if private and policy == "gsnr":
        with pytest.raises(ValueError, match="the step policy learns"):
            wrap(algorithm)
        return
    if private and base in ("scaffold", "fedssg"):
        with pytest.raises(ValueError, match="clips Upload.delta alone"):
            fa.make_round(wrap(algorithm), task, data, PLAN)
        return
    algorithm = wrap(algorithm)
    round_fn, state = start(algorithm, task, data, PLAN)
    step = jax.jit(round_fn)
    for key in keys(2):
        before, (state, info) = state, step(state, key)
        for leaf in jax.tree.leaves((state, info)):
            assert np.isfinite(leaf).all()
        assert float(info.delta_norm) > 0
    if f"{wrapper}-{base}-{policy}" in TWINS:
        slow = fa.debug_round(algorithm, task, data, PLAN)
        close(slow(before, keys(2)[1]), (state, info), atol=2e-6, rtol=1e-5)


def showing(base, **shown):
    """A base whose server shows more."""
    server = base.server._replace(report=lambda extra, upload, cohort: shown)
    return base._replace(server=server)


@pytest.mark.parametrize(
    "made, name, whose, of",
    [
        (
            lambda base: diagnostics.show_parameters(
                diagnostics.show_parameters(base, 1), 1
            ),
            *("parameter_0", "the diagnostic", "StepPolicy.report"),
        ),
        (
            lambda base: fa.algorithms.fedexp(base=showing(base, server_lr=1.0)),
            *("server_lr", "fedexp", "ServerRule.report of the base"),
        ),
        (
            lambda base: fa.with_privacy(showing(base, noise_std=1.0), 1.0, 1.0),
            *("noise_std", "with_privacy", "ServerRule.report"),
        ),
    ],
)
def test_what_two_parts_show_under_one_name_is_refused(
    made, name, whose, of, task, data
):
    says = f"{whose} shows '{name}', which is the name of what {of} shows; give it"
    with pytest.raises(ValueError, match=says):
        start(made(fa.algorithms.fedavg()), task, data)


AROUND = {  # a method whose clients keep something, moon
    "compression": WRAPPERS["top_k"],
    "server optimizer": lambda base: fa.with_server_optimizer(base, optax.adam(0.1)),
    "averages": lambda base: fa.with_averages(base, clients=True),
    "the cohort's average": fa.with_averages,
    "personal parameters": lambda base: fa.with_personal(base, "b"),
    "ditto": lambda base: ALGORITHMS["ditto"](base=base),
    "fedbuff": lambda base: ALGORITHMS["fedbuff"](base=base, concurrency=9),
}


def inmost(state):
    return inmost(state.inner) if hasattr(state, "inner") else state


@pytest.mark.parametrize(
    ("outer", "inner"), [(o, i) for o in AROUND for i in AROUND if o != i]
)
def test_a_refined_client_renews_the_state_inside_of_wrappers(outer, inner, task):
    moon, params = constructed("moon"), task.init(jax.random.key(0))
    if (outer, inner) == ("compression", "personal parameters"):
        with pytest.raises(fa.SettingError, match="write it inside"):
            AROUND[outer](AROUND[inner](moon))
        return
    local = AROUND[outer](AROUND[inner](moon)).local
    new, state = jax.tree.map(lambda leaf: leaf + 1, params), local.init(params)
    found = local.refined(state, new)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    expected = moon.local.refined(moon.local.init(params), new)
    assert same(inmost(found), expected) and inmost(state).previous is not new


def test_a_report_is_shown_the_upload_of_the_method_inside():
    report = lambda extra, upload, cohort: {"seen": upload.delta}
    base = fa.Algorithm(server=fa.ServerRule(report=report))
    upload = fa.Upload(Averaged(1.0, 2.0))
    averaged = fa.with_averages(base).server
    assert averaged.report(Averaged((), ()), upload, None) == {"seen": 1.0}
