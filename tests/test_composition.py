"""Every step policy on every base: where all take k steps, it is the base."""

import inspect

import jax
import numpy as np
import pytest
from helpers import constructed, keys, make_clients, same, start

import fedjax_adapt as fa

BASES = (
    "fedavg",
    "fedprox",
    "scaffold",
    "fednova",
    "feddyn",
    "feddc",
    "moon",
    "fedssg",
)
# with options under which they ask k steps of every client in every round
POLICIES = {
    # n_k of its own for every client, and a cap that lets none take what it asks for
    "gsnr": (lambda base: fa.with_steps(base, fa.gsnr_steps(10_000, max_steps=3)), 3),
    "veca": (lambda base: fa.with_steps(base, fa.veca_steps(alpha=0.0)), 2),
    "gift": (lambda base: fa.with_steps(base, fa.gift_steps(3)), 3),  # waits 50 rounds
    "afl": (lambda base: fa.algorithms.afl(trial_steps=3, base=base), 3),
    "adacomm": (lambda base: fa.with_steps(base, fa.adacomm_steps(3)), 3),  # waits 10
}
FAST = ("gsnr-scaffold", "gift-moon")
PLAN = fa.Plan(cohort_size=4, batch_size=4, lr=0.2, weight_decay=1e-3)


def pairs():
    for policy in POLICIES:
        for base in BASES:
            name = f"{policy}-{base}"
            marks = () if name in FAST else (pytest.mark.slow, pytest.mark.optimised)
            yield pytest.param(policy, base, id=name, marks=marks)


@pytest.fixture(scope="module")
def plain(task, data):
    """The base under `constant_steps(k)`, three rounds, computed once for all."""
    done = {}

    def run(base, k):
        if (base, k) not in done:
            algorithm = fa.with_steps(constructed(base), fa.constant_steps(k))
            done[base, k] = after(algorithm, task, data)
        return done[base, k]

    return run


def after(algorithm, task, data, plan=PLAN):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(3):
        state, info = step(state, key)
    return state, info


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "base"), list(pairs()))
def test_a_policy_that_asks_for_k_steps_is_the_base_under_k_steps(
    policy, base, plain, task, data
):
    build, k = POLICIES[policy]
    state, info = after(build(constructed(base)), task, data)
    expected, expected_info = plain(base, k)
    np.testing.assert_array_equal(info.num_steps, np.full(4, k))
    # AFL keeps each client's last model beside the base's state
    clients = state.clients.inner if policy == "afl" else state.clients
    assert same(state.params, expected.params)
    assert same(state.server, expected.server)
    assert same(clients, expected.clients)
    assert same(info.loss, expected_info.loss)
    if policy == "gsnr":
        assert np.ptp(info.policy["optimal_steps"]) > 0.1 and np.ptp(info.cut) > 0


@pytest.mark.parametrize(
    "base", [pytest.param(b, marks=pytest.mark.slow) for b in ("scaffold", "feddyn")]
)
def test_gsnr_on_clients_alike_is_the_base(base, task):
    """All measure the same, so n_k = 1 and nobody is asked for more or less than E."""
    alike = fa.FederatedDataset.from_clients(make_clients((8,)) * 4, num_classes=3)
    plan = fa.Plan(batch_size=4, lr=0.2, shuffle="none")
    base = constructed(base)
    state, info = after(fa.with_steps(base, fa.gsnr_steps(5)), task, alike, plan)
    plain = fa.with_steps(base, fa.constant_steps(5))
    expected, expected_info = after(plain, task, alike, plan)
    np.testing.assert_allclose(info.policy["optimal_steps"], 1, rtol=1e-4)
    assert same(info.num_steps, expected_info.num_steps)
    assert same(state._replace(policy=()), expected)


# method, the constructor of its part, and the arguments that are not the part's
PARTS = [
    ("gift", "gift_steps", ["base"]),
    ("adacomm", "adacomm_steps", ["base"]),
    ("fedgsnr", "gsnr_steps", ["base", "first_gradient"]),
    ("fedveca", "veca_steps", ["accept", "base"]),
    ("fnr", "fnr_refinement", ["base"]),
    ("afl", "afl_online", ["beta", "delta", "rho", "lr", "base"]),
]


@pytest.mark.parametrize("method, part, own", PARTS)
def test_a_part_takes_the_arguments_of_its_method_and_refuses_others(method, part, own):
    parameters = inspect.signature(fa.algorithms.ALGORITHMS[method]).parameters
    assert [name for name in parameters if name in own] == own
    constructor = getattr(fa, part)
    taken = inspect.signature(constructor).parameters
    assert [*taken.values()] == [p for p in parameters.values() if p.name not in own]
    for parameter in [*parameters.values()][1:]:
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, parameter
    for name in (*own, "unknown"):
        says = rf"^{part}\(\) got an unexpected keyword argument '{name}'$"
        with pytest.raises(TypeError, match=says):
            constructor(**{name: None})
    with pytest.raises(TypeError, match=rf"^{part}\(\) "):
        constructor(1, 2)
