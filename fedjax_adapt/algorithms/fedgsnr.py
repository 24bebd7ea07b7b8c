r"""FedGSNR: more local steps for clients whose gradients say more about the mean gradient.

    mu_k, var_k = mean and variance of client k's per-example gradients at w
    mu_g  = sum_k p_k mu_k
    var_g = sum_k p_k var_k + sum_k p_k (mu_k - mu_g)^2
    a_k   = <mu_k, mu_g> + 1/B sum_j sqrt(var_k[j] var_g[j])
    b_k   = ||mu_k||^2 + 1/B sum_j var_k[j],   b_g likewise
    n_k   = max(0, a_k / b_k)                               optimal steps, Theorem 1
    r_k   = max(0, a_k / sqrt(b_k b_g - a_k^2))             GSNR, Proposition 1
    tau_k = m E n_k / sum_S n                               "matched"; E n_k: "raw"

A client of n_k = 0 sits the round out and is not averaged. Only the steps change: local
objective, control variates and server are the base's.

References:
  Tan et al., "Expediting Federated Learning on Non-IID Data by Maximizing Communication
  Channel Utilization", IEEE Transactions on Networking 2025,
  https://doi.org/10.1109/TON.2025.3565822. Eqs. (11) and (12), Theorem 1, Proposition 1,
  Algorithm 1; Sec. VIII-B for the matched budget, Fig. 10 for the interpolation.

Departs from the paper: it says nothing of rounding (here to the nearest, at least 1 where
n_k > 0), of a cap (10 E) or of gradients that are all 0 (no client trains, w stays). B is
the number of examples in the client's own batch, fewer than the plan's where it has fewer.
n_k and r_k end at 1e6. Where the first to end are the cohort, the matched budget is that
of all who start. A client whose numbers are not finite counts in no mean and takes E
steps. With a base that corrects gradients the probe's mean is corrected as well, which
the paper asks for without a formula. Terms that a base adds to the loss (MOON's) are not
seen by the probe, nor is the plan's weight decay. Under an interpolation clients of
n_k = 0 train as well.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    WEIGHTS,
    Algorithm,
    Array,
    Cohort,
    LocalRule,
    Measure,
    Params,
    StepPolicy,
    Traffic,
    as_base,
    part_of,
    with_steps,
)
from ..moments import gradient_parts
from ..moments.sums import (
    Parts,
    leaves_of,
    merge_parts,
    moments_of,
    pooled,
    second_moments,
    total,
)

LARGEST = 1e6  # of n_k and r_k


class Measured(NamedTuple):
    """The measurements of a client; zeros where one is not finite."""

    gradient: Parts  # mu_k and var_k, or what they follow from
    mean_square: Array  # ||mu_k||^2
    total_var: Array  # sum_j var_k[j]
    batch: Array  # B, a scalar
    finite: Array
    draw: Array


class Pooled(NamedTuple):
    """The server's sums of all measurements."""

    mean: list[Array]  # mu_g, per parameter
    deviation: list[Array]  # sqrt(var_g)
    mean_square: Array
    total_var: Array


class Ratios(NamedTuple):
    """The ratios of clients; 0 where a number was not finite. Leading axis: cohort."""

    optimal: Array  # n_k
    gsnr: Array  # r_k
    usable: Array  # whether there is something to go by
    draw: Array  # uniform in [0, 1), for rounding


