r"""FedAvg: average what the clients learnt.

    theta_i <- tau_i steps of SGD on F_i, from w
    w       <- sum_{i in S} n_i theta_i / sum_{i in S} n_i

References:
  McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
  Data", AISTATS 2017, https://arxiv.org/abs/1602.05629. Algorithm 1.

Departs from the paper: weights are those of the cohort, so that they sum to 1 under
partial participation (the corrected form of the paper's later versions).
"""

from typing import Literal

from .. import check
from ..core import WEIGHTS, Algorithm, ServerRule, mean


def fedavg(weights: Literal["data", "uniform"] = "data") -> Algorithm:
    """Builds FedAvg. `fedavg() == Algorithm()`: every other method departs from here.

    Args:
      weights: "data" (n_i over the cohort's examples) or "uniform" (1 / m).
    """
    check.one_of("weights", weights, WEIGHTS)
    return Algorithm(server=ServerRule(combine=mean(WEIGHTS[weights])))
