"""The diagnostics of a round that papers draw and metrics lack, for any method.

`show_distance` and `show_parameters` put it into every round's `Info`, and so into the
tables of a run (settings `ideal_steps` and `watch`).

key, num_steps = jax.random.key(0), 20
shown = fa.show_deltas(algorithm)                # every client's move in info.clients
state = fa.init_state(shown, task, data, plan, key)
after, info = fa.make_round(shown, task, data, plan)(state, key)

ideal = diagnostics.central_params(task, data, plan, state.params, key, num_steps)
diagnostics.distance(after.params, ideal)        # FedGSNR, Fig. 8
diagnostics.consistency_by_layer(info.clients)   # GIFT, Fig. 3
diagnostics.step_entropy(info.num_steps)         # FedGSNR, Fig. 3
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from . import check
from .core import (
    Algorithm,
    Array,
    ClientState,
    Cohort,
    Key,
    LocalRun,
    Outcome,
    Params,
    PolicyState,
    State,
    Task,
    Upload,
    as_refinement,
    constant_steps,
    effective_steps,
    merged_report,
    norm_of,
    shapes_of,
)
from .data import FederatedDataset
from .engine.build import make_round
from .engine.evaluate import class_accuracy
from .engine.initial import init_state
from .engine.processes import put
from .engine.train import named
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
    """The Euclidean distance of two models, a scalar.

    Raises:
      SettingError: they are not of one kind, as one model and a stack of those of clients.
    """
    if shapes_of(params) != shapes_of(other):
        raise SettingError(
            f"distance got models {check.shown(params)} and {check.shown(other)}; give two "
            "of the same parameters."
        )
    return norm_of(optax.tree.sub(params, _moved(other, params)))


def _moved(params: Params, to: Params) -> Params:
    """`params` on the devices of `to`, which may be those of another plan."""
    if any(map(check.is_tracer, jax.tree.leaves((params, to)))):
        return params  # a traced model lies on no device yet
    move = lambda leaf, at: (
        put(leaf, at.sharding) if isinstance(at, jax.Array) else leaf
    )
    return jax.tree.map(move, params, to)


class Shown(NamedTuple):
    """The policy state of a method that shows more of its rounds."""

    inner: PolicyState  # of the algorithm's own policy
    scalars: dict[str, Array]  # of the last round


def show_distance(algorithm: Algorithm, num_steps: int) -> Algorithm:
    """The same algorithm, with `ideal_distance` in `Info.policy`, a scalar.

    It is the `distance` of the model after a round to the one that `num_steps` steps of
    gradient descent on the examples of all clients lead to, from the same model and at
    the round's learning rate: FedGSNR's Fig. 8. The gradients are of all examples, in
    evaluation mode, without momentum, weight decay or clipping, and cost as many passes.

    Raises:
      SettingError: num_steps is no integer of at least 1.
    """
    check.kinds("show_distance(algorithm)", algorithm=(algorithm, Algorithm))
    check.at_least("num_steps", num_steps, 1)

    def show(cohort: Cohort, outcome: Outcome) -> dict[str, Array]:
        gradient = jax.grad(cohort.train_loss)

        def descend(_, params):
            moved = optax.tree.add_scale(params, -outcome.setting.lr, gradient(params))
            return optax.tree.cast_like(moved, params)

        ideal = jax.lax.fori_loop(0, num_steps, descend, outcome.anchor)
        return {"ideal_distance": distance(outcome.params, ideal)}

    return _showing(algorithm, lambda _: {"ideal_distance": jnp.zeros(())}, show)


def show_parameters(algorithm: Algorithm, count: int) -> Algorithm:
    """The same algorithm, which shows `count` parameters, drawn once, the same in all runs.

    `parameter_0` and so on, in `Info.policy`, are those of the server's model after a
    round; `gradient_0` and so on, in `Info.clients`, the mean gradient that a client's
    steps followed there, its move over the learning rate and its steps: GIFT's Figs. 2
    and 3.

    Raises:
      SettingError: count is no integer of at least 1, or above the model's parameters.
    """
    check.kinds("show_parameters(algorithm)", algorithm=(algorithm, Algorithm))
    check.at_least("count", count, 1)
    finish = algorithm.local.finish

    def drawn(name: str, params: Params) -> dict[str, Array]:
        leaves = jax.tree.leaves(params)
        ends = np.cumsum([leaf.size for leaf in leaves])
        if count > ends[-1]:
            raise SettingError(
                f"{count} parameters are to be shown but the model has {ends[-1]}; ask "
                "for fewer.",
                setting="count",
            )
        places = np.random.default_rng(0).choice(ends[-1], count, replace=False)
        at = np.searchsorted(ends, places, side="right")
        flat = [
            leaves[leaf].ravel()[place - ends[leaf]]
            for leaf, place in zip(at, places, strict=True)
        ]
        return {f"{name}_{i}": value.astype(float) for i, value in enumerate(flat)}

    def shown(run: LocalRun) -> tuple[Upload, ClientState]:
        upload, client = finish(run)
        moved = optax.tree.sub(run.anchor, run.params)
        over = run.lr * effective_steps(run.num_steps, run.setting.momentum)
        gradient = drawn("gradient", optax.tree.scale(1 / over, moved))
        return upload._replace(info=dict(named(upload.info)) | gradient), client

    algorithm = algorithm._replace(local=algorithm.local._replace(finish=shown))
    return _showing(
        algorithm,
        lambda params: drawn("parameter", params),
        lambda _, after: drawn("parameter", after.params),
    )


def _showing(
    algorithm: Algorithm,
    first: Callable[[Params], dict[str, Array]],
    show: Callable[[Cohort, Outcome], dict[str, Array]],
) -> Algorithm:
    """The algorithm, whose policy also reports what `show` returns, scalars by name.

    `first` returns such scalars before the first round.
    """
    policy = algorithm.policy

    def init(params, num_clients):
        return Shown(policy.init(params, num_clients), first(params))

    def steps(state, cohort, measured):
        return policy.steps(state.inner, cohort, measured)

    def update(state, cohort, runs, outcome):
        inner = state.inner
        if policy.update is not None:
            inner = policy.update(inner, cohort, runs, outcome)
        return Shown(inner, show(cohort, outcome))

    def report(state, cohort, measured):
        shown = policy.report(state.inner, cohort, measured)
        return merged_report(
            shown, state.scalars, "StepPolicy.report", "the diagnostic"
        )

    best = policy.best and (lambda state, best=policy.best: best(state.inner))
    changed = policy._replace(
        init=init, steps=steps, update=update, report=report, best=best
    )
    return algorithm._replace(policy=changed)


def consistency_by_layer(deltas: Params) -> dict[str, Array]:
    """The agreement of clients' moves in each array of the model, from 0 to 1.

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

    Example:
      >>> print(fa.diagnostics.step_entropy(jnp.array([[5, 5], [10, 0]])))
      [0.6931472 0.       ]
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
    refine = as_refinement(algorithm.refine)
    if refine is None:
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
    # what it keeps stays there, for the state has it, and clients may read it
    plain = algorithm._replace(refine=refine._replace(clients=None, server=None))
    accuracy = []
    for method in (plain, algorithm):
        after, _ = make_round(method, task, data, plan)(state, key)
        accuracy.append(class_accuracy(task, after.params, data.test, data.num_classes))
    return accuracy[0], accuracy[1]
