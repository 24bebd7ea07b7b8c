"""What a model takes and returns, found out by tracing it, and the task it makes."""

import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError

from .. import check
from ..core import Array, Task
from ..errors import SettingError
from .augment import Augment
from .modules import Model
from .pure import pure


def task_of(
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
    made, dtype = _read(call, model, input_shape, same_units)
    if made.silent is not None:
        warnings.warn(made.silent, UserWarning, stacklevel=3)
    made = _alike(made)
    whole = dtype == jnp.int32
    prepare = partial(_normalise, call, input_shape, mean, std, whole)
    if augment is not None:
        example = jax.ShapeDtypeStruct((2, *input_shape), dtype)
        jax.eval_shape(augment, jax.random.key(0), example)
    return Task(
        init=made.init,
        apply=lambda params, x: made.apply(params, prepare(x)),
        loss=made.loss or loss,
        apply_train=_training(made, prepare, augment),
        apply_frozen=_frozen(made, prepare, augment),
        head=made.head,
        restore=None if same_units else partial(_restore, mean, std),
    )


def _read(
    call: str, model: Any, input_shape: tuple, same_units: bool
) -> tuple[Model, Any]:
    """The model as pure functions, and the dtype it takes: float32, or else int32.

    Raises:
      ValueError: it takes no inputs of this shape.
    """

    def read(dtype):
        made = pure(model, jax.ShapeDtypeStruct(input_shape, dtype))
        batch = jax.ShapeDtypeStruct((2, *input_shape), dtype)
        once = lambda key, x: made.apply(made.init(key), x)
        jax.eval_shape(once, jax.random.key(0), batch)
        return made, dtype

    unfit = (ValueError, TypeError, FlaxError)
    try:
        return read(jnp.float32)
    except unfit as error:
        first = error
    try:  # an embedding takes nothing but integers
        found = read(jnp.int32)
    except unfit as second:
        for error in (first, second):
            if _is_ours(error):  # about the model, not its inputs
                raise error from None
        said = [str(error).partition("\n")[0] for error in (first, second)]
        said = " nor int32: ".join(dict.fromkeys(said))  # the same is said once
        raise SettingError(
            f"the model takes no inputs of shape {list(input_shape)} (float32: {said}); "
            f"give {call} the shape of one example, without the batch."
        ) from first
    if not same_units:
        raise SettingError(
            f"{call} got mean and std for a model that takes integers, which are not "
            "normalised; leave them out."
        )
    return found


def _is_ours(error: Exception) -> bool:
    """Whether it was raised by this package, in a sentence that says what to do."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals["__name__"].startswith(__package__)


def _alike(model: Model) -> Model:
    """The model, its inputs in bfloat16 where its parameters are; see `with_precision`."""

    def rounded(params, x):
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(params)}
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
    of_rank = lambda a: a.reshape((1,) * (x.ndim - a.ndim) + a.shape).astype(x.dtype)
    return (x - of_rank(mean)) / of_rank(std)


def _restore(mean: np.ndarray, std: np.ndarray, x: Array) -> Array:
    """The inverse of `_normalise`."""
    of_rank = lambda a: a.reshape((1,) * (x.ndim - a.ndim) + a.shape).astype(x.dtype)
    return x * of_rank(std) + of_rank(mean)


def checked(task: Task, input_shape: Sequence[int], wanted: str, ndim: int) -> Task:
    """The task, traced once, so that a misfit is reported before anything runs.

    Raises:
      ValueError: the model does not return what is `wanted`, of so many axes.
    """
    x = jax.ShapeDtypeStruct((2, *input_shape), jnp.int32)  # what any model takes

    def returned(function, *keys):
        outputs = jax.eval_shape(
            lambda key, x: function(task.init(key), x, *keys), jax.random.key(0), x
        )
        return outputs.logits

    functions = [(task.apply, ())]
    if task.apply_train is not None:
        functions.append((task.apply_train, (jax.random.key(0),)))
    for function, keys in functions:
        logits = returned(function, *keys)
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
