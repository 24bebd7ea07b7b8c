r"""FedVRA: a dual variable per client that takes out the variance of who is sampled.

    G        <- grad F_i(theta) + lambda_i + gamma_i (theta - w)
    lambda_i <- lambda_i + a gamma_i (theta_i - w)
    w        <- d/N sum_S theta_i + (1 - d m/N) w + 1/N sum_{all j} lambda_j / gamma_j

gamma_i = gamma / w_i, w_i = N n_i / n the client's size over the mean size. With a = 1
and d = N/m, the defaults here, it is FedDyn of alpha = gamma, clipped as a whole.

References:
  "FedVRA", AAAI 2023, as restated in the FedSSG paper, eqs. (13)-(16), whose tables it
  stands in; the code behind those tables, https://github.com/itoritsu/FedSSG.

Departs from the paper: experimental. The original text was not at hand; this is the form
that the FedSSG paper restates, and the middle term of the server's step is our affine
completion: without it d must be N/m. Its d = 10 is N/m at 10 % participation, so the
default is N/m of the round. Its a = 7 together with a large d diverges at 50 %
participation; the default is a = 1, and a <= N/m is advised.
"""

from typing import Literal

import optax

from .. import check
from ..core import Algorithm, LocalRule, ServerRule, Upload, mean, uniformly
from ..errors import SettingError


def fedvra(
    variant: Literal["paper", "ssg_code"] = "paper",
    gamma: float = 0.1,
    a: float = 1.0,
    d: float | None = None,
) -> Algorithm:
    """Builds FedVRA. Client state: the sum of its own moves, lambda_i / (a gamma_i).

    Args:
      variant: "paper", or "ssg_code": the code behind FedSSG's tables, where lambda
        enters only a term without gradient, so that it is FedDyn with alpha = 0.01, its
        clip included; the other arguments must be left out.
      gamma: strength of the proximal term.
      a: step size of the dual variable.
      d: weight of the cohort's models; none: N/m of the round, their plain mean.
    """
    check.one_of("variant", variant, ("paper", "ssg_code"))
    check.positive("gamma", gamma)
    check.positive("a", a)
    if d is not None:
        check.positive("d", d)
    is_code = variant == "ssg_code"
    if is_code:
        if not any(check.is_tracer(v) for v in (gamma, a, d)) and (gamma, a, d) != (
            0.1,
            1.0,
            None,
        ):
            raise SettingError(
                f"variant=ssg_code is FedDyn with alpha=0.01 and has no gamma={gamma}, "
                f"a={a} or d={d}; leave them out, or write variant=paper.",
                setting="variant",
            )
        gamma, a, d = 0.01, 1.0, None

    def prepare(view):  # lambda_i - gamma_i w
        constant = optax.tree.sub(optax.tree.scale(a, view.client), view.anchor)
        return optax.tree.scale(gamma / view.size_ratio, constant)

    def shrink(grads, view):  # + gamma_i theta
        return optax.tree.add_scale(grads, gamma / view.size_ratio, view.params)

    def correct(grads, view):
        grads = optax.tree.add(grads, view.prepared)
        return grads if is_code else shrink(grads, view)

    def decay(grads, view):  # the code adds it after the clip
        return shrink(grads, view) if is_code else grads

    def finish(run):
        delta = optax.tree.sub(run.params, run.anchor)
        return Upload(delta), optax.tree.add(run.client, delta)

    def update(params, memory, upload, cohort):
        memory = optax.tree.add_scale(memory, a * cohort.share, upload.delta)
        weight = 1.0 if d is None else d * cohort.share
        moved = optax.tree.add_scale(memory, weight, upload.delta)
        return optax.tree.add(params, moved), memory

    return Algorithm(
        local=LocalRule(
            init=optax.tree.zeros_like,
            prepare=prepare,
            correct=correct,
            decay=decay,
            finish=finish,
        ),
        server=ServerRule(
            optax.tree.zeros_like, mean(uniformly), update, adds_mean=d is None
        ),
    )
