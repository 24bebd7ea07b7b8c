r"""FNR: who is worst on a public set is trained on it before models are averaged.

    F_i[l]   = mean_{x in P: y = l} U_i(x),   U_i(x) = sqrt(||f_i(x)||^2 + 1e-12)
    A_i      = accuracy of theta_i on P
    S_re     = the floor(n p) of the cohort S with the lowest A_i,   H = S \ S_re
    Delta_j  = sum_{m in H} (F_m - F_j)                       j in S_re
    theta_j <- E_re epochs of SGD on CE(B) + lambda J(B), batches B of P, CE their mean
    w       <- w + sum_{i in S} p_i (theta_i - w)             the base's server rule

f_i(x) are the features of theta_i, rho_l the share of label l in B, F(B) the mean norms in
B of the model that is being trained, Fbar_H the mean of F_m over H, and J by variant

    literal   sum_l rho_l Delta_j[l], the paper's
    linear    sum_l rho_l sum_{m in H} (F_m[l] - F(B)[l])
    sq        sum_l rho_l (Fbar_H[l] - F(B)[l])^2 / s^2, s^2 = mean_l Fbar_H[l]^2

The literal J holds no variable: its gradient is zero, in the paper as in its code, and the
method is plain fine-tuning of the worst clients on labelled public data, whatever lambda.
The gradient of the linear J is -|H| grad mean ||f||: norms grow without bound. sq, ours, is
the one that pulls the norms of the worst towards those of the others.

References:
  Hu, Qiu & Tang, "Feature Norm Regularized Federated Learning: Transforming Skewed
  Distributions into Global Insights", preprint, 2023. Algorithms 2 and 3, eq. (7), and the
  authors' code, https://github.com/LonelyMoonDesert/FNR-FL.

Departs from the paper: the default J is sq. P is whatever the data set calls public; the
published figures have the test set for P, and so are accuracies on training data. Norms
and accuracies are taken in evaluation mode. No code composes it with another base than
FedAvg; here the base trains and keeps its states as without P, then refined models take
the place of those uploaded: SCAFFOLD's c_i and FedNova's normalisation know the local
steps alone, and MOON remembers the refined model. Where H is empty sq takes all other
clients. P is seen without augmentation or dropout unless `augment` says otherwise. The
features are whatever the model calls so: of VGG-11 its last hidden layer, of a linear
model the inputs, whose norms cannot be changed. Auxiliary
data: labelled examples that every client holds.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from .. import check
from ..core import (
    Algorithm,
    Array,
    Cohort,
    Params,
    PyTree,
    Refined,
    Refinement,
    RefineSetup,
    RoundView,
    Task,
    Traffic,
    accuracy_of,
    as_base,
    part_of,
    public_examples,
    widened,
    with_refinement,
)
from ..errors import SettingError
from ..finetune import (
    SGD,
    Penalty,
    check_labelled,
    check_selects,
    finetune,
    num_batches,
    num_selected,
)

VARIANTS = ("sq", "literal", "linear")
BLOCK = 500  # public examples evaluated at once; bounds memory, changes no result


def fnr(
    variant: Literal["sq", "literal", "linear"] = "sq",
    *,
    fraction: float = 0.5,
    epochs: int = 5,
    weight: float = 0.1,
    base: Algorithm | None = None,
    delta_set: Literal["paper", "code"] = "paper",
    upload: Literal["delayed", "twice"] = "delayed",
    lr: float | None = None,
    momentum: float | None = None,
    batch_size: int | None = 32,
    batch_loss: Literal["mean", "sum"] = "mean",
    shuffle: bool = True,
    augment: bool = False,
) -> Algorithm:
    """Builds FNR-FL on a base. With weight = 0 it is fine-tuning of the worst clients.

    Args:
      variant: of J: "sq" (ours), "literal" (the paper's, without gradient) or "linear"
        (for the record: it inflates norms).
      fraction: p, above 0 and at most 1; floor(n p) clients of a cohort of n are refined.
      epochs: E_re, passes over the public set; 0 is the base.
      weight: lambda; the paper gives none, its code 0.5 to 1 for what has no gradient.
      base: any algorithm without a refinement; none: FedAvg.
      delta_set: whose norms count for client j: those of H ("paper") or of all but j
        ("code").
      upload: whether all send norms and accuracy first and their model when they know who
        refines, those refined after that ("delayed"), or those refined send it again
        ("twice").
      lr: of the refinement; none: the clients' of the round.
      momentum: likewise, in [0, 1); none: the clients'.
      batch_size: examples of P per step, 32 as in Sec. 6.1; none: as many as clients take.
      batch_loss: whether a step's cross entropy is the mean over the batch (code) or the
        sum (Alg. 3, line 32), as if lr were |B| times as large, and J without that factor.
      shuffle: a new order of P in every epoch; the code keeps one.
      augment: P in training mode, augmented and with dropout; the code does not augment.

    Raises:
      SettingError: an argument is out of its range, or the base refines already.
    """
    base = as_base(base)
    if base.refine is not None:
        raise SettingError(
            "fnr refines clients but its base already has a refinement; give "
            "a base without one."
        )
    check.one_of("variant", variant, VARIANTS)
    check.between("fraction", fraction, 0, 1, closed="right")
    check.at_least("epochs", epochs, 0)
    check.nonnegative("weight", weight)
    check.one_of("delta_set", delta_set, ("paper", "code"))
    check.one_of("upload", upload, ("delayed", "twice"))
    sgd = SGD(lr, momentum, batch_size, batch_loss, shuffle, augment).checked()

    def clients(view, key):
        cohort, models = view.cohort, view.runs.params
        slots, num_classes = len(cohort.ids), view.num_classes
        norms, accuracy = _over(view, lambda p: measured(view, p, num_classes), models)
        norms = jnp.where(cohort.active[:, None], norms, 0)
        order, refined = worst(cohort, accuracy, fraction)
        # of a smaller cohort fewer are worst: the last of these stay as they are
        most = slots if check.is_tracer(fraction) else num_selected(fraction, slots)
        rows = order[:most]

        def refine(client):
            params, before, among, chosen, id = client
            passes = jnp.where(chosen, epochs, 0)
            j = penalty(variant, num_classes, before, among, norms)
            key_client = jax.random.fold_in(key, id)
            return finetune(view, params, passes, key_client, sgd, j, weight)

        among = _reference(variant, delta_set, cohort, refined)
        all_ = models, norms, among, refined, cohort.ids
        new, j = _over(view, refine, jax.tree.map(lambda leaf: leaf[rows], all_))
        put = lambda old, new: old.at[rows].set(new)
        steps = epochs * num_batches(view, sgd)
        return Refined(
            params=jax.tree.map(put, models, new),
            steps=jnp.where(refined, steps, 0).astype(jnp.int32),
            report={
                "public_accuracy": accuracy,
                "refined": refined.astype(jnp.int32),
                "penalty": put(jnp.zeros_like(accuracy), j),
            },
        )

    def verify(task, setup):
        check_labelled("fnr", setup)
        check_selects(fraction, setup)
        _check_features(task, setup)

    def traffic(setup):  # norms and accuracy up
        return Traffic(scalars_up=setup.num_classes + 1 if upload == "delayed" else 0)

    def traffic_refined(setup):  # mean norms down, and the model where it went before
        models = 1 if upload == "twice" else 0
        return Traffic(models_up=models, scalars_down=setup.num_classes, round_trips=1)

    refinement = Refinement(
        clients=clients,
        check=verify,
        traffic=traffic,
        traffic_refined=traffic_refined,
        uploads_late=upload == "delayed",
        given="labelled public examples",
    )
    return with_refinement(base, refinement)


@part_of(fnr, "base")
def fnr_refinement(algorithm: Algorithm) -> Refinement:
    """FNR-FL's part after local training, for `with_refinement`. Arguments as for `fnr`.

    `Info.refine` shows, per client: `public_accuracy` A_i, `refined`, and `penalty`, the
    mean J of its steps.
    """
    assert isinstance(algorithm.refine, Refinement)
    return algorithm.refine


def measured(view: RoundView, params: Params, num_classes: int) -> tuple[Array, Array]:
    """F_i [classes], 0 for a label that P has not, and A_i of one model."""
    x, y = public_examples(view.public)
    size = len(x)
    width = min(max(BLOCK // view.num_lanes, 1), size)
    steps = -(-size // width)
    rows = jnp.arange(steps * width).reshape(steps, width)

    def block(total, rows):
        real = rows < size
        rows = jnp.minimum(rows, size - 1)
        outputs = view.task.apply(params, x[rows])
        right = jnp.where(real, accuracy_of(view.task, outputs.logits, y[rows]), 0)
        labels = jax.nn.one_hot(y[rows], num_classes, dtype=dtype) * real[:, None]
        norms = feature_norms(outputs.features).astype(dtype)
        grown = (labels * norms[:, None]).sum(0), labels.sum(0), right.sum(dtype=dtype)
        return jax.tree.map(jnp.add, total, grown), ()

    dtype = jnp.result_type(float)
    zeros = jnp.zeros(num_classes, dtype)
    total, _ = jax.lax.scan(block, (zeros, zeros, jnp.zeros((), dtype)), rows)
    sums, count, hits = total
    return sums / jnp.maximum(count, 1), hits / size


def feature_norms(features: Array) -> Array:
    """U, [batch]."""
    return jnp.sqrt(jnp.square(widened(features)).sum(-1) + 1e-12)


def worst(
    cohort: Cohort, accuracy: Array, fraction: float | Array
) -> tuple[Array, Array]:
    """Slots from the least accurate client on, ties by id; and who is in S_re. [cohort]"""
    order = jnp.lexsort((cohort.ids, jnp.where(cohort.active, accuracy, jnp.inf)))
    among_worst = jnp.arange(len(order)) < num_selected(fraction, cohort.num_active)
    return order, jnp.zeros(len(order), bool).at[order].set(among_worst)


def _reference(variant: str, delta_set: str, cohort: Cohort, refined: Array) -> Array:
    """Whose norms count for each client, [cohort, cohort] bool."""
    slots = len(refined)
    others = cohort.active[None] & ~jnp.eye(slots, dtype=bool)
    if delta_set == "code":
        return others
    held = jnp.broadcast_to((cohort.active & ~refined)[None], (slots, slots))
    if variant != "sq":
        return held
    return jnp.where(held.any(), held, others)


def penalty(
    variant: str, num_classes: int, before: Array, among: Array, norms: Array
) -> Penalty:
    """J of one client.

    Args:
      variant: "sq", "literal" or "linear".
      num_classes: K.
      before: its F_j [classes] before refinement.
      among: whose norms count, [cohort] bool.
      norms: F_m of all, [cohort, classes].
    """
    count = among.sum().astype(norms.dtype)
    known = jnp.where(among[:, None], norms, 0)  # others' may not be finite
    target = known.sum(0) / jnp.maximum(count, 1)
    present = before > 0  # a norm is at least 1e-6
    square = jnp.square(target).sum() / jnp.maximum(present.sum(), 1)

    def j(outputs, batch):
        labels = jax.nn.one_hot(batch.y, num_classes) * batch.weight[:, None]
        rho = labels.sum(0) / batch.weight.sum()
        if variant == "literal":
            return (rho * count * (target - before)).sum()
        sums = (labels * feature_norms(outputs.features)[:, None]).sum(0)
        off = target - sums / jnp.maximum(labels.sum(0), 1)
        if variant == "linear":
            return (rho * count * off).sum()
        # without anybody to be like there is nothing to be pulled to
        return jnp.where(count > 0, (rho * jnp.square(off)).sum(), 0) / jnp.where(
            square > 0, square, 1
        )

    return j


def _over(view: RoundView, function: Callable, models: PyTree) -> PyTree:
    """`function` of every model, as many side by side as the engine trains."""
    size = len(jax.tree.leaves(models)[0])
    groups = -(-size // view.num_lanes)
    lanes = -(-size // groups)
    return jax.lax.map(function, models, batch_size=lanes if lanes > 1 else None)


def _check_features(task: Task, setup: RefineSetup) -> None:
    if task.accuracy is None and setup.outputs.logits.shape[-1] < 2:
        raise SettingError(
            "fnr refines the least accurate clients, but of a single logit no accuracy is "
            "known; give Task(..., accuracy=...), or a logit for each label."
        )
    if setup.outputs.features is None:
        raise SettingError(
            "fnr compares features but the model has none; give a module with "
            "features(x) and head(features), or return Outputs(logits, features)."
        )
