r"""FedDF: the server learns from its clients' ensemble, on unlabelled public data.

    w <- sum_{i in S} p_i theta_i                      the student, p_i = n_i / sum_{S} n
    t(x) = 1/m sum_{i in S} logits(theta_i; x)         the teachers, "avg_logits"
    w <- w - lr_n Adam(grad 1/B sum_x KL(softmax t(x) || softmax logits(w; x)))
    lr_n = lr (1 + cos(pi n / N)) / 2                  n = 0 ... N - 1, x of the public set

Every so many steps the student is validated; the best one is the next global model, and
distillation ends when it is `patience` steps old. A run shows its validation accuracy as
`student_accuracy`.

References:
  Lin et al., "Ensemble Distillation for Robust Model Fusion in Federated Learning",
  NeurIPS 2020, https://arxiv.org/abs/2006.07242. Algorithm 1, Eq. (1), and the authors'
  code, https://github.com/epfml/federated-learning-public-code.

Departs from the paper: one model for all clients. The student starts as the mean by data
size, as in the paper; the code's is uniform (`weights="uniform"`). The last step is
validated too, where the code could end with none that was. It uses auxiliary data that
FedAvg has not: unlabelled public inputs, and a labelled validation set for early stopping.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    Params,
    Refinement,
    Task,
    by_row,
    predict_frozen,
    predict_train,
    with_refinement,
)
from ..distill import (
    accuracy,
    averaged,
    check_judged,
    check_softmax,
    kl,
    of_each,
    teachers,
)
from ..errors import SettingError

TEACHING = ("avg_logits", "avg_probs", "avg_losses")


class Progress(NamedTuple):
    """Where a distillation stands."""

    student: Params
    optimizer: optax.OptState
    step: Array  # steps taken
    best: Params
    best_accuracy: Array
    best_step: Array


def feddf(
    distill_steps: int = 10_000,
    distill_lr: float = 1e-3,
    distill_batch: int = 128,
    distill_clip: float | None = 5.0,
    teaching: Literal["avg_logits", "avg_probs", "avg_losses"] = "avg_logits",
    drop_worst: bool = False,
    patience: int | None = 1000,
    validate_every: int = 100,
    return_best_incl_init: bool = False,
    weights: Literal["data", "uniform"] = "data",
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds FedDF. Without distillation steps it is its base, to the bit.

    Args:
      distill_steps: N, at most so many steps on the public set in a round.
      distill_lr: Adam's, at the first step.
      distill_batch: public inputs per step.
      distill_clip: largest norm of a gradient; none: no limit.
      teaching: what the student is drawn to: the softmax of the teachers' mean logits,
        their mean probabilities, or each of them ("avg_losses", which has the gradient
        of "avg_probs").
      drop_worst: leave out teachers whose validation accuracy is below 1.2 / classes,
        unless all are.
      patience: steps without a better validation accuracy before it ends; none: all N
        steps are taken, nothing is validated and the last student counts.
      validate_every: steps between validations.
      return_best_incl_init: whether the mean itself may be the best student, as the code
        has for an option; only with patience.
      weights: of the mean, "data" or "uniform"; only without a base.
      base: any algorithm; none: FedAvg.
    """
    check.at_least("distill_steps", distill_steps, 0)
    check.positive("distill_lr", distill_lr)
    check.at_least("distill_batch", distill_batch, 1)
    if distill_clip is not None:
        check.positive("distill_clip", distill_clip)
    check.one_of("teaching", teaching, TEACHING)
    check.at_least("patience", patience, 1, none="no early stopping")
    check.at_least("validate_every", validate_every, 1)
    if return_best_incl_init and patience is None:
        raise SettingError(
            "return_best_incl_init=True chooses by validation, but patience=None validates "
            "nothing; write patience=1000 or so, or leave return_best_incl_init out.",
            setting="return_best_incl_init",
        )
    base = averaged(weights, base)
    if distill_steps == 0:
        return base
    if base.refine is not None:
        raise SettingError(
            "feddf's base refines its models already; give another base."
        )
    validates = patience is not None
    oldest = distill_steps if patience is None else patience

    def verify(task, setup):
        check_softmax("feddf", setup)
        if setup.public.validation is None and (validates or drop_worst):
            raise SettingError(
                "feddf validates its students but the public set has no validation "
                "examples; give it some, as --validation-examples 50 or PublicSet(x, "
                "validation=(x, y)) do, or leave drop_worst out and write patience=None."
            )
        if validates or drop_worst:
            check_judged("feddf", task, setup)

    decay = lambda n: -distill_lr * (1 + jnp.cos(jnp.pi * n / distill_steps)) / 2
    clip = optax.identity()
    if distill_clip is not None:
        clip = optax.clip_by_global_norm(distill_clip)
    adam = optax.chain(clip, optax.scale_by_adam(), optax.scale_by_schedule(decay))

    def server(params, state, view, key):
        task, models = view.task, teachers(view)
        public = jax.tree.map(jnp.asarray, view.public)
        key_rows, key_train = jax.random.split(key)
        rows = passes(key_rows, len(public.x), distill_steps * distill_batch)
        rows = rows.reshape(distill_steps, distill_batch)
        trusted = view.cohort.active
        if drop_worst:
            chance = 1 / view.num_classes
            trusted = able(task, models, trusted, chance, public.validation)
        trusted = trusted / jnp.maximum(trusted.sum(), 1)  # 1 / m, [cohort]

        def objective(student, x, key):
            says = lambda model: predict_frozen(task, model, x, key).logits
            theirs = jax.lax.stop_gradient(of_each(says, models, view))
            ours = predict_train(task, student, x, key).logits
            return distance(teaching, trusted, theirs, ours).mean()

        def advance(n, learning):
            student, optimizer = learning
            x, key = public.x[rows[n]], jax.random.fold_in(key_train, n)
            grads = jax.grad(objective)(student, x, key)
            updates, optimizer = adam.update(grads, optimizer)
            return optax.apply_updates(student, updates), optimizer

        begin = (params, adam.init(params))
        if not validates:
            student, _ = jax.lax.fori_loop(0, distill_steps, advance, begin)
            return student, state, {"public_steps": jnp.int32(distill_steps)}

        def validated(progress):
            end = jnp.minimum(progress.step + validate_every, distill_steps)
            learning = (progress.student, progress.optimizer)
            student, optimizer = jax.lax.fori_loop(
                progress.step, end, advance, learning
            )
            score = accuracy(task, student, *public.validation)
            better = score > progress.best_accuracy
            choose = lambda new, old: jnp.where(better, new, old)
            return Progress(
                student=student,
                optimizer=optimizer,
                step=end,
                best=jax.tree.map(choose, student, progress.best),
                best_accuracy=choose(score, progress.best_accuracy),
                best_step=choose(end, progress.best_step),
            )

        zero = jnp.zeros((), jnp.int32)
        nothing = jnp.full((), -1, jnp.result_type(float))
        last = jax.lax.while_loop(
            lambda now: (
                (now.step < distill_steps) & (now.step - now.best_step < oldest)
            ),
            validated,
            Progress(*begin, zero, params, nothing, zero),
        )
        best, score = last.best, last.best_accuracy
        if return_best_incl_init:
            first = accuracy(task, params, *public.validation)
            first_is_best = first > score
            best, score = optax.tree.where(
                first_is_best, (params, first), (best, score)
            )
        report = {"public_steps": last.step, "student_accuracy": score}
        return best, state, report

    judges = validates or drop_worst
    refinement = Refinement(
        server=server,
        check=verify,
        needs_validation=judges,
        given="unlabelled public examples",
    )
    return with_refinement(base, refinement)


