r"""FedDC: keep what each client drifted, and correct both its model and its gradient.

    G     <- clip(grad F_i(theta) + alpha_i (theta - w + h_i) - s_i + s_g / w_i)
    D     = theta_i - w
    h_i  <- h_i + D
    s_i'  = s_i - s_g / w_i - D / (Kbar lr_0)
    s_g  <- s_g + 1/N sum_{i in S} w_i (s_i' - s_i)
    w    <- mean_{i in S} theta_i + 1/N sum_{all j} h_j

alpha_i = alpha / w_i, w_i = N n_i / n, Kbar the local steps of a client of mean size, lr_0
the learning rate of round 0. Without the correction s and without a clip it is FedDyn.

References:
  Gao et al., "FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
  Correction", CVPR 2022, https://arxiv.org/abs/2203.11751, and the authors' code,
  https://github.com/gaoliang13/FedDC.

Departs from the paper: the defaults are the code's, which corrects gradients by control
variates as SCAFFOLD does and adds the drift of all clients at the server. The paper
averages theta_i + h_i over the cohort (`aggregate="cohort"`) and corrects by the last
round's difference (`correction="last_diff"`); both lose the optimum when clients sit out.
"""

from typing import Any, Literal, NamedTuple

import optax

from .. import check
from ..core import (
    Algorithm,
    LocalRule,
    ServerRule,
    Traffic,
    Upload,
    by_examples,
    effective_steps,
    mean,
    uniformly,
)


class FedDCState(NamedTuple):
    """The state of a client, and the server's mean of all of them."""

    memory: Any  # h_i; at the server 1/N sum_j h_j, or () for aggregate="cohort"
    control: Any  # s_i; at the server s_g; () without correction


def feddc(
    alpha: float = 0.01,
    correction: Literal["scaffold2", "last_diff", "none"] = "scaffold2",
    correction_lr: Literal["base", "round"] = "base",
    correction_steps: Literal["mean", "actual"] = "mean",
    aggregate: Literal["sel_plus_allh", "cohort"] = "sel_plus_allh",
) -> Algorithm:
    """Builds FedDC. Two client tables, each as large as the model times the clients.

    Args:
      alpha: strength of the drift penalty alpha/2 ||theta - w + h_i||^2.
      correction: of the gradient: control variates (code), the difference between the
        client's and the cohort's last move (paper), or none.
      correction_lr: learning rate in the correction: of round 0 (code) or of the round.
      correction_steps: steps in it: Kbar (code) or the client's own.
      aggregate: cohort mean of theta plus mean of all h (code), or the data-weighted
        "cohort" mean of theta + h (paper).
    """
    check.nonnegative("alpha", alpha)
    check.one_of("correction", correction, ("scaffold2", "last_diff", "none"))
    check.one_of("correction_lr", correction_lr, ("base", "round"))
    check.one_of("correction_steps", correction_steps, ("mean", "actual"))
    check.one_of("aggregate", aggregate, ("sel_plus_allh", "cohort"))

    def init(params):
        zeros = optax.tree.zeros_like(params)
        return FedDCState(zeros, () if correction == "none" else zeros)

    def prepare(view):  # alpha_i (h_i - w) - s_i + s_g / w_i
        u = optax.tree.sub(view.client.memory, view.anchor)
        u = optax.tree.scale(alpha / view.size_ratio, u)
        if correction == "none":
            return u
        u = optax.tree.sub(u, view.client.control)
        # the last difference is the cohort's, which the paper does not weigh by size
        weight = 1 / view.size_ratio if correction == "scaffold2" else 1
        return optax.tree.add_scale(u, weight, view.server.control)

    def correct(grads, view):
        grads = optax.tree.add(grads, view.prepared)
        return optax.tree.add_scale(grads, alpha / view.size_ratio, view.params)

    def renewed(run, delta):  # s_i'
        lr = run.setting.base_lr if correction_lr == "base" else run.lr
        steps = run.setting.mean_steps if correction_steps == "mean" else run.num_steps
        passed = effective_steps(steps, run.setting.momentum) * lr
        direction = optax.tree.scale(-1 / passed, delta)
        if correction == "last_diff":
            return direction
        bias = optax.tree.add_scale(
            run.client.control, -1 / run.size_ratio, run.server.control
        )
        return optax.tree.add(bias, direction)

    def finish(run):
        delta = optax.tree.sub(run.params, run.anchor)
        memory = optax.tree.add(run.client.memory, delta)
        control = () if correction == "none" else renewed(run, delta)
        change = control  # last_diff replaces s_g by the cohort's mean
        if correction == "scaffold2":
            change = optax.tree.sub(control, run.client.control)
            change = optax.tree.scale(run.size_ratio, change)
        sent = optax.tree.add(delta, memory) if aggregate == "cohort" else delta
        return Upload(sent, change), FedDCState(memory, control)

    def init_server(params):
        state = init(params)
        return state._replace(memory=()) if aggregate == "cohort" else state

    def update(params, server, upload, cohort):
        control, memory = upload.extra, ()
        if correction == "scaffold2":
            control = optax.tree.add_scale(server.control, cohort.share, control)
        params = optax.tree.add(params, upload.delta)
        if aggregate == "sel_plus_allh":
            memory = optax.tree.add_scale(server.memory, cohort.share, upload.delta)
            params = optax.tree.add(params, memory)
        return params, FedDCState(memory, control)

    weights = by_examples if aggregate == "cohort" else uniformly
    # w and s_g down; h_i and s_i' follow from theta_i, so that the server can know them
    models_down = 1 if correction == "none" else 2
    return Algorithm(
        local=LocalRule(
            init=init,
            prepare=prepare,
            correct=correct,
            finish=finish,
            traffic=Traffic(models_down, models_up=1, round_trips=1),
        ),
        server=ServerRule(
            init_server,
            mean(weights, extra=uniformly),
            update,
            adds_mean=aggregate == "sel_plus_allh",
        ),
    )
