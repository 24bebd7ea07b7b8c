"""FNR-FL against NumPy, its identities, its controls and its bytes."""

from dataclasses import replace
from functools import partial
from inspect import signature
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracle
import pytest
from helpers import (
    CLASSES,
    WIDTH,
    close,
    fast,
    keys,
    make_clients,
    make_data,
    make_public,
    same,
    start,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_adapt as fa
from fedjax_adapt.algorithms import (
    ALGORITHMS,
    fedavg,
    fedavg_pubft,
    fednova,
    fedprox,
    fnr,
    moon,
    public_only,
    scaffold,
)
from fedjax_adapt.algorithms.fnr import feature_norms, fnr_refinement, penalty, worst
from fedjax_adapt.core import cross_entropy as per_example
from fedjax_adapt.costs import messages, traffic_of
from fedjax_adapt.engine.round import checked
from fedjax_adapt.finetune import num_selected
from fedjax_adapt.models import MODELS

HIDDEN = 5
PLAN = fa.Plan(
    cohort_size=4,
    batch_size=3,
    lr=0.3,
    lr_decay=0.9,
    momentum=0.5,
    weight_decay=0.05,
    clip_norm=0.4,  # of clients, and on the public set
    shuffle="none",
)
BASES = {
    "fedavg": fedavg,
    "fedprox": partial(fedprox, 0.1),
    "scaffold": scaffold,
    "moon": moon,
    "fednova": fednova,
}
IN_ORDER = dict(shuffle=False, epochs=2, fraction=0.5, batch_size=3)


def two_layers(dtype=jnp.float32):
    """logits = (x U) V with features x U."""

    def init(key):
        one, two = jax.random.split(key)
        return {
            "u": jax.random.normal(one, (WIDTH, HIDDEN), dtype) / 3,
            "v": jax.random.normal(two, (HIDDEN, CLASSES), dtype) / 3,
        }

    def apply(params, x):
        features = x @ params["u"]
        return fa.Outputs(features @ params["v"], features)

    return fa.Task(init, apply, optax.softmax_cross_entropy_with_integer_labels)


@pytest.fixture(scope="module")
def model():
    return two_layers()


# --- a whole round by hand -------------------------------------------------------------


def cross_entropy(theta, x, y):
    """Gradient of the mean, by the chain rule."""
    u, v = theta
    p = np.exp(x @ u @ v)
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return x.T @ (p @ v.T), (x @ u).T @ p


def sgd(
    theta,
    examples,
    lr,
    epochs,
    extra=None,
    momentum=PLAN.momentum,
    width=3,
    sums=False,
    clip_norm=PLAN.clip_norm,
):
    """`extra`: what is added to the gradient of cross entropy, of theta and the batch."""
    velocity = [np.zeros_like(part) for part in theta]
    for x, y in oracle.batches(*examples, width, epochs):
        times = len(y) if sums else 1
        grads = [times * part for part in cross_entropy(theta, x, y)]
        if extra is not None:
            more = extra(theta, x, y)
            grads = [a + b for a, b in zip(grads, more, strict=True)]
        if clip_norm is not None:
            norm = np.sqrt(sum((grad**2).sum() for grad in grads))
            grads = [grad * min(1, clip_norm / (norm + 1e-6)) for grad in grads]
        for k in (0, 1):
            grad = grads[k] + PLAN.weight_decay * theta[k]
            velocity[k] = momentum * velocity[k] + grad
        theta = tuple(t - lr * m for t, m in zip(theta, velocity, strict=True))
    return theta


def class_norms(u, x, y):
    """F, 0 for a label that P has not."""
    norms = np.linalg.norm(x @ u, axis=1)
    here = y[:, None] == np.arange(CLASSES)
    return norms @ here / np.maximum(here.sum(0), 1)


class Refining(NamedTuple):
    """How clients are refined, for `by_hand`."""

    variant: str
    delta_set: str
    weight: float
    lr: float | None = None
    momentum: float = PLAN.momentum
    width: int = 3
    seen: float = 1.0  # what the public inputs are multiplied by in training
    sums: bool = False  # cross entropy, over a batch
    clip_norm: float | None = PLAN.clip_norm


def by_hand(theta, cohort, clients, public, lr, how, mu=0.0):
    """w after a round, who was refined, and their mean J. mu: FedProx's."""
    x_p, y_p = public
    variant, delta_set, weight, *_ = how
    prox = lambda now, x, y: [mu * (a - b) for a, b in zip(now, theta, strict=True)]
    clip = dict(clip_norm=how.clip_norm)
    ends = [sgd(theta, clients[i], lr, 1, prox, **clip) for i in cohort]
    present = np.unique(y_p)
    norms = [class_norms(u, x_p, y_p) for u, _ in ends]
    accuracy = [((x_p @ u @ v).argmax(1) == y_p).mean() for u, v in ends]
    slots = sorted(range(len(cohort)), key=lambda s: (accuracy[s], cohort[s]))
    chosen = slots[: len(cohort) // 2]
    others = [s for s in range(len(cohort)) if s not in chosen]
    penalties, refined = {}, list(ends)
    for j in chosen:
        among = others
        if delta_set == "code":
            among = [s for s in range(len(cohort)) if s != j]
        target = np.mean([norms[m] for m in among], 0)
        seen = []

        def extra(now, x, y, j=j, among=among, target=target, seen=seen):
            """lambda grad J; J is put down."""
            u, _ = now
            norm = np.linalg.norm(x @ u, axis=1)
            inward = (x @ u) / norm[:, None]
            total, gradient = 0.0, np.zeros_like(u)
            for label in range(CLASSES):
                here = y == label
                if not here.any():
                    continue
                rho, mean = here.mean(), norm[here].mean()
                d_mean = x[here].T @ inward[here] / here.sum()
                if variant == "literal":
                    total += rho * sum(norms[m][label] - norms[j][label] for m in among)
                elif variant == "linear":
                    total += rho * sum(norms[m][label] - mean for m in among)
                    gradient -= rho * len(among) * d_mean
                else:
                    square = (target[present] ** 2).mean()
                    total += rho * (target[label] - mean) ** 2 / square
                    gradient -= 2 * rho * (target[label] - mean) / square * d_mean
            seen.append((total, len(y)))
            return weight * gradient, 0

        refined[j] = sgd(
            ends[j],
            (how.seen * x_p, y_p),
            lr if how.lr is None else how.lr,
            2,
            extra,
            how.momentum,
            how.width,
            how.sums,
            **clip,
        )
        totals, sizes = zip(*seen, strict=True)
        penalties[j] = np.average(totals, weights=sizes)
    sizes = [len(clients[i][1]) for i in cohort]
    mean = tuple(np.average([end[k] for end in refined], 0, sizes) for k in (0, 1))
    return mean, chosen, penalties, accuracy


@pytest.mark.parametrize(
    "variant, delta_set",
    fast(
        {
            f"{variant} {which}": (variant, which)
            for variant in ("sq", "literal", "linear")
            for which in ("paper", "code")
        },
        "sq paper",
    ),
)
def test_follows_the_numpy_oracle(x64, variant, delta_set):
    algorithm = fnr(variant, weight=0.02, delta_set=delta_set, **IN_ORDER)
    how = Refining(variant, delta_set, weight=0.02)
    agrees_with_the_oracle(algorithm, how, make_public(np.float64))


def test_on_fedprox_with_an_sgd_of_its_own_it_follows_the_numpy_oracle(x64):
    """On an augmented public set without label 1, in batches of 4 and 2; clients take 3.

    Norms and accuracies are those of the set as it is.
    """
    x, y = make_public(np.float64)
    public = x[y != 1], y[y != 1]
    assert set(public[1]) == {0, 2}
    own = dict(lr=0.05, momentum=0.9, batch_size=4, augment=True)
    algorithm = fnr(weight=0.3, base=fedprox(0.7), **IN_ORDER | own)
    how = Refining("sq", "paper", weight=0.3, lr=0.05, momentum=0.9, width=4, seen=2.0)
    agrees_with_the_oracle(algorithm, how, public, mu=0.7)


@pytest.mark.slow
@pytest.mark.parametrize("width", [10, 32])
def test_losses_of_a_public_batch_are_added_up_as_algorithm_3_has_it(width, x64):
    """Line 32; P has 24 examples: batches of 10, 10 and 4, or one of them all.

    Without clipping, by which a sum and a mean would move the model alike.
    """
    options = dict(batch_loss="sum", batch_size=width, lr=0.02)
    algorithm = fnr(weight=0.02, **IN_ORDER | options)
    how = Refining("sq", "paper", 0.02, lr=0.02, width=width, sums=True, clip_norm=None)
    agrees_with_the_oracle(algorithm, how, make_public(np.float64, size=24))


@pytest.mark.slow
def test_public_batches_have_32_examples_as_in_section_6_1(model):
    """Of 70 that makes 3, and 64 as for clients 2."""
    data = replace(make_data(), public=tuple(map(jnp.asarray, make_public(size=70))))
    for algorithm in (fnr(epochs=1), fedavg_pubft(epochs=1), public_only(epochs=1)):
        _, info = after(algorithm, model, data, rounds=1)
        assert int(info.public_steps) == 2 * 3


def test_the_defaults_are_those_of_the_specification():
    """public-set.md, A.2 to A.7 and A.9: E_re and p, our J and lambda, Algorithm 2's H,
    the mean of a batch, and uploads that wait."""
    work = dict(fraction=0.5, epochs=5, batch_size=32, batch_loss="mean", lr=None)
    own = dict(variant="sq", weight=0.1, delta_set="paper", upload="delayed")
    for function, expected in [
        (fnr, work | own),
        (fnr_refinement, work | own),
        (fedavg_pubft, work),
        (public_only, work),
    ]:
        parameters = signature(function).parameters
        assert {name: parameters[name].default for name in expected} == expected


def doubling(task):
    """The task with inputs that are doubled in training."""
    return task._replace(apply_train=lambda params, x, key: task.apply(params, 2 * x))


def agrees_with_the_oracle(algorithm, how, public, mu=0.0):
    """Three rounds."""
    task = doubling(two_layers(jnp.float64))
    shown = jax.tree.map(jnp.asarray, public)
    data = replace(make_data(dtype=np.float64), public=shown)
    plan = replace(PLAN, clip_norm=how.clip_norm)
    round_fn, state = start(algorithm, task, data, plan)
    clients = [(2 * x, y) for x, y in make_clients(dtype=np.float64)]
    theta = tuple(np.asarray(state.params[name]) for name in "uv")
    step = jax.jit(round_fn)
    for t, key in enumerate(keys(3)):
        state, info = step(state, key)
        lr = PLAN.lr * PLAN.lr_decay**t
        cohort = np.asarray(info.cohort)
        theta, chosen, penalties, accuracy = by_hand(
            theta, cohort, clients, public, lr, how, mu
        )
        assert set(np.flatnonzero(info.refine["refined"])) == set(chosen)
        np.testing.assert_allclose(info.refine["public_accuracy"], accuracy)
        expected = [penalties.get(slot, 0) for slot in range(4)]
        np.testing.assert_allclose(info.refine["penalty"], expected, rtol=1e-8)
        np.testing.assert_allclose(state.params["u"], theta[0], atol=1e-9)
        np.testing.assert_allclose(state.params["v"], theta[1], atol=1e-9)
    size = 8 * (WIDTH * HIDDEN + HIDDEN * CLASSES)
    assert float(info.bytes_up) == 4 * (size + 4 * (CLASSES + 1))
    assert float(info.bytes_down) == 4 * size + 2 * 4 * CLASSES


# --- what it becomes -------------------------------------------------------------------


def after(algorithm, task, data, plan=PLAN, rounds=2):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(rounds):
        state, info = step(state, key)
    return state, info


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", ["fednova", "scaffold"])
def test_without_epochs_it_is_its_base_to_the_bit(name, model, data):
    base, _ = after(BASES[name](), model, data)
    nothing, info = after(fnr(epochs=0, base=BASES[name]()), model, data)
    assert same(nothing, base)
    assert np.asarray(info.refine["refined"]).sum() == 2


@pytest.mark.optimised
@pytest.mark.slow
def test_a_cohort_of_which_the_fraction_is_nobody_is_the_base(model, data):
    """One client of six slots: floor(0.5) = 0."""
    alone = fa.StepPolicy(steps=lambda state, cohort, measured: 1 * (cohort.ids == 3))
    plan = replace(PLAN, cohort_size=None)
    base, _ = after(fa.with_steps(fedavg(), alone), model, data, plan)
    lonely, info = after(fa.with_steps(fnr(), alone), model, data, plan)
    assert same(lonely, base) and not np.any(info.refine["refined"])


@pytest.mark.slow
@pytest.mark.parametrize("name", fast({n: (n,) for n in BASES}, "scaffold"))
def test_the_literal_penalty_moves_no_weight_whatever_its_base(name, model, data):
    """lambda traced: the same program for all of them, and J is shown all the same."""

    def build(weight):
        algorithm = fnr("literal", weight=weight, base=BASES[name](), **IN_ORDER)
        return start(algorithm, model, data, PLAN)

    step = jax.jit(lambda weight, state, key: build(weight)[0](state, key))

    def run(weight):
        state = build(0.0)[1]
        for key in keys(2):
            state, info = step(weight, state, key)
        return state, info.refine["penalty"]

    none, j = run(0.0)
    assert np.abs(j).max() > 0.01
    for weight in (0.1, 1.0, 1e6):
        assert same(run(weight), (none, j))


@pytest.mark.slow
def test_lambda_zero_is_the_same_for_every_variant(model, data):
    ends = [
        after(fnr(variant, weight=0.0, **IN_ORDER), model, data)[0]
        for variant in ("sq", "literal", "linear")
    ]
    close(ends[0], ends[1])
    close(ends[0], ends[2])


@pytest.mark.slow
def test_one_client_of_one_is_local_training_then_the_public_set(model, data):
    """n = 1, p = 1, one example in a batch of its own: two phases of plain SGD."""
    one = make_data((6,))
    plan = fa.Plan(batch_size=3, lr=0.1, shuffle="none")
    end, info = after(
        fnr(fraction=1.0, epochs=2, batch_size=None, shuffle=False),
        model,
        one,
        plan,
        rounds=1,
    )
    x, y = make_public()
    both = fa.FederatedDataset.from_clients([(np.concatenate([x, x]), np.tile(y, 2))])
    # P twice in a row, as batches of 3, 3 and 1
    local, _ = after(fedavg(), model, one, plan, rounds=1)
    params = local.params
    for begin in (0, 3, 6, 7, 10, 13):
        rows = slice(begin, begin + (1 if begin in (6, 13) else 3))
        loss = lambda p, rows=rows: model.loss(
            model.apply(p, both.x[rows]).logits, both.y[rows]
        ).mean()
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
    close(end.params, params)
    assert float(info.refine["penalty"][0]) == 0  # nobody to be like


# --- Delta and J -----------------------------------------------------------------------

norms_of_all = arrays(np.float64, (5, CLASSES), elements=st.floats(0.1, 10))


def value(variant, own, among, norms, x, y, u):
    outputs = fa.Outputs(jnp.zeros((len(y), CLASSES)), jnp.asarray(x) @ u)
    batch = fa.Batch(jnp.asarray(x), jnp.asarray(y), jnp.ones(len(y)))
    j = penalty(variant, CLASSES, jnp.asarray(own), jnp.asarray(among), norms)
    return j(outputs, batch)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(norms_of_all, st.integers(0, 4))
def test_delta_is_the_number_of_others_times_their_mean_minus_ones_own(norms, j):
    """One batch with a single label shows Delta_j of it; over all clients they cancel."""
    with jax.enable_x64(True):
        u, x = jnp.eye(WIDTH), np.ones((2, WIDTH))
        total = np.zeros(CLASSES)
        for client in range(5):
            among = np.arange(5) != client
            for label in range(CLASSES):
                y = np.full(2, label)
                delta = value("literal", norms[client], among, norms, x, y, u)
                total[label] += delta
                if client == j:
                    expected = norms.sum(0)[label] - 5 * norms[j, label]
                    np.testing.assert_allclose(delta, expected, atol=1e-9)
        np.testing.assert_allclose(total, 0, atol=1e-9)
        held = np.array([True, True, False, False, False])
        y = np.array([0, 0])
        delta = value("literal", norms[j], held, norms, x, y, u)
        expected = 2 * (norms[:2, 0].mean() - norms[j, 0])
        np.testing.assert_allclose(delta, expected, atol=1e-9)
        alike = np.broadcast_to(norms[:1], norms.shape)
        assert abs(value("literal", norms[0], held, alike, x, y, u)) < 1e-9


def random_batch(seed=0):
    rng = np.random.default_rng(seed)
    x, u = rng.normal(size=(8, WIDTH)), jnp.asarray(rng.normal(size=(WIDTH, HIDDEN)))
    norms = rng.uniform(1, 3, (4, CLASSES))
    return x, rng.integers(0, CLASSES, 8), u, norms


@pytest.mark.slow
def test_the_linear_penalty_only_ever_inflates_norms(x64):
    """grad J = -|H| grad mean ||f||, whatever Delta is."""
    x, y, u, norms = random_batch()
    among = np.array([True, True, False, True])
    mean = lambda u: jnp.linalg.norm(jnp.asarray(x) @ u, axis=1).mean()
    expected = -3 * jax.grad(mean)(u)
    for factor in (0.01, 100.0):
        got = jax.grad(
            lambda u, f=factor: value("linear", norms[2], among, f * norms, x, y, u)
        )(u)
        np.testing.assert_allclose(got, expected, atol=1e-9)


def test_the_squared_penalty_is_that_of_examples_less_their_variance(x64):
    """J' = mean (Fbar[y] - ||f||)^2 / s^2 = J + sum_l rho_l Var_l / s^2."""
    x, y, u, norms = random_batch(1)
    among = np.array([False, True, True, True])
    target = norms[1:].mean(0)
    square = (target**2).mean()
    norm = np.linalg.norm(x @ np.asarray(u), axis=1)
    per_example = ((target[y] - norm) ** 2).mean() / square
    spread = sum((y == k).mean() * norm[y == k].var() for k in set(y.tolist()))
    j = value("sq", norms[0], among, norms, x, y, u)
    np.testing.assert_allclose(per_example, j + spread / square, rtol=1e-9)
    # and it does not see the scale of features
    scaled = value("sq", norms[0], among, 7 * norms, x, y, 7 * u)
    np.testing.assert_allclose(scaled, j, rtol=1e-9)


def test_class_means_that_match_pull_nowhere(x64):
    x, y, u, _ = random_batch(2)
    own = np.array(
        [np.linalg.norm(x[y == k] @ u, axis=1).mean() for k in range(CLASSES)]
    )
    norms = np.tile(own, (4, 1))
    among = np.array([True, True, True, False])
    pull = jax.grad(lambda u: value("sq", own, among, norms, x, y, u))(u)
    np.testing.assert_allclose(pull, 0, atol=1e-9)


def test_features_that_vanish_give_no_nan():
    pull = jax.grad(lambda f: feature_norms(f).sum())(jnp.zeros((2, 3)))
    assert np.isfinite(pull).all()


@pytest.mark.slow
def test_over_an_epoch_the_penalty_is_that_of_the_whole_public_set(x64):
    """sum_l (N_l / N) Delta_j[l], in whatever order P is passed."""
    algorithm = fnr("literal", fraction=0.25, batch_size=3, epochs=3)
    data = make_data(dtype=np.float64)
    _, info = after(algorithm, two_layers(jnp.float64), data, rounds=1)

    def look(params, state, view, key):
        return params, state, {"u": view.runs.params["u"]}

    bare = fa.with_refinement(fedavg(), fa.Refinement(server=look))
    _, seen = after(bare, two_layers(jnp.float64), data, rounds=1)
    x, y = make_public(np.float64)
    norms = np.array([class_norms(np.asarray(u), x, y) for u in seen.refine["u"]])
    (j,) = np.flatnonzero(info.refine["refined"])
    delta = np.delete(norms, j, 0).sum(0) - 3 * norms[j]
    expected = (np.bincount(y, minlength=CLASSES) / len(y)) @ delta
    np.testing.assert_allclose(info.refine["penalty"][j], expected, rtol=1e-9)


# --- who is refined --------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    arrays(np.int32, 6, elements=st.integers(0, 3)),
    arrays(bool, 6),
    st.permutations(range(6)),
    st.floats(0.01, 1),
)
def test_the_worst_are_chosen_ties_by_id(accuracy, active, ids, fraction):
    cohort = cohort_of(active, ids)
    _, refined = worst(cohort, jnp.asarray(accuracy / 4), fraction)
    present = [slot for slot in range(6) if active[slot]]
    ranked = sorted(present, key=lambda slot: (accuracy[slot], ids[slot]))
    most = int(np.floor(len(present) * fraction * (1 + 1e-6)))
    assert set(np.flatnonzero(refined)) == set(ranked[:most])


def cohort_of(active, ids):
    zeros = jnp.zeros(len(active), jnp.int32)
    return fa.Cohort(
        ids=jnp.asarray(ids, jnp.int32),
        num_examples=zeros,
        epoch_steps=zeros,
        num_steps=zeros,
        active=jnp.asarray(active),
        round=jnp.int32(0),
        num_clients=6,
        num_holders=6,
        mean_epoch_steps=jnp.int32(1),
    )


@pytest.mark.parametrize("n, p, expected", [(100, 0.29, 29), (10, 0.7, 7), (3, 0.3, 0)])
def test_a_share_of_clients_is_not_lost_to_rounding(n, p, expected):
    assert num_selected(p, n) == expected
    assert int(num_selected(p, jnp.int32(n))) == expected


# --- controls --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    fast(
        {"fedavg_pubft": ("fedavg_pubft",), "public_only": ("public_only",)},
        "public_only",
    ),
)
@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_a_control_takes_the_steps_of_all_refined_clients_together(name, loss, x64):
    """floor(4 / 2) = 2 clients of 2 epochs: 4 epochs at the server, in its own way."""
    data = make_data(dtype=np.float64)
    lr = 0.07 if loss == "mean" else 0.01  # sums take larger steps
    own = dict(lr=lr, momentum=0.8, batch_size=4, augment=True)
    algorithm = ALGORITHMS[name](**IN_ORDER | own, batch_loss=loss)
    task = doubling(two_layers(jnp.float64))
    plan = replace(PLAN, clip_norm=None)  # or sums and means might move alike
    state, _ = after(algorithm, task, data, plan, rounds=1)
    base, _ = after(fedavg(), task, data, plan, rounds=1)
    _, begin = start(fedavg(), task, data, plan)
    theta = base.params if name == "fedavg_pubft" else begin.params
    theta = tuple(np.asarray(theta[part]) for part in "uv")
    x, y = make_public(np.float64)
    theta = sgd(
        theta,
        (2 * x, y),
        lr,
        4,
        momentum=0.8,
        width=4,
        sums=loss == "sum",
        clip_norm=None,
    )
    np.testing.assert_allclose(state.params["u"], theta[0], atol=1e-10)
    np.testing.assert_allclose(state.params["v"], theta[1], atol=1e-10)


