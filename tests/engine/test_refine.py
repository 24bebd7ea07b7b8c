"""Refinements of clients' models and of the server's, apart from any one method."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import SIZES, close, constructed, fast, keys, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    ALGORITHMS,
    afl,
    fedadam,
    fedavg,
    feddisco,
    feddyn,
    fednova,
    fedveca,
    moon,
    scaffold,
)
from fedjax_adapt.core import model_weights, public_examples
from fedjax_adapt.costs import traffic_of
from fedjax_adapt.engine.round import checked

PLAN = fa.Plan(participation=fa.bernoulli(0.5), batch_size=4, lr=0.2)


def steps_of(view, who=True):
    return jnp.where(view.cohort.active & who, 2, 0).astype(jnp.int32)


def as_they_were(view, key):
    del key
    return fa.Refined(view.runs.params, steps_of(view), {})


def pulled(view, key):
    """Every second client, halfway to the broadcast model, and a little noise."""
    del key
    who = view.cohort.ids % 2 == 0

    def pull(theta, w):
        here = who.reshape(-1, *(1,) * w.ndim)
        return jnp.where(here, (theta + w[None]) / 2 + 0.01, theta)

    params = jax.tree.map(pull, view.runs.params, view.runs.anchor)
    report = {"refined": who, "lr": view.setting.lr}
    return fa.Refined(params, steps_of(view, who), report)


def counted(params, state, view, key):
    """A server that keeps and shows how often it was here, and moves by the public set."""
    del key
    x, _ = public_examples(view.public)
    params = {**params, "b": params["b"] + 0.01 * x.mean()}
    return params, state + 1, {"count": state}


def init(task, setup, key):
    assert setup.num_classes == 3 and setup.num_clients == 6
    assert setup.example.shape == (4,) and setup.batch_size == 4
    return jnp.zeros((), jnp.int32)


BOTH = fa.Refinement(init=init, clients=pulled, server=counted)
BASES = {
    "fedavg": fedavg(),
    "scaffold": scaffold(0.5),
    "fednova": fednova(),
    "fedveca": fedveca(),
    "moon": moon(),
    "fedadam on feddyn": fedadam(base=feddyn()),
    "feddisco on feddyn": feddisco(base=feddyn()),
    "averages": fa.with_averages(moon(), clients=True),
    "afl on moon": afl(budget=1e6, base=moon()),
}


def ends(algorithm, task, data, plan=PLAN, rounds=2):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(rounds):
        state, info = step(state, key)
    return state, info


def these(*quick, among=tuple(BASES)):
    """Bases by name: the named ones, and all among the slow tests."""
    cases = {name: (name,) for name in among}
    return pytest.mark.parametrize("name", fast(cases, *quick))


@pytest.mark.slow
@these("moon", among=("moon", "averages", "fedadam on feddyn"))
def test_models_returned_as_they_were_are_the_base_to_the_bit(name, task, data):
    nothing = fa.with_refinement(BASES[name], fa.Refinement(clients=as_they_were))
    state, info = ends(nothing, task, data)
    base, base_info = ends(BASES[name], task, data)
    # XLA fuses the sums of FedAdam in another order
    equal = close if name.startswith("fedadam") else same
    assert equal(state, base) is not False
    assert int(info.public_steps) == 2 * int(info.num_active)
    info = info._replace(refine={}, public_steps=base_info.public_steps)
    assert equal(info, base_info) is not False


@pytest.mark.slow
@these(
    "moon", among=("moon", "averages", "fedadam on feddyn", "fedveca", "afl on moon")
)
def test_the_slow_twin_agrees(name, task, data):
    """A cohort with empty slots; a state of the refinement; refined client states."""
    algorithm = fa.with_refinement(BASES[name], BOTH)
    round_fn, state = start(algorithm, task, data, PLAN)
    step = jax.jit(round_fn)
    before, _ = step(state, keys(2)[0])
    quick, info = step(before, keys(2)[1])
    assert (np.asarray(info.cohort) == len(SIZES)).any()
    slow, slow_info = fa.debug_round(algorithm, task, data, PLAN)(before, keys(2)[1])
    close(slow, quick)
    close(slow_info, info)
    assert int(quick.refine) == 2 and int(info.refine["count"]) == 1


MEANS = ("fedavg", "scaffold", "fednova", "fedveca", "feddisco on feddyn")


@pytest.mark.slow
@these("fednova", among=MEANS)
def test_refined_models_enter_the_mean_of_models_and_nothing_else(name, task, data):
    """w^+ = the base's + sum_i p_i (refined_i - theta_i), by hand from what both show."""
    algorithm = BASES[name]

    def look(params, state, view, key):
        p = model_weights(algorithm.server, view.cohort)
        return params, state, {"theta": view.runs.params, "p": p}

    bare = fa.with_refinement(algorithm, fa.Refinement(server=look))
    refine = fa.Refinement(clients=pulled, server=look)
    base, seen = ends(bare, task, data, rounds=1)
    after, refined = ends(fa.with_refinement(algorithm, refine), task, data, rounds=1)
    p = np.asarray(seen.refine["p"])
    of = lambda a, b: np.einsum("i,i...->...", p, a - b)
    shift = jax.tree.map(of, refined.refine["theta"], seen.refine["theta"])
    assert optax.tree.norm(shift) > 0.01
    server_lr = 0.5 if name == "scaffold" else 1.0
    close(
        after.params,
        optax.tree.add(base.params, optax.tree.scale(server_lr, shift)),
    )
    # control variates and memories were made before
    close((after.server, after.clients), (base.server, base.clients))


