"""From a model, however it is written, to a task."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from .. import check, metrics
from ..core import Task, cross_entropy
from .augment import Augment
from .fit import checked, task_of


def classification(
    model: Any,
    input_shape: Sequence[int],
    mean: Any = 0.0,
    std: Any = 1.0,
    augment: Augment | None = None,
) -> Task:
    """A task: `model` under softmax cross entropy with integer labels.

    Inputs are normalised as (x - mean) / std in the units of the data; integer pixels
    become float32 first, floating inputs keep their dtype. A model that takes integers
    alone, such as one that begins with an embedding, gets its integers as they are: that
    is found out here, by tracing it with float32 inputs and then with int32.

    A module with methods `features(x)` and `head(features)` also says what goes into its
    last layer. One with a method `loss(logits, y) -> [batch]`, which may use none of its
    parameters, is trained and evaluated under that loss instead.

    An argument of the model called train, training, is_training or deterministic is given
    whether it is trained. A model that holds dropout which would never run is warned of.

    Args:
      model: one of
        a factory: `rngs -> nnx.Module` (a module class will do);
        an nnx module, whose weights are what `init` returns whatever its key;
        a linen module;
        an Equinox module, which takes one example and perhaps `key`, or a factory
        `key -> eqx.Module`;
        a Haiku transform `hk.transform(f)`, without state;
        a pair of functions (init(key) -> params, apply(params, x) -> logits or Outputs),
        of which `apply` may take key=None, given in training alone.
      input_shape: of one example.
      mean: subtracted from the inputs; a number or one per channel.
      std: inputs are divided by it; likewise.
      augment: (key, x) -> x, what `apply_train` does to the normalised inputs [batch,
        ...] before the model sees them, e.g. `models.flip_crop()`; evaluation never.

    Returns:
      The task. `apply_train` is None where nothing is random in training, and
      `apply_frozen` where nothing is augmented.

    Raises:
      ValueError: the model keeps state besides parameters (BatchNorm), returns no
        logits of shape [batch, classes], asks for an argument that nothing gives,
        `augment` does not take such inputs, or `model`, `mean` or `std` are none of the
        above.
    """
    call = "classification(model, input_shape)"
    task = task_of(call, model, input_shape, mean, std, augment, cross_entropy)
    return checked(task, input_shape, "logits [batch, classes]", 2)


def regression(
    model: Any,
    input_shape: Sequence[int],
    mean: Any = 0.0,
    std: Any = 1.0,
    augment: Augment | None = None,
) -> Task:
    """A task: `model` under the squared error, the mean over the outputs of an example.

    Targets are [batch] for one output, or [batch, outputs], in the units of the data;
    `evaluate` reports `named["rmse"]` and `named["r2"]`, and its accuracy is NaN.

    Args:
      model: as of `classification`; its logits [batch, outputs] are the predictions.
      input_shape: of one example.
      mean: subtracted from the inputs; a number or one per channel.
      std: inputs are divided by it; likewise.
      augment: as of `classification`.

    Raises:
      ValueError: as `classification`.
    """

    def loss(logits, y):
        squared = metrics.squared_errors(logits, y)
        return squared.reshape(len(y), -1).mean(1)

    call = "regression(model, input_shape)"
    task = task_of(call, model, input_shape, mean, std, augment, loss)
    task = task._replace(metrics={"rmse": metrics.rmse, "r2": metrics.r2})
    return checked(task, input_shape, "predictions [batch, outputs]", 2)


def language_model(model: Any, length: int, pad: int | None = None) -> Task:
    """A task: `model` predicts the next token of every place of a sequence.

    Inputs and targets are integers [batch, length], such as text[:, :-1] and text[:, 1:];
    the model returns logits [batch, length, vocabulary].

    The loss of an example is the mean over its tokens that count, and so is its accuracy,
    0 if it has none: examples weigh the same, however long they are. `evaluate` reports
    besides these, over all tokens, `named["perplexity"]` and `named["token_accuracy"]`,
    where every token weighs the same.

    Args:
      model: as of `classification`.
      length: places of a sequence.
      pad: a target that does not count; None: all do.

    Raises:
      ValueError: as `classification`; targets are no integers [batch, length].
    """
    call = "language_model(model, length)"
    check.at_least("length", length, 1)
    if pad is not None:
        check.kinds("language_model(model, length, pad=0)", pad=(pad, int))

    def share(values, counts):
        return values.sum(1) / jnp.maximum(counts.sum(1), 1)

    def loss(logits, y):
        return share(*metrics.tokens(logits, y, pad))

    def accuracy(logits, y):
        counts = metrics.tokens(logits, y, pad)[1]
        return share(counts & (logits.argmax(-1) == y), counts)

    task = task_of(call, model, (length,), 0.0, 1.0, None, loss)
    task = task._replace(
        accuracy=accuracy,
        metrics={
            "perplexity": metrics.perplexity(pad),
            "token_accuracy": metrics.token_accuracy(pad),
        },
    )
    return checked(task, (length,), "logits [batch, length, vocabulary]", 3)