@pytest.mark.slow
def test_public_training_does_not_see_the_clients(model, data):
    other = make_data(seed=5)
    ends = [after(public_only(), model, d)[0].params for d in (data, other)]
    assert same(*ends)
    free, _ = after(fedavg_pubft(epochs=0, base=fednova()), model, data)
    assert same(free.params, after(fednova(), model, data)[0].params)


# --- bytes -----------------------------------------------------------------------------


def test_traffic_is_that_of_table_3():
    """MiB of 10 clients and 10 rounds with the published model, 44.5994 MiB."""
    size = ((11_681_832 + 9_600) * 4 + 160) // 4
    data = make_data((2,) * 10)
    says = lambda params, x: fa.Outputs(jnp.zeros((len(x), CLASSES)), x)
    init = lambda key: {"w": jnp.zeros(size, np.float32)}
    task = fa.Task(init, says, per_example)
    params = jax.eval_shape(init, None)
    mib = lambda clients, traffic: clients * 10 * sum(messages(traffic, params)) / 2**20

    def told(algorithm):
        return checked(algorithm, task, data, fa.Plan())

    plain = mib(10, traffic_of(told(fedavg())))
    assert plain == pytest.approx(8920, abs=0.5)
    true = mib(10, traffic_of(told(scaffold())))
    n_t_m = 10 * 10 * 4 * size / 2**20
    assert true == pytest.approx(4 * n_t_m)
    assert 3 * n_t_m == pytest.approx(13380, abs=0.5)  # the paper's count
    again = told(fnr(upload="twice"))
    more = mib(5, again.refine.traffic_refined)
    assert mib(10, traffic_of(again)) + more == pytest.approx(11150, abs=0.5)
    delayed = told(fnr())
    extra = mib(10, traffic_of(delayed)) + mib(5, delayed.refine.traffic_refined)
    k = CLASSES
    scalars = (10 * (k + 1) + 5 * k) * 4 * 10  # bytes
    assert extra - plain == pytest.approx(scalars / 2**20, rel=1e-6)


