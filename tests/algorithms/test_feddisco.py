import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from comparison import PLAN, assert_follows, run
from helpers import CLASSES, close, fast, keys, make_data, make_task, start

from fedjax_adapt import Cohort, FederatedDataset, Plan, ServerRule
from fedjax_adapt.algorithms import (
    fedadam,
    fedavg,
    feddisco,
    feddyn,
    fednova,
    fedprox,
    fedvra,
    scaffold,
)
from fedjax_adapt.core import Algorithm

A, B = 0.5, 0.1


def weights(clients, cohort, distance="kl", normalise=True, target=None, a=A, b=B):
    """The published rule, one client after the other."""
    target = np.full(CLASSES, 1 / CLASSES) if target is None else np.array(target)
    v, d = [], []
    for i in cohort:
        y = clients[i][1]
        p = np.bincount(y, minlength=CLASSES) / len(y)
        cosine = p @ target / np.linalg.norm(p) / np.linalg.norm(target)
        d.append(
            {
                "kl": sum(
                    u * np.log(u / q) for u, q in zip(p, target, strict=True) if u
                ),
                "cosine": 1 - cosine,
                "l1": np.abs(p - target).sum(),
                "l2": np.linalg.norm(p - target),
                "only_iid": 0.01 if cosine > 0.9 else np.inf,
            }[distance]
        )
        v.append(len(y))
    v, d = np.array(v) / sum(v), np.array(d)
    if distance == "kl" and normalise:
        d = d / d.sum()
    r = np.maximum(v - a * d + b, 0)
    return r / r.sum() if r.sum() > 0 else v


OPTIONS = {
    "code": {},
    "paper": {"normalise": False},
    "cosine": {"distance": "cosine"},
    "l1": {"distance": "l1"},
    "l2": {"distance": "l2"},
    "only iid": {"distance": "only_iid"},
    "reference": {"reference": (0.5, 0.3, 0.2)},
    "nobody trusted": {"a": 100.0, "b": 0.0, "normalise": False},
}


@pytest.mark.parametrize("options", fast(OPTIONS, "code", "nobody trusted"))
def test_follows_the_numpy_oracle(x64, options):
    clients, theta, history = run(feddisco(**options), rounds=2)
    told = dict(options)
    told["target"] = told.pop("reference", None)

    def follow(t, cohort):
        nonlocal theta
        ends = [oracle.sgd(theta, clients[i], PLAN, t) for i in cohort]
        theta = np.tensordot(weights(clients, cohort, **told), ends, 1)
        return theta

    assert_follows(history, follow)


@pytest.mark.slow
def test_on_feddyn_only_the_mean_of_the_cohort_is_weighted_anew(x64):
    clients, theta, history = run(feddisco(base=feddyn(0.4)))
    alpha = 0.4 / oracle.size_ratios(clients)
    h = np.zeros((len(clients), theta.size))

    def follow(t, cohort):
        nonlocal theta
        w, ends = theta, []
        for i in cohort:
            inside = lambda theta, i=i: alpha[i] * (h[i] - w)
            outside = lambda theta, i=i: alpha[i] * theta
            end = oracle.sgd(w, clients[i], PLAN, t, inside, outside)
            h[i] += end - w
            ends.append(end)
        theta = np.tensordot(weights(clients, cohort), ends, 1) + h.mean(0)
        return theta

    assert_follows(history, follow)


@pytest.mark.slow
@pytest.mark.parametrize(
    "base", [fedavg(), pytest.param(fedprox(0.3), marks=pytest.mark.slow)]
)
def test_without_a_and_b_it_is_its_base(task, data, base):
    ends = []
    for algorithm in (base, feddisco(0.0, 0.0, base=base)):
        round_fn, state = start(algorithm, task, data)
        after, _ = jax.jit(round_fn)(state, keys(1)[0])
        ends.append(after)
    close(ends[0], ends[1])


def cohort_of(counts, ids):
    counts = jnp.asarray(counts)
    ids = jnp.asarray(ids)
    n = counts.sum(1)[ids]
    return Cohort(
        ids=ids,
        num_examples=n,
        epoch_steps=n,
        num_steps=n,
        active=n > 0,
        round=jnp.int32(0),
        num_clients=len(counts),
        num_holders=len(counts),
        mean_epoch_steps=jnp.int32(1),
        label_counts=counts,
    )


def trusted(cohort, **options):
    return np.asarray(feddisco(**options).server.combine.weights(cohort).delta)


