r"""AdaComm: fewer local steps as the training loss falls, chosen anew every interval.

    nu   = ceil( sqrt(F_l / F_0) tau_0 )        F_l: loss at the end of interval l
    tau <- nu                                   if fix is off
    tau <- nu          if nu < tau              with the fix for a loss that saturates
           max(1, ceil(gamma tau))   else
    w   <- the base's own rule

sqrt(F_l / F_0) is the ratio of the steps that are best at F_l and at F_0 when the least
loss is 0. With a learning rate that changes it is multiplied by sqrt(eta_0 / eta_l)
(lr_coupling = "practical") or by (eta_0 / eta_l)^(3/2) ("exact").

References:
  Wang and Joshi, "Adaptive Communication Strategies to Achieve the Best Error-Runtime
  Trade-off in Local-Update SGD", MLSys 2019, https://arxiv.org/abs/1810.08313. Section 4.
  As a baseline of GIFT: https://doi.org/10.1109/JSAC.2023.3242721, Section V-C.

Departs from the paper: F_l is the mean loss of the clients' own steps in the last round
of the interval, and F_0 that of the first round, so that nothing is evaluated for it
(start="global": the loss of w_0 over all training data). Intervals may be counted in
rounds. trigger="loss_not_decreasing" is GIFT's wording of the fix. eta_l is the learning
rate of the interval's last round. Where ceil(gamma tau) = tau, tau falls by 1.
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    StepPolicy,
    Traffic,
    as_base,
    part_of,
    with_steps,
)
from ..errors import SettingError

Trigger = Literal["tau_not_smaller", "loss_not_decreasing"]
Coupling = Literal["off", "practical", "exact"]
Start = Literal["first_round", "global"]
EXPONENTS = {"off": 0.0, "practical": 0.5, "exact": 1.5}


class AdaCommState(NamedTuple):
    """The state of AdaComm's server: scalars."""

    tau: Array  # int32, the local steps of the next round, before the cap
    first_loss: Array  # F_0
    last_loss: Array  # F of the last interval, F_0 in the first
    spent: Array  # rounds or simulated seconds since the interval began
    rounds: Array  # int32, rounds with a finite loss
    nonfinite: Array  # int32, rounds left out because their loss was not finite


