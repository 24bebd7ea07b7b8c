"""The parts of methods that distil clients' models into the server's."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from . import check
from .core import (
    WEIGHTS,
    Algorithm,
    Array,
    Params,
    RefineSetup,
    RoundView,
    ServerRule,
    Task,
    accuracy_of,
    as_base,
    by_row,
    mean,
    widened,
)
from .errors import SettingError


def averaged(weights: str, base: Algorithm | None) -> Algorithm:
    """The base of a distilling method: its clients and the server's mean.

    Args:
      weights: of FedAvg's mean, "data" or "uniform".
      base: another algorithm in FedAvg's place, which averages by a rule of its own.

    Raises:
      SettingError: `weights` is unknown, or both are given; or `base` is no Algorithm.
    """
    check.one_of("weights", weights, WEIGHTS)
    if base is None:
        return Algorithm(server=ServerRule(combine=mean(WEIGHTS[weights])))
    if weights != "data":
        raise SettingError(
            f"weights={weights!r} is of FedAvg's mean, but the base averages by its own "
            "rule; leave weights or base out.",
            setting="weights",
        )
    return as_base(base)


def teachers(view: RoundView) -> Params:
    """The cohort's models, [cohort, ...]; the broadcast model where a slot holds none."""
    choose = lambda theirs, ours: jnp.where(
        by_row(view.cohort.active, theirs), theirs, ours[None]
    )
    return jax.tree.map(choose, view.runs.params, view.runs.anchor)


def of_each(
    predict: Callable[[Params], Array], models: Params, view: RoundView
) -> Array:
    """`predict` of every one of `models`, [cohort, ...]; as many at a time as train."""
    return jax.lax.map(predict, models, batch_size=view.num_lanes)


def kl(log_p: Array, log_q: Array) -> Array:
    """KL(p || q) in nats, of log-probabilities [..., classes]: [...]."""
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def accuracy(task: Task, params: Params, x: Array, y: Array, width: int = 256) -> Array:
    """The share of examples that a model is right about; `width` at a time."""
    num = len(y)
    rows = jnp.arange(num + -num % min(width, num)).reshape(-1, min(width, num))

    def right(rows):
        seen = jnp.minimum(rows, num - 1)
        logits = task.apply(params, x[seen]).logits
        shares = widened(accuracy_of(task, logits, y[seen]))
        return jnp.where(rows < num, shares, 0).sum()

    return jax.lax.map(right, rows).sum() / num


def check_softmax(name: str, setup: RefineSetup) -> None:
    """Raises SettingError unless there are logits whose softmax tells labels apart."""
    shape, least = setup.outputs.logits.shape[1:], 2
    if setup.labelled:
        least = max(least, setup.num_classes)
    if not shape or shape[-1] < least:
        raise SettingError(
            f"{name} takes the softmax of logits, {least} or more, but the model has "
            f"{list(shape)}; give it a logit for each label, or take another algorithm."
        )


def check_judged(name: str, task: Task, setup: RefineSetup) -> None:
    """Raises SettingError unless the accuracy of validation examples is known."""
    _, y = setup.public.validation
    places = setup.outputs.logits.shape[1:-1]
    labels = jnp.issubdtype(y.dtype, jnp.integer) and y.shape[1:] == places
    if task.accuracy is None and not labels:
        raise SettingError(
            f"{name} validates by accuracy but of targets {check.leaf(y[0])} none is "
            "known; give Task(..., accuracy=...), or integer labels."
        )


def check_labelled(name: str, setup: RefineSetup) -> None:
    """Raises SettingError unless every example has one integer label."""
    if not setup.labelled:
        raise SettingError(
            f"{name} counts the labels of clients but the data have no integer labels, "
            "one per example; take another algorithm."
        )


def label_counts(view: RoundView) -> Array:
    """The examples of each label that active clients hold, [cohort, classes]."""
    cohort = view.cohort
    counts = cohort.label_counts[jnp.minimum(cohort.ids, cohort.num_clients - 1)]
    return jnp.where(cohort.active[:, None], counts, 0)
