r"""FedProx: stay near the model you were sent.

    G <- grad F_i(theta) + mu (theta - w)          objective F_i + mu/2 ||theta - w||^2

References:
  Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
  https://arxiv.org/abs/1812.06127. Eq. (2), on mini-batches.

Departs from the paper: clients are averaged by data size, as the codes that compare with
FedProx do; the paper samples by data size and averages uniformly (`weights="uniform"`).
"""

from typing import Literal

import optax

from .. import check
from ..core import WEIGHTS, Algorithm, LocalRule, ServerRule, mean


def fedprox(
    mu: float = 1e-4,
    weights: Literal["data", "uniform"] = "data",
    variant: Literal["paper", "ssg_code"] = "paper",
) -> Algorithm:
    """Builds FedProx. `fedprox(0)` is FedAvg, to the bit.

    Args:
      mu: strength of the penalty.
      weights: "data" or "uniform".
      variant: "paper", or "ssg_code": the codes of FedDC and FedSSG write the penalty
        without the 1/2, so that the gradient is 2 mu (theta - w); theirs is 2e-4, which
        the default mu gives.
    """
    check.nonnegative("mu", mu)
    check.one_of("weights", weights, WEIGHTS)
    check.one_of("variant", variant, ("paper", "ssg_code"))
    strength = mu if variant == "paper" else 2 * mu

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, strength, drift)

    return Algorithm(
        local=LocalRule(correct=correct),
        server=ServerRule(combine=mean(WEIGHTS[weights])),
    )
