r"""FedExP: the server steps further, the more its clients' moves disagree.

    D_i   = theta_i - w
    D     = sum_{i in S} p_i D_i                           p_i = n_i / sum_{S} n
    eta_g = max(1, sum_{i in S} p_i ||D_i||^2 / (2 (||D||^2 + epsilon)))
    w    <- w + eta_g D

References:
  Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation", ICLR
  2023, https://arxiv.org/abs/2301.09604. Algorithm 1.

Departs from the paper: p_i are the base's weights; the paper's are uniform, 1 / M, which
is `base=fedavg("uniform")`. The paper evaluates the mean of the last two models, because
the iterates oscillate; here the last one is the result.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Mean,
    ServerRule,
    adds_mean,
    as_base,
    merged_report,
    model_weights,
    traffic_for,
    updated,
    widened,
)
from ..errors import SettingError
from ..wrap import around, seeing


class Sent(NamedTuple):
    """The part of a client's upload besides its displacement."""

    inner: Any  # what the base sends
    square: Any  # ||D_i||^2


def fedexp(epsilon: float = 1e-3, base: Algorithm | None = None) -> Algorithm:
    """Builds FedExP on a base. With one client in a cohort it is its base.

    eta_g is shown as `info.server["server_lr"]`.

    Args:
      epsilon: keeps eta_g small where the moves are; the paper tunes it, 0.001 to 0.1.
      base: an algorithm whose server adds the mean of the cohort's displacements:
        FedAvg, FedProx, MOON, FedDyn, FedDC or FedSSG; none: FedAvg with weights n_i / n,
        where the paper has uniform ones, `base=fedavg("uniform")`.
    """
    check.nonnegative("epsilon", epsilon)
    base = as_base(base)
    rule, combine = base.server, base.server.combine
    if not (isinstance(combine, Mean) and adds_mean(rule)):
        raise SettingError(
            "fedexp goes further along the mean of the cohort's displacements, but its "
            "base's server does something else with it; give fedavg(), fedprox(), moon(), "
            "feddyn(), feddc() or fedssg()."
        )
    plain = lambda upload: upload._replace(extra=upload.extra.inner)
    inner = seeing(base, upload=plain)

    def finish(run):
        upload, client = inner.local.finish(run)
        delta = widened(upload.delta)
        square = optax.tree.vdot(delta, delta)
        return upload._replace(extra=Sent(upload.extra, square)), client

    def server_lr(upload):  # eta_g
        delta = widened(upload.delta)
        square = optax.tree.vdot(delta, delta)
        apart = jnp.asarray(2 * (square + epsilon))
        # epsilon = 0 and no client moved
        return jnp.maximum(1, upload.extra.square / jnp.where(apart > 0, apart, 1))

    def update(params, extra, upload, cohort, shift=None):
        new, extra = updated(rule, params, extra, plain(upload), cohort, shift)
        return optax.tree.add_scale(new, server_lr(upload) - 1, upload.delta), extra

    def report(extra, upload, cohort):
        shown = rule.report(extra, plain(upload), cohort)
        more = {"server_lr": server_lr(upload)}
        return merged_report(shown, more, "ServerRule.report of the base", "fedexp")

    def weights(cohort):
        return Sent(combine.extra(cohort), model_weights(rule, cohort))

    def traffic(params, upload):
        sent = traffic_for(base.local, params, plain(upload))
        return sent._replace(scalars_up=sent.scalars_up + 1)  # ||D_i||^2

    return inner._replace(
        local=inner.local._replace(
            finish=around(finish, base.local.finish), traffic=traffic
        ),
        server=ServerRule(
            rule.init,
            Mean(combine.delta, weights),
            around(update, rule.update),
            refined=update,
            report=report,
            given=rule.given,
        ),
    )
