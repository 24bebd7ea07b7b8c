"""What a model is worth on a data set."""

from functools import partial

import jax
import jax.numpy as jnp

from ..core import Array, Metrics, Params, Task
from . import mesh


def evaluate(
    task: Task,
    params: Params,
    test: tuple[Array, Array],
    batch_size: int = 500,
    devices: int | str = 1,
) -> Metrics:
    """Accuracy and mean loss over all examples, in evaluation mode.

    Args:
      task: the task.
      params: parameters of its model.
      test: (x [n, ...], y [n]).
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.

    Raises:
      ValueError: there are no test examples, or fewer than `devices` devices.
    """
    if test is None or not len(test[1]):
        raise ValueError(
            f"evaluate got test={test}; give (x, y), as in from_clients(..., test=(x, y))."
        )
    x, y = map(jnp.asarray, test)
    num_devices = mesh.count(devices, len(y))
    width = min(batch_size, -(-len(y) // num_devices))
    if num_devices > 1:
        params = mesh.everywhere(params, num_devices)
    return _evaluate(task, width, num_devices, params, x, y)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _evaluate(task, width, num_devices, params, x, y):
    n = x.shape[0]
    blocks = -(-n // (width * num_devices)) * num_devices
    rows = jnp.arange(blocks * width).reshape(-1, width)

    def total(shared, rows):
        params, x, y = shared

        def block(rows):
            real, rows = rows < n, jnp.minimum(rows, n - 1)
            logits = task.apply(params, x[rows]).logits
            right = logits.argmax(-1) == y[rows]
            losses = task.loss(logits, y[rows])
            return (right & real).sum(), jnp.where(real, losses, 0).sum()

        right, losses = jax.lax.map(block, rows)
        return (right.sum(), losses.sum()), ()

    (right, losses), _ = mesh.spread(total, (params, x, y), rows, num_devices)
    return Metrics(accuracy=right / n, loss=losses / n)
