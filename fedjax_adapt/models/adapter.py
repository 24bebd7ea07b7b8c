"""From a model, however it is written, to a classification task."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import check
from ..core import Array, Task
from .augment import Augment
from .modules import Model, pure


def classification(
    model: Any,
    input_shape: Sequence[int],
    mean: Any = 0.0,
    std: Any = 1.0,
    augment: Augment | None = None,
) -> Task:
    """A task: `model` under softmax cross entropy with integer labels.

    Inputs are normalised as (x - mean) / std in the units of the data; integer pixels
    become float32 first, floating inputs keep their dtype. A module with methods
    `features(x)` and `head(features)` also says what goes into its last layer. One with
    a method `loss(logits, y) -> [batch]`, which may use none of its parameters, is
    trained and evaluated under that loss instead.

    Args:
      model: one of
        a factory: `rngs -> nnx.Module` (a module class will do);
        an nnx module, whose weights are what `init` returns whatever its key;
        a linen module;
        a pair of functions (init(key) -> params, apply(params, x) -> logits or Outputs).
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
        logits of shape [batch, classes], `augment` does not take such inputs, or `model`,
        `mean` or `std` are none of the above.
    """
    call = "classification(model, input_shape)"
    check.kinds(call, input_shape=(input_shape, check.shape))
    input_shape = tuple(input_shape)
    mean, std = np.asarray(mean), np.asarray(std)
    if not np.all(std > 0):
        raise ValueError(f"std={std.tolist()} must be above 0.")
    model = _alike(pure(model, input_shape))
    prepare = partial(_normalise, input_shape, mean, std)
    same_units = np.all(mean == 0) and np.all(std == 1)
    task = Task(
        init=model.init,
        apply=lambda params, x: model.apply(params, prepare(x)),
        loss=model.loss or optax.softmax_cross_entropy_with_integer_labels,
        apply_train=_training(model, prepare, augment),
        apply_frozen=_frozen(model, prepare, augment),
        head=model.head,
        restore=None if same_units else partial(_restore, mean, std),
    )
    example = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    _check_logits(task, example)
    if augment is not None:
        jax.eval_shape(augment, jax.random.key(0), example)
    return task


def _alike(model: Model) -> Model:
    """The model, its inputs in bfloat16 where its parameters are; see `with_precision`."""

    def rounded(params, x):
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(params)}
        floats = {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
        return x.astype(jnp.bfloat16) if floats == {jnp.dtype(jnp.bfloat16)} else x

    def taking(function):
        return lambda params, x, *key: function(params, rounded(params, x), *key)

    train = model.apply_train
    return model._replace(
        apply=taking(model.apply), apply_train=None if train is None else taking(train)
    )


def _training(model: Model, prepare: Callable, augment: Augment | None):
    """The task's `apply_train`: augmentation and dropout, each with its own key."""
    apply_train = model.apply_train
    if augment is None:
        if apply_train is None:
            return None
        return lambda params, x, key: apply_train(params, prepare(x), key)

    def augmented(params, x, key):
        key_augment, key_model = jax.random.split(key)
        x = augment(key_augment, prepare(x))
        if apply_train is None:
            return model.apply(params, x)
        return apply_train(params, x, key_model)

    return augmented


def _frozen(model: Model, prepare: Callable, augment: Augment | None):
    """The task's `apply_frozen`: the augmentation of `apply_train`, and nothing else."""
    if augment is None:
        return None

    def augmented(params, x, key):
        key_augment, _ = jax.random.split(key)
        return model.apply(params, augment(key_augment, prepare(x)))

    return augmented


def _normalise(shape: tuple, mean: np.ndarray, std: np.ndarray, x: Array) -> Array:
    if x.shape[1:] != shape:
        raise ValueError(
            f"the model takes inputs of shape {list(shape)} but got a batch of shape "
            f"{list(x.shape)}; give classification(model, input_shape={x.shape[1:]})."
        )
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    if np.all(mean == 0) and np.all(std == 1):
        return x
    of_rank = lambda a: a.reshape((1,) * (x.ndim - a.ndim) + a.shape).astype(x.dtype)
    return (x - of_rank(mean)) / of_rank(std)


def _restore(mean: np.ndarray, std: np.ndarray, x: Array) -> Array:
    """The inverse of `_normalise`."""
    of_rank = lambda a: a.reshape((1,) * (x.ndim - a.ndim) + a.shape).astype(x.dtype)
    return x * of_rank(std) + of_rank(mean)


def _check_logits(task: Task, example: jax.ShapeDtypeStruct) -> None:
    """Traces the model once, so that a misfit is reported before anything runs."""
    outputs = jax.eval_shape(
        lambda key, x: task.apply(task.init(key), x), jax.random.key(0), example
    )
    shape = list(getattr(outputs.logits, "shape", ()))
    if len(shape) != 2 or shape[0] != 2:
        raise ValueError(
            f"the model returned shape {shape} for a batch of 2 inputs of shape "
            f"{list(example.shape[1:])}; it must return logits [batch, classes]."
        )
