"""Metrics by name, for `Task.metrics`, which `evaluate` reports besides accuracy and loss.

    task = task._replace(metrics={"f1": fa.metrics.f1, "top3": fa.metrics.top(3)})
    fa.evaluate(task, params, data.test).named["f1"]

    of numbers   rmse, r2: the mean over several outputs; r2 is NaN for equal targets
    of labels    f1: the mean over the labels that occur, in the data or as a guess
                 auc: of label 1 of two, or the mean over each label against the rest, of
                 those that occur; NaN where there is but one
                 top5, top(k)
    of tokens    perplexity(pad), token_accuracy(pad): all tokens weigh the same

All are scikit-learn's, but for its numbers where there is nothing to count. Where a label
is below 0 or past the last logit, f1 and auc are NaN.

One of your own is a function (logits, y) -> [batch], whose mean over the examples is
taken, or a `Metric` where the number is no mean.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from . import check
from .core import Array, Metric, by_row, fused_cross_entropy
from .errors import SettingError


def predicted(logits: Array, y: Array) -> Array:
    """The predictions of a regression, in the shape of its targets y [batch] or [batch, k].

    Raises:
      SettingError: there are not as many predictions as targets.
    """
    if logits.shape == y.shape:
        return logits
    if logits.shape == (*y.shape, 1):
        return logits[..., 0]
    outputs = y.shape[1] if y.ndim == 2 else 1
    raise SettingError(
        f"the model predicts {list(logits.shape)} for targets {list(y.shape)}; build it "
        f"with {outputs} output{'s' * (outputs > 1)}."
    )


def squared_errors(logits: Array, y: Array) -> Array:
    """(prediction - target)^2, [batch] or [batch, k]."""
    return (predicted(logits, y) - y) ** 2


def tokens(logits: Array, y: Array, pad: int | None) -> tuple[Array, Array]:
    """The loss of each token, and which count, [batch, time]: those that are not `pad`.

    The loss is NaN where a token that counts is below 0: as an index it would mean another.

    Raises:
      SettingError: there is not one integer token to each row of logits.
    """
    if y.ndim != 2 or y.shape != logits.shape[:-1] or not _whole(y):
        raise SettingError(
            f"the targets are {y.dtype}{list(y.shape)} for logits {list(logits.shape)}; "
            "give the next token of each place, integers [batch, time], such as "
            "x=text[:, :-1] and y=text[:, 1:]."
        )
    counts = jnp.ones(y.shape, bool) if pad is None else y != pad
    losses = jnp.where(y < 0, jnp.nan, fused_cross_entropy(logits, y))
    return jnp.where(counts, losses, 0), counts


def top(k: int) -> Callable[[Array, Array], Array]:
    """The share of examples whose label is among the k largest logits.

    Raises:
      SettingError: k is no integer of at least 1, or there are fewer logits.

    Example:
      >>> logits = jnp.array([[0.1, 0.7, 0.2], [0.1, 0.7, 0.2]])
      >>> print(fa.metrics.top(2)(logits, jnp.array([2, 0])))
      [ True False]
    """
    check.at_least("k", k, 1)

    def among(logits, y):
        _check_labels(f"top({k})", logits, y, k)
        return (jax.lax.top_k(logits, k)[1] == y[:, None]).any(1)

    return among


top5 = top(5)


def perplexity(pad: int | None = None) -> Metric:
    """exp of the mean loss of all tokens that count; all weigh the same."""

    def each(logits, y):
        losses, counts = tokens(logits, y, pad)
        return losses.sum(1), counts.sum(1)

    def final(each, weight):
        losses, counts = each
        return jnp.exp(_sum(losses, weight) / _sum(counts, weight))

    return Metric(each, final)


def token_accuracy(pad: int | None = None) -> Metric:
    """The share of all tokens that count whose largest logit is the token."""

    def each(logits, y):
        counts = tokens(logits, y, pad)[1]
        return (counts & (logits.argmax(-1) == y)).sum(1), counts.sum(1)

    def final(each, weight):
        right, counts = each
        return _sum(right, weight) / _sum(counts, weight)

    return Metric(each, final)


def _rmse(squared: Array, weight: Array) -> Array:
    return jnp.sqrt(_mean(squared, weight)).mean()


def _r2(each: tuple[Array, Array], weight: Array) -> Array:
    prediction, y = each
    around = (y - _mean(y, weight)[None]) ** 2
    share = 1 - _mean((prediction - y) ** 2, weight) / _mean(around, weight)
    counts = weight.reshape(-1, *[1] * (y.ndim - 1)) > 0
    least = jnp.where(counts, y, jnp.inf).min(0)
    most = jnp.where(counts, y, -jnp.inf).max(0)
    # their mean, rounded, may differ from equal targets: `around` need not be 0
    return jnp.where(least < most, share, jnp.nan).mean()


def _label_pairs(logits: Array, y: Array) -> tuple[Array, Array, Array]:
    _check_labels("f1", logits, y)
    # no number in it, but its shape says how many labels there are
    classes = jnp.zeros((len(y), 0, logits.shape[1]))
    return logits.argmax(1), y, classes


def _f1(each: tuple[Array, Array, Array], weight: Array) -> Array:
    guess, y, classes = each
    count = lambda labels, n: jnp.zeros(classes.shape[-1]).at[labels].add(n)
    hits = count(y, weight * (guess == y))
    either = count(y, weight) + count(guess, weight)
    occurs = either > 0
    mean = (2 * hits / jnp.maximum(either, 1)).sum() / occurs.sum()
    return jnp.where(_within(y, weight, classes.shape[-1]), mean, jnp.nan)


def _ranked(logits: Array, y: Array) -> tuple[Array, Array]:
    _check_labels("auc", logits, y, 1)
    if logits.shape[1] == 2:
        logits = logits[:, 1:] - logits[:, :1]
    elif logits.shape[1] > 2:
        logits = jax.nn.log_softmax(logits)
    return logits, y


def _auc(each: tuple[Array, Array], weight: Array) -> Array:
    scores, y = each
    labels = jnp.arange(scores.shape[1]) if scores.shape[1] > 1 else jnp.ones(1, int)
    with_it = jnp.where(y[:, None] == labels[None], weight[:, None], 0)
    areas = jax.vmap(_area, in_axes=(1, 1, None))(scores, with_it, weight)
    defined = (
        with_it.sum(0) * (weight.sum() - with_it.sum(0)) > 0
    )  # some with, some without
    mean = jnp.where(defined, areas, 0).sum() / defined.sum()
    return jnp.where(_within(y, weight, max(scores.shape[1], 2)), mean, jnp.nan)


def _area(score: Array, with_it: Array, weight: Array) -> Array:
    """The chance that an example with the label scores above one without; ties half."""
    without = weight - with_it
    order = jnp.argsort(score)
    below = jnp.concatenate([jnp.zeros(1), jnp.cumsum(without[order])])
    place = lambda side: below[jnp.searchsorted(score[order], score, side=side)]
    beaten = (place("left") + place("right")) / 2 / without.sum()
    broken = (jnp.isnan(score) & (weight > 0)).any()
    return jnp.where(broken, jnp.nan, (with_it * beaten).sum() / with_it.sum())


rmse = Metric(squared_errors, _rmse)
r2 = Metric(lambda logits, y: (predicted(logits, y), y), _r2)
f1 = Metric(_label_pairs, _f1)
auc = Metric(_ranked, _auc)


def _check_labels(name: str, logits: Array, y: Array, least: int = 2) -> None:
    if y.ndim != 1 or logits.ndim != 2 or not _whole(y):
        raise SettingError(
            f"metrics.{name} got targets {y.dtype}{list(y.shape)} and logits "
            f"{list(logits.shape)}; it takes integer labels [batch] and logits [batch, "
            "classes]."
        )
    if logits.shape[1] < least:
        raise SettingError(
            f"metrics.{name} got {logits.shape[1]} logits but takes {least} or more."
        )


def _within(y: Array, weight: Array, num_classes: int) -> Array:
    """Whether all labels that count are in [0, num_classes)."""
    return ((y >= 0) & (y < num_classes) | (weight == 0)).all()


def _whole(y: Array) -> bool:
    return jnp.issubdtype(y.dtype, jnp.integer)


def _sum(values: Array, weight: Array) -> Array:
    """The sum over the examples that count; of [n, k] the sums of each column."""
    weight = by_row(weight, values)
    return jnp.where(weight > 0, values * weight, 0).sum(0)


def _mean(values: Array, weight: Array) -> Array:
    return _sum(values, weight) / weight.sum()