def distance(teaching: str, trusted: Array, theirs: Array, ours: Array) -> Array:
    """The divergence of a student from its teachers, in nats, [batch, ...].

    Args:
      teaching: see `feddf`.
      trusted: weights of the teachers, [cohort], of sum 1.
      theirs: logits, [cohort, batch, ..., classes].
      ours: logits, [batch, ..., classes].
    """
    student = jax.nn.log_softmax(ours)
    trusted = trusted.astype(theirs.dtype)
    # a teacher of weight 0 may have logits that are not finite
    trusted_rows = by_row(trusted, theirs)
    theirs = jnp.where(trusted_rows > 0, theirs, 0)
    if teaching == "avg_logits":
        return kl(jax.nn.log_softmax(jnp.tensordot(trusted, theirs, 1)), student)
    each = jax.nn.log_softmax(theirs)
    if teaching == "avg_probs":
        all_ = jax.nn.logsumexp(each, 0, b=trusted_rows)
        return kl(all_, student)
    return jnp.tensordot(trusted, kl(each, student[None]), 1)


def able(
    task: Task, models: Params, active: Array, chance: float, judged: tuple
) -> Array:
    """The teachers that are better than chance, [cohort] bool; all if none is.

    Args:
      task: the task.
      models: of the cohort, [cohort, ...].
      active: who trained, [cohort] bool.
      chance: accuracy of a guess.
      judged: (x, y) to validate them by.
    """
    scores = jax.lax.map(lambda params: accuracy(task, params, *judged), models)
    better = active & (scores >= 1.2 * chance)  # 1.2: the code's
    return jnp.where(better.any(), better, active)


def passes(key: jax.Array, size: int, length: int) -> Array:
    """`length` rows of range(size): one shuffled pass after the other, [length] int32."""
    keys = jax.random.split(key, -(-length // size))
    order = jax.vmap(lambda key: jax.random.permutation(key, size))(keys)
    return order.reshape(-1)[:length].astype(jnp.int32)