def adacomm(
    initial_steps: int = 100,
    *,
    fix: bool = True,
    trigger: Trigger = "tau_not_smaller",
    gamma: float = 0.5,
    every_rounds: int = 10,
    every_seconds: float | None = None,
    start: Start = "first_round",
    max_steps: int | None = None,
    lr_coupling: Coupling = "off",
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds AdaComm on a base. Policy state: `AdaCommState`, six scalars.

    Args:
      initial_steps: tau_0, the local steps of the first interval.
      fix: whether tau falls by itself when the loss does not say so; with it tau falls in
        every interval until it is 1.
      trigger: when the fix acts: nu is not below tau (paper), or F_l >= F_{l-1}.
      gamma: what the fix multiplies tau by, in (0, 1].
      every_rounds: rounds in an interval.
      every_seconds: simulated seconds in an interval, in place of rounds; 60 in the paper.
        They pass only by the plan's clock (step_seconds on the command line).
      start: F_0: of the clients' steps in the first round, or the "global" loss at w_0.
      max_steps: tau grows no further when the loss does, what is cut is counted; none: no
        limit.
      lr_coupling: how a smaller learning rate lengthens tau.
      base: any algorithm; none: FedAvg.
    """
    check.at_least("initial_steps", initial_steps, 1)
    check.one_of("trigger", trigger, get_args(Trigger))
    check.between("gamma", gamma, 0, 1, closed="right")
    check.at_least("every_rounds", every_rounds, 1)
    if every_seconds is not None:
        check.positive("every_seconds", every_seconds)
    check.one_of("start", start, get_args(Start))
    check.at_least("max_steps", max_steps, 1, none="no limit")
    if max_steps is not None:
        check.between("initial_steps", initial_steps, 1, max_steps)
    check.one_of("lr_coupling", lr_coupling, EXPONENTS)
    interval = every_rounds if every_seconds is None else every_seconds

    def init(params, num_clients):
        return AdaCommState(
            tau=jnp.asarray(initial_steps, jnp.int32),
            first_loss=jnp.zeros(()),
            last_loss=jnp.zeros(()),
            spent=jnp.zeros(()),
            rounds=jnp.zeros((), jnp.int32),
            nonfinite=jnp.zeros((), jnp.int32),
        )

    def steps(state, cohort, measurement):
        return jnp.broadcast_to(state.tau, cohort.ids.shape)

    def send(run):
        return run.loss

    def capped(tau):
        return tau if max_steps is None else jnp.minimum(tau, max_steps)

    def choose(state, loss, setting):  # tau of the next interval
        factor = (setting.base_lr / setting.lr) ** EXPONENTS[lr_coupling]
        ratio = jnp.maximum(loss / state.first_loss, 0)
        # 1e-4: a root that is whole may come out a little above itself
        nu = jnp.ceil(jnp.sqrt(ratio) * factor * initial_steps - 1e-4)
        usable, nu = jnp.isfinite(nu), jnp.clip(nu, 1, check.MOST)
        if fix:
            tau = capped(state.tau)
            halved = jnp.minimum(jnp.ceil(gamma * tau - 1e-4), tau - 1)
            smaller = nu < tau
            falls = smaller if trigger == "tau_not_smaller" else loss < state.last_loss
            nu = jnp.where(falls, nu, jnp.maximum(halved, 1))
        return jnp.where(usable, nu, state.tau).astype(jnp.int32), usable

    def update(state, cohort, runs, outcome):
        if every_seconds is not None and outcome.step_seconds is None:
            raise SettingError(
                f"every_seconds={every_seconds} never pass without a clock; write "
                "Plan(clock=Clock(step_seconds=0.05)), or every_rounds in their place.",
                setting="every_seconds",
            )
        loss, begins = outcome.sent, state.rounds == 0
        first = loss
        if start == "global":
            begin = lambda: cohort.train_loss(outcome.anchor).astype(loss.dtype)
            first = jax.lax.cond(begins, begin, lambda: state.first_loss)
        trained = cohort.num_active > 0
        usable = jnp.isfinite(loss) & jnp.isfinite(first)
        seen = state._replace(
            first_loss=jnp.where(begins, first, state.first_loss),
            last_loss=jnp.where(begins, first, state.last_loss),
            spent=state.spent + (1 if every_seconds is None else outcome.seconds),
            rounds=state.rounds + 1,
        )
        tau, chosen = choose(seen, loss, outcome.setting)
        # F_1 = F_0 says nothing where both are those of the first round
        ends = (seen.spent >= interval) & (~begins | (start == "global"))
        seen = seen._replace(
            tau=jnp.where(ends, tau, state.tau),
            last_loss=jnp.where(ends, loss, seen.last_loss),
            spent=jnp.where(ends, jnp.mod(seen.spent, interval), seen.spent),
            nonfinite=state.nonfinite + (ends & ~chosen),
        )
        kept = state._replace(nonfinite=state.nonfinite + (trained & ~usable))
        return optax.tree.where(trained & usable, seen, kept)

    def report(state, cohort, measurement):
        return {
            "tau": capped(state.tau),
            "interval_loss": state.last_loss,
            "nonfinite": state.nonfinite,
        }

    policy = StepPolicy(
        steps,
        init,
        update=update,
        send=send,
        report=report,
        max_steps=max_steps,
        traffic=Traffic(scalars_down=1, scalars_up=1),  # tau; the loss
    )
    return with_steps(as_base(base), policy)


@part_of(adacomm, "base")
def adacomm_steps(algorithm: Algorithm) -> StepPolicy:
    """AdaComm's local steps for any algorithm; see `adacomm` for the arguments.

    It reports the scalars tau (of the next round), interval_loss (F_l) and nonfinite. A
    loss that is not finite only adds to the last; a round without training has none.
    """
    return algorithm.policy
