r"""FedCM: every local step goes partly along the last round's mean direction.

    v     <- alpha grad F_i(theta) + (1 - alpha) Delta
    theta <- theta - lr v                                  K_i steps, from w
    D      = mean_{i in S} (theta_i - w)
    Delta <- -D / (lr Kbar)                                Kbar = mean_{i in S} K_i
    w     <- w + server_lr D

Delta is in units of a gradient, 0 at first: clients are sent it besides w.

References:
  Xu et al., "FedCM: Federated Learning with Client-level Momentum", 2021,
  https://arxiv.org/abs/2106.10874. Algorithm 1.

Departs from the paper: its clients take equally many steps; Kbar is their mean where they
do not. With local momentum, which it does not treat, K_i is the distance that as many
steps go on a constant unit gradient. What the plan clips is v; weight decay is added to v,
not scaled by alpha.
"""

from functools import partial
from typing import Literal

import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    WEIGHTS,
    Algorithm,
    LocalRule,
    ServerRule,
    as_uploaded,
    effective_steps,
    mean,
)


def fedcm(
    alpha: float = 0.1,
    server_lr: float = 1.0,
    weights: Literal["data", "uniform"] = "uniform",
) -> Algorithm:
    """Builds FedCM. Server state: Delta, shaped like the parameters. `fedcm(1)` is FedAvg.

    Args:
      alpha: how much of a step is the client's own gradient, in (0, 1].
      server_lr: step size of the server.
      weights: of the mean, "uniform" (paper) or "data".
    """
    check.between("alpha", alpha, 0, 1, closed="right")
    check.positive("server_lr", server_lr)
    check.one_of("weights", weights, WEIGHTS)

    def correct(grads, view):
        scaled = optax.tree.scale(alpha, grads)
        return optax.tree.add_scale(scaled, 1 - alpha, view.server)

    def update(params, direction, upload, cohort):
        setting, p = cohort.setting, WEIGHTS[weights](cohort)
        steps = (p * effective_steps(cohort.num_steps, setting.momentum)).sum()
        passed = setting.lr * jnp.maximum(steps, 1)  # without training there is no mean
        params = optax.tree.add_scale(params, server_lr, upload.delta)
        return params, optax.tree.scale(-1 / passed, upload.delta)

    def refined(params, direction, upload, cohort, shift):
        moved = upload._replace(delta=optax.tree.add(upload.delta, shift))
        return update(params, direction, moved, cohort)

    return Algorithm(
        local=LocalRule(
            correct=correct,
            traffic=partial(as_uploaded, models_down=2),  # w and Delta
        ),
        server=ServerRule(
            init=optax.tree.zeros_like,
            combine=mean(WEIGHTS[weights]),
            update=update,
            refined=refined,
        ),
    )
