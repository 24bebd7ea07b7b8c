"""The bare loop: SGD on one model, and nothing federated. What a round cannot beat.

    theta <- theta - lr (grad loss(theta; batch) + weight_decay theta)

in one jitted loop over as many steps as a round takes over all its clients; model and
loss are the task's own. Where our round trains some clients side by side, as many models
train here, on as many devices, each with its share of the steps; nothing is averaged.

Batches are `gathered` from all examples by an index that was shuffled before, or lie
`ready` one after the other.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from readings import Ready

import fedjax_adapt as fa
from fedjax_adapt.core import precise
from fedjax_adapt.engine import mesh
from fedjax_adapt.engine.xla import compiler_options

ACCESS = ("gathered", "ready")


def sgd(
    task: fa.Task,
    params: Any,
    num_steps: int,
    batch_at: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    lr: float,
    weight_decay: float,
) -> Any:
    """The parameters after `num_steps` steps. `batch_at`: step -> (x, y)."""

    def loss(params, x, y):
        return task.loss(task.apply(params, x).logits, y).mean()

    def step(i, params):
        grads = jax.grad(loss)(params, *batch_at(i))
        move = lambda p, g: p - lr * (g + weight_decay * p)
        return jax.tree.map(move, params, grads)

    return jax.lax.fori_loop(0, num_steps, step, params)


def models(
    task: fa.Task,
    plan: fa.Plan,
    num_devices: int,
    params: Any,
    examples: tuple[jax.Array, jax.Array],
    own: Any,
) -> Any:
    """The parameters of every model after its steps, [models, ...].

    Args:
      task: model and loss.
      plan: its lr and weight_decay.
      num_devices: that take the same number of models each.
      params: that all begin with.
      examples: (x, y) that batches are gathered from; () where they lie ready.
      own: what each model sees, [models, steps, batch, ...]: rows of the examples, or
        (x, y).
    """
    num_steps = jax.tree.leaves(own)[0].shape[1]

    def one(params, examples, own):
        def batch_at(i):
            now = jax.tree.map(lambda leaf: leaf[i], own)
            return (examples[0][now], examples[1][now]) if examples else now

        lr, weight_decay = plan.lr, plan.weight_decay
        return sgd(task, params, num_steps, batch_at, lr, weight_decay)

    def on_a_device(params, examples, own):
        if jax.tree.leaves(own)[0].shape[0] == 1:  # a batched product of one is slower
            only = jax.tree.map(lambda leaf: leaf[0], own)
            return jax.tree.map(lambda leaf: leaf[None], one(params, examples, only))
        return jax.vmap(one, (None, None, 0))(params, examples, own)

    on_a_device = precise(task)(on_a_device)  # as a round multiplies
    if num_devices == 1:
        return on_a_device(params, examples, own)
    every, cut = PartitionSpec(), PartitionSpec(mesh.AXIS)
    spread = jax.shard_map(
        on_a_device,
        mesh=mesh.mesh_of(num_devices),
        in_specs=(every, every, cut),
        out_specs=cut,
        check_vma=False,  # a loop's parameters begin as the same on all devices
    )
    return spread(params, examples, own)


def rows_of_a_round(
    data: fa.FederatedDataset, cohort: int, batch: int, num_models: int, seed: int = 0
) -> np.ndarray:
    """One shuffled epoch of a random cohort, divided among models: [models, steps, batch].

    Clients hold equally many examples, a multiple of `batch`.

    Raises:
      ValueError: the number of models does not divide the steps.
    """
    rng = np.random.default_rng(seed)
    rows = np.asarray(data.index)[rng.choice(data.num_clients, cohort, False)]
    steps = rng.permuted(rows, axis=1).reshape(-1, batch)
    if len(steps) % num_models:
        raise ValueError(
            f"{len(steps)} steps cannot be divided among {num_models} models; give "
            "--lanes and --devices whose product divides them."
        )
    return steps.reshape(num_models, -1, batch).astype(np.int32)


def bare_loop(
    task: fa.Task,
    data: fa.FederatedDataset,
    plan: fa.Plan,
    params: Any,
    access: str,
    num_devices: int,
    num_lanes: int,
) -> Ready:
    """The steps of one round of `plan` per call, on `num_lanes` models per device."""
    num_models = num_devices * num_lanes
    rows = rows_of_a_round(data, plan.cohort_size, plan.batch_size, num_models)
    examples, own = (data.x, data.y), rows
    if access == "ready":
        pick = lambda leaf: np.asarray(leaf)[rows]
        examples, own = (), tuple(map(pick, examples))
    params = mesh.everywhere(jax.tree.map(jnp.copy, params), num_devices)
    examples = mesh.to_read(examples, num_devices)
    if num_devices > 1:
        cut = jax.sharding.NamedSharding(
            mesh.mesh_of(num_devices), PartitionSpec(mesh.AXIS)
        )
        own = jax.device_put(own, cut)
    arguments = params, examples, jax.tree.map(jnp.asarray, own)
    program = jax.jit(partial(models, task, plan, num_devices))
    begin = time.perf_counter()
    program = program.lower(*arguments).compile(compiler_options(num_lanes))
    about = {
        "compile_seconds": round(time.perf_counter() - begin, 2),
        "num_lanes": num_lanes,
        "num_devices": num_devices,
        "parameters": fa.num_parameters(params),
    }
    trained = program(*arguments)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(trained)):
        raise ValueError("the bare loop diverges, so its time would say nothing.")
    return Ready(lambda: program(*arguments), about)
