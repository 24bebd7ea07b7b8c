import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import CLASSES, SIZES, WIDTH, close, keys, make_data, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedgen
from fedjax_adapt.algorithms.fedgen import FedGenState, generator_loss, shares
from fedjax_adapt.core import Setting
from fedjax_adapt.generators import latent_generator

HIDDEN, NOISE = 5, 2
FEW = dict(hidden=6, noise_size=NOISE, generated_batch=4, generator_steps=3)
PLAN = fa.Plan(cohort_size=4, batch_size=3, lr=0.1)


def two_layer_task(dtype=jnp.float32):
    """logits = (x U) V with features x U."""

    def init(key):
        one, two = jax.random.split(key)
        return {
            "u": jax.random.normal(one, (WIDTH, HIDDEN), dtype),
            "v": jax.random.normal(two, (HIDDEN, CLASSES), dtype),
        }

    def apply(params, x):
        return fa.Outputs(x @ params["u"] @ params["v"], x @ params["u"])

    loss = optax.softmax_cross_entropy_with_integer_labels
    return fa.Task(init, apply, loss, head=lambda params, z: z @ params["v"])


def softmax(logits):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def after(algorithm, data, rounds, plan=PLAN):
    """(states, infos), the initial state included."""
    round_fn, state = start(algorithm, two_layer_task(), data, plan)
    step, states, infos = jax.jit(round_fn), [state], []
    for key in keys(rounds):
        state, info = step(state, key)
        states.append(state)
        infos.append(info)
    return states, infos


@pytest.fixture(scope="module")
def trained(data):
    """Three rounds of FedGen."""
    return after(fedgen(**FEW), data, 3)


@pytest.fixture(scope="module")
def plain(data):
    """Three rounds of FedAvg."""
    return after(fedavg(), data, 3)


def a_view():
    """A client in float64, label 1 alone in the cohort, and a generator without noise."""
    rng = np.random.default_rng(0)
    task = two_layer_task(jnp.float64)
    params = task.init(jax.random.key(1))
    made = latent_generator(6).init(jax.random.key(2), NOISE, CLASSES, (HIDDEN,))
    kernel = made.weights["hidden"]["kernel"].at[:NOISE].set(0)
    hidden = made.weights["hidden"] | {"kernel": kernel}
    made = made._replace(weights=made.weights | {"hidden": hidden})
    held = jnp.array([False, True, False])
    batch = fa.Batch(
        jnp.asarray(rng.normal(size=(5, WIDTH))),
        jnp.array([0, 2, 2, 1, 0]),
        jnp.array([1.0, 1, 1, 1, 0]),
    )
    setting = Setting(jnp.int32(1), *[None] * 7)
    return fa.LocalView(
        task, params, params, (), (), batch, jnp.int32(0), 1.0, setting,
        refine=FedGenState(made, (), held),
    )  # fmt: skip


def expected(view, alpha, beta):
    """(loss, gradients in u and v) in NumPy, beside the sizes of a batch of 4 of 5."""
    u, v = (np.asarray(view.params[name]) for name in "uv")
    x, y, w = map(np.asarray, view.batch)
    w = w / w.sum()
    said = softmax(x @ u @ v)
    onehot = np.eye(CLASSES)
    z = np.asarray(
        latent_generator(6).apply(
            view.refine.made, jnp.zeros((3, NOISE)), onehot, False
        )[0]
    )
    target, fake = softmax(z @ v)[y], softmax(z[1:2] @ v)
    ratio = 4 / 5  # B_g / B
    loss = -(w * np.log(said[np.arange(5), y])).sum()
    loss += alpha * ratio * -np.log(fake[0, 1])
    loss += beta * (w * (target * (np.log(target) - np.log(said))).sum(1)).sum()
    d = w[:, None] * (said - onehot[y] + beta * (said - target))
    d_v = (x @ u).T @ d + alpha * ratio * z[1:2].T @ (fake - onehot[1:2])
    return loss, {"u": x.T @ d @ v.T, "v": d_v}


def objective_at(algorithm, view):
    """A jitted function (round, step) -> the loss, and its gradient."""

    def of(params, round, step):
        here = view._replace(
            step=step, setting=view.setting._replace(round=round), params=params
        )
        return algorithm.local.objective(params, here, jax.random.key(3))

    evaluate = jax.jit(jax.value_and_grad(of))
    return lambda round, step: evaluate(view.params, round, step)


