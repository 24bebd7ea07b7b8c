r"""FedNova: average directions, not distances, so that long local training counts once.

    theta_i <- tau_i steps of SGD on F_i, from w               with momentum rho, prox mu
    a_i = distance the same steps go on a constant unit gradient, over lr
        = tau_i                                                plain SGD
        = (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)          momentum
        = (1 - (1 - lr mu)^tau_i) / (lr mu)                              prox
    w <- w + tau_eff sum_{i in S} p_i (theta_i - w) / a_i      p_i = n_i / sum_{S} n
    tau_eff = sum_{i in S} p_i a_i                             sum p_i tau_i with prox

References:
  Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
  Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481. Sections 3 and 4.

Departs from the paper: p_i is normalised over the cohort. a_i is the response of the
recursion itself, which also covers momentum together with prox, where the published code
counts steps twice.
"""

from typing import Literal

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import WEIGHTS, Algorithm, LocalRule, ServerRule, Upload, mean


def fednova(mu: float = 0.0, weights: Literal["data", "uniform"] = "data") -> Algorithm:
    """Builds FedNova. With equal local steps for all clients it is FedAvg.

    Args:
      mu: strength of a proximal term mu/2 ||theta - w||^2, as in FedProx.
      weights: p_i, "data" or "uniform" (1 / m).
    """
    check.nonnegative("mu", mu)
    check.one_of("weights", weights, WEIGHTS)

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, mu, drift)

    def normaliser(run):  # a_i
        def step(_, state):
            distance, velocity = state
            velocity = run.setting.momentum * velocity + 1 - run.lr * mu * distance
            return distance + velocity, velocity

        zero = jnp.zeros_like(run.lr)
        return jax.lax.fori_loop(0, run.num_steps, step, (zero, zero))[0]

    def finish(run):
        a = normaliser(run)
        effective = jnp.where(jnp.asarray(mu) > 0, run.num_steps, a)
        delta = optax.tree.sub(run.params, run.anchor)
        # a client without steps went nowhere, and is not averaged
        direction = optax.tree.scale(1 / jnp.where(a == 0, 1, a), delta)
        return Upload(direction, effective, info={"normaliser": a}), run.client

    def update(params, extra, upload, cohort):
        del cohort
        return optax.tree.add_scale(params, upload.extra, upload.delta), extra

    return Algorithm(
        local=LocalRule(correct=correct, finish=finish),
        server=ServerRule(combine=mean(WEIGHTS[weights]), update=update),
    )
