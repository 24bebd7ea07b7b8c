r"""FedDyn: bend every client's loss until its optimum is the global one.

    G     <- clip(grad F_i(theta) + alpha_i (h_i - w)) + alpha_i theta + lambda theta
    D     = theta_i - w
    h_i  <- h_i + D
    w    <- mean_{i in S} theta_i + 1/N sum_{all j} h_j

alpha_i = alpha / w_i, where w_i = N n_i / n is the client's size over the mean size.
-alpha_i h_i is the paper's gradient memory. The clients that sit out keep their h_i, and
it counts in the sum over all.

References:
  Acar et al., "Federated Learning Based on Dynamic Regularization", ICLR 2021,
  https://arxiv.org/abs/2111.04263. Algorithm 1, and the authors' code,
  https://github.com/alpemreacar/FedDyn.

Departs from the paper: unequal clients get alpha_i, as in the code, which puts the fixed
point at the optimum of the data-weighted objective. The paper does not clip; where the
plan does, the default clips what the code clips.
"""

from typing import Literal

import optax

from .. import check
from ..core import Algorithm, LocalRule, ServerRule, Upload, mean, uniformly


def feddyn(
    alpha: float = 0.01, clip_scope: Literal["code", "all"] = "code"
) -> Algorithm:
    """Builds FedDyn. Client state: h_i, shaped like the parameters. Server: their mean.

    With alpha near 0 it is not FedAvg: the server still adds the mean of all h.

    Args:
      alpha: strength of the dynamic regulariser.
      clip_scope: what `clip_norm` bounds: all but alpha_i theta and weight decay, which
        the code adds after the clip ("code"), or all but weight decay ("all").
    """
    check.nonnegative("alpha", alpha)
    check.one_of("clip_scope", clip_scope, ("code", "all"))

    def prepare(view):  # alpha_i (h_i - w)
        constant = optax.tree.sub(view.client, view.anchor)
        return optax.tree.scale(alpha / view.size_ratio, constant)

    def shrink(grads, view):  # + alpha_i theta
        return optax.tree.add_scale(grads, alpha / view.size_ratio, view.params)

    def correct(grads, view):
        grads = optax.tree.add(grads, view.prepared)
        return shrink(grads, view) if clip_scope == "all" else grads

    def decay(grads, view):
        return shrink(grads, view) if clip_scope == "code" else grads

    def finish(run):
        delta = optax.tree.sub(run.params, run.anchor)
        return Upload(delta), optax.tree.add(run.client, delta)

    def update(params, memory, upload, cohort):
        # 1/N sum_{i in S} D = m/N of the cohort's mean
        memory = optax.tree.add_scale(memory, cohort.share, upload.delta)
        return optax.tree.add(params, optax.tree.add(upload.delta, memory)), memory

    return Algorithm(
        local=LocalRule(
            init=optax.tree.zeros_like,
            prepare=prepare,
            correct=correct,
            decay=decay,
            finish=finish,
        ),
        server=ServerRule(
            optax.tree.zeros_like, mean(uniformly), update, adds_mean=True
        ),
    )