@pytest.mark.slow
def test_moon_remembers_the_model_it_uploaded(task, data):
    plan = fa.Plan(cohort_size=4, batch_size=4)
    refine = fa.with_refinement(moon(), fa.Refinement(clients=pulled))
    after, info = ends(refine, task, data, plan, rounds=1)
    base, _ = ends(moon(), task, data, plan, rounds=1)
    in_cohort = np.isin(np.arange(6), np.asarray(info.cohort))
    moved = in_cohort & (np.arange(6) % 2 == 0)
    assert moved.any() and (in_cohort & ~moved).any()
    differs = jax.tree.map(
        lambda a, b: np.abs(a - b).reshape(6, -1).max(1) > 1e-4,
        after.clients.previous,
        base.clients.previous,
    )
    np.testing.assert_array_equal(differs["w"], moved)
    assert same(after.clients.visited, base.clients.visited)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [dict(devices=2), dict(lanes=3)])
@these("moon", among=("moon", "averages"))
def test_lanes_and_devices_do_not_change_a_refinement(name, changes, task, data):
    algorithm = fa.with_refinement(BASES[name], BOTH)
    plain = fa.Plan(cohort_size=4, batch_size=4, lr=0.2)
    expected = ends(algorithm, task, data, plain)
    plan = fa.Plan(**{**vars(plain), **changes})
    close(jax.device_get(ends(algorithm, task, data, plan)), expected)


@pytest.mark.slow
def test_nobody_who_trains_nobody_who_refines(task, data):
    nobody = fa.StepPolicy(steps=lambda state, cohort, measured: 0 * cohort.ids)
    algorithm = fa.with_steps(fa.with_refinement(moon(), BOTH), nobody)
    round_fn, state = start(algorithm, task, data, PLAN)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    assert same(after._replace(round=state.round), state)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(info.refine))
    assert float(info.bytes_up) == 0


