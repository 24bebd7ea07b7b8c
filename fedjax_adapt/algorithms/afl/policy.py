"""AFL's policy: a tau for every round, until the budget has run out.

See `__init__.py` for the symbols.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ... import check
from ...core import (
    Array,
    Measure,
    Params,
    State,
    StepPolicy,
    Traffic,
    all_finite,
    by_examples,
    weighted_sum,
)
from ...errors import SettingError
from .bound import AGGREGATION_SECONDS, STEP_SECONDS, bounds, check_budget, check_costs
from .estimates import divergences, estimate

TRAINS, LAST, SCORES, OVER = range(4)
SHOWN = (
    *("tau", "beta", "delta", "rho", "estimates", "best_loss", "step_seconds"),
    *("aggregation_seconds", "spent", "nonfinite"),
)


class AflState(NamedTuple):
    """The state of AFL's server: one model and scalars."""

    tau: Array  # int32, the local steps of the next round, before the cap
    beta: Array  # smoothness
    delta: Array  # divergence of the clients' gradients
    rho: Array  # Lipschitz constant
    estimates: Array  # int32, rounds that gave one
    rounds: Array  # int32
    step_seconds: Array  # c
    aggregation_seconds: Array  # b
    spent: Array  # seconds
    stage: Array  # int32: trains, last, scores, over
    best: Params  # the w with the least estimated loss so far
    best_loss: Array
    nonfinite: Array  # int32, rounds with a number that was not finite


