r"""FedPer: average the body of the model, let every client keep a head of its own.

    theta_i = (B, P_i)                                       P_i as the client left it
    (B_i, P_i) <- local SGD on F_i, from theta_i
    B       <- B + sum_{i in S} p_i (B_i - B)                p_i = n_i / sum_{S} n

The model a client uses is (B, P_i).

References:
  Arivazhagan et al., "Federated Learning with Personalization Layers", 2019,
  https://arxiv.org/abs/1912.00818. Algorithms 1 and 2.

Departs from the paper: heads begin alike, where the paper draws each client's its own. On
another base than FedAvg, what that adds to gradients is added to the body's alone.
"""

from ..core import Algorithm, as_base
from ..personal import Personal, with_personal


def fedper(personal: Personal = "out", base: Algorithm | None = None) -> Algorithm:
    """Builds FedPer. Client state: the client's own parameters, besides its base's.

    Args:
      personal: which parameters are the client's own: text that is part of their path in
        whole names, a function of the path, or a tuple of them; the project's models call
        their last layer `out`.
      base: the algorithm that the body is trained by; none: FedAvg.
    """
    return with_personal(as_base(base), personal)
