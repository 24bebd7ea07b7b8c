"""The defaults of all parts; together they are FedAvg."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..errors import SettingError
from .precision import widened
from .scores import losses_of
from .task import (
    Array,
    Batch,
    ClientState,
    Key,
    Outputs,
    Params,
    PyTree,
    Task,
    by_row,
    tree_bytes,
)
from .views import SCALAR, Cohort, LocalRun, LocalView, Traffic, Upload


def no_state(*given: Any) -> tuple[()]:
    """(), whatever is given: nothing is kept or prepared."""
    return ()


def no_report(*given: Any) -> dict[str, Array]:
    """{}, whatever is given: nothing is shown."""
    return {}


def weighted_loss(task: Task, outputs: Outputs, batch: Batch) -> Array:
    """Mean loss over the examples of a batch; padding does not count. A scalar.

    Raises:
      SettingError: the task's loss is not one number per example; see `losses_of`.
    """
    losses = losses_of(task, outputs, batch.y)
    return (losses * batch.weight).sum() / batch.weight.sum()


def predict_train(task: Task, params: Params, x: Array, key: Key) -> Outputs:
    """The model in training mode (dropout, augmentation) where it has one."""
    if task.apply_train is None:
        return task.apply(params, x)
    return task.apply_train(params, x, key)


def predict_frozen(task: Task, params: Params, x: Array, key: Key) -> Outputs:
    """Another model on the inputs that `predict_train` sees: augmented, no dropout."""
    if task.apply_frozen is None:
        return task.apply(params, x)
    return task.apply_frozen(params, x, key)


def task_loss(params: Params, view: LocalView, key: Key) -> Array:
    """The task's mean loss over the batch: FedAvg's local objective."""
    outputs = predict_train(view.task, params, view.batch.x, key)
    return weighted_loss(view.task, outputs, view.batch)


def effective_steps(num_steps: Array, momentum: float | Array | None) -> Array:
    """The distance of local steps on a constant unit gradient, over lr; at least 1.

    (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho): tau without momentum. What control
    variates divide a displacement by to get a mean gradient (FedNova's a_i).

    Raises:
      SettingError: `momentum` is None, as the steps are not SGD's.
    """
    if momentum is None:
        raise SettingError(
            "a client's move is taken for a sum of its gradients, which it is for SGD "
            "alone; leave out with_local_optimizer."
        )
    steps = jnp.maximum(num_steps, 1)
    past = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - past) / (1 - momentum)


def clip(grads: Params, norm_limit: float | Array | None) -> tuple[Params, Array]:
    """Scales `grads` to a global norm of at most `norm_limit`; says whether it did."""
    if norm_limit is None:
        return grads, jnp.zeros(())
    wide = widened(grads)
    # a product of vectors: XLA's CPU backend is slow at sums of squares
    norm = jnp.sqrt(optax.tree.vdot(wide, wide))
    # 1e-6 as torch.nn.utils.clip_grad_norm_ has it, which the papers' codes call
    factor = jnp.minimum(1, norm_limit / (norm + 1e-6))
    clipped = optax.tree.cast_like(optax.tree.scale(factor, wide), grads)
    return clipped, (factor < 1).astype(float)


def send_delta(run: LocalRun) -> tuple[Upload, ClientState]:
    """Sends the displacement; the client's state stays as it was."""
    return Upload(optax.tree.sub(run.params, run.anchor)), run.client


def by_examples(cohort: Cohort) -> Array:
    """Weights n_i / sum n over the active clients, [cohort]. All zero if none is."""
    n = jnp.where(cohort.active, cohort.num_examples, 0)
    return n / jnp.maximum(n.sum(), 1)


def uniformly(cohort: Cohort) -> Array:
    """Weights 1 / m over the active clients, [cohort]. All zero if none is."""
    return cohort.active / jnp.maximum(cohort.num_active, 1)


def expected_cohort_size(cohort: Cohort) -> float:
    """q N, how many clients take part on average."""
    setting = cohort.setting
    assert setting is not None and setting.participation is not None
    return setting.participation * cohort.num_holders


def by_expected(cohort: Cohort) -> Array:
    """Weights 1 / (q N) of the active clients, [cohort]: those of `with_privacy`."""
    return cohort.active / expected_cohort_size(cohort)


WEIGHTS = {"data": by_examples, "uniform": uniformly}


def as_uploaded(params: Params, upload: Upload, models_down: float = 1) -> Traffic:
    """The traffic of a client: the model down, and up what `LocalRule.finish` uploads."""
    sent = tree_bytes((upload.delta, upload.extra))
    models, rest = divmod(sent, tree_bytes(params))
    return Traffic(models_down, models, scalars_up=rest / SCALAR, round_trips=1)


@dataclass(frozen=True)
class Mean:
    """A weighted mean of uploads: a combine rule the engine may sum as clients end.

    `delta(cohort)` and `extra(cohort)` are weights [cohort], or a tree of such weights
    that is a prefix of `Upload.delta` and `Upload.extra`.
    """

    delta: Callable[[Cohort], PyTree]
    extra: Callable[[Cohort], PyTree]

    def weights(self, cohort: Cohort) -> Upload:
        """The weights [cohort] of `Upload.delta` and of `Upload.extra`."""
        return Upload(self.delta(cohort), self.extra(cohort))

    def __call__(self, uploads: Upload, cohort: Cohort) -> Upload:
        """Averages the leading axis `cohort` of every leaf."""
        weights = self.weights(cohort)
        return weighted_sums(weights, cohort.active, uploads._replace(info=()))


def weighted_sums(weights: Upload, active: Array, uploads: Upload) -> Upload:
    """`weighted_sum` of every leaf of `uploads`, of which `weights` is a prefix."""
    over = lambda w, tree: jax.tree.map(lambda x: weighted_sum(w, active, x), tree)
    return jax.tree.map(over, weights, uploads)


def weighted_sum(weights: Array, active: Array, leaf: Array) -> Array:
    """Sums weights [cohort] x leaf [cohort, ...] over the active clients."""
    # an idle slot may hold NaN, as may its weight, and 0 x NaN is NaN
    weighted = by_row(weights, leaf).astype(leaf.dtype) * leaf
    return jnp.where(by_row(active, leaf), weighted, 0).sum(0)


def mean(
    weights: Callable[[Cohort], Array] = by_examples,
    extra: Callable[[Cohort], Array] | None = None,
) -> Mean:
    """Averages uploads: `Upload.delta` with `weights(cohort)`, `Upload.extra` with
    `extra(cohort)` or, by default, the same. See `by_examples` and `uniformly`.

    The weights are not divided by their sum, so those of a mean must sum to 1.
    """
    for name, given in (("weights", weights), ("extra", extra)):
        if not (callable(given) or (name == "extra" and given is None)):
            raise SettingError(
                f"mean got {check.kind_of(given)} for {name}; write a function cohort -> "
                "[cohort], such as by_examples or uniformly."
            )
    return Mean(weights, weights if extra is None else extra)
