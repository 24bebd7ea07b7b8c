r"""FedAvgM: FedAvg with momentum at the server.

    D  = sum_{i in S} p_i (theta_i - w)                    p_i = n_i / sum_{S} n
    v <- beta v + D
    w <- w + server_lr v

References:
  Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated
  Visual Classification", 2019, https://arxiv.org/abs/1909.06335. Section 4.2.

Departs from the paper: none. The paper's Nesterov form is `nesterov=True`.
"""

import optax

from .. import check
from ..core import Algorithm, as_base
from ..wrap import with_server_optimizer


def fedavgm(
    server_lr: float = 1.0,
    server_momentum: float = 0.9,
    nesterov: bool = False,
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds FedAvgM. Without momentum and at server_lr=1 it is its base.

    Args:
      server_lr: step size of the server.
      server_momentum: beta, in [0, 1).
      nesterov: whether to look ahead by one step.
      base: the algorithm whose move of the global model is D; none: FedAvg.
    """
    check.positive("server_lr", server_lr)
    check.between("server_momentum", server_momentum, 0, 1, closed="left")
    optimizer = optax.sgd(server_lr, server_momentum, nesterov)
    return with_server_optimizer(as_base(base), optimizer)
