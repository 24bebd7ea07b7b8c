"""Metrics are scikit-learn's, over a whole test set and on each client's examples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import CLASSES, SIZES, WIDTH, make_data, make_task
from sklearn import metrics as oracle

import fedjax_adapt as fa

N = 97  # a last block that is not full
RNG = np.random.default_rng(0)
NAMED = {"f1": fa.metrics.f1, "auc": fa.metrics.auc, "top2": fa.metrics.top(2)}


def shown(loss, metrics, **changes):
    """A task whose logits are its inputs."""
    apply = lambda params, x: fa.Outputs(x)
    return fa.Task(lambda key: {}, apply, loss, metrics=metrics)._replace(**changes)


def cross_entropy(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)[:, 0]


def named(task, x, y, **options):
    return fa.evaluate(task, {}, (jnp.asarray(x), jnp.asarray(y)), **options).named


def expected_of_labels(logits, y):
    guess, labels = logits.argmax(1), np.arange(logits.shape[1])
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    auc = [
        oracle.roc_auc_score(y == k, p[:, k])
        for k in labels
        if 0 < (y == k).sum() < len(y)
    ]
    return {
        "f1": oracle.f1_score(y, guess, average="macro", zero_division=0),
        "auc": np.mean(auc) if auc else np.nan,
        "top2": oracle.top_k_accuracy_score(y, logits, k=2, labels=labels),
    }


@pytest.mark.parametrize("label", [-1, 4])
def test_a_label_that_is_none_leaves_no_number(label):
    logits = RNG.normal(size=(N, 4)).astype(np.float32)
    y = np.append(RNG.integers(0, 4, N - 1), label)
    given = named(shown(cross_entropy, NAMED), logits, y)
    assert np.isnan([given["f1"], given["auc"]]).all()


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [500, 10])
def test_labels(batch_size):
    logits = RNG.normal(size=(N, 4)).astype(np.float32)
    y = np.where(RNG.random(N) < 0.5, logits.argmax(1), RNG.integers(0, 3, N))
    given = named(shown(cross_entropy, NAMED), logits, y, batch_size=batch_size)
    for name, value in expected_of_labels(logits, y).items():
        np.testing.assert_allclose(given[name], value, rtol=1e-5, err_msg=name)
    ovr = oracle.roc_auc_score(
        y % 3, jax.nn.softmax(logits[:, :3]), multi_class="ovr", average="macro"
    )
    auc = shown(cross_entropy, {"auc": fa.metrics.auc})
    np.testing.assert_allclose(named(auc, logits[:, :3], y % 3)["auc"], ovr, rtol=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_auc_of_two_labels(outputs):
    logits = RNG.normal(size=(N, outputs)).round(1).astype(np.float32)
    y = RNG.integers(0, 2, N)
    loss = lambda logits, y: logits[:, 0]
    task = shown(loss, {"auc": fa.metrics.auc})
    score = logits[:, 1] - logits[:, 0] if outputs == 2 else logits[:, 0]
    expected = oracle.roc_auc_score(y, score)
    np.testing.assert_allclose(named(task, logits, y)["auc"], expected, rtol=1e-5)
    assert np.isnan(named(task, logits, 0 * y)["auc"])  # nothing to rank above
    logits[3] = np.nan
    assert np.isnan(named(task, logits, y)["auc"])


@pytest.mark.parametrize("shape", [(N,), (N, 3)])
def test_numbers(shape):
    y = (100 + RNG.normal(size=shape)).astype(np.float32)
    outputs = (y + 0.3 * RNG.normal(size=shape)).astype(np.float32)
    logits = outputs.reshape(N, -1)
    metrics = {"rmse": fa.metrics.rmse, "r2": fa.metrics.r2}
    loss = lambda logits, y: fa.metrics.squared_errors(logits, y).reshape(N, -1).mean(1)
    task = shown(loss, metrics)
    given = fa.evaluate(task, {}, (logits, y))
    expected = {
        "rmse": oracle.root_mean_squared_error(y, outputs),
        "r2": oracle.r2_score(y, outputs),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(given.named[name], value, rtol=1e-4, err_msg=name)
    np.testing.assert_allclose(
        given.loss, oracle.mean_squared_error(y, outputs), rtol=1e-4
    )
    assert np.isnan(given.accuracy)


@pytest.mark.slow
def test_tokens_weigh_the_same_where_they_count():
    batch, time, words, pad = 7, 5, 6, 0
    logits = RNG.normal(size=(batch, time, words)).astype(np.float32)
    y = RNG.integers(0, words, (batch, time))
    y[0], y[1, 2:] = pad, pad
    counts = y != pad
    loss = oracle.log_loss(
        y[counts], jax.nn.softmax(logits[counts]), labels=range(words)
    )
    right = oracle.accuracy_score(y[counts], logits.argmax(-1)[counts])
    metrics = {
        "perplexity": fa.metrics.perplexity(pad),
        "accuracy": fa.metrics.token_accuracy(pad),
    }
    task = shown(lambda logits, y: logits.sum((1, 2)), metrics)
    for width in (3, 100):
        given = named(task, logits, y, batch_size=width)
        np.testing.assert_allclose(given["perplexity"], np.exp(loss), rtol=1e-5)
        np.testing.assert_allclose(given["accuracy"], right, rtol=1e-6)
    y[2, 0] = -1  # no token, and not the last one
    assert np.isnan(named(task, logits, y, batch_size=100)["perplexity"])


@pytest.mark.slow
def test_clients_have_metrics_of_their_own():
    """Among them one without examples, and one with a single label."""
    data = make_data((*SIZES, 0, 1))
    task = make_task()._replace(metrics={**NAMED, "mine": lambda logits, y: y * 1.0})
    params = {
        "w": jnp.asarray(RNG.normal(size=(WIDTH, CLASSES)), jnp.float32),
        "b": jnp.zeros(CLASSES),
    }
    given = fa.evaluate_clients(task, params, data)
    logits = np.asarray(task.apply(params, data.x).logits)
    for i, rows in enumerate(data.rows()):
        y = np.asarray(data.y)[rows]
        if len(rows):
            expected = {**expected_of_labels(logits[rows], y), "mine": y.mean()}
        else:
            expected = dict.fromkeys(given.named, 0)
        for name, value in expected.items():
            found = given.named[name][i]
            np.testing.assert_allclose(found, value, rtol=1e-5, err_msg=f"{name} {i}")
    plain = fa.evaluate_clients(make_task(), params, data)
    np.testing.assert_array_equal(plain.accuracy, given.accuracy)


@pytest.mark.slow
def test_metrics_under_jit_and_several_devices(data):
    task = make_task()._replace(metrics=NAMED)
    params = task.init(jax.random.key(0))
    alone = fa.evaluate(task, params, data.test)
    shared = fa.evaluate(task, params, data.test, batch_size=5, devices=3)
    traced = jax.jit(lambda params: fa.evaluate(task, params, data.test))(params)
    for name in NAMED:
        np.testing.assert_allclose(shared.named[name], alone.named[name], rtol=1e-6)
        np.testing.assert_allclose(traced.named[name], alone.named[name], rtol=1e-6)


@pytest.mark.parametrize(
    "metric, logits, y, message",
    [
        (fa.metrics.top5, [4, 3], "int32[4]", "top(5) got 3 logits but takes 5 or more"),
        (fa.metrics.f1, [4, 3], "float32[4]", "f1 got targets float32[4] and logits"),
        (fa.metrics.auc, [4, 2, 3], "int32[4,2]", "auc got targets int32[4, 2]"),
        (fa.metrics.rmse, [4, 3], "float32[4]", "predicts [4, 3] for targets [4]; build it"
         " with 1 output."),
        (fa.metrics.rmse, [4, 3], "float32[4,2]", "build it with 2 outputs."),
        (fa.metrics.perplexity(), [4, 3], "int32[4]", "give the next token of each place"),
        ("f1", [4, 3], "int32[4]", "Task.metrics['it'] is 'f1'; write a function"),
        (fa.metrics.top, [4, 3], "int32[4]", "Task.metrics (top) raised TypeError: top() "
         "takes 1 positional argument but 2 were given; it takes (logits, y) and returns"),
        (lambda logits, y: y.mean(), [4, 3], "int32[4]", "Task.metrics['it'] returned "
         "shape [] for a batch of 4; return one number per example, [4]."),
        (fa.Metric(lambda logits, y: y[:2], jnp.sum), [4, 3], "int32[4]",
         "Task.metrics['it'].each returned shape [2] for a batch of 4"),
        (fa.Metric(lambda logits, y: y, lambda each, weight: each), [4, 3], "int32[4]",
         "Task.metrics['it'].final returned shape [4]; return one number, []."),
    ],
)  # fmt: skip
def test_what_a_metric_cannot_take_is_one_sentence(metric, logits, y, message):
    dtype, _, shape = y.rstrip("]").partition("[")
    y = jnp.zeros([int(side) for side in shape.split(",")], dtype)
    task = shown(lambda logits, y: logits.reshape(4, -1).sum(1), {"it": metric})
    with pytest.raises(ValueError) as caught:
        fa.evaluate(task, {}, (jnp.zeros(logits), y))
    assert message in str(caught.value)


def test_metrics_that_are_no_mapping_are_refused(task, data):
    wrong = task._replace(metrics=(fa.metrics.f1,))
    with pytest.raises(ValueError, match="Task.metrics is a tuple; write a dict by"):
        fa.evaluate(wrong, {}, data.test)
    for name in (3, ""):
        wrong = task._replace(metrics={name: fa.metrics.f1})
        with pytest.raises(ValueError, match="Task.metrics has a metric named"):
            fa.evaluate(wrong, {}, data.test)


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.0, 0.1, 3.7])
def test_r2_of_equal_targets_is_nan_however_they_are_rounded(target):
    task = fa.regression((lambda key: jnp.ones(()), lambda w, x: w * x), (1,))
    x = np.arange(7, dtype=np.float32)[:, None]
    for n in (1, 3, 7):
        y = np.full(n, target, np.float32)
        named = fa.evaluate(task, jnp.ones(()), (x[:n], y)).named
        assert np.isnan(named["r2"]) and np.isfinite(named["rmse"])
    clients = [(x, x[:, 0] + 1), (x[:3], np.full(3, target)), (x[:0], x[:0, 0])]
    data = fa.FederatedDataset.from_clients(
        [(x, y.astype(np.float32)) for x, y in clients]
    )
    alone = fa.evaluate_clients(task, jnp.ones(()), data).named["r2"]
    assert np.isclose(alone[0], 0.75) and np.isnan(alone[1]) and alone[2] == 0
