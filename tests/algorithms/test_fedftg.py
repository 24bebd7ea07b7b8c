from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from helpers import (
    CLASSES,
    WIDTH,
    close,
    keys,
    make_clients,
    make_data,
    make_task,
    same,
    start,
    table_generator,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, fedftg, scaffold
from fedjax_adapt.algorithms.fedftg import (
    Weighing,
    generator_loss,
    labels_in_shares,
    shares,
    student_loss,
    teaching,
)
from fedjax_adapt.generators import Generator, Made

PLAN = fa.Plan(cohort_size=4, batch_size=3, lr=0.3, shuffle="none")
FEW = dict(iterations=2, student_steps=2, generated_batch=4, noise_size=2)


def softmax(logits):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


drawn = jax.jit(labels_in_shares, static_argnums=2)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), st.integers(0))
def test_labels_come_in_the_shares_of_the_cohort_and_absent_ones_never(counts, seed):
    labels = np.asarray(drawn(jax.random.key(seed % 2**31), jnp.array(counts), 30))
    found = np.bincount(labels, minlength=4)
    np.testing.assert_allclose(found, 30 * np.array(counts) / sum(counts), atol=1)
    assert not found[np.array(counts) == 0].any()


def test_labels_are_shuffled():
    one, two = (drawn(key, jnp.array([10, 0, 20, 5]), 30) for key in keys(2))
    assert (np.diff(one) < 0).any() and (one != two).any()


@pytest.fixture
def said():
    """(theirs, ours, labels, trust): float64 logits of a batch of 5."""
    rng = np.random.default_rng(0)
    theirs, ours = 2 * rng.normal(size=(2, 5, CLASSES))
    return theirs, ours, np.array([0, 2, 1, 1, 0]), np.linspace(0.1, 0.9, 5)


@pytest.mark.parametrize("hardness", ["l1", "kl"])
@pytest.mark.parametrize("class_weight", ["batch", "example"])
def test_the_generators_loss_is_the_published_one(x64, said, hardness, class_weight):
    theirs, ours, labels, trust = said
    weighing = Weighing(hardness, class_weight, 0.7)
    loss = lambda theirs, ours: generator_loss(
        theirs, ours, jnp.asarray(labels), jnp.asarray(trust), weighing
    )
    p, q, onehot = softmax(theirs), softmax(ours), np.eye(CLASSES)[labels]
    hard = {
        "l1": np.abs(ours - theirs).mean(1),
        "kl": (p * np.log(p / q)).sum(1),
    }[hardness]
    wrong = -np.log((p * onehot).sum(1))
    one = class_weight == "batch"
    classified = wrong.mean() * trust.mean() if one else (wrong * trust).mean()
    found, (by_theirs, by_ours) = jax.value_and_grad(loss, (0, 1))(
        jnp.asarray(theirs), jnp.asarray(ours)
    )
    np.testing.assert_allclose(found, -(trust * hard).mean() + 0.7 * classified)
    # the client's model is no adversary: it only says which label an image has
    weight = trust.mean() if one else trust[:, None]
    np.testing.assert_allclose(by_theirs, 0.7 * weight * (p - onehot) / 5, atol=1e-15)
    away = np.sign(ours - theirs) / CLASSES if hardness == "l1" else q - p
    np.testing.assert_allclose(by_ours, -trust[:, None] * away / 5, atol=1e-15)


def test_shares_add_up_to_one_where_a_label_is_present():
    counts = np.array([[3, 0, 1], [1, 0, 0], [0, 0, 9], [0, 0, 0]])
    np.testing.assert_allclose(shares(jnp.array(counts)).sum(0), [1, 0, 1], atol=1e-6)


