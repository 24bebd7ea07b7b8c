"""From a model, however it is written, to a task; what it takes is found by tracing."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check, metrics
from ..core import Array, Task, cross_entropy
from ..errors import SettingError
from .augment import Augment
from .modules import Model
from .pure import read_model


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

    A module with methods `features(x)` and `head(features)`, whose __call__ is the one of
    the other, also says what goes into its last layer. One with a method
    `loss(logits, y) -> [batch]`, which may use none of its parameters, is trained and
    evaluated under that loss instead.

    An argument of the model called train, training, is_training, deterministic or inference
    is given whether it is trained. A model that holds dropout which would never run is
    warned of.

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
      SettingError: the model keeps state besides parameters (BatchNorm), returns no
        logits of shape [batch, classes], asks for an argument that nothing gives,
        `augment` does not take such inputs, or `model`, `mean` or `std` are none of the
        above.
    """
    call = "classification(model, input_shape)"
    task = _task_of(call, model, input_shape, mean, std, augment, cross_entropy)
    return _checked(task, input_shape, "logits [batch, classes]", 2)


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
      SettingError: as `classification`.
    """

    def loss(logits, y):
        squared = metrics.squared_errors(logits, y)
        return squared.reshape(len(y), -1).mean(1)

    call = "regression(model, input_shape)"
    task = _task_of(call, model, input_shape, mean, std, augment, loss)
    task = task._replace(metrics={"rmse": metrics.rmse, "r2": metrics.r2})
    return _checked(task, input_shape, "predictions [batch, outputs]", 2)


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
      SettingError: as `classification`; targets are no integers [batch, length].
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

    task = _task_of(call, model, (length,), 0.0, 1.0, None, loss)
    named = {"perplexity": metrics.perplexity, "token_accuracy": metrics.token_accuracy}
    named = {name: metric(pad) for name, metric in named.items()}
    task = task._replace(accuracy=accuracy, metrics=named)
    return _checked(task, (length,), "logits [batch, length, vocabulary]", 3)


def _task_of(
    call: str,
    model: Any,
    input_shape: Sequence[int],
    mean: Any,
    std: Any,
    augment: Augment | None,
    loss: Callable,
) -> Task:
    """The task of a model under `loss`, or the model's own."""
    check.kinds(call, input_shape=(input_shape, check.shape))
    input_shape = tuple(input_shape)
    mean, std = np.asarray(mean), np.asarray(std)
    for name, moment in (("mean", mean), ("std", std)):
        kinds = (jnp.integer, jnp.floating)
        is_number = any(jnp.issubdtype(moment.dtype, kind) for kind in kinds)
        if not is_number or not np.isfinite(moment).all():
            raise SettingError(
                f"{name}={moment.tolist()!r} is not a finite number; write one, or one per "
                "channel."
            )
        if moment.ndim > len(input_shape) or any(
            n not in (1, of)
            for n, of in zip(moment.shape[::-1], input_shape[::-1], strict=False)
        ):
            raise SettingError(
                f"{name} has shape {list(moment.shape)} for inputs {list(input_shape)}; "
                "write a number, or one per channel."
            )
    if not np.all(std > 0):
        raise SettingError(f"std={std.tolist()} must be above 0.")
    same_units = bool(np.all(mean == 0) and np.all(std == 1))
    made, dtype = read_model(call, model, input_shape, same_units)
    if made.silent is not None:
        warnings.warn(made.silent, UserWarning, stacklevel=3)
    made = _alike(made)
    whole = dtype == jnp.int32
    prepare = partial(_normalise, call, input_shape, mean, std, whole)
    if augment is not None:
        _check_augment(augment, jax.ShapeDtypeStruct((2, *input_shape), dtype))
    train, frozen = _training(made, prepare, augment)
    return Task(
        init=made.init,
        apply=lambda params, x: made.apply(params, prepare(x)),
        loss=made.loss or loss,
        apply_train=train,
        apply_frozen=frozen,
        head=made.head,
        restore=None if same_units else partial(_restore, mean, std),
    )