@pytest.mark.slow
def test_noise_is_uniform_from_zero_to_one(x64, monkeypatch):
    """public-set.md C2: as the code draws it, though its comment says Gaussian."""
    latent, seen = latent_generator(6), []

    def apply(made, noise, labels, train):
        seen.append(noise)
        return latent.apply(made, noise, labels, train)

    module = sys.modules["fedjax_adapt.algorithms.fedgen"]
    monkeypatch.setattr(
        module, "latent_generator", lambda hidden: latent._replace(apply=apply)
    )
    view = a_view()
    algorithm = fedgen(hidden=6, noise_size=NOISE, generated_batch=2000)
    algorithm.local.objective(view.params, view, jax.random.key(3))
    noise = np.asarray(seen[0])
    assert noise.shape == (2000, NOISE)
    assert 0 <= noise.min() < 0.01 and 0.99 < noise.max() < 1
    assert noise.mean() == pytest.approx(0.5, abs=0.02)
    assert noise.std() == pytest.approx(1 / 12**0.5, rel=0.03)


@pytest.mark.slow
def test_the_objective_and_its_gradient_are_those_of_the_paper(x64):
    """Plain in round 0 and from step 7 on; alpha and beta fade to a floor."""
    view = a_view()
    algorithm = fedgen(3.0, 2e-5, decay=0.9, regular_steps=7, **FEW)
    found = objective_at(algorithm, view)
    for round, step, alpha, beta in (
        (0, 0, 0, 0),
        (1, 0, 2.7, 2e-5),
        (2, 6, 2.43, 2e-5),
        (2, 7, 0, 0),
        (5000, 0, 1e-4, 2e-5),  # what begins below the floor stays
    ):
        loss, gradient = found(round, step)
        expected_loss, expected_gradient = expected(view, alpha, beta)
        np.testing.assert_allclose(loss, expected_loss, rtol=1e-10)
        close(gradient, expected_gradient, atol=1e-10)
    always = fedgen(0.5, 2.0, decay=1.0, regular_steps=None, **FEW)
    loss, gradient = objective_at(always, view)(1, 1000)
    np.testing.assert_allclose(loss, expected(view, 0.5, 2.0)[0], rtol=1e-10)
    close(gradient, expected(view, 0.5, 2.0)[1], atol=1e-10)


def test_nothing_a_client_does_reaches_the_generator(x64):
    view = a_view()
    rule = fedgen(**FEW).local

    def loss(weights):
        made = view.refine.made._replace(weights=weights)
        shown = view._replace(refine=view.refine._replace(made=made))
        return rule.objective(view.params, shown, jax.random.key(3))

    for leaf in jax.tree.leaves(jax.jit(jax.grad(loss))(view.refine.made.weights)):
        assert not np.any(leaf)


def test_the_generators_loss_is_the_published_one(x64):
    rng = np.random.default_rng(0)
    theirs, ours = rng.normal(size=(3, 4, CLASSES)), rng.normal(size=(4, CLASSES))
    labels = np.array([0, 2, 1, 2])
    counts = np.array([[4.0, 1, 1], [2, 1, 7], [0, 0, 0]])  # the last slot is empty
    trust = shares(jnp.asarray(counts))
    np.testing.assert_allclose(trust.sum(0), 1)
    found = generator_loss(*map(jnp.asarray, (theirs, ours, labels)), trust[:, labels])
    omega = counts / counts.sum(0)
    picked = [
        -omega[k, y] * np.log(softmax(theirs[k, b])[y])
        for k in range(3)
        for b, y in enumerate(labels)
    ]
    np.testing.assert_allclose(found, np.sum(picked) / 4, rtol=1e-12)
    both = generator_loss(
        *map(jnp.asarray, (theirs, ours, labels)), trust[:, labels], 2.0, 0.5
    )
    p = softmax(np.einsum("kb,kbc->bc", omega[:, labels], theirs))
    fooled = (p * np.log(p / softmax(ours))).sum(1).mean()
    np.testing.assert_allclose(both, 2 * np.sum(picked) / 4 - 0.5 * fooled, rtol=1e-12)


def of_one_label():
    """What the server sees of two clients with label 1 and an empty slot; a generator.

    That makes the same of a whole batch, whatever the noise.
    """
    local, rng = a_view(), np.random.default_rng(1)
    task, made = local.task, local.refine.made
    heads = [local.task.init(jax.random.key(seed)) for seed in (3, 4, 5)]
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves), *heads)
    models = jax.tree.map(lambda leaf: leaf.at[2].set(jnp.nan), models)
    # exactly 0: of what rounding leaves of a batch less its mean Adam would make steps
    hidden = jax.tree.map(jnp.zeros_like, made.weights["hidden"])
    norm = {"scale": jnp.zeros(6), "bias": jnp.asarray(rng.normal(size=6))}
    made = made._replace(weights=made.weights | {"hidden": hidden, "norm": norm})
    cohort = fa.Cohort(
        *[None] * 4,
        active=jnp.array([True, True, False]),
        round=None,
        num_clients=3,
        num_holders=3,
        mean_epoch_steps=None,
        label_counts=jnp.array([[0, 4, 0], [0, 1, 0], [0, 0, 0]]),
    )
    run = fa.LocalRun(models, local.params, *[None] * 7)
    setting = Setting(jnp.int32(0), *[None] * 7)
    # one more than what they trained on; the empty slot's is no matter
    sent = jnp.array([[1, 4, 1], [1, 2, 1], [8, 8, 8]])
    view = fa.RoundView(task, cohort, run, None, setting, CLASSES, sent=sent)
    return view, made