def test_the_student_is_drawn_to_what_those_say_who_know_the_label(x64, said):
    theirs, ours, _, _ = said
    trust = np.array([[0.25] * 5, [0.75] * 5, [0] * 5])
    equal = teaching(jnp.stack([theirs] * 3), jnp.asarray(trust))
    np.testing.assert_allclose(equal, softmax(theirs), atol=1e-12)
    each = np.stack([theirs, ours, ours])
    mixed = teaching(jnp.asarray(each), jnp.asarray(trust))
    expected = 0.25 * softmax(theirs) + 0.75 * softmax(ours)
    np.testing.assert_allclose(mixed, expected, atol=1e-12)
    entropy = -(expected * np.log(softmax(ours))).sum(1).mean()
    found = student_loss(jnp.asarray(ours), jnp.asarray(expected))
    np.testing.assert_allclose(found, entropy / CLASSES)


def adam(m, v, g, n):
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    return m, v, (m / (1 - 0.9**n)) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)


NOISE = 2


def keeping_generator(turns, batch):
    """An affine one, twice as strong in training, that keeps what it was shown then."""

    def init(key, noise_size, num_classes, shape):
        one, two = jax.random.split(key)
        weights = {
            "label": jax.random.normal(one, (num_classes, *shape)),
            "noise": jax.random.normal(two, (noise_size, *shape)) / 2,
        }
        shown = {
            "turn": jnp.int32(0),
            "label": jnp.zeros((turns, batch, num_classes)),
            "noise": jnp.zeros((turns, batch, noise_size)),
        }
        return Made(weights, shown)

    def apply(made, noise, labels, train):
        seen, weights = made.statistics, made.weights
        x = labels @ weights["label"] + noise @ weights["noise"]
        if not train:
            return x, seen
        turn = seen["turn"]
        put = lambda name, what: seen[name].at[turn].set(what)
        kept = {"label": put("label", labels), "noise": put("noise", noise)}
        return 2 * x, kept | {"turn": turn + 1}

    return Generator(init, apply)


def says(theta, x):
    """Logits of softmax regression, and its weights."""
    w = theta[: WIDTH * CLASSES].reshape(WIDTH, CLASSES)
    return x @ w + theta[-CLASSES:], w


def fooling_by_hand(theta, end, x, y, trust):
    """-H + C / 2 of one client, and its gradient in x [batch, width]."""
    (ours, w), (theirs, w_k) = says(theta, x), says(end, x)
    p, far = softmax(theirs), trust[:, None] * np.abs(ours - theirs)
    wrong = -np.log(p[np.arange(len(y)), y]).mean() * trust.mean()
    away = -trust[:, None] * np.sign(ours - theirs) / ours.size @ w.T
    right = trust.mean() * (p - np.eye(CLASSES)[y]) / len(y) @ w_k.T
    return 0.5 * wrong - far.mean(), away + 0.5 * right


def diversity_by_hand(x, noise):
    """(D, its gradient in x [batch, width])."""
    apart = x[:, None] - x[None]
    noises = ((noise[:, None] - noise[None]) ** 2).mean(2)
    d = np.exp(-(np.abs(apart).mean(2) * noises).mean())
    pull = (noises[..., None] * np.sign(apart)).sum(1)
    return d, -d * 2 * pull / (noises.size * x.shape[1])