@pytest.mark.slow
def test_clients_are_shown_what_the_refinement_keeps(task, data):
    """The server's count of rounds as the local loss."""
    rule = fa.LocalRule(
        objective=lambda params, view, key: 0 * params["b"].sum() + view.refine
    )
    algorithm = fa.with_refinement(fa.Algorithm(local=rule), BOTH)
    for build in (fa.make_round, fa.debug_round):
        round_fn = build(algorithm, task, data, fa.Plan(batch_size=4))
        _, state = start(algorithm, task, data, fa.Plan(batch_size=4))
        losses = []
        for key in keys(3):
            state, info = round_fn(state, key)
            losses.append(float(info.loss[0]))
        assert losses == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize(
    "build", [fa.make_round, pytest.param(fa.debug_round, marks=pytest.mark.slow)]
)
def test_bytes_and_seconds_of_those_who_refine(build, task, data):
    """Everyone sends two numbers more; even ids fetch one and send a model again."""
    clock = fa.Clock(step_seconds=2.0, bandwidth=8.0, latency=5.0)
    plan = fa.Plan(batch_size=4, clock=clock)
    refine = fa.Refinement(
        clients=pulled,
        traffic=lambda setup: fa.Traffic(scalars_up=setup.num_classes - 1),
        traffic_refined=fa.Traffic(models_up=1, scalars_down=1, round_trips=1),
    )
    algorithm = fa.with_refinement(fedavg(), refine)
    with pytest.raises(ValueError, match="follows from model and data; call .*checked"):
        traffic_of(algorithm)
    told = checked(algorithm, task, data, plan)
    assert traffic_of(told) == fa.Traffic(1, 1, 0, 2, 1)
    model = 60
    _, state = start(algorithm, task, data, plan)
    _, info = build(algorithm, task, data, plan)(state, keys(1)[0])
    assert float(info.bytes_up) == 6 * (model + 8) + 3 * model
    assert float(info.bytes_down) == 6 * model + 3 * 4
    longest = 3 * 2 + (model + 8) + 5
    assert float(info.seconds) == longest + 2 * 2 + model + 5


def test_a_refinement_without_a_public_set_is_one_sentence(task, data):
    algorithm = fa.with_refinement(fedavg(), BOTH)
    for build in (fa.make_round, fa.debug_round):
        with pytest.raises(ValueError, match="on a public set but the data have none"):
            build(algorithm, task, replace(data, public=None), PLAN)
        with pytest.raises(ValueError, match="public overlaps the test set in 48 of"):
            build(algorithm, task, replace(data, public=data.test), PLAN)

    def refuse(task, setup):
        raise ValueError(f"{setup.cohort_size} are too few.")

    algorithm = fa.with_refinement(fedavg(), BOTH._replace(check=refuse))
    with pytest.raises(ValueError, match="6 are too few"):
        fa.make_round(algorithm, task, data, PLAN)


def single_logit(task, accuracy):
    """A logistic regression by hand, of whether the label is above 0."""

    def apply(params, x):
        logits = task.apply(params, x).logits[:, :1]
        return fa.Outputs(logits, logits)

    loss = lambda logits, y: jax.nn.softplus(jnp.where(y > 0, -1, 1) * logits[:, 0])
    return task._replace(apply=apply, loss=loss, accuracy=accuracy)


@pytest.mark.parametrize("name", ["feddf", "fedgen", "fedftg", "fnr"])
def test_what_a_single_logit_cannot_say_is_not_asked(name, task, data):
    """Its softmax is 1 whatever it is, and the largest of one is the first."""
    says = (
        r"logits, \d or more, but the model has \[1\]|single logit no accuracy is known"
    )
    for build in (fa.make_round, fa.debug_round):
        with pytest.raises(fa.SettingError, match=f"^{name} .*({says})"):
            build(constructed(name), single_logit(task, None), data, PLAN)
    with pytest.raises(fa.SettingError, match=r"Task.apply .* return fa.Outputs"):
        no_outputs = task._replace(apply=lambda params, x: x)
        fa.make_round(constructed(name), no_outputs, data, PLAN)