def fedgsnr(
    num_steps: int = 20,
    *,
    budget: Literal["matched", "raw"] = "matched",
    base: Algorithm | None = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    probe: Literal["corrected", "plain"] = "corrected",
    weights: Literal["data", "uniform"] = "data",
    interpolation: float = 0.0,
    max_steps: int | None = None,
    probe_batches: int = 1,
    micro_batch: int | None = None,
    first_gradient: bool = False,
) -> Algorithm:
    """Builds FedGSNR on a base.

    Args:
      num_steps: E, the local steps of a client as good as the mean; at least 1.
      budget: "matched" takes as many steps in all as E for everyone, "raw" E n_k each.
      base: any algorithm, whose number of steps is replaced; none: FedAvg.
      rounding: to the "nearest", at least 1 where n_k > 0; or "stochastic", whose mean is
        what was to be rounded and which may be 0.
      probe: whether mu_k has what the base adds to gradients, "corrected" or "plain".
      weights: p_k, "data" for n_k / n or "uniform" for 1 / m.
      interpolation: lambda of tau = (1 - lambda) tau + lambda E; 1 is the base, E steps.
      max_steps: cap on a client's steps, what it cuts is counted; none: 10 E.
      probe_batches: batches a client measures on, each in the time of a local step; 1 is
        the paper's.
      micro_batch: examples whose gradients are held at once where the model is no product
        of matrices; none: what is fast.
      first_gradient: whether every local step takes its gradient at the model of the
        round's beginning, as g^ of Lemma 2 does, for Fig. 8.

    Raises:
      SettingError: an argument is out of its range.
    """
    check.at_least("num_steps", num_steps, 1)
    check.one_of("budget", budget, ("matched", "raw"))
    check.one_of("rounding", rounding, ("nearest", "stochastic"))
    check.one_of("probe", probe, ("corrected", "plain"))
    check.one_of("weights", weights, WEIGHTS)
    check.between("interpolation", interpolation, 0, 1)
    check.at_least("max_steps", max_steps, 1, none="ten times num_steps")
    check.at_least("probe_batches", probe_batches, 1)
    check.at_least("micro_batch", micro_batch, 1, none="what is fast")

    def measure(view, key):
        of = lambda step: gradient_parts(
            view.task, view.params, view.batch_at(step), micro_batch
        )
        parts = of(0)
        for step in range(1, probe_batches):
            parts = merge_parts(parts, of(step))
        adds = view.corrected if probe == "corrected" else None
        if adds is not None:
            parts = _corrected(parts, view.params, adds)
        square, var = (
            sum(some)
            for some in zip(*map(second_moments, leaves_of(parts)), strict=True)
        )
        finite = jnp.isfinite(square) & jnp.isfinite(var)
        clean = lambda tree: jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), tree)
        return Measured(
            *clean((parts, square, var)),
            batch=view.batch.weight.sum(),
            finite=finite,
            draw=jax.random.uniform(key),
        )

    def steps(state, cohort, found):
        present, found = _of_those_present(cohort, found)
        n, members = found.optimal, found.usable.sum()
        scale = members / _or_one(n.sum()) if budget == "matched" else 1
        wanted = (1 - interpolation) * num_steps * scale * n
        wanted = jnp.minimum(wanted + interpolation * num_steps, check.MOST)
        wanted = jnp.where(present & ~found.usable, num_steps, wanted)
        if rounding == "stochastic":  # its mean is `wanted`, so it may be 0
            return jnp.floor(wanted + found.draw).astype(jnp.int32)
        whole = jnp.maximum(jnp.round(wanted), 1).astype(jnp.int32)
        return jnp.where(wanted > 0, whole, 0)

    def update(state, cohort, runs, outcome):
        present, found = _of_those_present(cohort, outcome.measured)
        return state + (present & ~found.usable).sum(dtype=jnp.int32)

    def report(state, cohort, found):
        _, found = _of_those_present(cohort, found)
        q = found.optimal / _or_one(found.optimal.sum())
        return {
            "gsnr": found.gsnr,
            "optimal_steps": found.optimal,
            # alone, a client's gradient is that of all
            "measured": found.usable & (found.usable.sum() > 1),
            "entropy": -(q * jnp.log(_or_one(q))).sum(),
            "nonfinite": state,
        }

    cap = 10 * num_steps if max_steps is None else max_steps
    # mu_k and var_k go up before tau_k comes down
    traffic = Traffic(models_up=2, scalars_down=1, round_trips=1)
    policy = StepPolicy(
        steps,
        init=lambda params, num_clients: jnp.zeros((), jnp.int32),
        measure=Measure(
            measure,
            pool=lambda cohort, measured: pool_cohort(cohort, measured, weights),
            digest=ratios,
            steps=lambda cohort: jnp.full_like(cohort.ids, probe_batches),
        ),
        update=update,
        report=report,
        max_steps=cap,
        traffic=traffic,
    )
    algorithm = with_steps(as_base(base), policy)
    local = algorithm.local
    return algorithm._replace(local=_straight(local) if first_gradient else local)