def test_rounds_follow_the_numpy_oracle(x64):
    """Two iterations of a generator against softmax regression, three rounds.

    Adam's moments last from one iteration to the next but not to the next round; the
    model is taught by images of the generator in evaluation mode.
    """
    rates = dict(generator_lr=0.05, student_lr=0.2, student_decay=0.01, decay=0.9)
    size, steps, iterations, clients_in = 6, 3, 2, PLAN.cohort_size
    algorithm = fedftg(
        iterations=iterations,
        student_steps=steps,
        generated_batch=size,
        noise_size=NOISE,
        diversity=3.0,
        classifying=0.5,
        generator=keeping_generator(3 * iterations * clients_in, size),
        **rates,
    )
    task = make_task(jnp.float64)

    def apply_train(params, x, key):
        assert len(x) == PLAN.batch_size  # nothing that was generated
        return task.apply(params, x)

    data = make_data(dtype=np.float64)
    task = task._replace(apply_train=apply_train)
    round_fn, state = start(algorithm, task, data, PLAN)
    clients = make_clients(dtype=np.float64)
    theta, onehot = oracle.flat(state.params), np.eye(CLASSES)
    made = {name: np.asarray(w) for name, w in state.refine.weights.items()}

    step = jax.jit(round_fn)
    for t, key in enumerate(keys(3)):
        state, info = step(state, key)
        cohort = np.sort(np.asarray(info.cohort))
        ends = [oracle.sgd(theta, clients[i], PLAN, t, epochs=1) for i in cohort]
        n = np.stack([np.bincount(clients[i][1], minlength=CLASSES) for i in cohort])
        alpha = n / (n.sum(0) + 1e-6)
        theta = np.average(ends, 0, n.sum(1))
        seen = jax.tree.map(np.asarray, state.refine.statistics)
        assert seen["turn"] == (t + 1) * iterations * clients_in
        m, v = (jax.tree.map(np.zeros_like, made) for _ in "mv")
        labels, losses, taught = [], [], []
        for iteration in range(iterations):
            first = (t * iterations + iteration) * clients_in
            for shown in (seen["label"], seen["noise"]):
                # all clients judge the same
                assert (shown[first : first + clients_in] == shown[first]).all()
            y, noise = seen["label"][first].argmax(1), seen["noise"][first]
            inputs = {"label": onehot[y], "noise": noise}
            labels.extend(y)
            for k, end in enumerate(ends):
                x = 2 * sum(inputs[name] @ made[name] for name in made)
                loss, d = fooling_by_hand(theta, end, x, y, alpha[k][y])
                together, apart = diversity_by_hand(x, noise)
                losses.append(loss + 3 * together / clients_in)
                d, turn = d + 3 * apart / clients_in, iteration * clients_in + k + 1
                for name, what in inputs.items():
                    g = 2 * what.T @ d
                    m[name], v[name], move = adam(m[name], v[name], g, turn)
                    made[name] = made[name] - 0.05 * 0.9**t * move
            x = sum(inputs[name] @ made[name] for name in made)
            q = sum(
                a[y][:, None] * softmax(says(e, x)[0])
                for a, e in zip(alpha, ends, strict=True)
            )
            for _ in range(steps):
                p = softmax(says(theta, x)[0])
                taught.append(-(np.log(p) * q).mean())
                d = (p * q.sum(1, keepdims=True) - q) / (size * CLASSES)
                gradient = np.concatenate([(x.T @ d).ravel(), d.sum(0)])
                theta = theta - 0.2 * 0.9**t * (gradient + 0.01 * theta)
        ends_of = np.cumsum(n.sum(0))
        places = (np.arange(len(labels)) + 0.5) * ends_of[-1] / len(labels)
        expected = np.searchsorted(ends_of, places, side="right")
        np.testing.assert_array_equal(np.sort(labels), expected)
        for name, weights in made.items():
            np.testing.assert_allclose(
                state.refine.weights[name], weights, atol=1e-8, err_msg=name
            )
        np.testing.assert_allclose(oracle.flat(state.params), theta, atol=1e-8)
        loss = np.sum(losses) / iterations
        np.testing.assert_allclose(info.refine["generator_loss"], loss)
        np.testing.assert_allclose(info.refine["distill_loss"], np.mean(taught))


def test_without_iterations_it_is_its_base():
    assert fedftg(0) == fedavg()
    base = scaffold()
    assert fedftg(0, base=base) is base
    assert fedftg(base=base)._replace(refine=None) == base


def image_task():
    """A linear model of 4 x 4 pixels, 0 to 255."""
    data = make_data()
    rng = np.random.default_rng(0)
    clients = [
        (rng.integers(0, 256, (len(y), 4, 4, 1)).astype(np.uint8), y)
        for _, y in make_clients()
    ]
    data = fa.FederatedDataset.from_clients(clients, num_classes=CLASSES)
    model = fa.models.linear((4, 4, 1), CLASSES)
    return fa.classification(model, (4, 4, 1), mean=128.0, std=74.0), data


COINS = fa.Plan(batch_size=4, participation=fa.bernoulli(0.5))
OTHERWISE = dict(hardness="kl", class_weight="example")


