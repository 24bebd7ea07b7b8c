r"""FedNova: average directions, not distances, so that long local training counts once.

    theta_i <- tau_i steps of SGD on F_i, from w               with momentum rho, prox mu
    a_i = distance the same steps go on a constant unit gradient, over lr
        = tau_i                                                plain SGD
        = (tau_i - rho (1 - rho^tau_i) / (1 - rho)) / (1 - rho)          momentum
        = (1 - (1 - lr mu)^tau_i) / (lr mu)                              prox
    w <- w + tau_eff sum_{i in S} p_i (theta_i - w) / a_i      p_i = n_i / sum_{S} n
    tau_eff = sum_{i in S} p_i a_i                             sum p_i tau_i with prox

With server momentum beta the server keeps v, in units of gradients:

    v <- beta v + tau_eff sum_{i in S} p_i (w - theta_i) / (lr a_i)
    w <- w - lr v

References:
  Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
  Optimization", NeurIPS 2020, https://arxiv.org/abs/2007.07481. Sections 3 and 4.

Departs from the paper: p_i is normalised over the cohort. a_i is the response of the
recursion itself, which also covers momentum together with prox, where the published code
counts steps twice.
"""

from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    WEIGHTS,
    Algorithm,
    LocalRule,
    ServerRule,
    Traffic,
    Upload,
    effective_steps,
    mean,
)


class NovaScale(NamedTuple):
    """The part of an upload besides the direction; the server takes the mean of both."""

    effective: jax.Array  # a_i, or tau_i with prox
    lr: jax.Array  # of the round, the same for all


def fednova(
    mu: float = 0.0,
    weights: Literal["data", "uniform"] = "data",
    server_momentum: float | None = None,
) -> Algorithm:
    """Builds FedNova. With equal local steps for all clients it is FedAvg.

    Args:
      mu: strength of a proximal term mu/2 ||theta - w||^2, as in FedProx.
      weights: p_i, "data" or "uniform" (1 / m).
      server_momentum: beta of v, in [0, 1); none: the server keeps nothing.
    """
    check.nonnegative("mu", mu)
    if server_momentum is not None:
        check.between("server_momentum", server_momentum, 0, 1, closed="left")
    check.one_of("weights", weights, WEIGHTS)

    def correct(grads, view):
        drift = optax.tree.sub(view.params, view.anchor)
        return optax.tree.add_scale(grads, mu, drift)

    def normaliser(run):  # a_i
        effective = effective_steps(run.num_steps, run.setting.momentum)
        if not check.is_tracer(mu) and mu == 0:  # a sum, which needs no loop
            return jnp.where(run.num_steps > 0, effective, 0).astype(run.lr.dtype)

        def step(state, *_):
            distance, velocity = state
            velocity = run.setting.momentum * velocity + 1 - run.lr * mu * distance
            return distance + velocity, velocity

        zero = jnp.zeros_like(run.lr)
        return run.over_steps(step, (zero, zero))[0]

    def finish(run):
        a = normaliser(run)
        effective = jnp.where(jnp.asarray(mu) > 0, run.num_steps, a)
        delta = optax.tree.sub(run.params, run.anchor)
        # a client without steps went nowhere, and is not averaged
        direction = optax.tree.scale(1 / jnp.where(a == 0, 1, a), delta)
        sent = NovaScale(effective, run.lr)
        return Upload(direction, sent, info={"normaliser": a}), run.client

    def init(params):
        return () if server_momentum is None else optax.tree.zeros_like(params)

    def update(params, velocity, upload, cohort):
        effective, lr = upload.extra
        if server_momentum is None:
            return optax.tree.add_scale(params, effective, upload.delta), velocity
        velocity = optax.tree.scale(server_momentum, velocity)
        velocity = optax.tree.add_scale(velocity, -effective / lr, upload.delta)
        return optax.tree.add_scale(params, -lr, velocity), velocity

    return Algorithm(
        local=LocalRule(
            correct=correct,
            finish=finish,
            # a_i goes along with the direction
            traffic=Traffic(models_down=1, models_up=1, scalars_up=1, round_trips=1),
        ),
        server=ServerRule(init, mean(WEIGHTS[weights]), update),
    )
