"""The metrics of a model on a test set, on each of its classes, and for each client.

All three count the same: whether the model is right about each example, its loss, and
what the task's metrics need of it, found in one pass in evaluation mode.
"""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import (
    Array,
    Metrics,
    Params,
    PyTree,
    Task,
    accuracy_of,
    cross_entropy,
    each_of,
    final_of,
    logits_of,
    losses_of,
    precise,
    shapes_of,
    widened,
)
from ..errors import SettingError
from . import mesh
from .contract import guarded_task
from .xla import jit_newest


class Scores(NamedTuple):
    """The scores of a model for each example.

    Attributes:
      right: [n] bool, or a share in [0, 1]; NaN where there is no label.
      loss: [n].
      each: what the task's metrics need, trees of [n, ...] by name.
    """

    right: Array
    loss: Array
    each: dict[str, PyTree]


def evaluate(
    task: Task,
    params: Params,
    test: tuple[Array, Array],
    batch_size: int = 500,
    devices: int | str = 1,
) -> Metrics:
    """Accuracy, mean loss and the task's metrics over all examples, in evaluation mode.

    Accuracy is NaN where the targets are no labels, as in a regression.

    Args:
      task: the task.
      params: parameters of its model.
      test: (x [n, ...], y [n]).
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.

    Raises:
      SettingError: there are no test examples, or fewer than `devices` devices, or an
        argument is not of its kind; or a label of a classification is below 0, or the
        task's loss, its accuracy or a metric does not return one number per example.
    """
    check.at_least("batch_size", batch_size, 1)
    _check_call("evaluate(task, params, test)", task, params, test)
    if task.loss is cross_entropy:
        _check_from_0("evaluate", test[1])
    scored = scores(task, params, test, batch_size, devices)
    return overall(scored)._replace(named=named_overall(task, scored))


def class_accuracy(
    task: Task,
    params: Params,
    test: tuple[Array, Array],
    num_classes: int,
    batch_size: int = 500,
    devices: int | str = 1,
) -> Array:
    """The share of each label's examples that the model gets right, [num_classes].

    It is 0 for a label without examples.

    Args:
      task: the task.
      params: parameters of its model.
      test: (x [n, ...], y [n]), integer labels.
      num_classes: how many labels there are.
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.

    Raises:
      SettingError: there are no test examples, they have not one integer label each, one
        is below 0 or `num_classes` or more, or there are fewer than `devices` devices.
    """
    check.at_least("batch_size", batch_size, 1)
    _check_call("class_accuracy(task, params, test, num_classes)", task, params, test)
    check.at_least("num_classes", num_classes, 1)
    y = test[1] if check.array(test[1]) else np.asarray(test[1])
    if not jnp.issubdtype(y.dtype, jnp.integer) or y.ndim != 1:
        raise SettingError(
            f"class_accuracy got labels {y.dtype}{list(y.shape)} but counts by label; give "
            f"one integer each, [{len(y)}], such as y.argmax(1) of one-hot labels."
        )
    if not check.is_tracer(y):
        largest = int(np.asarray(y).max(initial=0))
        if largest >= num_classes:
            raise SettingError(
                f"num_classes={num_classes} but a test label is {largest}; write "
                f"num_classes={largest + 1} or more."
            )
    _check_from_0("class_accuracy", y)
    scored = scores(task, params, test, batch_size, devices)
    return by_class(scored, jnp.asarray(test[1]), num_classes)


