r"""Controls: what public data are worth without FNR-FL's choice of clients.

    w <- w + sum_{i in S} p_i (theta_i - w)                    fedavg_pubft alone
    w <- floor(n p) E_re epochs of SGD on CE over P, from w    both

Each takes as many steps on the public set P as FNR-FL takes in a round of n clients: those
of its floor(n p) worst clients together. A third control is `fnr(weight=0)`, which trains
those clients on P without any penalty.

References:
  To be shown next to Hu, Qiu & Tang, "Feature Norm Regularized Federated Learning", 2023,
  whose authors' code is https://github.com/LonelyMoonDesert/FNR-FL; neither has them.

Departs from the paper: not in it. Auxiliary data: labelled examples, at the server alone.
"""

from typing import Literal

import jax
import optax

from .. import check
from ..core import (
    Algorithm,
    LocalRule,
    Refinement,
    ServerRule,
    Traffic,
    Upload,
    as_base,
    task_loss,
    with_refinement,
)
from ..errors import SettingError
from ..finetune import (
    SGD,
    check_labelled,
    check_selects,
    finetune,
    num_batches,
    num_selected,
)


def fedavg_pubft(
    fraction: float = 0.5,
    epochs: int = 5,
    base: Algorithm | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    batch_size: int | None = 32,
    batch_loss: Literal["mean", "sum"] = "mean",
    shuffle: bool = True,
    augment: bool = False,
) -> Algorithm:
    """FedAvg whose server fine-tunes the average on the public set.

    Args:
      fraction: p of the method it stands next to, above 0 and at most 1.
      epochs: E_re, likewise; 0 is the base.
      base: any algorithm without a refinement; none: FedAvg.
      lr: of the fine-tuning; none: the clients' of the round.
      momentum: likewise, in [0, 1); none: the clients'.
      batch_size: public examples per step, as `fnr`; none: as many as clients take.
      batch_loss: of a step, as `fnr`: the mean over the batch, or the sum.
      shuffle: a new order of the public set in every epoch.
      augment: the model in training mode, on augmented inputs and with dropout.

    Raises:
      SettingError: an argument is out of its range, or the base refines already.
    """
    base = as_base(base)
    if base.refine is not None:
        raise SettingError(
            "fedavg_pubft refines the server's model but its base already has a "
            "refinement; give a base without one."
        )
    sgd = SGD(lr, momentum, batch_size, batch_loss, shuffle, augment)
    return with_refinement(base, _at_the_server("fedavg_pubft", fraction, epochs, sgd))


def public_only(
    fraction: float = 0.5,
    epochs: int = 5,
    lr: float | None = None,
    momentum: float | None = None,
    batch_size: int | None = 32,
    batch_loss: Literal["mean", "sum"] = "mean",
    shuffle: bool = True,
    augment: bool = False,
) -> Algorithm:
    """SGD on the public set alone: no client trains, none is asked.

    Its local steps only take down what the model costs the clients; they move nothing.

    Args:
      fraction: p of the method it stands next to, above 0 and at most 1.
      epochs: E_re, likewise; 0 moves nothing.
      lr: of the training; none: the clients' of the round.
      momentum: likewise, in [0, 1); none: the clients'.
      batch_size: public examples per step, as `fnr`; none: as many as clients take.
      batch_loss: of a step, as `fnr`: the mean over the batch, or the sum.
      shuffle: a new order of the public set in every epoch.
      augment: the model in training mode, on augmented inputs and with dropout.
    """

    def objective(params, view, key):
        return task_loss(jax.lax.stop_gradient(params), view, key)

    def finish(run):
        return Upload(optax.tree.zeros_like(run.anchor)), run.client

    def update(params, extra, upload, cohort):
        return params, extra

    sgd = SGD(lr, momentum, batch_size, batch_loss, shuffle, augment)
    return Algorithm(
        local=LocalRule(objective=objective, finish=finish, traffic=Traffic()),
        server=ServerRule(update=update),
        refine=_at_the_server("public_only", fraction, epochs, sgd),
    )


def _at_the_server(name: str, fraction: float, epochs: int, sgd: SGD) -> Refinement:
    """floor(n p) E_re epochs over P."""
    check.between("fraction", fraction, 0, 1, closed="right")
    check.at_least("epochs", epochs, 0)
    sgd = sgd.checked()

    def server(params, state, view, key):
        passes = epochs * num_selected(fraction, view.cohort.num_active)
        report = {"public_steps": passes * num_batches(view, sgd)}
        return finetune(view, params, passes, key, sgd)[0], state, report

    def verify(task, setup):
        check_labelled(name, setup)
        check_selects(fraction, setup)

    given = "labelled public examples, at the server alone"
    return Refinement(server=server, check=verify, given=given)