def test_clients_of_equal_size_and_divergence_weigh_the_same():
    uniform = cohort_of([[4, 4, 4]] * 3, [0, 1, 2])
    one_label = cohort_of([[6, 0, 0], [0, 6, 0], [0, 0, 6]], [0, 1, 2])
    for cohort in (uniform, one_label):
        np.testing.assert_allclose(trusted(cohort), 1 / 3, rtol=1e-6)


@pytest.mark.slow
def test_a_client_alone_has_all_the_weight():
    np.testing.assert_allclose(trusted(cohort_of([[5, 1], [1, 1]], [0])), 1)


def test_a_client_whose_share_of_the_divergence_is_large_is_left_out():
    skewed = cohort_of([[9, 0], [5, 4], [4, 5]], [0, 1, 2])  # 1/3 + .1 < .5 * nearly 1
    got = trusted(skewed)
    assert got[0] == 0
    np.testing.assert_allclose(got[1:], 0.5, rtol=1e-6)


@pytest.mark.slow
def test_a_label_the_reference_has_not_is_the_limit_of_one_it_hardly_has():
    cohort = cohort_of([[9, 1, 0], [5, 5, 0], [5, 4, 1]], [0, 1, 2])
    got = trusted(cohort, reference=(0.5, 0.5, 0.0))
    np.testing.assert_allclose(got, [0.5, 0.5, 0], rtol=1e-6)
    with jax.enable_x64(True):
        near = trusted(cohort, reference=(0.5, 0.5, 1e-300))
    np.testing.assert_allclose(near, got, atol=0.01)


@pytest.mark.slow
def test_on_equal_clients_with_equal_labels_feddyn_stays_feddyn(x64):
    same_y = np.arange(6, dtype=np.int32) % CLASSES
    x = np.random.default_rng(1).normal(size=(4, 6, 4))
    data = FederatedDataset.from_clients([(x_i, same_y) for x_i in x])
    ends = []
    for algorithm in (feddyn(0.3), feddisco(base=feddyn(0.3))):
        plan = Plan(cohort_size=3, batch_size=4)
        round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
        for key in keys(3):
            state, _ = jax.jit(round_fn)(state, key)
        ends.append(state.params)
    close(ends[0], ends[1], atol=1e-12)


@pytest.mark.slow
def test_the_legacy_table_reads_ten_classes_a_row():
    """With 20 classes client i is shown half of client i // 2's."""
    counts = np.zeros((4, 20), int)
    counts[0, :10], counts[1, 0], counts[1, 10:] = 1, 11, 1
    counts[2:], ids = 5, [0, 1, 2, 3]
    counts[0, 10] = 90
    legacy = trusted(cohort_of(counts, ids), legacy_reshape=True)
    rows = (counts / counts.sum(1, keepdims=True)).reshape(-1, 10)[ids]
    p = rows / rows.sum(1, keepdims=True)
    d = np.array([sum(u * np.log(u * 10) for u in row if u) for row in p])
    v = counts.sum(1) / counts.sum()
    r = np.maximum(v - A * d / d.sum() + B, 0)
    np.testing.assert_allclose(legacy, r / r.sum(), rtol=1e-5)


def test_data_or_bases_it_cannot_weigh_are_refused(data):
    custom = Algorithm(server=ServerRule(combine=lambda uploads, cohort: uploads))
    nested = feddisco(base=feddyn())
    for base in (custom, nested, scaffold(), fednova(), fedadam(), fedvra(d=2.0)):
        with pytest.raises(ValueError, match="its base's server does something else"):
            feddisco(base=base)
    for bad in ((0.0, 0.0, 0.0), (1.0, -0.1, 0.1), (np.inf, 0.0, 0.0)):
        with pytest.raises(ValueError, match="must be finite shares of at least 0"):
            feddisco(reference=bad)
    with pytest.raises(ValueError, match="reads ten labels a row but there are 2"):
        trusted(cohort_of([[1, 2]], [0]), legacy_reshape=True)
    real = [(x, x[:, 0]) for x in np.ones((2, 4, 4), np.float32)]
    targets = FederatedDataset.from_clients(real)
    regression = make_task()._replace(loss=lambda logits, y: (logits[:, 0] - y) ** 2)
    with pytest.raises(ValueError, match="no integer labels, one per example"):
        start(feddisco(), regression, targets, Plan(batch_size=2))
    with pytest.raises(
        ValueError, match="reference has 2 shares but there are 3 labels"
    ):
        start(feddisco(reference=(0.5, 0.5)), make_task(), make_data())