def _alike(model: Model) -> Model:
    """The model, its inputs in bfloat16 where its parameters are; see `with_precision`."""

    def rounded(params, x):
        dtypes = set(map(jnp.result_type, jax.tree.leaves(params)))
        floats = {dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)}
        narrow = floats == {jnp.dtype(jnp.bfloat16)}
        is_float = jnp.issubdtype(x.dtype, jnp.floating)
        return x.astype(jnp.bfloat16) if narrow and is_float else x

    def taking(function):
        return lambda params, x, *key: function(params, rounded(params, x), *key)

    train = model.apply_train
    return model._replace(
        apply=taking(model.apply), apply_train=None if train is None else taking(train)
    )


def _training(model: Model, prepare: Callable, augment: Augment | None):
    """The task's `apply_train` and `apply_frozen`, each None where nothing is random.

    Augmentation and dropout have each its key: `apply_frozen` augments as `apply_train`.
    """
    train = model.apply_train
    if augment is None:
        if train is None:
            return None, None
        return (lambda params, x, key: train(params, prepare(x), key)), None

    def frozen(params, x, key):
        key_augment, _ = jax.random.split(key)
        return model.apply(params, augment(key_augment, prepare(x)))

    if train is None:
        return frozen, frozen

    def trained(params, x, key):
        key_augment, key_model = jax.random.split(key)
        return train(params, augment(key_augment, prepare(x)), key_model)

    return trained, frozen


def _check_augment(augment: Augment, x: jax.ShapeDtypeStruct) -> None:
    """Raises SettingError unless it is a function (key, x) -> the like of x."""
    wanted = "write a function (key, x) -> x, such as fa.models.flip_crop()."
    try:
        inspect.signature(augment).bind(jax.random.key(0), x)
    except TypeError as error:
        shown = check.kind_of(augment)
        raise SettingError(
            f"augment is {shown}, which takes no (key, x); {wanted}"
        ) from error
    made = jax.eval_shape(augment, jax.random.key(0), x)
    shown = check.kind_of(made)
    if hasattr(made, "dtype"):
        shown = f"{made.dtype}{list(made.shape)}"
    if shown != f"{x.dtype}{list(x.shape)}":
        raise SettingError(
            f"augment returned {shown} for inputs {x.dtype}{list(x.shape)}; return as many "
            "of the same shape and kind."
        )


def _normalise(
    call: str, shape: tuple, mean: np.ndarray, std: np.ndarray, whole: bool, x: Array
) -> Array:
    if x.shape[1:] != shape:
        raise SettingError(
            f"the model takes inputs of shape {list(shape)} but got a batch of shape "
            f"{list(x.shape)}; give {call} the shape {list(x.shape[1:])}."
        )
    if whole:
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise SettingError(
                f"the model takes integers but got inputs {x.dtype}; give tokens as int32."
            )
        return x
    if not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    if np.all(mean == 0) and np.all(std == 1):
        return x
    return (x - _like(x, mean)) / _like(x, std)


def _restore(mean: np.ndarray, std: np.ndarray, x: Array) -> Array:
    """The inverse of `_normalise`."""
    return x * _like(x, std) + _like(x, mean)


def _like(x: Array, moment: np.ndarray) -> np.ndarray:
    """A mean or deviation with as many axes as `x`, in its dtype."""
    shape = (1,) * (x.ndim - moment.ndim) + moment.shape
    return moment.reshape(shape).astype(x.dtype)


def _checked(task: Task, input_shape: Sequence[int], wanted: str, ndim: int) -> Task:
    """The task, traced once, so that a misfit is reported before anything runs."""
    x = jax.ShapeDtypeStruct((2, *input_shape), jnp.int32)  # what any model takes
    key = jax.random.key(0)
    functions, train = [task.apply], task.apply_train
    if train is not None:
        functions.append(lambda params, x: train(params, x, key))
    for function in functions:
        once = lambda key, x, function=function: function(task.init(key), x)
        logits = jax.eval_shape(once, key, x).logits
        shape = getattr(logits, "shape", None)
        if shape is None:
            raise SettingError(
                f"the model returned {check.kind_of(logits)}; it must return {wanted} "
                "alone, without state or other results, or fa.Outputs(logits, features)."
            )
        if len(shape) != ndim or shape[0] != 2:
            raise SettingError(
                f"the model returned shape {list(shape)} for a batch of 2 inputs of shape "
                f"{list(input_shape)}; it must return {wanted}."
            )
    return task
