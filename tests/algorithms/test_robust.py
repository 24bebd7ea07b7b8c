import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import SIZES, close, keys, make_data, same, start

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedavg, feddisco, fednova, scaffold
from fedjax_adapt.data import corrupt


def tree_of(x):
    """Displacements [cohort, 5] as a tree of two tensors."""
    x = jnp.asarray(x, jnp.float32)
    return {"w": x[:, :4].reshape(-1, 2, 2), "b": x[:, 4:]}


def flat(tree):
    return np.concatenate([np.ravel(tree["w"]), np.ravel(tree["b"])])


def sent(num_active, slots=9, seed=0):
    """(displacements with NaN in idle slots, weights, who is active), shuffled."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(slots, 5))
    active = rng.permutation(slots) < num_active
    x[~active] = np.nan
    n = np.where(active, rng.integers(1, 9, slots), 0)
    return x, n / n.sum(), active


def np_trimmed(x, fraction):
    b = int(np.floor(fraction * len(x) + 1e-9))
    return np.sort(x, 0)[b : len(x) - b].mean(0)


def np_krum(x, f, selected):
    scores = []
    for i in range(len(x)):
        apart = sorted(((x[i] - x[j]) ** 2).sum() for j in range(len(x)) if j != i)
        scores.append(sum(apart[: max(len(x) - f - 2, 1)]))
    return x[np.argsort(scores, kind="stable")[:selected]].mean(0)


def np_weiszfeld(x, p, iterations, smoothing):
    v = np.zeros(x.shape[1])
    for _ in range(iterations):
        b = p / np.maximum(smoothing, np.linalg.norm(x - v, axis=1))
        v = (b[:, None] * x).sum(0) / b.sum()
    return v


RULES = {
    "median": (fa.median(), lambda x, p: np.median(x, 0)),
    "trimmed": (fa.trimmed_mean(0.3), lambda x, p: np_trimmed(x, 0.3)),
    "trimmed by nothing": (fa.trimmed_mean(0.0), lambda x, p: x.mean(0)),
    "krum": (fa.krum(2), lambda x, p: np_krum(x, 2, 1)),
    "multi-krum": (fa.krum(2, 3), lambda x, p: np_krum(x, 2, 3)),
    "geometric": (fa.geometric_median(5), lambda x, p: np_weiszfeld(x, p, 5, 1e-6)),
    "geometric, smooth": (
        fa.geometric_median(5, 2.5),
        lambda x, p: np_weiszfeld(x, p, 5, 2.5),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_follow_the_numpy_oracle_whatever_is_in_idle_slots(name):
    rule, expected = RULES[name]
    rule = jax.jit(rule)
    for num_active, seed in itertools.product((9, 8, 7, 5), (0, 1)):
        x, p, active = sent(num_active, seed=seed)
        got = flat(rule(tree_of(x), jnp.asarray(p), jnp.asarray(active)))
        wanted = expected(np.float32(x[active]).astype(float), p[active])
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", RULES)
def test_one_client_alone_decides(name):
    x, p, active = sent(1)
    rule = fa.geometric_median(60) if name.startswith("geometric") else RULES[name][0]
    got = flat(rule(tree_of(x), jnp.asarray(p), jnp.asarray(active)))
    np.testing.assert_allclose(got, x[active][0], rtol=1e-5)


def test_the_geometric_median_is_the_nearest_to_all_by_weight():
    x, p, active = sent(7)
    rule = fa.geometric_median(300)
    v = flat(rule(tree_of(x), jnp.asarray(p), jnp.asarray(active)))
    cost = lambda v: (p[active] * np.linalg.norm(x[active] - v, axis=1)).sum()
    rng = np.random.default_rng(5)
    for _ in range(50):
        assert cost(v) <= cost(v + 0.05 * rng.normal(size=5)) + 1e-5


EVIL = {"NaN": np.nan, "inf": np.inf, "huge": 3e38, "less": -3e38, "far": 1e4}


@pytest.mark.parametrize(
    "name", ["median", "trimmed", "krum", "multi-krum", "geometric"]
)
def test_two_of_nine_that_send_anything_do_not_decide(name):
    """Whatever two send, the result stays among what the others sent."""
    rule = jax.jit(RULES[name][0])
    x, _, _ = sent(9)
    p = np.full(9, 1 / 9)
    honest = x[2:]
    radius = np.linalg.norm(honest, axis=1).max()
    for first, second in itertools.product(EVIL.values(), EVIL.values()):
        x[0], x[1] = first, second
        got = flat(rule(tree_of(x), jnp.asarray(p), jnp.ones(9, bool)))
        assert np.linalg.norm(got) < radius
        if name != "geometric":
            assert (got <= honest.max(0) + 1e-5).all()
            assert (got >= honest.min(0) - 1e-5).all()
        if name == "krum":
            assert np.isclose(np.float32(honest), got[None], rtol=1e-6).all(1).any()


@pytest.mark.slow
def test_half_that_lie_decide_the_median():
    x, p, active = sent(8, slots=8)
    x[:4] = 1e9
    assert np.abs(flat(fa.median()(tree_of(x), p, jnp.asarray(active)))).min() > 1e8


def attacked(base, value):
    """The base, whose client 0 sends the same number everywhere."""

    def finish(run):
        upload, client = base.local.finish(run)
        lie = jax.tree.map(lambda d: jnp.where(run.id == 0, value, d), upload.delta)
        return upload._replace(delta=lie), client

    return base._replace(local=base.local._replace(finish=finish))


def after(algorithm, task, data, plan=None, rounds=3):
    round_fn, state = start(
        algorithm, task, data, plan or fa.Plan(batch_size=4, lr=0.2)
    )
    step = jax.jit(round_fn)
    for key in keys(rounds):
        state, info = step(state, key)
    return state, info


@pytest.fixture(scope="module")
def honest(task, data):
    """The model of FedAvg if nobody lies, on the test set."""
    state, _ = after(fedavg(), task, data, rounds=10)
    return fa.evaluate(task, state.params, data.test)


@pytest.mark.slow
@pytest.mark.parametrize("rule", [fa.median(), fa.krum(1)], ids=["median", "krum"])
def test_a_client_that_lies_does_not_stop_the_others(task, data, honest, rule):
    def params(value):
        algorithm = fa.with_aggregation(attacked(fedavg(), value), rule)
        round_fn, state = start(algorithm, task, data, fa.Plan(batch_size=4, lr=0.2))
        return fa.train(round_fn, state, keys(10))[0].params

    params = jax.jit(params)
    for value in (np.nan, 1e6):
        loss = fa.evaluate(task, params(value), data.test).loss
        assert loss < 2 * honest.loss + 0.2


def test_without_a_rule_a_client_that_lies_breaks_the_model(task, data):
    broken, _ = after(attacked(fedavg(), np.nan), task, data, rounds=1)
    assert np.isnan(broken.params["w"]).all()


@pytest.mark.slow
def test_clients_with_other_labels_do_less_harm(task):
    """Two of ten clients of the same distribution learn shifted labels."""
    rng = np.random.default_rng(0)
    teacher = rng.normal(size=(4, 3))
    clients = []
    for _ in range(10):
        x = rng.normal(size=(40, 4)).astype(np.float32)
        clients.append((x, (x @ teacher).argmax(1).astype(np.int32)))
    test = tuple(np.concatenate(part) for part in zip(*clients, strict=True))
    data = fa.FederatedDataset.from_clients(clients, test=test, num_classes=3)
    bad = corrupt(data, "label_shift", [0, 1, 2], 1)
    plan = fa.Plan(batch_size=10, lr=0.5)

    def loss(algorithm, data):
        algorithm = fa.with_steps(algorithm, fa.epochs(5))
        state, _ = after(algorithm, task, data, plan, rounds=15)
        return float(fa.evaluate(task, state.params, data.test).loss)

    harm = loss(fedavg(), bad) - loss(fedavg(), data)
    assert harm > 0.1
    for rule in (fa.median(), fa.krum(3, 4), fa.geometric_median()):
        wrapped = fa.with_aggregation(fedavg(), rule)
        assert loss(wrapped, bad) - loss(wrapped, data) < 0.7 * harm


@pytest.mark.slow
def test_a_trim_of_nothing_is_the_uniform_mean(task, data):
    state, _ = after(fa.with_aggregation(scaffold(), fa.trimmed_mean(0.0)), task, data)
    expected, _ = after(scaffold(), task, data)
    close(state, expected, atol=1e-5)


@pytest.mark.slow
def test_what_is_sent_beside_stays_the_mean(task, data):
    """FedNova's tau_eff is that of all, whoever is chosen."""

    def effective(algorithm):
        report = lambda extra, upload, cohort: {"effective": upload.extra.effective}
        algorithm = algorithm._replace(server=algorithm.server._replace(report=report))
        _, info = after(algorithm, task, data, rounds=1)
        return float(info.server["effective"])

    robust = fa.with_aggregation(fednova(), fa.krum(1))
    assert effective(robust) == pytest.approx(effective(fednova()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["krum", pytest.param("median", marks=pytest.mark.slow)]
)
def test_bernoulli_cohorts_lanes_and_the_slow_twin(task, name):
    data = make_data((*SIZES, 4, 6))
    algorithm = fa.with_aggregation(scaffold(), RULES[name][0])
    plan = fa.Plan(participation=fa.bernoulli(0.5), batch_size=4, lanes=3)
    round_fn, state = start(algorithm, task, data, plan)
    step = jax.jit(round_fn)
    slow = fa.debug_round(algorithm, task, data, plan)
    first, second = keys(2)
    before, _ = step(state, first)
    state, info = step(before, second)
    close((state, info), slow(before, second))
    assert int(info.num_active) < len(info.cohort)


def test_mistakes_are_one_sentence(task, data):
    for call, match in {
        lambda: fa.with_aggregation(
            fedavg(), fa.median
        ): "got the function median for r",
        lambda: fa.with_aggregation(fedavg(), 0.1): "got 0.1 for rule; write",
        lambda: fa.with_aggregation(
            fedavg, fa.median()
        ): "function fedavg for algorithm",
        lambda: fa.with_aggregation(
            fa.with_aggregation(fedavg(), fa.median()), fa.median()
        ): "takes the place of a mean",
        lambda: fa.with_aggregation(
            fa.with_averages(fedavg()), fa.median()
        ): r"keeps, too; write it inside, as in with_averages\(with_aggregation",
        lambda: fa.trimmed_mean(0.5): r"fraction=0.5 must lie in \[0, 0.5\)",
        lambda: fa.krum(-1): "num_byzantine=-1 must be an integer >= 0",
        lambda: fa.krum(1, 0): "num_selected=0 must be an integer >= 1",
        lambda: fa.geometric_median(0): "iterations=0 must be an integer >= 1",
        lambda: fa.geometric_median(smoothing=0): "smoothing=0 must be a finite",
        lambda: feddisco(
            base=fa.with_aggregation(fedavg(), fa.median())
        ): "feddisco we",
    }.items():
        with pytest.raises(ValueError, match=match):
            call()
    few = fa.with_aggregation(fedavg(), fa.krum(1))
    plan = fa.Plan(cohort_size=4, batch_size=4)
    with pytest.raises(ValueError, match="needs cohorts of 5 clients but they have 4"):
        start(few, task, data, plan)


@pytest.mark.slow
def test_the_weights_of_the_rule_are_those_of_its_base(task, data):
    """Far off, every pull is as its weight: one iteration tells n_i from 1 / m."""
    plan = fa.Plan(batch_size=4)
    rule = fa.geometric_median(1, 1e6)
    for build in (fedavg, lambda: fedavg("uniform")):
        state, _ = after(fa.with_aggregation(build(), rule), task, data, plan, rounds=1)
        expected, _ = after(build(), task, data, plan, rounds=1)
        close(state.params, expected.params, atol=1e-5)
    assert not same(state.params, after(fedavg(), task, data, plan, 1)[0].params)
