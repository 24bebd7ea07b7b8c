"""What figures of papers show of a round and its metrics do not, for any method.

key, num_steps = jax.random.key(0), 20
shown = fa.show_deltas(algorithm)                # every client's move in info.clients
state = fa.init_state(shown, task, data, plan, key)
after, info = fa.make_round(shown, task, data, plan)(state, key)

ideal = diagnostics.central_params(task, data, plan, state.params, key, num_steps)
diagnostics.distance(after.params, ideal)        # FedGSNR, Fig. 8
diagnostics.consistency_by_layer(info.clients)   # GIFT, Fig. 3
diagnostics.step_entropy(info.num_steps)         # FedGSNR, Fig. 3
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

from . import check
from .core import Algorithm, Array, Key, Params, State, Task, constant_steps
from .data import FederatedDataset
from .engine.build import make_round
from .engine.evaluate import class_accuracy
from .engine.initial import init_state
from .errors import SettingError
from .plan import Plan


def central_params(
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    params: Params,
    key: Key,
    num_steps: int,
) -> Params:
    """The model after so many steps of the plan's SGD on the data of all clients.

    Args:
      task: the task.
      data: of the clients, taken together.
      plan: of whose rounds this is the ideal; the learning rate is that of its first.
      params: the model to start from.
      key: draws the batches.
      num_steps: local steps.

    Raises:
      SettingError: num_steps is no integer of at least 1.
    """
    check.at_least("num_steps", num_steps, 1)
    alone = replace(plan, cohort_size=None, participation=None, lanes=1, devices=1)
    alone = replace(alone, max_steps=None, clock=None)
    algorithm = Algorithm(policy=constant_steps(num_steps))
    pooled = data.pooled()
    state = init_state(algorithm, task, pooled, alone, key)._replace(params=params)
    after, _ = make_round(algorithm, task, pooled, alone)(state, key)
    return after.params


def distance(params: Params, other: Params) -> Array:
    """The Euclidean distance of two models, a scalar."""
    return optax.tree.norm(optax.tree.sub(params, other))


def consistency_by_layer(deltas: Params) -> dict[str, Array]:
    """How far the clients' moves agree in each array of the model, from 0 to 1.

    The mean over its entries of |sum of the moves| by the sum of |moves|, 0 where none
    moved: 1 where all go one way, about 0 where they cancel. This is GIFT's gradient
    consistency (eq. 1) of a single round, without its averages over rounds.

    Args:
      deltas: of the clients, stacked, [cohort, ...]; see `show_deltas`.
    """

    def of(moves: Array) -> Array:
        size = jnp.abs(moves).sum(0)
        share = jnp.abs(moves.sum(0)) / jnp.where(size > 0, size, 1)
        return share.mean()

    name = lambda path: jax.tree_util.keystr(path, simple=True, separator=".")
    leaves = jax.tree_util.tree_leaves_with_path(deltas)
    return {name(path): of(moves) for path, moves in leaves}


def step_entropy(num_steps: Array) -> Array:
    """The entropy in nats of the clients' shares of the local steps, [...].

    It is log n where n clients take equally many; 0 where one takes them all, or none any.

    Args:
      num_steps: of each client, [..., clients].
    """
    steps = jnp.asarray(num_steps, jnp.float32)
    total = steps.sum(-1, keepdims=True)
    return jax.scipy.special.entr(steps / jnp.where(total > 0, total, 1)).sum(-1)


def refinement_by_class(
    algorithm: Algorithm,
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    state: State,
    key: Key,
) -> tuple[Array, Array]:
    """Test accuracy of each label before and after a round's refinement, two [classes].

    Both are of the server's model after the same round, without the refinement and with
    it, where FNR-FL's Fig. 5 has them of one client's model. A label without test examples
    has 0.

    Args:
      algorithm: with a refinement, such as `fnr()`.
      task: the task.
      data: with a test set and what the refinement needs.
      plan: of the round.
      state: before it.
      key: of the round.

    Raises:
      SettingError: there is no refinement, or no test set.
    """
    if algorithm.refine is None:
        raise SettingError(
            "refinement_by_class(algorithm, ...) got an algorithm without a refinement; "
            "write one that has it, such as fa.algorithms.fnr().",
            setting="algorithm",
        )
    if data.test is None or data.num_classes is None:
        raise SettingError(
            "refinement_by_class(..., data, ...) needs labelled test examples; build the "
            "data with test=(x, y).",
            setting="data",
        )
    plain = algorithm._replace(refine=None)
    accuracy = []
    for method in (plain, algorithm):
        after, _ = make_round(method, task, data, plan)(state, key)
        accuracy.append(class_accuracy(task, after.params, data.test, data.num_classes))
    return accuracy[0], accuracy[1]