@pytest.mark.parametrize("name", ["feddf", "fedgen", "fedftg"])
def test_a_softmax_is_of_a_logit_for_each_label(name, task, data):
    """A loss of one's own is not asked for one, as cross entropy is."""

    def apply(params, x):
        logits = task.apply(params, x).logits[:, :2]
        return fa.Outputs(logits, logits)

    loss = lambda logits, y: ((logits - y[:, None]) ** 2).mean(1)
    fewer = task._replace(apply=apply, loss=loss)
    says = rf"{name} takes the softmax of logits, 3 or more, but the model has \[2\]"
    with pytest.raises(fa.SettingError, match=says):
        fa.make_round(constructed(name), fewer, data, PLAN)


@pytest.mark.slow
def test_clients_are_refined_by_the_accuracy_of_the_task(task, data):
    task = single_logit(task, lambda logits, y: (logits[:, 0] > 0) == (y > 0))
    algorithm = fa.with_steps(fa.algorithms.fnr(weight=0.0), fa.constant_steps(3))
    algorithm = fa.valuation.show_deltas(algorithm)
    plan = fa.Plan(batch_size=4, lr=0.5)
    round_fn, state = start(algorithm, task, data, plan)
    _, info = jax.jit(round_fn)(state, keys(1)[0])
    x, y = map(np.asarray, public_examples(data.public))
    w, b = (
        np.asarray(state.params[n])[None] + np.asarray(info.clients[n]) for n in "wb"
    )
    guess = x @ w[..., 0].T + b[:, 0][None] > 0
    right = (guess == (y > 0)[:, None]).mean(0)
    np.testing.assert_allclose(info.refine["public_accuracy"], right, rtol=1e-6)
    assert len(set(right)) > 1


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (lambda: fa.with_refinement(fedavg, None), r"call it: algorithm=fedavg\(\)"),
        (
            lambda: fa.with_refinement(fedavg(), 0.5),
            "got 0.5 for refine; write a Refinement",
        ),
    ],
)
def test_what_is_no_refinement_is_one_sentence(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        wrong()


WRONG = {
    "shape": (
        lambda params, view, key: jax.tree.map(lambda leaf: leaf[:1], params),
        r"float32\[1\] for the server's model\['b'\] where Task.init gave float32\[3\]",
    ),
    "tree": (
        lambda params, view, key: (params, {}),
        r"\(\{'b': float32\[3\], .*\) for the server's model where Task.init gave \{",
    ),
    "clients": (
        fa.Refinement(
            clients=lambda view, key: as_they_were(view, key)._replace(
                params=view.runs.anchor
            )
        ),
        r"returned float32\[3\] for the clients' models\['b'\] where .* float32\[6, 3\]",
    ),
    "state": (
        fa.Refinement(server=lambda params, state, view, key: (params, 0, {})),
        r"returned int32\[\] for its own state where Refinement.init gave nothing",
    ),
    "arguments": (
        lambda params, view: params,
        r"raised TypeError: .* by itself \(params, view, key\) and returns params.",
    ),
    "report": (
        fa.Refinement(server=lambda params, state, view, key: params),
        r"Refinement.server .* returned a dict; return \(params, state, report\)",
    ),
}


@pytest.mark.parametrize("refine, sentence", WRONG.values(), ids=WRONG)
def test_a_refinement_that_returns_other_shapes_is_one_sentence(
    refine, sentence, task, data
):
    algorithm = fa.with_refinement(fedavg(), refine)
    plan = fa.Plan(batch_size=4)
    with pytest.raises(ValueError, match=sentence):
        fa.make_round(algorithm, task, data, plan)


def test_the_refinement_of_an_algorithm_goes_with_another_base():
    refine = fa.Refinement(clients=pulled)
    refined = fa.with_refinement(fedavg(), refine)
    base = moon()
    both = fa.with_refinement(base, refined)
    assert both.local is base.local and both.refine is refine


def test_rules_that_keep_no_model_need_no_new_row():
    keeps = {n for n, c in ALGORITHMS.items() if n == "moon"}
    for name in ("fedavg", "scaffold", "feddyn", "moon"):
        assert (ALGORITHMS[name]().local.refined is None) == (name not in keeps)
