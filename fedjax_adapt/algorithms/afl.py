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

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    ClientState,
    Info,
    Measure,
    Params,
    State,
    StepPolicy,
    Traffic,
    adds_mean,
    all_finite,
    as_base,
    by_examples,
    constant_steps,
    equal,
    norm_of,
    part_of,
    updated,
    weighted_loss,
    weighted_sum,
    widened,
    with_steps,
)
from ..errors import SettingError
from ..wrap import seeing

# c and b of the paper's testbed, in seconds
STEP_SECONDS, AGGREGATION_SECONDS = 0.0130, 0.1316
CONSTANTS = ("beta", "delta", "rho")
TRAINS, LAST, SCORES, OVER = range(4)
SHOWN = (
    *("tau", "beta", "delta", "rho", "estimates", "best_loss", "step_seconds"),
    *("aggregation_seconds", "spent", "nonfinite"),
)


class Remembered(NamedTuple):
    """The state of a client: the base's, and the model it ended with."""

    inner: ClientState
    model: Params  # `no_model` until it has trained


class Estimate(NamedTuple):
    """The measurements of a client at w before it trains."""

    loss: Array
    gradient: Params
    beta: Array  # 0 where the client has never trained, as rho
    rho: Array
    compares: Array  # whether it had a model to compare with


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


def afl_fixed(
    beta: float,
    delta: float,
    rho: float,
    budget: float | None = None,
    *,
    lr: float = 0.01,
    phi: float = 5e-5,
    step_seconds: float = STEP_SECONDS,
    aggregation_seconds: float = AGGREGATION_SECONDS,
    max_steps: int = 100,
) -> StepPolicy:
    """One tau for the whole run, the first minimiser of G over 1..max_steps.

    Args:
      beta: smoothness, with delta and rho from `afl_constants` of a trial run.
      delta: divergence of the clients' gradients.
      rho: Lipschitz constant of the loss.
      budget: R, seconds; it must be given.
      lr: eta, the learning rate of the run.
      phi: the control parameter.
      step_seconds: c, seconds of one local step.
      aggregation_seconds: b, seconds of one aggregation.
      max_steps: the largest tau to look at.
    """
    for name, value in (("beta", beta), ("delta", delta), ("rho", rho)):
        check.between(name, value, 0, 1e15)
    check.positive("lr", lr)
    check_costs(phi, step_seconds, aggregation_seconds, max_steps)
    check_budget(budget, step_seconds, aggregation_seconds)
    costs = budget, step_seconds, aggregation_seconds
    tau: Any = 1 + jnp.argmin(bounds(beta, delta, rho, lr, phi, costs, max_steps))
    return constant_steps(tau if check.is_tracer(tau) else int(tau))


def drifts(beta, delta, lr, most: int) -> Array:
    """h at 1..most. As a sum it is exactly 0 at 1 and never below."""
    growth = jnp.arange(most) * jnp.log1p(lr * beta)
    # e^80 is large enough for any G, and no product with it is NaN
    return lr * delta * jnp.cumsum(jnp.expm1(jnp.minimum(growth, 80.0)))


def bounds(beta, delta, rho, lr, phi, costs, most: int) -> Array:
    """G at 1..most."""
    (budget, c, b), x = costs, jnp.arange(1, most + 1)
    steps = (budget - b - c) / (c + b / x)  # T
    half = 1 / (2 * lr * phi * steps)
    drift = rho * drifts(beta, delta, lr, most)
    g = half + jnp.sqrt(half**2 + drift / (lr * phi * x)) + drift
    return jnp.where(jnp.isnan(g), jnp.inf, g)


def check_costs(phi, c, b, max_steps) -> None:
    """Raises SettingError unless G can be found for them."""
    for name, value in {"phi": phi, "step_seconds": c}.items():
        check.between(name, value, 1e-9, 1e15)  # a float32 holds their products
    check.nonnegative("aggregation_seconds", b)
    check.at_least("max_steps", max_steps, 1, most=1_000_000)  # G is a vector as long


def check_budget(budget, c, b) -> None:
    """Raises SettingError unless there are seconds for a first round."""
    if budget is None:
        raise SettingError(
            "AFL chooses tau for a budget but budget is missing; write the seconds that "
            "all rounds together may take, as in budget=15.0."
        )
    if check.is_tracer(budget) or check.is_tracer(b + c):
        return
    check.between("budget", budget, 1e-9, 1e15)
    if budget <= b + c:
        raise SettingError(
            f"budget={budget} is over before the first round ends, which takes "
            f"{b + c:.4g} seconds; write more.",
            setting="budget",
        )