@part_of(fedgsnr, "base", "first_gradient")
def gsnr_steps(algorithm: Algorithm) -> StepPolicy:
    """FedGSNR's answer to "how many local steps?". See `fedgsnr` for the arguments.

    `Info.policy` shows `gsnr` (r_k) and `optimal_steps` (n_k) per client, the `entropy`
    of n_k over the cohort in nats, how many measurements so far were `nonfinite`, and per
    client whether r_k says something (`measured`): of a cohort of one it does not. The
    moments of all clients of a round are held at once, twice the cohort x parameters, but
    for products of matrices under a base that adds nothing to gradients.
    """
    return algorithm.policy


def pool_cohort(cohort: Cohort, measured: Measured, weights: str = "data") -> Pooled:
    """mu_g and var_g of a cohort; slots without a client or its numbers do not count."""
    usable = (cohort.num_examples > 0) & measured.finite
    p = WEIGHTS[weights](cohort._replace(active=usable))
    parts = [pooled(part, p) for part in leaves_of(measured.gradient)]
    return Pooled(
        mean=[part.mean for part in parts],
        deviation=[jnp.sqrt(part.var) for part in parts],
        mean_square=sum(total(jnp.square(part.mean)) for part in parts),
        total_var=sum(total(part.var) for part in parts),
    )


def ratios(all_: Pooled, client: Measured) -> Ratios:
    """n_k and r_k of one client."""
    per = 1 / jnp.maximum(client.batch, 1)

    def over(term) -> Array:  # all coordinates, of mu_k, sqrt(var_k) and the like of g
        parts = map(moments_of, leaves_of(client.gradient))
        given = zip(parts, all_.mean, all_.deviation, strict=True)
        return sum(
            total(term(part.mean, jnp.sqrt(part.var), *of_g)) for part, *of_g in given
        )

    a = over(lambda mu, sd, mu_g, sd_g: mu * mu_g + per * sd * sd_g)
    b = client.mean_square + per * client.total_var
    b_g = all_.mean_square + per * all_.total_var
    usable = client.finite & jnp.isfinite(a) & jnp.isfinite(b) & jnp.isfinite(b_g)
    # b_k / b_g - (a_k / b_g)^2, in units of b_g, whose square no float32 may hold; where
    # R_k and R_g = R_k - D are alike, from D, which does not follow from a, b and b_g
    cosine = a / _or_one(b_g)
    square = lambda mu, sd, mu_g, sd_g: (mu - mu_g) ** 2 + per * (sd - sd_g) ** 2
    sine = jax.lax.cond(
        b + b_g - 2 * a < 0.1 * b_g,
        lambda: over(square) / _or_one(b_g) - jnp.square(cosine - 1),
        lambda: b / _or_one(b_g) - jnp.square(cosine),
    )
    optimal = jnp.where(b > 0, a / _or_one(b), 0)
    gsnr = jnp.where(sine > 0, cosine / jnp.sqrt(_or_one(sine)), LARGEST)
    gsnr = jnp.where(a > 0, gsnr, 0)
    bounded = lambda value: jnp.where(usable, jnp.clip(value, 0, LARGEST), 0)
    return Ratios(bounded(optimal), bounded(gsnr), usable, client.draw)


def _straight(rule: LocalRule) -> LocalRule:
    """The rule, the loss of every step in its first-order form around the anchor."""

    def objective(params, view, key):
        at = lambda params: rule.objective(params, view, key)
        loss, gradient = jax.value_and_grad(at)(view.anchor)
        return loss + optax.tree.vdot(gradient, optax.tree.sub(params, view.anchor))

    return rule._replace(objective=objective)


def _corrected(parts: Parts, params: Params, adds: Callable[[Params], Params]) -> Parts:
    """The parts as moments whose mean has what the local rule adds to gradients."""
    whole = jax.tree.structure(params).unflatten
    moments = [moments_of(part) for part in leaves_of(parts)]
    mean = jax.tree.leaves(adds(whole([part.mean for part in moments])))
    return whole(
        [part._replace(mean=mu) for part, mu in zip(moments, mean, strict=True)]
    )


def _of_those_present(cohort: Cohort, found: Ratios) -> tuple[Array, Ratios]:
    """Who is there with examples, and zeros for the others."""
    present = cohort.num_examples > 0
    none = lambda leaf: jnp.where(present, leaf, jnp.zeros_like(leaf))
    return present, jax.tree.map(none, found)


def _or_one(value: Array) -> Array:
    """To divide by: a value where it is positive."""
    return jnp.where(value > 0, value, 1)