def before_round_0(made):
    adam = optax.chain(optax.add_decayed_weights(0.0), optax.scale_by_adam())
    return FedGenState(made, adam.init(made.weights), jnp.ones(CLASSES, bool))


def heads_loss(layer, hidden, heads, trust, ours, teacher_weight, student_weight):
    """The generator's loss but for D, and its gradients in its last layer and `hidden`."""
    z = hidden @ layer["kernel"] + layer["bias"]
    mixed = sum(o * head for o, head in zip(trust, heads, strict=True))
    p, q = softmax(z @ mixed), softmax(z @ ours)
    apart = np.log(p / q)
    d_z = -student_weight * (mixed @ (p * (apart - p @ apart)) + ours @ (q - p))
    loss = -student_weight * (p @ apart)
    for o, head in zip(trust, heads, strict=True):
        said = softmax(z @ head)
        loss -= teacher_weight * o * np.log(said[1])
        d_z += teacher_weight * o * head @ (said - np.eye(CLASSES)[1])
    out = {"kernel": np.outer(hidden, d_z), "bias": d_z}
    return loss, out, layer["kernel"] @ d_z


def test_the_generator_is_taught_by_uploaded_heads_as_the_oracle_has_it(x64):
    """Adam with weight decay, kept over rounds in which its learning rate fades.

    The heads are those that clients sent, each with its share of the label; b's is the
    one that was broadcast.
    """
    view, made = of_one_label()
    rates = dict(generator_lr=0.03, generator_decay=0.2, decay=0.7)
    parts = dict(teacher_weight=1.5, student_weight=0.4, diversity_weight=0.0)
    algorithm = fedgen(**FEW | dict(generator_steps=2), **rates, **parts)
    weights = jax.tree.map(np.asarray, made.weights)
    m = v = jax.tree.map(np.zeros_like, weights)
    heads = [np.asarray(view.runs.params["v"][slot]) for slot in (0, 1)]
    ours, trust = np.asarray(view.runs.anchor["v"]), (4 / 6, 2 / 6)
    kept = before_round_0(made)

    @jax.jit
    def server(kept, round):
        now = view._replace(setting=view.setting._replace(round=round))
        # the mean model is no teacher
        return algorithm.refine.server(jnp.nan, kept, now, jax.random.key(round))

    for round, n in ((0, 0), (1, 2), (5, 4)):
        _, kept, report = server(kept, round)
        losses = []
        for step in (n + 1, n + 2):
            bias = weights["norm"]["bias"]
            loss, out, d_hidden = heads_loss(
                weights["out"], np.maximum(bias, 0), heads, trust, ours, 1.5, 0.4
            )
            losses.append(loss)
            g = jax.tree.map(np.zeros_like, weights)
            g = g | {"out": out, "norm": g["norm"] | {"bias": (bias > 0) * d_hidden}}
            g = jax.tree.map(lambda g, w: g + 0.2 * w, g, weights)
            m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
            v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)

            def move(w, m, v, step=step, lr=0.03 * 0.7**round):
                m, v = m / (1 - 0.9**step), v / (1 - 0.999**step)
                return w - lr * m / (np.sqrt(v) + 1e-8)

            weights = jax.tree.map(move, weights, m, v)
        np.testing.assert_allclose(report["generator_loss"], np.mean(losses))
        close(kept.made.weights, weights, atol=1e-7)


def test_features_become_diverse_where_nothing_else_is_asked_for(x64):
    """With a = b = 0 the loss is eta D: in (0, eta], and less from round to round."""
    view, _ = of_one_label()
    made = latent_generator(6).init(jax.random.key(2), NOISE, CLASSES, (HIDDEN,))
    rates = dict(generator_lr=0.05, generator_decay=0.0)
    algorithm = fedgen(**FEW, **rates, teacher_weight=0.0, diversity_weight=2.0)
    kept, losses = before_round_0(made), []
    server = jax.jit(lambda kept, key: algorithm.refine.server((), kept, view, key))
    for key in keys(4):
        _, kept, report = server(kept, key)
        losses.append(float(report["generator_loss"]))
    assert 1.5 < losses[0] < 2 and losses[-1] > 0
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0]


@pytest.mark.slow
def test_round_0_is_fedavg_to_the_bit_and_round_1_is_not(trained, plain):
    (states, infos), (plain, plain_infos) = trained, plain
    assert same(states[1].params, plain[1].params)
    assert same(infos[0].loss, plain_infos[0].loss)
    assert not same(states[2].params, plain[2].params)


