from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from helpers import (
    CLASSES,
    SIZES,
    WIDTH,
    close,
    keys,
    make_clients,
    make_data,
    make_task,
    same,
    start,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, feddf, fedprox
from fedjax_adapt.algorithms.feddf import TEACHING, able, distance, passes
from fedjax_adapt.distill import accuracy

PLAN = fa.Plan(cohort_size=4, batch_size=3, lr=0.3, shuffle="none")
FEW = dict(distill_steps=6, distill_batch=4, distill_lr=0.05, validate_every=2)


def with_public(data, dtype=np.float32):
    """Unlabelled inputs and a labelled validation set, like the clients'."""
    (x, _), validation = make_clients((10, 25), dtype, seed=9)
    return replace(data, public=fa.PublicSet(x, validation=validation))


@pytest.fixture(scope="module")
def public_data():
    return with_public(make_data())


def softmax(logits):
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def kl(p, q):
    return (p * (np.log(p) - np.log(q))).sum(-1)


def logits_like(rng, *shape):
    return 2 * rng.normal(size=(*shape, CLASSES))


def expected_distance(teaching, theirs, ours):
    s = softmax(ours)
    return {
        "avg_logits": lambda: kl(softmax(theirs.mean(0)), s),
        "avg_probs": lambda: kl(softmax(theirs).mean(0), s),
        "avg_losses": lambda: kl(softmax(theirs), s[None]).mean(0),
    }[teaching]()


@pytest.mark.parametrize("teaching", TEACHING)
def test_the_distance_and_its_gradient_are_those_of_the_paper(x64, teaching):
    """KL(teacher || student), whose gradient in the logits is (s - t) / B."""
    rng = np.random.default_rng(0)
    theirs, ours = logits_like(rng, 4, 5), logits_like(rng, 5)
    third = np.full(4, 1 / 3)
    third[2], theirs[2] = 0, np.nan  # an empty slot
    of = lambda ours: distance(teaching, jnp.asarray(third), jnp.asarray(theirs), ours)
    kept = theirs[[0, 1, 3]]
    np.testing.assert_allclose(
        of(ours), expected_distance(teaching, kept, ours), atol=1e-12
    )
    gradient = jax.grad(lambda ours: of(ours).mean())(jnp.asarray(ours))
    logits = teaching == "avg_logits"
    teacher = softmax(kept.mean(0)) if logits else softmax(kept).mean(0)
    np.testing.assert_allclose(gradient, (softmax(ours) - teacher) / 5, atol=1e-12)


@pytest.mark.parametrize("teaching", TEACHING)
def test_the_distance_of_a_sequence_is_that_of_each_place(x64, teaching):
    """Though there are as many sequences as teachers, of which one is an empty slot."""
    rng = np.random.default_rng(0)
    theirs, ours = logits_like(rng, 4, 4, 2), logits_like(rng, 4, 2)
    trusted, theirs[2] = np.array([0.25, 0.25, 0, 0.5]), np.nan
    of = lambda *logits: distance(teaching, jnp.asarray(trusted), *logits)
    found = of(jnp.asarray(theirs), ours)
    places = [of(jnp.asarray(theirs[:, :, i]), ours[:, i]) for i in range(2)]
    np.testing.assert_allclose(found, np.stack(places, 1), atol=1e-12)


cases = arrays(np.float64, (3, 2, CLASSES), elements=st.floats(-8, 8))
apart = jax.jit(distance, static_argnums=0)


@settings(deadline=None, max_examples=20)
@given(cases, st.permutations(range(3)), st.sampled_from(TEACHING))
def test_the_order_of_the_teachers_does_not_matter(theirs, order, teaching):
    equal, ours = jnp.full(3, 1 / 3), jnp.zeros((2, CLASSES))
    found = apart(teaching, equal, theirs, ours)
    assert (found >= -1e-6).all()
    np.testing.assert_allclose(
        apart(teaching, equal, theirs[list(order)], ours), found, atol=1e-5
    )


@pytest.mark.parametrize("teaching", TEACHING)
def test_teachers_equal_to_the_student_teach_nothing(x64, teaching):
    ours = jnp.asarray(logits_like(np.random.default_rng(0), 5))
    of = lambda s: distance(teaching, jnp.full(4, 0.25), jnp.stack([ours] * 4), s)
    np.testing.assert_allclose(of(ours), 0, atol=1e-15)
    np.testing.assert_allclose(jax.grad(lambda s: of(s).sum())(ours), 0, atol=1e-15)


def adam(theta, gradient, steps, lr, clip):
    """theta after each of the steps."""
    m = v = np.zeros_like(theta)
    students = []
    for n in range(steps):
        g = gradient(theta)
        norm = np.linalg.norm(g)
        g = g * clip / norm if norm > clip else g
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        step = (m / (1 - 0.9 ** (n + 1))) / (np.sqrt(v / (1 - 0.999 ** (n + 1))) + 1e-8)
        theta = theta - lr * (1 + np.cos(np.pi * n / steps)) / 2 * step
        students.append(theta)
    return students


def says(theta, x):
    """Logits of softmax regression."""
    w, b = theta[: WIDTH * CLASSES].reshape(WIDTH, CLASSES), theta[-CLASSES:]
    return x @ w + b


def towards(teacher, x):
    """theta -> gradient of the mean distance between `teacher` [batch, classes] and it."""

    def gradient(theta):
        d = (softmax(says(theta, x)) - teacher) / len(x)
        return np.concatenate([(x.T @ d).ravel(), d.sum(0)])

    return gradient


@pytest.mark.parametrize(
    "weights, teaching", [("data", "avg_logits"), ("uniform", "avg_probs")]
)
def test_a_round_follows_the_numpy_oracle(x64, weights, teaching):
    """All public inputs in every step, so that their order does not matter.

    The student learns in training mode, here on doubled inputs; teachers are in
    evaluation mode on what training makes of them, here tripled to tell the two apart.
    """
    clip = 0.05
    algorithm = feddf(
        distill_steps=7,
        distill_lr=0.1,
        distill_batch=10,
        distill_clip=clip,
        patience=None,
        weights=weights,
        teaching=teaching,
    )
    data = with_public(make_data(dtype=np.float64), np.float64)
    plain = make_task(jnp.float64)
    task = plain._replace(
        apply_train=lambda params, x, key: plain.apply(params, 2 * x),
        apply_frozen=lambda params, x, key: plain.apply(params, 3 * x),
    )
    round_fn, state = start(algorithm, task, data, PLAN)
    clients = [(2 * x, y) for x, y in make_clients(dtype=np.float64)]
    theta, x = oracle.flat(state.params), np.asarray(data.public.x)

    step = jax.jit(round_fn)
    for t, key in enumerate(keys(2)):
        state, info = step(state, key)
        cohort = np.asarray(info.cohort)
        ends = [oracle.sgd(theta, clients[i], PLAN, t, epochs=1) for i in cohort]
        n = [len(clients[i][1]) for i in cohort] if weights == "data" else None
        said = np.stack([says(end, 3 * x) for end in ends])
        logits = teaching == "avg_logits"
        teacher = softmax(said.mean(0)) if logits else softmax(said).mean(0)
        begin = np.average(ends, 0, n)
        theta = adam(begin, towards(teacher, 2 * x), 7, 0.1, clip)[-1]
        np.testing.assert_allclose(oracle.flat(state.params), theta, atol=1e-9)
    assert int(info.public_steps) == 7


def after(algorithm, task, data, rounds=1, plan=PLAN):
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    for key in keys(rounds):
        state, info = step(state, key)
    return state, info


@pytest.mark.slow
def test_the_student_of_the_best_validation_is_returned(x64):
    """The second of four: examples are labelled as it would."""
    algorithm = feddf(
        distill_steps=8,
        distill_lr=0.3,
        distill_batch=10,
        distill_clip=None,
        teaching="avg_probs",
        patience=8,
        validate_every=2,
    )
    data = with_public(make_data(dtype=np.float64), np.float64)
    plan = replace(PLAN, cohort_size=None)
    task, clients = make_task(jnp.float64), make_clients(dtype=np.float64)
    _, state = start(fedavg(), task, data, plan)
    theta, x = oracle.flat(state.params), np.asarray(data.public.x)
    ends = [oracle.sgd(theta, client, PLAN, 0, epochs=1) for client in clients]
    teacher = np.mean([softmax(says(end, x)) for end in ends], 0)
    begin = np.average(ends, 0, SIZES)
    students = adam(begin, towards(teacher, x), 8, 0.3, np.inf)[1::2]

    x_judged = np.asarray(data.public.validation[0])
    guesses = [says(student, x_judged).argmax(1) for student in students]
    alike = [np.mean(guess == guesses[1]) for guess in guesses]
    assert max(alike[:1] + alike[2:]) < 0.9  # all others are wrong somewhere
    judged = x_judged, guesses[1].astype(np.int32)
    public = replace(data.public, validation=judged)
    end, info = after(algorithm, task, replace(data, public=public), plan=plan)
    np.testing.assert_allclose(oracle.flat(end.params), students[1], atol=1e-9)
    assert info.refine["student_accuracy"] == 1 and int(info.public_steps) == 8


def test_without_distillation_it_is_its_base():
    assert feddf(0) == fedavg()
    base = fedprox(0.3)
    assert feddf(0, base=base) is base
    assert feddf(base=base)._replace(refine=None) == base


@pytest.fixture(scope="module")
def plain(task, public_data):
    """What the student starts from, and its validation accuracy."""
    state, _ = after(fedavg(), task, public_data)
    judged = public_data.public.validation
    return state.params, fa.evaluate(task, state.params, judged).accuracy


@pytest.mark.slow
def test_the_best_student_is_kept_and_old_ones_end_it(task, public_data, plain):
    """Steps too small to change a prediction: the first validation is the best."""
    still = FEW | dict(distill_steps=20, distill_lr=1e-12)
    state, info = after(feddf(**still, patience=5), task, public_data)
    # validated after 2, 4, 6 and 8 steps: then the best is 6 steps old
    assert int(info.public_steps) == 8
    params, score = plain
    close(state.params, params)
    np.testing.assert_allclose(info.refine["student_accuracy"], score, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("init", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_mean_itself_may_be_the_best_if_asked_for(task, public_data, plain, init):
    """Steps so long that every student is worse."""
    wild = feddf(**FEW | dict(distill_lr=50.0), return_best_incl_init=init)
    state, info = after(wild, task, public_data)
    assert int(info.public_steps) == 6
    assert same(state.params, plain[0]) == init
    assert (info.refine["student_accuracy"] == plain[1]) == init


def test_teachers_no_better_than_chance_are_dropped_unless_all_are(x64):
    task = make_task(jnp.float64)
    x, y = make_clients((40,), np.float64)[0]
    true = np.random.default_rng(0).normal(size=(WIDTH, CLASSES))  # of make_clients
    scale = np.array([1.0, -1.0, 0.5, 1.0])
    models = {"w": scale[:, None, None] * true[None], "b": np.zeros((4, CLASSES))}
    active = jnp.array([True, True, True, False])
    chosen = able(task, models, active, 1 / 3, (jnp.asarray(x), jnp.asarray(y)))
    np.testing.assert_array_equal(chosen, [True, False, True, False])
    models["w"] = -np.abs(scale)[:, None, None] * true[None]
    chosen = able(task, models, active, 1 / 3, (jnp.asarray(x), jnp.asarray(y)))
    np.testing.assert_array_equal(chosen, active)


@pytest.mark.slow
def test_a_teacher_must_be_better_than_chance_by_a_fifth(x64):
    """public-set.md C1: below 1.2 / 3 = 0.4 it is dropped."""
    x, y = jnp.zeros((100, WIDTH)), jnp.repeat(jnp.arange(3), jnp.array([39, 41, 20]))
    models = {"w": jnp.zeros((3, WIDTH, CLASSES)), "b": jnp.eye(3)}  # one label each
    chosen = able(make_task(jnp.float64), models, jnp.ones(3, bool), 1 / 3, (x, y))
    assert chosen.tolist() == [False, True, False]


@pytest.mark.parametrize("width", [3, 7, 100])
def test_accuracy_a_few_at_a_time_is_accuracy(task, data, width):
    params = task.init(jax.random.key(3))
    expected = fa.evaluate(task, params, data.test).accuracy
    found = accuracy(task, params, *data.test, width=width)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_accuracy_in_half_precision_is_not_rounded_so():
    """Of 300 of 1000 in bfloat16 there were 299."""
    right = lambda logits, y: (y < 301).astype(jnp.bfloat16)
    task = make_task()._replace(accuracy=right)
    x, y = jnp.zeros((1000, WIDTH)), jnp.arange(1000)
    found = accuracy(task, task.init(jax.random.key(0)), x, y)
    np.testing.assert_allclose(found, 0.301, rtol=1e-6)


def test_public_inputs_come_in_shuffled_passes():
    rows = np.asarray(passes(jax.random.key(0), 10, 25))
    assert len(rows) == 25
    for part in (rows[:10], rows[10:20]):
        np.testing.assert_array_equal(np.sort(part), np.arange(10))
    assert (rows[:10] != rows[10:20]).any() and (np.diff(rows[:10]) != 1).any()


@pytest.mark.slow
def test_empty_slots_and_idle_clients_teach_nothing(x64):
    """Coins: some slots stay empty; the slow twin, which trains nobody there, agrees.

    In float64: Adam makes steps of what is left of a gradient by rounding.
    """
    plan = fa.Plan(batch_size=4, participation=fa.bernoulli(0.5))
    few = FEW | dict(distill_steps=3)
    algorithm = feddf(**few, teaching="avg_probs", drop_worst=True)
    data = with_public(make_data((*SIZES, 0), np.float64), np.float64)
    round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
    after, info = jax.jit(round_fn)(state, keys(1)[0])
    assert 1 < int(info.num_active) < len(info.cohort)
    slow = fa.debug_round(algorithm, make_task(jnp.float64), data, plan)
    close((after, info), slow(state, keys(1)[0]))


def test_hyper_parameters_may_be_traced(task, public_data):
    def end(lr, clip, patience):
        algorithm = feddf(
            **FEW | dict(distill_lr=lr), distill_clip=clip, patience=patience
        )
        round_fn, state = start(algorithm, task, public_data, PLAN)
        state, info = round_fn(state, keys(1)[0])
        return state.params, info.refine

    kinds = (jnp.float32, jnp.float32, jnp.int32)
    numbers = [jax.ShapeDtypeStruct((2,), kind) for kind in kinds]
    jax.eval_shape(jax.vmap(end), *numbers)


def test_what_it_lacks_is_one_sentence(task, data, public_data):
    with pytest.raises(ValueError, match="refines models on a public set but the data"):
        fa.make_round(feddf(), task, replace(data, public=None), PLAN)
    public = replace(public_data.public, validation=None)
    unjudged = replace(public_data, public=public)
    says = "feddf validates its students but the public set has no .*patience=None"
    with pytest.raises(ValueError, match=says):
        fa.make_round(feddf(), task, unjudged, PLAN)
    with pytest.raises(ValueError, match=says):
        fa.make_round(feddf(patience=None, drop_worst=True), task, unjudged, PLAN)
    fa.make_round(feddf(patience=None), task, unjudged, PLAN)


def test_targets_without_an_accuracy_validate_nothing():
    """No student would be better than another, and the mean would stay."""
    task = fa.Task(
        init=lambda key: jnp.zeros((WIDTH, 2)),
        apply=lambda params, x: fa.Outputs(x @ params),
        loss=lambda logits, y: ((logits - y) ** 2).mean(1),
    )
    pairs = [(x, np.float32(x[:, :2])) for x, _ in make_clients()]
    public = fa.PublicSet(1 + pairs[0][0], validation=pairs[1])
    data = fa.FederatedDataset.from_clients(pairs, public=public)
    says = r"feddf validates by accuracy but of targets float32\[2\] none is known"
    with pytest.raises(fa.SettingError, match=says):
        fa.make_round(feddf(**FEW), task, data, PLAN)
    pairs = [(x, np.int32(y > 0)) for x, y in pairs]  # several an example
    public = fa.PublicSet(1 + pairs[0][0], validation=pairs[1])
    several = fa.FederatedDataset.from_clients(pairs, public=public)
    with pytest.raises(fa.SettingError, match=r"of targets int32\[2\] none is known"):
        fa.make_round(feddf(**FEW), task, several, PLAN)
    judged = task._replace(accuracy=lambda logits, y: abs(logits - y).max(1) < 1)
    fa.make_round(feddf(**FEW), judged, data, PLAN)


@pytest.mark.parametrize(
    "options, says",
    [
        (dict(distill_steps=-1), "distill_steps=-1 must be an integer >= 0"),
        (dict(distill_lr=0), "distill_lr=0 must be a finite number above 0"),
        (dict(distill_clip=-1.0), "distill_clip=-1.0 must be a finite number above"),
        (dict(patience=0), "patience=0 must be an integer >= 1, or None for no early"),
        (
            dict(teaching="logits"),
            "teaching='logits' is unknown; did you mean 'avg_log",
        ),
        (dict(weights="equal"), "weights='equal' is unknown"),
        (dict(base=feddf()), "base refines its models already"),
        (
            dict(weights="uniform", base=fedavg()),
            "weights='uniform' is of FedAvg's mean, but the base averages by its own",
        ),
        (
            dict(return_best_incl_init=True, patience=None),
            "return_best_incl_init=True chooses by validation, but patience=None valid",
        ),
    ],
)
def test_an_option_out_of_range_is_one_sentence(options, says):
    with pytest.raises(ValueError, match=says):
        feddf(**options)
