"""What a model makes of each example: its loss, whether it is right, what metrics need.

Whoever takes a mean takes it of these, so that a function that gives one number for a
whole batch, or several for an example, is refused here, when it is traced.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from .. import check
from ..errors import SettingError
from .task import Array, Metric, PyTree, Task

cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def fused_cross_entropy(logits: Array, y: Array) -> Array:
    """`cross_entropy`, whose gradient an accelerator computes in one kernel, [batch].

    The gradient of optax's looks for the label in a scatter, which is a kernel of its own;
    here it compares. Numbers are the same, those of labels that no logit has, too.
    """
    return jax.nn.logsumexp(logits, -1) - _label_logits(logits, y)


@jax.custom_jvp
def _label_logits(logits: Array, y: Array) -> Array:
    """The logit of each label, [batch]; NaN for a label that none has."""
    return jnp.take_along_axis(logits, y[..., None], -1)[..., 0]


@_label_logits.defjvp
def _label_logits_jvp(primals, tangents):
    (logits, y), (dlogits, _) = primals, tangents
    classes = logits.shape[-1]
    place = y.astype(jnp.int32)
    place = jnp.where(place < 0, place + classes, place)  # as an index means it
    at_label = jax.nn.one_hot(place, classes, dtype=bool)
    return _label_logits(logits, y), jnp.where(at_label, dlogits, 0).sum(-1)


def logits_of(outputs: Any) -> Array:
    """The logits of what `Task.apply` or `Task.apply_train` returned, [batch, ...].

    Raises:
      SettingError: it is no Outputs, or its logits are no array.
    """
    if not hasattr(outputs, "logits"):
        raise SettingError(
            f"Task.apply returned {check.kind_of(outputs)}; return "
            "fa.Outputs(logits), or fa.Outputs(logits, features)."
        )
    logits = outputs.logits
    if not check.array(logits):
        raise SettingError(
            f"Task.apply returned Outputs whose logits are {check.kind_of(logits)}; return "
            "the array of logits alone, as in fa.Outputs(logits)."
        )
    return logits


def losses_of(task: Task, outputs: Any, y: Array) -> Array:
    """The loss of each example, [batch].

    Raises:
      SettingError: the outputs are no Outputs, the labels no integers where these are
        needed, or the loss is not one number per example.
    """
    logits, loss = logits_of(outputs), task.loss
    if loss is cross_entropy:
        _check_labels(logits, y)
        loss = fused_cross_entropy
    losses = loss(logits, y)
    shape = jnp.shape(losses)
    if shape != (len(y),):
        several = len(shape) > 1 and shape[0] == len(y)
        raise SettingError(
            f"Task.loss returned shape {list(shape)} for a batch of {len(y)}; return one "
            f"loss per example, [{len(y)}], such as "
            + ("losses.mean(-1)." if several else f"optax.{cross_entropy.__name__}.")
        )
    return losses


def _check_labels(logits: Array, y: Array) -> None:
    """Raises SettingError unless there is one integer label to each row of logits."""
    if jnp.issubdtype(y.dtype, jnp.integer) and y.shape == logits.shape[:-1]:
        return
    hint = "y.argmax(-1)" if y.shape == logits.shape else "y.astype(int)"
    if y.ndim == 2 and y.shape[1] == 1:
        hint = "y[:, 0].astype(int)"
    raise SettingError(
        f"the labels are {y.dtype}{list(y.shape)} for logits {list(logits.shape)}; "
        f"cross entropy takes one integer label each, such as {hint}, and a "
        "regression is fa.regression(model, input_shape)."
    )


def accuracy_of(task: Task, logits: Array, y: Array) -> Array:
    """Whether the model is right about each example, [batch] bool, or a share in [0, 1].

    NaN where the targets are no integer labels to the logits: of numbers that are
    predicted there is no accuracy.

    Raises:
      SettingError: `Task.accuracy` does not return one number per example.
    """
    if task.accuracy is not None:
        return _one_each("Task.accuracy", task.accuracy(logits, y), y)
    labelled = jnp.issubdtype(y.dtype, jnp.integer) and logits.ndim > 1
    if not labelled or logits.shape[-1] < 2 or y.shape != logits.shape[:-1]:
        return jnp.full(len(y), jnp.nan)
    right = largest_of(logits) == y
    return right if y.ndim == 1 else right.reshape(len(y), -1).mean(1)


def largest_of(logits: Array) -> Array:
    """Where the largest of the last axis lies, as `argmax(-1)` says, [batch, ...] int32.

    JAX makes and keeps another reducer whenever a program with its argmax is lowered, so
    that a process that trains many runs would grow. Here all programs share one.
    """
    floating = jnp.issubdtype(logits.dtype, jnp.floating)
    lowest = np.asarray(-np.inf if floating else 0, logits.dtype)
    if not np.isinf(lowest):  # integers, and floats of 8 bits
        return logits.argmax(-1).astype(jnp.int32)
    last = logits.ndim - 1
    places = jax.lax.broadcasted_iota(jnp.int32, logits.shape, last)
    pairs = jax.lax.stop_gradient(logits), places  # such a reduction has no derivative
    return jax.lax.reduce(pairs, (lowest, np.int32(0)), _larger, (last,))[1]


def _larger(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple:
    """The pair (value, place) of the larger value: NaN, or else the first of equals."""
    (value, place), (other_value, other_place) = one, other
    larger = (value > other_value) | (value != value)
    first = larger | ((value == other_value) & (place < other_place))
    value = jax.lax.select(larger, value, other_value)
    return value, jax.lax.select(first, place, other_place)


def each_of(task: Task, logits: Array, y: Array) -> dict[str, PyTree]:
    """The inputs of `Task.metrics` for each example, trees of [batch, ...] by name.

    Raises:
      SettingError: a metric is none, or does not return one number per example.
    """
    each = {}
    for name, metric in task.metrics.items():
        called = f"Task.metrics[{name!r}]"
        if not callable(metric) and not isinstance(metric, Metric):
            raise SettingError(
                f"{called} is {check.kind_of(metric)}; write a function (logits, y) -> "
                "[batch], or a Metric such as fa.metrics.f1."
            )
        if isinstance(metric, Metric):
            each[name] = metric.each(logits, y)
            for leaf in jax.tree.leaves(each[name]):
                if jnp.shape(leaf)[:1] != (len(y),):
                    raise SettingError(
                        f"{called}.each returned shape {list(jnp.shape(leaf))} for a "
                        f"batch of {len(y)}; return one row per example, [{len(y)}, ...]."
                    )
        else:
            each[name] = _one_each(called, metric(logits, y), y)
    return each


def final_of(task: Task, each: dict[str, PyTree], weight: Array) -> dict[str, Array]:
    """`Task.metrics` of the examples whose weight [n] is 1, scalars by name."""
    named = {}
    for name, metric in task.metrics.items():
        if isinstance(metric, Metric):
            named[name] = metric.final(each[name], weight)
        else:
            counted = jnp.where(weight > 0, each[name], 0)  # 0 x NaN is NaN
            named[name] = counted.sum() / weight.sum()
        if jnp.shape(named[name]) != ():
            raise SettingError(
                f"Task.metrics[{name!r}].final returned shape "
                f"{list(jnp.shape(named[name]))}; return one number, []."
            )
    return named


def _one_each(called: str, values: Array, y: Array) -> Array:
    if jnp.shape(values) != (len(y),):
        raise SettingError(
            f"{called} returned shape {list(jnp.shape(values))} for a batch of {len(y)}; "
            f"return one number per example, [{len(y)}]."
        )
    return values
