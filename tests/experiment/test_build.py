"""From a config to a federation: labels, projection and augmentation."""

import jax
import numpy as np
import pytest

import fedjax_adapt as fa
from fedjax_adapt.data import load
from fedjax_adapt.experiment.build import build, build_algorithm, scaled, validates
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.models import MODELS

SMALL = {"num_clients": 5, "partition": "dirichlet", "model": "linear"}


def built(**settings):
    return build(from_settings(SMALL | settings))


@pytest.mark.parametrize("name", ["digits", "synthetic", "gaussian_images"])
def test_a_folder_of_files_that_no_one_reads_is_said(name):
    says = f"^data_dir=/x does nothing: dataset={name} reads"
    with pytest.warns(UserWarning, match=says):
        built(dataset=name, data_dir="/x")


@pytest.mark.slow
def test_parity_relabels_what_was_split_by_the_labels_themselves():
    own, parity = built(), built(labels="parity", model="svm")
    for part in ("x", "index", "size"):
        np.testing.assert_array_equal(
            getattr(parity.data, part), getattr(own.data, part)
        )
    np.testing.assert_array_equal(parity.data.y, own.data.y % 2)
    np.testing.assert_array_equal(parity.data.test[1], own.data.test[1] % 2)
    assert parity.data.num_classes == parity.source.num_classes == 2
    assert parity.data.y.dtype == own.data.y.dtype
    logits = np.array([[-0.25, 0.25]])  # a score of -1/2
    np.testing.assert_allclose(parity.task.loss(logits, np.array([0])), [1.5**2 / 2])


@pytest.mark.slow
def test_the_svm_is_given_pixels_from_0_to_1():
    x = np.arange(64.0).reshape(1, 8, 8, 1) % 17
    kernel = np.arange(64.0)[:, None]
    task = built(labels="parity", model="svm").task
    logits = task.apply({"out": {"kernel": kernel}}, x).logits
    score = (x.reshape(-1) / 16) @ kernel[:, 0]  # the digits' pixels end at 16
    np.testing.assert_allclose(logits[0, 0] - logits[0, 1], score, rtol=1e-5)


def test_models_of_afl_are_given_pixels_and_others_standardised_inputs():
    source = load("digits")
    for model in MODELS:
        config = from_settings(SMALL | {"model": model})
        moments = scaled(config, source).mean, scaled(config, source).std
        pixels = model in ("svm", "fedveca_cnn")
        expected = (0, 16) if pixels else (source.mean, source.std)
        for found, wanted in zip(moments, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_only_the_first_examples_may_be_learned_from():
    every, few = built(), built(train_examples=200)
    assert few.data.size.sum() == len(few.data.x) == 200 < len(every.data.x)
    np.testing.assert_array_equal(few.source.x_train, every.source.x_train[:200])
    for part in ("x_test", "mean", "std"):  # what it is tested on is the same
        same = getattr(few.source, part), getattr(every.source, part)
        np.testing.assert_array_equal(*same)
    owned = load("synthetic")
    np.testing.assert_array_equal(owned.first(9).clients, owned.clients[:9])


def test_a_projection_makes_features_of_its_width():
    task = built(projection=9).task
    x = jax.ShapeDtypeStruct((2, 8, 8, 1), np.float32)
    params = jax.eval_shape(task.init, jax.random.key(0))
    assert jax.eval_shape(task.apply, params, x).features.shape == (2, 9)
    plain = jax.eval_shape(built().task.init, jax.random.key(0))
    assert fa.num_parameters(plain) == 650


@pytest.mark.slow
def test_augmentation_is_off_unless_asked_for():
    assert built().task.apply_train is None
    task, key = built(augment="flip_crop").task, jax.random.key(0)
    params, x = task.init(key), jax.random.normal(key, (20, 8, 8, 1))
    plain, train = task.apply(params, x), task.apply_train(params, x, key)
    moved = np.any(np.asarray(plain.logits) != np.asarray(train.logits), axis=1)
    assert 0 < moved.sum() < 20  # a quarter is neither flipped nor shifted


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"model": "svm"}, "but the data have 10; write labels=parity"),
        ({"model": "svm", "labels": "parity", "projection": 8}, "projection=none"),
        ({"projection": 0}, "projection=0 must be an integer >= 1"),
        ({"dataset": "synthetic", "augment": "flip_crop"}, "write augment=none"),
        ({"train_examples": 0}, "train_examples=0 must be an integer >= 1"),
        ({"train_examples": 1438}, "more than the 1437 training examples of digits"),
        ({"labels": "even"}, "labels='even'; write one of 'own', 'parity'"),
        ({"model": "lenet5"}, "needs .* at least 16 x 16 pixels"),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings, says):
    with pytest.raises(ValueError, match=says) as error:
        built(**settings)
    assert "\n" not in str(error.value)


def test_none_reaches_an_algorithm_whose_default_is_another():
    def judges(**options):
        algorithm = build_algorithm(
            from_settings(SMALL | {"algorithm": "feddf"} | options)
        )
        return validates(algorithm)

    assert judges() and not judges(patience=None)
    with pytest.raises(ValueError, match="patience=None validates nothing; write"):
        judges(patience=None, return_best_incl_init=True)
