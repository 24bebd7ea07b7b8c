"""What a model makes of each example of a set, in evaluation mode, and means of it."""

from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import check
from ..core import (
    Array,
    Metrics,
    Params,
    PyTree,
    Task,
    accuracy_of,
    each_of,
    final_of,
    logits_of,
    losses_of,
    precise,
)
from ..errors import SettingError
from . import mesh
from .contract import named_task
from .xla import jit_newest


class Scores(NamedTuple):
    """What a model makes of each example.

    Attributes:
      right: [n] bool, or a share in [0, 1]; NaN where there is no label.
      loss: [n].
      each: what the task's metrics need, trees of [n, ...] by name.
    """

    right: Array
    loss: Array
    each: dict[str, PyTree]


@lru_cache(32)
def shapes_of(task: Task) -> tuple[Any, list[tuple[int, ...]]]:
    """Structure and shapes of the parameters of a task."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    return jax.tree.structure(params), [leaf.shape for leaf in jax.tree.leaves(params)]


def check_model(caller: str, task: Task, params: Params) -> None:
    """Raises ValueError unless these are parameters of the task's model."""
    found = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
    if (jax.tree.structure(params), found) != shapes_of(task):
        made = jax.eval_shape(task.init, jax.random.key(0))
        raise SettingError(
            f"{caller} got params {check.shown(params)} for a task whose parameters are "
            f"{check.shown(made)}; give state.params of a round on this task."
        )


def scores(
    task: Task,
    params: Params,
    examples: tuple[Array, Array],
    batch_size: int = 500,
    devices: int | str = 1,
) -> Scores:
    """What a model makes of each of the examples (x [n, ...], y [n])."""
    n = len(examples[1])
    num_devices = mesh.count(devices, n)
    width = min(batch_size, -(-n // num_devices))
    if num_devices > 1:
        params = mesh.everywhere(params, num_devices)
        examples = mesh.shown(examples, num_devices)
    return _scores(task, width, num_devices, params, *map(jnp.asarray, examples))


@jax.jit
def overall(scored: Scores) -> Metrics:
    """Accuracy and mean loss over all examples. Both scalars."""
    n = scored.right.shape[0]
    return Metrics(accuracy=scored.right.sum() / n, loss=scored.loss.sum() / n)


@partial(jax.jit, static_argnums=2)
def by_class(scored: Scores, y: Array, num_classes: int) -> Array:
    """The accuracy on the examples of each label, [num_classes]."""
    right = jnp.zeros(num_classes).at[y].add(scored.right)
    count = jnp.zeros(num_classes, jnp.int32).at[y].add(1)
    return right / jnp.maximum(count, 1)


@jax.jit
def by_client(scored: Scores, index: Array, size: Array) -> Metrics:
    """Accuracy and mean loss of each client's examples, [clients]; 0 without any."""
    own = jnp.arange(index.shape[1])[None] < size[:, None]
    mean = lambda leaf: jnp.where(own, leaf[index], 0).sum(1) / jnp.maximum(size, 1)
    return Metrics(accuracy=mean(scored.right), loss=mean(scored.loss))


@jit_newest(static=1)
def named(task: Task, each: dict[str, PyTree], weight: Array) -> dict[str, Array]:
    """The task's metrics of the examples whose weight [n] is 1, scalars by name."""
    return final_of(task, each, weight)


@jit_newest(static=1)
def named_by_client(
    task: Task, each: dict[str, PyTree], index: Array, size: Array
) -> dict[str, Array]:
    """The task's metrics of each client's examples, [clients] by name; 0 without any."""

    def of_client(row, size):
        own = jax.tree.map(lambda leaf: leaf[row], each)
        weight = (jnp.arange(row.shape[0]) < size).astype(float)
        named = final_of(task, own, weight)
        return jax.tree.map(lambda value: jnp.where(size > 0, value, 0), named)

    # one client after another: a metric may need much of every example
    return jax.lax.map(lambda client: of_client(*client), (index, size))


@jit_newest(static=3)
def _scores(task, width, num_devices, params, x, y):
    n = x.shape[0]
    blocks = -(-n // (width * num_devices)) * num_devices
    rows = jnp.arange(blocks * width).reshape(-1, width)

    task = named_task(task)  # what a model raises is one sentence

    def on_device(shared, rows, table):
        params, x, y = shared

        @precise(task)
        def block(rows):
            rows = jnp.minimum(rows, n - 1)  # the last block is filled up
            outputs, labels = task.apply(params, x[rows]), y[rows]
            logits = logits_of(outputs)
            return Scores(
                right=accuracy_of(task, logits, labels),
                loss=losses_of(task, outputs, labels),
                each=each_of(task, logits, labels),
            )

        return (), jax.lax.map(block, rows), table

    _, scored, _ = mesh.run_on_devices(on_device, (params, x, y), rows, (), num_devices)
    whole = lambda leaf: leaf.reshape(blocks * width, *leaf.shape[2:])[:n]
    scored = jax.tree.map(whole, scored)
    return mesh.everywhere(scored, num_devices)
