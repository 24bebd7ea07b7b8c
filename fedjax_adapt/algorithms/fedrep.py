r"""FedRep: every client first fits a head of its own to the shared body, then the body.

    h <- h - lr grad_h F_i(B, h)            for the first local steps, B as it came
    B_i <- B_i - lr grad_B F_i(B_i, h)      for the others, h as they left it
    B <- B + mean_{i in S} (B_i - B)

The model a client uses is (B, h_i). Of tau_i local steps the last is the body's and all
before it the head's, as in the paper; `head_steps` leaves more of them to the body.

References:
  Collins et al., "Exploiting Shared Representations for Personalized Federated Learning",
  ICML 2021, https://arxiv.org/abs/2102.07078. Algorithm 1; the authors' code,
  https://github.com/lgcollins/FedRep, counts the head's epochs among the local ones too.

Departs from the paper: the first body is drawn at random, as in its experiments, where
Algorithm 1 begins with a spectral method. Weight decay, which it does not treat, holds for
the part that is trained. Momentum would move the other part on and is refused.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from .. import check
from ..core import WEIGHTS, Algorithm, ServerRule, mean
from ..errors import SettingError
from ..personal import Personal, chosen, with_personal


def fedrep(
    head_steps: int | None = None,
    personal: Personal = "out",
    weights: Literal["data", "uniform"] = "uniform",
) -> Algorithm:
    """Builds FedRep. Client state: the client's own head.

    Args:
      head_steps: the local steps that train the head, at most all but a client's last;
        none: all but the last.
      personal: which parameters are the head: text that is part of their path in whole
        names, a function of the path, or a tuple of them; the project's models call their
        last layer `out`.
      weights: of the average of bodies, "uniform" (paper) or "data" (the authors' code).
    """
    check.at_least("head_steps", head_steps, 0, none="all but the last")
    check.one_of("weights", weights, WEIGHTS)

    def trained(view):  # whether this step trains each parameter
        most = view.num_steps - 1
        first = most if head_steps is None else jnp.minimum(head_steps, most)
        of_head = view.step < first
        head = chosen(personal, view.params)
        return jax.tree.map(lambda is_head: of_head if is_head else ~of_head, head)

    def correct(grads, view):
        return jax.tree.map(
            lambda on, leaf: jnp.where(on, leaf, 0), trained(view), grads
        )

    def decay(grads, view):  # the plan's weight decay is added to this
        back = lambda on, leaf, p: jnp.where(
            on, leaf, -(view.setting.weight_decay * p).astype(leaf.dtype)
        )
        return jax.tree.map(back, trained(view), grads, view.params)

    def accepts(setting):
        if setting.momentum is None:
            raise SettingError(
                "an optimizer with a memory would move a head and a body on that fedrep "
                "holds still; leave out with_local_optimizer."
            )
        if not check.is_tracer(setting.momentum) and setting.momentum:
            raise SettingError(
                f"momentum={setting.momentum} would move a head and a body on that fedrep "
                "holds still; write momentum=0.",
                setting="momentum",
            )

    server = ServerRule(combine=mean(WEIGHTS[weights]))
    algorithm = with_personal(Algorithm(server=server), personal)
    local = algorithm.local._replace(correct=correct, decay=decay, check=accepts)
    return algorithm._replace(local=local)
