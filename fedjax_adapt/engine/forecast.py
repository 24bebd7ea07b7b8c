"""What rounds will be like, as far as the host can tell before the first.

Who takes part is drawn as rounds draw it, with keys of its own. How many local steps each
client takes a policy can say before anybody has trained, unless it goes by what clients
measure; one that learns is asked about the first round.
"""

from functools import partial
from typing import NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Params, StepPolicy, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from .batches import batch_size
from .cohort import gather_cohort, num_slots, sample_cohort, with_num_steps

DRAWS = 16  # rounds looked at


class _Asked(Exception):
    """A policy has asked for a loss that nobody knows yet."""


def cohorts(plan: Plan, data: FederatedDataset) -> np.ndarray:
    """Who takes part in some rounds: ids, [DRAWS, slots]; an empty slot holds num_clients.

    Where the first to end make the cohort, any of those that start may be among them.
    """
    with jax.ensure_compile_time_eval():
        keys = jax.random.split(jax.random.key(0), DRAWS)
        draw = jax.jit(jax.vmap(partial(sample_cohort, plan, data)))
        ids = np.asarray(draw(keys))
    slots = num_slots(plan, data)
    if ids.shape[1] > slots:
        ids = np.random.default_rng(0).permuted(ids, axis=1)[:, :slots]
    return np.sort(ids, axis=1)


def client_steps(
    policy: StepPolicy, task: Task, data: FederatedDataset, plan: Plan
) -> np.ndarray | None:
    """Local steps of every client in the first round, [num_clients].

    None where the host cannot tell: they follow from what clients measure or from a loss,
    or from numbers or data that are traced.
    """
    if policy.measure is not None:
        return None
    params = jax.eval_shape(task.init, jax.random.key(0))
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), params)
    try:
        with jax.ensure_compile_time_eval():
            ids = jnp.arange(data.num_clients, dtype=jnp.int32)
            width = batch_size(data, plan)
            cohort = gather_cohort(data, ids, jnp.zeros((), jnp.int32), width)
            cohort = cohort._replace(train_loss=_ask)
            state = policy.init(zeros, data.num_clients)
            wanted = policy.steps(state, cohort, ())
            return np.asarray(with_num_steps(cohort, wanted, plan, policy)[0].num_steps)
    except (_Asked, jax.errors.TracerArrayConversionError):
        return None


def cohort_steps(
    policy: StepPolicy, task: Task, data: FederatedDataset, plan: Plan
) -> np.ndarray | None:
    """Local steps of the clients of some rounds, [DRAWS, slots]; 0 in empty slots.

    None: as for `client_steps`.
    """
    steps = client_steps(policy, task, data, plan)
    try:
        return None if steps is None else np.append(steps, 0)[cohorts(plan, data)]
    except jax.errors.TracerArrayConversionError:  # who takes part is traced
        return None


def _ask(params: Params) -> NoReturn:
    del params
    raise _Asked
