r"""SCAFFOLD: subtract each client's own bias, add the population's.

    G     <- grad F_i(theta) - c_i + c / w_i
    c_i'   = grad F_i(w) + lambda w                        option I, over all its data
    c_i'   = c_i - c / w_i + (w - theta_i) / (K lr)        option II
    w     <- w + server_lr mean_{i in S} (theta_i - w)
    c     <- c + 1/N sum_{i in S} w_i (c_i' - c_i)

w_i = N n_i / n is the client's size over the mean size, 1 when clients are equal.
Invariant (tested): c = 1/N sum_i w_i c_i, under partial participation too. That is why
1/N and not 1/m stands before the sum.

References:
  Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
  ICML 2020, https://arxiv.org/abs/1910.06378. Algorithm 1.

Departs from the paper: unequal clients, which the paper does not treat, get w_i so that
the fixed point is the optimum of the data-weighted objective; `scale` has other readings.
With local momentum, which it does not treat either, K is the distance that as many steps
go on a constant unit gradient (FedNova's a_i): c_i stays a mean of gradients.
"""

from functools import partial
from typing import Literal

import optax

from .. import check
from ..core import (
    WEIGHTS,
    Algorithm,
    LocalRule,
    ServerRule,
    Upload,
    as_uploaded,
    effective_steps,
    mean,
    uniformly,
)


def scaffold(
    server_lr: float = 1.0,
    option: Literal["I", "II"] = "II",
    weights: Literal["data", "uniform"] = "uniform",
    scale: Literal["size", "legacy", "none"] = "size",
    control_lr: Literal["round", "base"] = "round",
    control_steps: Literal["actual", "mean"] = "actual",
) -> Algorithm:
    """Builds SCAFFOLD. Client state: c_i, shaped like the parameters. Server state: c.

    Args:
      server_lr: the paper's global step size.
      option: how c_i is renewed; I passes once more over the client's data.
      weights: of the model average, "uniform" (paper) or "data" (NIID-Bench).
      scale: "size" divides c by w_i wherever a client reads it; "legacy" only in the
        gradient and not in option II, as the codes of FedDyn, FedDC and FedSSG do;
        "none" ignores sizes (the paper's equal clients), so that c = mean_i c_i.
      control_lr: learning rate in option II: this round's, or the "base" one, as in the
        codes of FedDyn, FedDC and FedSSG (c_i then is a slow average under lr decay).
      control_steps: K in option II: the client's own steps, or those of a client of
        "mean" size, as in the same codes.
    """
    check.positive("server_lr", server_lr)
    check.one_of("option", option, ("I", "II"))
    check.one_of("weights", weights, WEIGHTS)
    check.one_of("scale", scale, ("size", "legacy", "none"))
    check.one_of("control_lr", control_lr, ("round", "base"))
    check.one_of("control_steps", control_steps, ("actual", "mean"))

    def ratio(view_or_run):
        return 1.0 if scale == "none" else view_or_run.size_ratio

    def prepare(view):  # c / w_i - c_i
        negated = optax.tree.scale(-1, view.client)
        return optax.tree.add_scale(negated, 1 / ratio(view), view.server)

    def correct(grads, view):
        return optax.tree.add(grads, view.prepared)

    def renewed(run):  # c_i'
        if option == "I":
            return run.full_gradient(run.anchor)
        lr = run.setting.base_lr if control_lr == "base" else run.lr
        steps = run.setting.mean_steps if control_steps == "mean" else run.num_steps
        seen = 1.0 if scale == "legacy" else ratio(run)
        moved = optax.tree.sub(run.anchor, run.params)
        difference = optax.tree.add_scale(run.client, -1 / seen, run.server)
        passed = effective_steps(steps, run.setting.momentum) * lr
        return optax.tree.add_scale(difference, 1 / passed, moved)

    def finish(run):
        control = renewed(run)
        change = optax.tree.sub(control, run.client)
        delta = optax.tree.sub(run.params, run.anchor)
        return Upload(delta, optax.tree.scale(ratio(run), change)), control

    def update(params, control, upload, cohort):
        params = optax.tree.add_scale(params, server_lr, upload.delta)
        return params, optax.tree.add_scale(control, cohort.share, upload.extra)

    def refined(params, control, upload, cohort, shift):
        moved = upload._replace(delta=optax.tree.add(upload.delta, shift))
        return update(params, control, moved, cohort)

    return Algorithm(
        local=LocalRule(
            init=optax.tree.zeros_like,
            prepare=prepare,
            correct=correct,
            finish=finish,
            traffic=partial(as_uploaded, models_down=2),  # w and c
        ),
        server=ServerRule(
            init=optax.tree.zeros_like,
            combine=mean(WEIGHTS[weights], extra=uniformly),
            update=update,
            refined=refined,
        ),
    )