@pytest.mark.slow
def test_the_slow_twin_agrees_about_a_cohort_by_coins(task, data):
    algorithm = fedftg(**FEW, **OTHERWISE, generator=table_generator())
    round_fn, state = start(algorithm, task, data, COINS)
    step, slow = jax.jit(round_fn), fa.debug_round(algorithm, task, data, COINS)
    before, info = step(state, keys(1)[0])
    assert 0 < int(info.num_active) < len(info.cohort)
    close(step(before, keys(2)[1]), slow(before, keys(2)[1]), rtol=1e-5)


@pytest.mark.slow
def test_images_are_made_in_the_units_of_the_data():
    """The paper's generator, which is a network of its own in test_generators.py."""
    (task, data), plan = image_task(), COINS
    algorithm = fedftg(**FEW, **OTHERWISE, channels=2)
    round_fn, state = start(algorithm, task, data, plan)
    ends = jax.jit(round_fn)(state, keys(1)[0])
    for leaf in jax.tree.leaves(ends):
        assert np.isfinite(leaf).all()
    assert not same(ends[0].params, state.params)
    assert not same(ends[0].refine, state.refine)
    seen = []
    generator = Generator(
        init=lambda *_: fa.generators.Made((), ()),
        apply=lambda made, noise, labels, train: (jnp.zeros((4, 4, 4, 1)), ()),
    )

    def look(params, x):
        jax.debug.callback(lambda x: seen.append(x), x)
        return task.apply(params, x)

    algorithm = fedftg(**FEW, generator=generator)
    round_fn, state = start(algorithm, task._replace(apply=look), data, plan)
    jax.block_until_ready(jax.jit(round_fn)(state, keys(1)[0]))
    jax.effects_barrier()
    assert any(x.dtype == jnp.float32 and (x == 128).all() for x in seen)


def test_hyper_parameters_may_be_traced(task, data):
    def shapes(numbers):
        names = ("generator_lr", "student_lr", "decay", "classifying", "diversity")
        options = FEW | dict(zip(names, numbers, strict=True))
        algorithm = fedftg(**options, generator=table_generator())
        round_fn, state = start(algorithm, task, data, PLAN)
        return round_fn(state, keys(1)[0])

    jax.eval_shape(shapes, [jax.ShapeDtypeStruct((), jnp.float32)] * 5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_generator_keeps_its_precision_among_wider_numbers(task, data, dtype):
    wide = table_generator()

    def init(*given):
        made = wide.init(*given)
        return made._replace(weights=made.weights.astype(dtype))

    algorithm = fedftg(**FEW, generator=Generator(init, wide.apply))
    with jax.enable_x64(dtype == "float32"):
        round_fn, state = start(algorithm, task, data, PLAN)
        after, _ = jax.eval_shape(round_fn, state, keys(1)[0])
    assert after.refine.weights.dtype == dtype


def test_what_it_lacks_is_one_sentence(task, data):
    says = r"height and width that 4 divides, but an input here has shape \[4\]; give"
    for build in (fa.make_round, fa.debug_round):
        with pytest.raises(ValueError, match=says):
            build(fedftg(), task, data, PLAN)
    algorithm = fedftg(**FEW, generator=table_generator())
    with pytest.raises(ValueError, match="fedftg counts the labels of clients but the"):
        fa.make_round(algorithm, task, replace(data, label_counts=None), PLAN)


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(iterations=-1), "iterations=-1 must be an integer >= 0"),
        (dict(student_lr=0.0), "student_lr=0.0 must be a finite number above 0"),
        (
            dict(classifying=-1.0),
            "classifying=-1.0 must be a finite number of at least",
        ),
        (dict(hardness="l2"), "hardness='l2' is unknown; write one of"),
        (dict(class_weight="none"), "class_weight='none' is unknown"),
        (dict(base=fedftg()), "base refines its models already"),
        (
            dict(weights="uniform", base=fedavg()),
            "weights='uniform' is of FedAvg's mean, but the base averages by its own",
        ),
    ],
)
def test_an_option_out_of_range_is_one_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        fedftg(**options)