@pytest.mark.slow
def test_without_alpha_and_beta_it_is_fedavg_to_the_bit(data, plain):
    states, _ = after(fedgen(0.0, 0.0, **FEW), data, 3)
    assert same(states[3].params, plain[0][3].params)


@pytest.mark.slow
def test_the_generator_learns_from_the_heads(trained):
    states, infos = trained
    moved = [
        optax.tree.norm(optax.tree.sub(b.refine.made.weights, a.refine.made.weights))
        for a, b in zip(states, states[1:], strict=False)
    ]
    assert min(moved) > 1e-3
    # 9 steps of Adam in all
    counts = [
        leaf for leaf in jax.tree.leaves(states[3].refine.optimizer) if not leaf.ndim
    ]
    assert [int(count) for count in counts] == [9]
    assert all(float(info.refine["generator_loss"]) > 0 for info in infos)


@pytest.mark.slow
def test_labels_that_nobody_has_seen_are_never_generated(data):
    """Clients of labels 0 and 1: G's input for label 2 gets no gradient."""
    y = jnp.minimum(data.y, 1)
    few = data.with_changed(y=y)
    algorithm = fedgen(**FEW, generator_decay=0.0, weights="uniform")
    (state, end), _ = after(algorithm, few, 1)
    rows = lambda state: state.refine.made.weights["hidden"]["kernel"][NOISE:]
    moved = np.abs(rows(end) - rows(state)).max(1) > 0
    np.testing.assert_array_equal(moved, [True, True, False])
    np.testing.assert_array_equal(end.refine.labels, [True, True, False])


@pytest.mark.slow
def test_a_client_sends_one_more_than_the_examples_it_has_trained_on(data):
    algorithm = fa.with_steps(fedgen(**FEW), fa.epochs(2))
    show = lambda params, state, view, key: (params, state, {"sent": view.sent})
    algorithm = algorithm._replace(refine=algorithm.refine._replace(server=show))
    _, (info,) = after(algorithm, data, 1)
    held = np.asarray(data.label_counts)[np.asarray(info.cohort)]
    np.testing.assert_array_equal(info.refine["sent"], 1 + 2 * held)


@pytest.mark.slow
def test_empty_slots_teach_nothing(data):
    """Of a cohort by coins the slots that stay empty; the slow twin agrees."""
    plan = fa.Plan(batch_size=4, participation=fa.bernoulli(0.4))
    lonely = make_data((*SIZES, 0))
    algorithm = fedgen(0.3, 0.3, **FEW, student_weight=0.1)
    (*_, before), infos = after(algorithm, lonely, 2, plan)
    assert 0 < int(infos[-1].num_active) < len(infos[-1].cohort)
    fast = fa.make_round(algorithm, two_layer_task(), lonely, plan)
    slow = fa.debug_round(algorithm, two_layer_task(), lonely, plan)
    close(jax.jit(fast)(before, keys(3)[2]), slow(before, keys(3)[2]), atol=1e-5)


def test_hyper_parameters_may_be_traced(data):
    def shapes(numbers):
        names = ("alpha", "beta", "decay", "generator_lr", "generator_decay")
        algorithm = fedgen(**FEW, **dict(zip(names, numbers, strict=True)))
        round_fn, state = start(algorithm, two_layer_task(), data, PLAN)
        return round_fn(state, keys(1)[0])

    jax.eval_shape(shapes, [jax.ShapeDtypeStruct((), jnp.float32)] * 5)


def test_what_it_lacks_is_one_sentence(data):
    task = two_layer_task()
    whole = task._replace(head=None)
    with pytest.raises(
        ValueError, match="by the heads of models but this one's cannot"
    ):
        fa.make_round(fedgen(), whole, data, PLAN)
    bare = task._replace(apply=lambda p, x: fa.Outputs(task.apply(p, x).logits))
    with pytest.raises(
        ValueError, match="by the heads of models but this one's cannot"
    ):
        start(fedgen(), bare, data, PLAN)
    unlabelled = replace(data, label_counts=None)
    with pytest.raises(ValueError, match="counts the labels of clients but the data"):
        fa.make_round(fedgen(), task, unlabelled, PLAN)


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(alpha=-1.0), "alpha=-1.0 must be a finite number of at least 0"),
        (dict(decay=1.1), r"decay=1.1 must lie in \(0, 1\]"),
        (
            dict(regular_steps=-1),
            "regular_steps=-1 must be an integer >= 0, or None for",
        ),
        (dict(hidden=0), "hidden=0 must be an integer >= 1"),
    ],
)
def test_an_option_out_of_range_is_one_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        fedgen(**options)