# --- mistakes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (lambda: fnr("square"), "variant='square' is unknown; did you mean 'sq'"),
        (lambda: fnr(fraction=0.0), r"fraction=0.0 must lie in \(0, 1\]"),
        (lambda: fnr(fraction=1.5), r"fraction=1.5 must lie in \(0, 1\]"),
        (lambda: fnr(epochs=-1), "epochs=-1 must be an integer >= 0"),
        (lambda: fnr(weight=-1), "weight=-1 must be a finite number of at least 0"),
        (lambda: fnr(lr=0), "lr=0 must be a finite number above 0"),
        (lambda: fnr(batch_size=0), "batch_size=0 must be an integer >= 1"),
        (lambda: fnr(base=fnr()), "its base already has a refinement"),
        (lambda: fedavg_pubft(base=fnr()), "its base already has a refinement"),
        (lambda: public_only(momentum=1.0), r"momentum=1.0 must lie in \[0, 1\)"),
        (lambda: public_only(batch_loss="add"), "batch_loss='add' is unknown; write"),
    ],
)
def test_a_wrong_option_says_what_to_write(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        wrong()


@pytest.mark.parametrize(
    "algorithm", [fnr(), fedavg_pubft(), public_only()], ids=lambda a: ""
)
def test_what_cannot_be_refined_is_one_sentence(algorithm, model, data):
    def build(data=data, plan=PLAN):
        fa.make_round(algorithm, model, data, plan)

    build()
    with pytest.raises(ValueError, match="the data have none; give public="):
        build(replace(data, public=None))
    with pytest.raises(ValueError, match="labels but the public set has none"):
        build(replace(data, public=data.x))
    with pytest.raises(ValueError, match=r"labels lie in \[0, 3\] but there are 3"):
        build(replace(data, public=(data.x[:2], jnp.array([0, 3]))))
    with pytest.raises(ValueError, match=r"public inputs are float32\[3\] but"):
        build(replace(data, public=(data.x[:, :3], data.y)))
    with pytest.raises(ValueError, match="one integer label per public example"):
        build(replace(data, public=(data.x, data.x)))
    with pytest.raises(
        ValueError, match="of a cohort of 1 is no client; write at least 1"
    ):
        build(plan=replace(PLAN, cohort_size=1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "vgg11"])
def test_the_papers_models_can_be_refined(name):
    """Traced, not run: the shapes of a round. VGG-11 drops out where it is augmented."""
    image = (32, 32, 3)
    task = fa.classification(MODELS[name](image, 10), image)
    rng = np.random.default_rng(0)
    examples = lambda n: (
        rng.integers(0, 256, (n, *image)).astype(np.uint8),
        np.arange(n, dtype=np.int32) % 10,
    )
    data = fa.FederatedDataset.from_clients(
        [examples(5), examples(3)], public=examples(4), num_classes=10
    )
    plan = fa.Plan(batch_size=2)
    algorithm = fnr(epochs=1, batch_size=3, augment=True)
    round_fn = fa.make_round(algorithm, task, data, plan)
    state = jax.eval_shape(
        lambda key: fa.init_state(algorithm, task, data, plan, key), jax.random.key(0)
    )
    end, info = jax.eval_shape(round_fn, state, jax.random.key(1))
    chex.assert_trees_all_equal_shapes_and_dtypes(end.params, state.params)
    shown = {"public_accuracy": (2,), "refined": (2,), "penalty": (2,)}
    assert jax.tree.map(jnp.shape, info.refine) == shown
    outputs = jax.eval_shape(task.apply, state.params, data.x[:2])
    assert outputs.features.shape == (2, 512)


def test_a_model_without_features_is_refused(model, data):
    bare = model._replace(apply=lambda p, x: fa.Outputs(model.apply(p, x).logits))
    with pytest.raises(ValueError, match="fnr compares features but the model has no"):
        fa.make_round(fnr(), bare, data, PLAN)
    fa.make_round(fedavg_pubft(), bare, data, PLAN)
