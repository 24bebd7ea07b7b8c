"""Accuracy on each class and on each client's own examples, against NumPy."""

import jax
import numpy as np
import pytest
from helpers import CLASSES, SIZES, close, make_data

import fedjax_adapt as fa


@pytest.fixture(scope="module")
def params(task):
    return task.init(jax.random.key(3))


def scored(task, params, x, y):
    logits = np.asarray(task.apply(params, x).logits)
    return logits.argmax(1) == np.asarray(y), np.asarray(task.loss(logits, y))


def test_class_accuracy_is_the_mean_over_each_label(task, data, params):
    x, y = data.test
    right, _ = scored(task, params, x, y)
    expected = [right[np.asarray(y) == label].mean() for label in range(CLASSES)]
    for changes in ({}, {"batch_size": 7}, {"batch_size": 7, "devices": 3}):
        given = fa.class_accuracy(task, params, data.test, CLASSES, **changes)
        np.testing.assert_allclose(given, expected, rtol=1e-6)


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