def estimate(view, key) -> Estimate:
    """On one minibatch, at the broadcast model and at the client's last one."""
    if not isinstance(view.client, Remembered):
        raise SettingError(
            "afl_online needs clients that keep their last model; write "
            "afl(budget=..., base=scaffold()) in place of with_steps(scaffold(), ...)."
        )

    def of(params):
        outputs = view.task.apply(params, view.batch.x)
        return weighted_loss(view.task, outputs, view.batch)

    trained = ~equal(view.client.model, no_model(view.params))
    model = optax.tree.where(trained, view.client.model, view.params)
    loss, gradient = jax.value_and_grad(of)(view.params)
    last_loss, last_gradient = jax.value_and_grad(of)(model)
    apart = norm_of(optax.tree.sub(model, view.params))
    far = ~(apart <= 1e-10)  # the paper's threshold; what is NaN is to be seen
    over = jnp.where(far, apart, 1)
    turned = norm_of(optax.tree.sub(last_gradient, gradient))
    return Estimate(
        loss=loss,
        gradient=gradient,
        beta=jnp.where(far, jnp.maximum(turned / over, 1e-5), 0),  # the paper's floor
        rho=jnp.where(far, jnp.abs(last_loss - loss) / over, 0),
        compares=trained,
    )


def no_model(params: Params) -> Params:
    """The stand-in for the last model of a client that has never trained.

    The largest finite numbers: a model that diverges may be NaN or infinite, but not these.
    """
    return jax.tree.map(
        lambda leaf: jnp.full_like(leaf, jnp.finfo(leaf.dtype).max), params
    )


def divergences(gradients: Params, mean) -> Array:
    """||grad F_i - grad F||, [cohort], of gradients [cohort, ...]."""
    away = lambda leaf: ((leaf - mean(leaf)[None]) ** 2).reshape(len(leaf), -1).sum(1)
    squares = jax.tree.leaves(jax.tree.map(away, widened(gradients)))
    return jnp.sqrt(jnp.stack(squares).sum(0))


def remembering(base: Algorithm) -> Algorithm:
    """The base, whose clients keep their last model and whose server refuses NaN."""
    inner = seeing(base, client=lambda state: state.inner)

    def init(params):
        return Remembered(base.local.init(params), no_model(params))

    def finish(run):
        upload, state = inner.local.finish(run)
        return upload, Remembered(state, run.params)

    def update(params, extra, upload, cohort, shift=None):
        new = updated(base.server, params, extra, upload, cohort, shift)
        return optax.tree.where(all_finite((upload, shift)), new, (params, extra))

    adds = adds_mean(base.server)
    return inner._replace(
        # what AFL compares with is the local model, whatever it is refined to
        local=inner.local._replace(init=init, finish=finish),
        server=base.server._replace(update=update, adds_mean=adds, refined=update),
    )


def afl_constants(infos: Info) -> dict[str, Array]:
    """beta, delta and rho as `afl_fixed` takes them: means over the rounds of a trial.

    Args:
      infos: of `train` with `afl(trial_steps=...)`, [rounds, ...]. Only rounds count that
        gave an estimate: not the first one, before which no client had a model to compare
        with, nor one whose clients all came for the first time or had a number that was
        not finite.

    Raises:
      SettingError: infos are of something else, or no round gave an estimate.
    """
    policy = infos.policy if isinstance(infos, Info) else None
    if not isinstance(policy, dict) or not {"estimates", *CONSTANTS} <= set(policy):
        raise SettingError(
            f"afl_constants got {check.kind_of(infos)} without afl's estimates; write "
            "afl_constants(infos) with what train returned for afl(trial_steps=5) or so."
        )
    return means_of_trial(policy)


def means_of_trial(rounds: Mapping[str, Any]) -> dict[str, Array]:
    """The constants from what a trial showed, [rounds] of each; see `afl_constants`."""
    gave = jnp.diff(rounds["estimates"]) > 0
    if not check.is_tracer(gave) and not gave.any():
        raise SettingError(
            f"afl_constants got {len(rounds['estimates'])} rounds of which none gave an "
            "estimate: no client came again with a finite model; train more rounds, or a "
            "larger cohort."
        )
    return {name: rounds[name][1:].mean(where=gave) for name in CONSTANTS}


def _policy(
    *,
    budget: float | None,
    phi: float,
    hold: float,
    step_seconds: float | None,
    aggregation_seconds: float | None,
    max_steps: int,
    trial_steps: int | None,
) -> StepPolicy:
    """A tau for every round, until the budget has run out; see `afl` for the arguments."""
    check.between("hold", hold, 0, 1, closed="left")
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
    wanted = "a run with a budget"
    check.at_least("trial_steps", trial_steps, 1, none=wanted, most=max_steps)

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
    policy = _policy(
        budget=budget,
        phi=phi,
        hold=hold,
        step_seconds=step_seconds,
        aggregation_seconds=aggregation_seconds,
        max_steps=max_steps,
        trial_steps=trial_steps,
    )
    return with_steps(remembering(as_base(base)), policy)


@part_of(afl, "beta", "delta", "rho", "lr", "base")
def afl_online(algorithm: Algorithm) -> StepPolicy:
    """AFL's local steps; its clients must keep their last model: take `afl(base=...)`.

    It reports the scalars tau (of the next round), beta, delta, rho, estimates (rounds so
    far that gave these three), best_loss, step_seconds (c), aggregation_seconds (b), spent
    (seconds) and nonfinite. See `afl` for the arguments.
    """
    return algorithm.policy