def scores(
    task: Task,
    params: Params,
    examples: tuple[Array, Array],
    batch_size: int = 500,
    devices: int | str = 1,
) -> Scores:
    """The scores of a model for the examples (x [n, ...], y [n])."""
    n = len(examples[1])
    num_devices = mesh.count(devices, n)
    width = min(batch_size, -(-n // num_devices))
    if num_devices > 1:
        params = mesh.everywhere(params, num_devices)
        examples = mesh.to_read(examples, num_devices)
    return _scores(task, width, num_devices, params, *map(jnp.asarray, examples))


@jit_newest(static=3)
def _scores(task, width, num_devices, params, x, y):
    n = x.shape[0]
    blocks = -(-n // (width * num_devices)) * num_devices
    rows = jnp.arange(blocks * width).reshape(-1, width)

    task = guarded_task(task)  # what a model raises is one sentence

    def on_device(shared, rows, table):
        params, x, y = shared

        @precise(task)
        def block(rows):
            rows = jnp.minimum(rows, n - 1)  # the last block is filled up
            return score(task, params, x[rows], y[rows])

        return (), jax.lax.map(block, rows), table

    _, scored, _ = mesh.run_on_devices(on_device, (params, x, y), rows, (), num_devices)
    whole = lambda leaf: leaf.reshape(blocks * width, *leaf.shape[2:])[:n]
    scored = jax.tree.map(whole, scored)
    return mesh.everywhere(scored, num_devices)


@jax.jit
def overall(scored: Scores) -> Metrics:
    """Accuracy and mean loss over all examples. Both scalars."""
    n = scored.right.shape[0]
    return Metrics(accuracy=scored.right.sum() / n, loss=scored.loss.sum() / n)


def named_overall(task: Task, scored: Scores) -> dict[str, Array]:
    """The task's metrics over all examples, scalars by name; {} if it has none."""
    if not task.metrics:
        return {}
    return _final(task, scored.each, jnp.ones(scored.loss.shape))


@partial(jax.jit, static_argnums=2)
def by_class(scored: Scores, y: Array, num_classes: int) -> Array:
    """The accuracy on the examples of each label, [num_classes]."""
    right = jnp.zeros(num_classes).at[y].add(scored.right)
    count = jnp.zeros(num_classes, jnp.int32).at[y].add(1)
    return right / jnp.maximum(count, 1)


@jax.jit
def by_client(scored: Scores, index: Array, size: Array) -> Metrics:
    """Accuracy and mean loss of each client's examples, [clients]; 0 without any."""
    real = jnp.arange(index.shape[1])[None] < size[:, None]
    mean = lambda leaf: jnp.where(real, leaf[index], 0).sum(1) / jnp.maximum(size, 1)
    return Metrics(accuracy=mean(scored.right), loss=mean(scored.loss))


_final = jit_newest(static=1)(final_of)


@jit_newest(static=1)
def named_metrics_by_client(
    task: Task, each: dict[str, PyTree], index: Array, size: Array
) -> dict[str, Array]:
    """The task's metrics of each client's examples, [clients] by name; 0 without any."""

    def of_client(row, size):
        of_rows = jax.tree.map(lambda leaf: leaf[row], each)
        weight = (jnp.arange(row.shape[0]) < size).astype(float)
        named = final_of(task, of_rows, weight)
        return jax.tree.map(lambda value: jnp.where(size > 0, value, 0), named)

    # one client after another: a metric may need much of every example
    return jax.lax.map(lambda client: of_client(*client), (index, size))


def score(task: Task, params: Params, x: Array, y: Array) -> Scores:
    """The scores of a model for the examples x [n, ...], y [n]."""
    outputs = task.apply(params, x)
    logits = logits_of(outputs)
    return Scores(
        right=widened(accuracy_of(task, logits, y)),
        loss=widened(losses_of(task, outputs, y)),
        each=widened(each_of(task, logits, y)),
    )


def _check_call(call: str, task: Task, params: Params, test: Any) -> None:
    """Raises SettingError unless a model can be evaluated so."""
    check.kinds(call, task=(task, Task), params=(params, check.tree))
    caller = call.partition("(")[0]
    if test is None or (check.pair(test) and np.shape(test[1]) == (0,)):
        raise SettingError(
            f"{caller} got test={test}; give (x, y), as in "
            "from_clients(..., test=(x, y))."
        )
    check.kinds(call, test=(test, check.pair))
    check_model(caller, task, params)
    for name, part in zip("xy", test, strict=True):
        _check_examples(caller, name, part)
    n, labels = np.shape(test[0])[0], np.shape(test[1])[0]
    if n != labels:
        raise SettingError(
            f"{caller} got {n} inputs and {labels} labels for test=(x, y); give one label "
            "per input."
        )


def _check_from_0(caller: str, labels: Any) -> None:
    """Raises SettingError if a label is below 0: it would count as the last class."""
    if check.is_tracer(labels):
        return
    labels = np.asarray(labels)
    if jnp.issubdtype(labels.dtype, jnp.integer) and labels.min(initial=0) < 0:
        raise SettingError(
            f"{caller} got a test label {labels.min()}; labels count from 0, so leave "
            "examples without one out."
        )


def _check_examples(caller: str, name: str, part: Any) -> None:
    """Raises SettingError unless it is an array of numbers, or becomes one."""
    if isinstance(part, dict):
        raise SettingError(
            f"{caller} got a dict for {name} of test=(x, y); give one array, such as its "
            "columns side by side, and let the model cut them up."
        )
    part = part if check.array(part) else np.asarray(part)
    if part.dtype.kind in "USO":
        raise SettingError(
            f"{caller} got text for {name} of test=(x, y); write numbers, such as "
            f"numpy.unique({name}, return_inverse=True)[1]."
        )
    if part.ndim == 0:
        raise SettingError(
            f"{caller} got one number for {name} of test=(x, y); give an array with a row "
            "per example."
        )


@lru_cache(32)
def shapes_made(task: Task) -> tuple[Any, list[tuple[int, ...]]]:
    """Structure and shapes of the parameters of a task."""
    return shapes_of(jax.eval_shape(task.init, jax.random.key(0)))


def check_model(caller: str, task: Task, params: Params) -> None:
    """Raises SettingError unless these are parameters of the task's model."""
    if shapes_of(params) != shapes_made(task):
        made = jax.eval_shape(task.init, jax.random.key(0))
        raise SettingError(
            f"{caller} got params {check.shown(params)} for a task whose parameters are "
            f"{check.shown(made)}; give state.params of a round on this task."
        )
