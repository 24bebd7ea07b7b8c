r"""The value of each client's update to the test set, by leaving clients out.

    v(S)     = value of  w + sum_{k in S} p_k delta_k / sum_{k in S} p_k,   v({}) of w
    loo_k    = v(all) - v(all without k)
    shapley_k = mean over orders of the cohort of v(those up to k) - v(those before k)

The updates of a cohort are stacked, so a coalition is a vector of weights, and no client
trains again.

References:
  Ghorbani & Zou, "Data Shapley: Equitable Valuation of Data for Machine Learning", ICML
  2019, https://arxiv.org/abs/1904.02868. Algorithm 1 (truncated Monte Carlo).
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from . import check
from .core import (
    Algorithm,
    Array,
    Info,
    Key,
    Mean,
    Params,
    Task,
    model_weights,
    rows_are_like,
    weighted_sum,
)
from .data.dataset import FederatedDataset
from .engine.batches import batch_size
from .engine.cohort import expected_share, gather_cohort, setting_of, without
from .engine.evaluate import evaluate
from .errors import SettingError
from .plan import Plan

Value = Literal["accuracy", "loss"]


def show_deltas(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, with every client's displacement in `Info.clients`.

    They are stacked, [cohort, ...], and 0 for a client that took no step; they take the
    place of what the algorithm shows there. `with_privacy` has not clipped them yet, nor
    has `with_compression` compressed them.
    """
    check.kinds("show_deltas(algorithm)", algorithm=(algorithm, Algorithm))
    finish = algorithm.local.finish

    def shown(run):
        upload, client = finish(run)  # which may send something else, as FedNova does
        return upload._replace(info=optax.tree.sub(run.params, run.anchor)), client

    return algorithm._replace(local=algorithm.local._replace(finish=shown))


def cohort_weights(
    algorithm: Algorithm, data: FederatedDataset, plan: Plan, info: Info, round: int
) -> Array:
    """The weights with which the server averaged what clients sent, [cohort].

    Args:
      algorithm: whose server takes a weighted mean, see `core.Mean`.
      data: who holds how many examples.
      plan: of the round.
      info: of the round.
      round: its number, zero based.
    """
    assert isinstance(algorithm.server.combine, Mean)
    width = batch_size(data, plan)
    cohort = gather_cohort(data, jnp.asarray(info.cohort), jnp.asarray(round), width)
    steps = jnp.asarray(info.num_steps)
    cohort = cohort._replace(num_steps=steps, active=steps > 0)
    if not isinstance(info.left_out, tuple):
        cohort = without(cohort, jnp.asarray(info.left_out))
    setting = setting_of(plan, algorithm, cohort, expected_share(data, plan))
    return model_weights(algorithm.server, cohort._replace(setting=setting))


def leave_one_out(
    task: Task,
    params: Params,
    deltas: Params,
    weights: Array,
    test: tuple[Array, Array],
    value: Value = "loss",
) -> Array:
    """v(all) - v(all without k) of every client k, [cohort].

    Args:
      task: the task.
      params: the model the cohort started from.
      deltas: the clients' displacements, stacked, [cohort, ...]; see `show_deltas`.
      weights: p_k [cohort], at least 0; 0 for a client that did not train.
      test: (x [n, ...], y [n]).
      value: of a model, "accuracy" or "loss" (its negative, so that more is better).

    Raises:
      SettingError: `value` is unknown, a weight is below 0 or NaN, or weights, deltas and
        params are not of one cohort and model.
    """
    call = "leave_one_out(task, params, deltas, weights, test)"
    worth = _worth(call, task, params, deltas, weights, test, value)
    size = weights.shape[0]
    coalitions = jnp.concatenate([jnp.ones((1, size)), 1 - jnp.eye(size)])
    values = jax.lax.map(worth, coalitions)
    return values[0] - values[1:]


def shapley(
    task: Task,
    params: Params,
    deltas: Params,
    weights: Array,
    test: tuple[Array, Array],
    key: Key,
    num_orders: int = 100,
    tolerance: float = 0.0,
    value: Value = "loss",
) -> Array:
    """Shapley values of a cohort from random orders, [cohort].

    With tolerance 0 they sum to v(all) - v({}).

    Args:
      task: the task.
      params: the model the cohort started from.
      deltas: as for `leave_one_out`.
      weights: likewise.
      test: likewise.
      key: draws the orders.
      num_orders: how many; the error falls with its square root.
      tolerance: once v is as near to v(all), the rest of an order counts 0.
      value: as for `leave_one_out`.

    Raises:
      SettingError: an argument is out of its range.
    """
    check.at_least("num_orders", num_orders, 1)
    check.nonnegative("tolerance", tolerance)
    call = "shapley(task, params, deltas, weights, test, jax.random.key(0))"
    check.kinds(call, key=(key, check.key))
    worth = _worth(call, task, params, deltas, weights, test, value)
    size = weights.shape[0]
    none, all_ = worth(jnp.zeros(size)), worth(jnp.ones(size))

    def of_order(key):
        order = jax.random.permutation(key, size)

        def goes_on(carry):
            j, _, before, _ = carry
            unlike = jnp.abs(all_ - before) > tolerance
            # without a tolerance none is cut: a value may be reached and left again
            return (j < size) & ((j == 0) | (tolerance == 0) | unlike)

        def add(carry):
            j, members, before, gains = carry
            members = members.at[order[j]].set(1)
            now = worth(members)
            return j + 1, members, now, gains.at[order[j]].set(now - before)

        empty = jnp.zeros(size)
        return jax.lax.while_loop(goes_on, add, (0, empty, none, empty))[3]

    return jax.lax.map(of_order, jax.random.split(key, num_orders)).mean(0)


def _worth(
    call, task, params, deltas, weights, test, value
) -> Callable[[Array], Array]:
    """A function from members [cohort], 0 or 1, to the value of their mean."""
    check.kinds(
        call,
        task=(task, Task),
        params=(params, check.tree),
        deltas=(deltas, check.tree),
        weights=(weights, check.array),
        test=(test, check.pair),
    )
    check.one_of("value", value, ("accuracy", "loss"))
    if weights.ndim != 1:
        raise SettingError(
            f"weights have shape {list(weights.shape)}; write one number per client."
        )
    if not check.is_tracer(weights):
        below = np.flatnonzero(~(np.asarray(weights) >= 0))  # NaN is
        if len(below):
            raise SettingError(
                f"weights[{below[0]}] is {weights[below[0]]}; write numbers of at least 0."
            )
    for leaf in jax.tree.leaves(deltas):
        if leaf.shape[0] != weights.shape[0]:
            raise SettingError(
                f"there are {weights.shape[0]} weights but deltas of {leaf.shape[0]} "
                "clients; give both of the same cohort."
            )
    if not rows_are_like(deltas, params):
        raise SettingError(
            f"deltas are {check.shown(deltas)} for a model {check.shown(params)}; give "
            "what show_deltas(algorithm) shows, [cohort, ...] of the same parameters."
        )

    def worth(members):
        p = members * weights
        p = p / jnp.where(p.sum() > 0, p.sum(), 1)
        move = lambda w, delta: w + weighted_sum(p, p > 0, delta)
        metrics = evaluate(task, jax.tree.map(move, params, deltas), test)
        return metrics.accuracy if value == "accuracy" else -metrics.loss

    return worth
