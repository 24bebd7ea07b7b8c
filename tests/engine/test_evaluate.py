"""What a model is worth: on each class, on each client's own examples, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers import CLASSES, SIZES, close, make_data

import fedjax_adapt as fa
from fedjax_adapt.core.scores import largest_of


@pytest.fixture(scope="module")
def params(task):
    return task.init(jax.random.key(3))


def scored(task, params, x, y):
    logits = np.asarray(task.apply(params, x).logits)
    return logits.argmax(1) == np.asarray(y), np.asarray(task.loss(logits, y))


@pytest.mark.slow
def test_class_accuracy_is_the_mean_over_each_label(task, data, params):
    x, y = data.test
    right, _ = scored(task, params, x, y)
    expected = [right[np.asarray(y) == label].mean() for label in range(CLASSES)]
    for changes in ({}, {"batch_size": 7}, {"batch_size": 7, "devices": 3}):
        given = fa.class_accuracy(task, params, data.test, CLASSES, **changes)
        np.testing.assert_allclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_the_first_of_equal_logits_is_the_largest_and_nan_is_larger_still(dtype):
    """As in NumPy; few values, so that most rows have equals."""
    logits = np.random.default_rng(0).integers(-2, 3, (300, 6)).astype("float32")
    if dtype != "int32":
        logits[::7, 4] = np.nan
        logits[::14, 2] = np.nan
        logits[1] = -np.inf
        logits[2, 3] = np.inf
        logits[3] = 3 * [-np.inf] + [-3e38] + 2 * [-np.inf]
    expected, logits = logits.argmax(1), jnp.asarray(logits, dtype)
    np.testing.assert_array_equal(largest_of(logits), expected)
    stacked = logits.reshape(3, 100, 6)
    np.testing.assert_array_equal(
        jax.vmap(largest_of)(stacked), expected.reshape(3, 100)
    )


def test_all_programs_share_the_reducer_of_the_largest():
    """JAX keeps one for each argmax that it lowers."""
    reducers = []
    for size in (3, 4):
        found = jax.make_jaxpr(lambda x: largest_of(x))(jnp.zeros((2, size)))
        reduction = next(e for e in found.eqns if e.primitive.name == "reduce")
        reducers.append(reduction.params["jaxpr"])
    assert reducers[0] is reducers[1]


@pytest.mark.slow
def test_accuracy_may_stand_beside_a_loss_that_is_differentiated():
    logits = jnp.arange(6.0).reshape(2, 3)
    loss = lambda x: ((x**2).sum(), largest_of(x))
    slope, largest = jax.grad(loss, has_aux=True)(logits)
    close(slope, 2 * logits)
    np.testing.assert_array_equal(largest, [2, 2])
    jax.hessian(lambda x: loss(x)[0] + largest_of(x).sum())(logits)


def test_a_label_without_examples_counts_0(task, data, params):
    given = fa.class_accuracy(task, params, data.test, CLASSES + 1)
    assert given.shape == (CLASSES + 1,) and given[CLASSES] == 0


def test_clients_are_scored_on_their_own_examples(task, params):
    data = make_data((*SIZES, 0))
    given = fa.evaluate_clients(task, params, data)
    right, losses = scored(task, params, data.x, data.y)
    for i, size in enumerate(data.size.tolist()):
        rows = np.array(data.index)[i, :size]
        expected = (right[rows].mean(), losses[rows].mean()) if size else (0, 0)
        np.testing.assert_allclose(given.accuracy[i], expected[0], rtol=1e-6)
        np.testing.assert_allclose(given.loss[i], expected[1], rtol=1e-5)
    for changes in ({"batch_size": 5}, {"batch_size": 5, "devices": 2}):
        close(fa.evaluate_clients(task, params, data, **changes), given)


def test_shared_rows_count_for_every_client_that_holds_them(task, data, params):
    x, y = np.asarray(data.x), np.asarray(data.y)
    shared = fa.FederatedDataset.from_rows(x, y, [[0, 1, 2], [2, 1, 0], [5]])
    accuracy, loss = fa.evaluate_clients(task, params, shared)
    np.testing.assert_allclose(accuracy[0], accuracy[1])
    np.testing.assert_allclose(loss[0], loss[1], rtol=1e-6)


def test_no_test_set_is_one_sentence(task, params):
    with pytest.raises(
        ValueError, match=r"class_accuracy got test=None; give \(x, y\)"
    ):
        fa.class_accuracy(task, params, None, CLASSES)


def test_fewer_classes_than_labels_are_refused(task, data, params):
    with pytest.raises(ValueError, match="num_classes=2 but a test label is 2; write"):
        fa.class_accuracy(task, params, data.test, 2)


def test_a_label_below_0_is_refused_and_no_example_of_the_last_class(
    task, data, params
):
    x, y = data.test
    with pytest.raises(ValueError, match="got a test label -1; labels count from 0"):
        fa.class_accuracy(task, params, (x, y.at[4].set(-1)), CLASSES)
    with pytest.raises(ValueError, match="evaluate got a test label -1; labels count"):
        fa.evaluate(task, params, (x, y.at[4].set(-1)))


def test_a_label_below_0_may_be_padding_of_a_sequence():
    logits = jnp.arange(12.0).reshape(1, 4, 3)
    init = lambda key: {"logits": logits}
    apply = lambda params, x: params["logits"] + 0 * x[..., None]
    task = fa.language_model((init, apply), length=4, pad=-1)
    y = jnp.array([[2, 1, -1, -1]])
    found = fa.evaluate(task, init(None), (jnp.zeros((1, 4), jnp.int32), y))
    assert float(found.accuracy) == 0.5


def test_classes_are_counted_under_jit(task, data, params):
    counted = lambda params: fa.class_accuracy(task, params, data.test, CLASSES)
    np.testing.assert_array_equal(jax.jit(counted)(params), counted(params))


def test_metrics_are_a_pair_with_names_beside_it(task, data, params):
    """They unpack as ever, and go through jit, vmap and jax.tree."""
    named = task._replace(metrics={"margin": lambda logits, y: logits.max(1)})
    metrics = fa.evaluate(named, params, data.test)
    accuracy, loss = metrics
    assert metrics[0] is metrics.accuracy is accuracy and metrics.loss is loss
    assert tuple(metrics) == (accuracy, loss) and list(metrics.named) == ["margin"]
    plain = fa.evaluate(task, params, data.test)
    assert plain.named == {} and fa.Metrics(1, 2) == (1, 2)
    np.testing.assert_array_equal(jnp.stack(plain), jnp.stack(metrics))
    doubled = jax.tree.map(lambda leaf: 2 * leaf, metrics)
    np.testing.assert_allclose(doubled.named["margin"], 2 * metrics.named["margin"])
    assert metrics._replace(loss=0.0).named == metrics.named
    score = jax.jit(jax.vmap(lambda params: fa.evaluate(named, params, data.test)))
    several = score(jax.tree.map(lambda leaf: leaf[None], params))
    close(jax.tree.map(lambda leaf: leaf[0], several), metrics)
    x, y = data.test
    margin = np.asarray(task.apply(params, x).logits).max(1).mean()
    np.testing.assert_allclose(metrics.named["margin"], margin, rtol=1e-5)


def run_of(task, data):
    algorithm, plan = fa.algorithms.fedavg(), fa.Plan(cohort_size=2, batch_size=4)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    return algorithm, plan, state


def cross_entropy(logits, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


@pytest.mark.parametrize(
    "loss, shape",
    [
        (lambda logits, y: cross_entropy(logits, y).mean(), r"\[\]"),
        (lambda logits, y: logits**2, r"\[{}, 3\]"),
        (lambda logits, y: cross_entropy(logits, y)[:, None], r"\[{}, 1\]"),
    ],
)
def test_a_loss_that_is_not_per_example_is_refused_where_it_is_traced(
    task, data, params, loss, shape
):
    wrong = task._replace(loss=loss)
    message = (
        "Task.loss returned shape " + shape + " for a batch of {}; return one loss"
    )
    n = len(data.test[1])
    with pytest.raises(ValueError, match=message.format(n, n)):
        fa.evaluate(wrong, params, data.test)
    algorithm, plan, state = run_of(wrong, data)
    with pytest.raises(ValueError, match=message.format(4, 4)):
        fa.make_round(algorithm, wrong, data, plan)
    slow = fa.debug_round(algorithm, wrong, data, plan)
    with pytest.raises(RuntimeError, match=message.format(4, 4)):
        slow(state, jax.random.key(0))
    batch = fa.Batch(data.x[:4], data.y[:4], jnp.ones(4))
    with pytest.raises(ValueError, match=message.format(4, 4)):
        fa.gradient_moments(wrong, params, batch)


@pytest.mark.parametrize(
    "returned, message",
    [
        (lambda logits: logits, r"Task.apply returned an array; return fa.Outputs\(lo"),
        (lambda logits: (logits, {}), r"returned a tuple; return fa.Outputs\(logits\)"),
        (lambda logits: fa.Outputs((logits, {})), "Outputs whose logits are a tuple"),
    ],
)
def test_a_model_that_returns_no_outputs_is_refused(
    task, data, params, returned, message
):
    apply = lambda params, x: returned(task.apply(params, x).logits)
    wrong = task._replace(apply=apply, loss=cross_entropy)
    with pytest.raises(ValueError, match=message):
        fa.evaluate(wrong, params, data.test)
    algorithm, plan, state = run_of(wrong, data)
    with pytest.raises(ValueError, match=message):
        round_fn = fa.make_round(algorithm, wrong, data, plan)
        jax.eval_shape(round_fn, state, jax.random.key(0))


def test_accuracy_is_not_made_up(task, data, params):
    """NaN for numbers, for one output, and for labels that are not one to an example."""
    x, y = data.test
    squared = task._replace(loss=lambda logits, y: (logits[:, 0] - 1) ** 2)
    single = squared._replace(
        apply=lambda params, x: fa.Outputs(task.apply(params, x).logits[:, :1])
    )
    one_hot = jax.nn.one_hot(y, CLASSES, dtype=int)
    for some, labels in (
        (squared, y.astype(jnp.float32)),
        (single, y),
        (squared, one_hot),
    ):
        metrics = fa.evaluate(some, params, (x, labels))
        assert np.isnan(metrics.accuracy) and np.isfinite(metrics.loss)
    right, _ = scored(task, params, x, y)
    assert fa.evaluate(task, params, data.test).accuracy == right.mean(dtype=np.float32)
    mine = task._replace(accuracy=lambda logits, y: jnp.full(len(y), 0.25))
    assert fa.evaluate(mine, params, data.test).accuracy == 0.25
    with pytest.raises(ValueError, match=r"Task.accuracy returned shape \[\] for a"):
        fa.evaluate(mine._replace(accuracy=lambda logits, y: 1.0), params, data.test)


def test_a_mean_of_numbers_in_half_precision_is_not_rounded_so():
    said = lambda logits, y: logits[:, 0].astype(jnp.bfloat16)
    task = fa.Task(
        init=lambda key: jnp.zeros(1),
        apply=lambda params, x: fa.Outputs(x + params[None]),
        loss=said,
        accuracy=said,
        metrics={"own": said},
    )
    x, y = np.float32([[4], [4.03125]]), np.zeros(2, int)  # nothing is between them
    found = fa.evaluate(task, jnp.zeros(1), (x, y))
    assert found.accuracy == found.loss == found.named["own"] == 4.015625


def test_several_labels_of_an_example_share_it():
    apply = lambda params, x: fa.Outputs(x)
    task = fa.Task(lambda key: {}, apply, lambda logits, y: logits.sum((1, 2)))
    logits = np.random.default_rng(0).normal(size=(9, 4, 3)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 3, (9, 4))
    metrics = fa.evaluate(task, {}, (logits, y), batch_size=4)
    expected = (logits.argmax(-1) == y).mean()
    np.testing.assert_allclose(metrics.accuracy, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda x, y: (x, np.eye(3)[y]),
            r"labels are float32\[52, 3\] for .*argmax\(-1",
        ),
        (
            lambda x, y: (x, np.asarray(y, float)),
            r"takes one .* such as y.astype\(int\)",
        ),
        (lambda x, y: (x, y[:, None]), r"such as y\[:, 0\].astype\(int\)"),
        (lambda x, y: (x, y.astype(str)), r"text for y .*numpy.unique\(y, return_inv"),
        (lambda x, y: ({"a": x}, y), "got a dict for x of test=.*give one array"),
        (lambda x, y: (x[:5], y), r"got 5 inputs and 52 labels for test=\(x, y\)"),
        (lambda x, y: (x, 3), "got one number for y of test"),
    ],
)
def test_examples_of_another_kind_are_one_sentence(task, data, params, change, message):
    x, y = (np.asarray(part) for part in data.test)
    y = np.resize(y, 52)
    with pytest.raises(ValueError, match=message):
        fa.evaluate(task, params, change(np.resize(x, (52, x.shape[1])), y))


@pytest.mark.parametrize(
    "change", [lambda y: y * 1.0, lambda y: np.eye(3, dtype=int)[y]]
)
def test_class_accuracy_takes_one_integer_label_each(task, data, params, change):
    x, y = data.test
    with pytest.raises(
        ValueError, match="class_accuracy got labels .* give one integer"
    ):
        fa.class_accuracy(task, params, (x, change(np.asarray(y))), CLASSES)


def test_shares_of_an_example_count_as_shares_in_its_class(task, data, params):
    share = task._replace(accuracy=lambda logits, y: jnp.full(len(y), 0.75))
    np.testing.assert_allclose(
        fa.class_accuracy(share, params, data.test, CLASSES), 0.75
    )
