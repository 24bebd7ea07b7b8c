r"""AFL: the local steps that are best for a budget of seconds; needs a budget.

    rho_i  = |F_i(theta_i) - F_i(w)| / ||theta_i - w||
    beta_i = ||grad F_i(theta_i) - grad F_i(w)|| / ||theta_i - w||
    delta  = sum_i p_i ||grad F_i(w) - grad F(w)||,  grad F = sum_i p_i grad F_i
    h(x)   = eta delta sum_{j<x} ((1 + eta beta)^j - 1)
           = (delta / beta) ((1 + eta beta)^x - 1) - eta delta x
    T(x)   = (R - b - c) x / (c x + b)          R: budget, c: a step, b: an aggregation
    G(x)   = 1 / (2 eta phi T) + sqrt(1 / (2 eta phi T)^2 + rho h / (eta phi x)) + rho h
    tau   <- min(argmin_{x = 1..10 tau} G(x), max_steps)       the first, if several
    w     <- the base's own rule

theta_i is where client i ended the last round. beta and rho are means over the clients of
the round that have trained before, n_i / n among them; a round without such a client
estimates nothing. tau is 1 in the first two rounds. Before the budget runs out tau is cut
to what is left, and one round with tau = 1 scores the last w; then no client trains. The
result is the w with the least estimated loss, see `afl_best`; a run evaluates it as
"result".

References:
  Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing
  Systems", JSAC 2019, https://arxiv.org/abs/1804.05271. Algorithms 2 and 3. GIFT's
  baseline is `afl_fixed`: https://doi.org/10.1109/JSAC.2023.3242721, Section V-C.

Departs from the paper: F_i in the estimates is the loss, in evaluation mode, of one
minibatch that client i draws in the new round for both models, not of the last one of
the round before: a gradient more per round. One resource, time. By the plan's clock c is
that of the slowest client of the round just done, b the rest of what it took; numbers
that are given are believed instead, but for what is spent. Without a clock a round takes
c tau + b.
"""

from ...core import Algorithm, as_base, with_steps
from ...errors import SettingError
from .bound import AGGREGATION_SECONDS, STEP_SECONDS, afl_fixed
from .estimates import afl_constants, remembering
from .policy import afl_best, afl_online

__all__ = ["afl", "afl_best", "afl_constants", "afl_fixed", "afl_online"]


def afl(
    budget: float | None = None,
    *,
    phi: float = 5e-5,
    hold: float = 0.0,
    step_seconds: float | None = None,
    aggregation_seconds: float | None = None,
    max_steps: int = 100,
    trial_steps: int | None = None,
    beta: float | None = None,
    delta: float | None = None,
    rho: float | None = None,
    lr: float = 0.01,
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds AFL on a base. Client state: the model it ended with, besides the base's.

    With beta, delta and rho it is `afl_fixed` on the base, which keeps nothing, asks no
    clock and ends no run: the budget only decides tau.

    Args:
      budget: R, seconds for all rounds together, which the last two, of at least a step
        each, may exceed; it must be given.
      phi: the control parameter; 0.025 for the paper's SVM.
      hold: what beta, delta and rho keep of the round before, in [0, 1).
      step_seconds: c, seconds of one local step of the slowest client; none: by the plan's
        clock, or 0.0130 without one or with beta, delta and rho.
      aggregation_seconds: b, seconds of one aggregation; none: what a round took beyond
        c tau by the plan's clock, or 0.1316 without one or with beta, delta and rho.
      max_steps: tau grows no further, what is cut is counted.
      trial_steps: take so many steps in every round, without a budget, and only report
        the estimates: the trial run whose means `afl_constants` hands to `afl_fixed`.
      beta: smoothness, where a trial run has measured it: one tau for the whole run.
      delta: divergence of the clients' gradients, likewise.
      rho: Lipschitz constant of the loss, likewise.
      lr: eta, the learning rate of the run, which only that one tau depends on.
      base: any algorithm; none: FedAvg.

    Raises:
      SettingError: an argument is out of its range, the budget is missing, or beta, delta
        and rho are not given together.
    """
    if any(constant is not None for constant in (beta, delta, rho)):
        if hold != 0:
            raise SettingError(
                f"hold={hold} keeps estimates of rounds before, but beta, delta and rho "
                "are given; leave hold out.",
                setting="hold",
            )
        if beta is None or delta is None or rho is None or trial_steps is not None:
            raise SettingError(
                f"afl got beta={beta}, delta={delta}, rho={rho} and "
                f"trial_steps={trial_steps}; write the means of a trial run for the first "
                "three and leave trial_steps out, or trial_steps alone."
            )
        c = STEP_SECONDS if step_seconds is None else step_seconds
        b = AGGREGATION_SECONDS if aggregation_seconds is None else aggregation_seconds
        fixed = afl_fixed(
            beta=beta,
            delta=delta,
            rho=rho,
            budget=budget,
            lr=lr,
            phi=phi,
            step_seconds=c,
            aggregation_seconds=b,
            max_steps=max_steps,
        )
        return with_steps(as_base(base), fixed)
    policy = afl_online(
        budget=budget,
        phi=phi,
        hold=hold,
        step_seconds=step_seconds,
        aggregation_seconds=aggregation_seconds,
        max_steps=max_steps,
        trial_steps=trial_steps,
    )
    return with_steps(remembering(as_base(base)), policy)
