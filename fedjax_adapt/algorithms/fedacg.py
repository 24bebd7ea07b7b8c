r"""FedACG: clients start where the server's momentum is about to take the model.

    a      = w + lam m                                     sent in place of w
    G     <- grad F_i(theta) + beta (theta - a)            from theta = a
    m     <- lam m + mean_{i in S} (theta_i - a)           m = 0 at first
    w     <- w + m                                         the mean of all theta_i

References:
  Kim et al., "Communication-Efficient Federated Learning with Accelerated Client
  Gradient", CVPR 2024, https://arxiv.org/abs/2201.03172. Algorithm 1, and the authors'
  code, https://github.com/geehokim/FedACG.

Departs from the paper: none.
"""

from typing import Literal

import optax

from .. import check
from ..core import WEIGHTS, Algorithm, LocalRule, ServerRule, mean


def fedacg(
    lam: float = 0.85,
    beta: float = 0.001,
    weights: Literal["data", "uniform"] = "uniform",
) -> Algorithm:
    """Builds FedACG. Server state: m, shaped like the parameters. `fedacg(0, 0)` is FedAvg.

    One model goes down, a: no client needs w and m by themselves.

    Args:
      lam: of the server's momentum, in [0, 1).
      beta: strength of the penalty beta/2 ||theta - a||^2.
      weights: of the mean, "uniform" (paper) or "data".
    """
    check.between("lam", lam, 0, 1, closed="left")
    check.nonnegative("beta", beta)
    check.one_of("weights", weights, WEIGHTS)

    def start(view):  # a
        return optax.tree.add_scale(view.params, lam, view.server)

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, beta, drift)

    def update(params, momentum, upload, cohort):
        momentum = optax.tree.add_scale(upload.delta, lam, momentum)
        return optax.tree.add(params, momentum), momentum

    def refined(params, momentum, upload, cohort, shift):
        moved = upload._replace(delta=optax.tree.add(upload.delta, shift))
        return update(params, momentum, moved, cohort)

    return Algorithm(
        local=LocalRule(correct=correct, start=start),
        server=ServerRule(
            init=optax.tree.zeros_like,
            combine=mean(WEIGHTS[weights]),
            update=update,
            refined=refined,
        ),
    )