def afl_online(
    budget: float | None = None,
    *,
    phi: float = 5e-5,
    hold: float = 0.0,
    step_seconds: float | None = None,
    aggregation_seconds: float | None = None,
    max_steps: int = 100,
    trial_steps: int | None = None,
) -> StepPolicy:
    """AFL's local steps; its clients must keep their last model: take `afl(base=...)`.

    It reports the scalars tau (of the next round), beta, delta, rho, estimates (rounds so
    far that gave these three), best_loss, step_seconds (c), aggregation_seconds (b), spent
    (seconds) and nonfinite. See `afl` for the arguments.
    """
    check.between("hold", hold, 0, 1, closed="left")
    check.at_least("trial_steps", trial_steps, 1, none="a run with a budget")
    trial = trial_steps is not None
    budget = float("inf") if trial and budget is None else budget
    timed = step_seconds is not None and aggregation_seconds is not None
    known = (
        STEP_SECONDS if step_seconds is None else step_seconds,
        AGGREGATION_SECONDS if aggregation_seconds is None else aggregation_seconds,
    )
    check_costs(phi, *known, max_steps)
    if not trial:  # a clock may say less than what is known without one
        check_budget(budget, *(known if timed else (0, 0)))
    if trial:
        check.between("trial_steps", trial_steps, 1, max_steps)

    def init(params, num_clients):
        zero, count = jnp.zeros(()), jnp.zeros((), jnp.int32)
        return AflState(
            tau=jnp.asarray(trial_steps if trial else 1, jnp.int32),
            beta=zero,
            delta=zero,
            rho=zero,
            estimates=count,
            rounds=count,
            step_seconds=jnp.asarray(known[0], float),
            aggregation_seconds=jnp.asarray(known[1], float),
            spent=zero,
            stage=count,
            best=params,
            best_loss=jnp.asarray(jnp.inf),
            nonfinite=count,
        )

    def steps(state, cohort, measurement):
        return jnp.broadcast_to(state.tau, cohort.ids.shape)

    def capped(tau):
        return jnp.minimum(tau, max_steps)

    def choose(state, lr):  # the next tau, and the stage it belongs to
        if trial:
            return state.tau, state.stage
        c, b = state.step_seconds, state.aggregation_seconds
        most = 10 * max_steps
        g = bounds(state.beta, state.delta, state.rho, lr, phi, (budget, c, b), most)
        near = jnp.arange(1, most + 1) <= 10 * capped(state.tau)
        best = 1 + jnp.argmin(jnp.where(near, g, jnp.inf))
        best = jnp.where(state.estimates > 0, best, 1)
        tau = capped(best)
        left = budget - state.spent
        rest = jnp.clip(jnp.trunc((left - 2 * b - c) / c), 1, tau).astype(jnp.int32)
        ends = left <= c * (tau + 1) + 2 * b
        trains = jnp.where(ends, LAST, TRAINS)
        stage = jnp.where(state.stage == TRAINS, trains, state.stage + 1)
        one = jnp.ones_like(rest)
        return jnp.stack([best.astype(rest.dtype), rest, one, 0 * one])[stage], stage

    def costs(num_steps, outcome):  # c, b and the seconds of a round
        c, b = known
        tau = num_steps.max()
        if outcome.step_seconds is None:
            if not trial:
                check_budget(budget, c, b)
            return c, b, c * tau + b
        if step_seconds is None:
            slowest = jnp.where(num_steps > 0, outcome.step_seconds, 0).max()
            c = jnp.maximum(slowest, 1e-8)  # the authors' code has this floor, too
        if aggregation_seconds is None:
            b = jnp.maximum(outcome.seconds - c * tau, 0)
        return c, b, outcome.seconds

    def update(state, cohort, runs, outcome):
        seen = outcome.measured
        weights = by_examples(cohort)
        mean = lambda leaf: weighted_sum(weights, cohort.active, leaf)
        compares = cohort.active & seen.compares
        share = jnp.where(compares, weights, 0)
        share /= jnp.where(compares.any(), share.sum(), 1)
        compared = lambda leaf: weighted_sum(share, compares, leaf)
        loss, beta, rho = mean(seen.loss), compared(seen.beta), compared(seen.rho)
        new = (beta, mean(divergences(seen.gradient, mean)), rho)
        measured = all_finite((loss, new))
        usable, aggregated = measured & compares.any(), all_finite(outcome.upload)
        old = (state.beta, state.delta, state.rho)
        kept = jnp.where(state.estimates > 0, hold, 0.0)
        held = lambda old, new: jnp.where(usable, kept * old + (1 - kept) * new, old)
        beta, delta, rho = jax.tree.map(held, old, new)
        better = loss < state.best_loss
        best = lambda new, old: jnp.where(better, new, old)
        # the server waits, too, for those whose uploads it then leaves out
        c, b, took = costs(runs.num_steps, outcome)
        after = state._replace(
            beta=beta,
            delta=delta,
            rho=rho,
            estimates=state.estimates + usable,
            rounds=state.rounds + 1,
            step_seconds=c,
            aggregation_seconds=b,
            spent=state.spent + took,
            best=jax.tree.map(best, outcome.anchor, state.best),
            best_loss=best(loss, state.best_loss),
            nonfinite=state.nonfinite + ~(measured & aggregated),
        )
        tau, stage = choose(after, outcome.setting.lr)
        if not trial:
            free = stage == TRAINS
            tau = jnp.where(free & ~measured, state.tau, tau)
            tau = jnp.where(free & ~aggregated, 1, tau)
        after = after._replace(tau=tau.astype(jnp.int32), stage=stage)
        waited = state._replace(spent=state.spent + took * (runs.num_steps.max() > 0))
        return optax.tree.where(cohort.num_active > 0, after, waited)

    def report(state, cohort, measurement):
        return {name: getattr(state, name) for name in SHOWN} | {
            "tau": capped(state.tau)
        }

    return StepPolicy(
        steps,
        init,
        # grad F_i(w) and grad F_i(theta_i)
        Measure(estimate, steps=lambda cohort: jnp.full_like(cohort.ids, 2)),
        update=update,
        report=report,
        max_steps=max_steps,
        # tau; grad F_i(w), beta_i, rho_i and the loss
        traffic=Traffic(models_up=1, scalars_down=1, scalars_up=3),
        best=lambda state: state.best,
    )


def afl_best(state: State) -> Params:
    """The w with the least estimated loss of a run with `afl`, its result."""
    if not isinstance(state, State) or not isinstance(state.policy, AflState):
        raise SettingError(
            f"afl_best got {check.kind_of(state)} that is not a state of afl; write "
            "afl_best(state) with what train returned for afl(budget=15.0) or so."
        )
    return state.policy.best
