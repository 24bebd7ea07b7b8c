r"""FedGSNR: more local steps for clients whose gradients say more about everybody's.

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
n_k and r_k end at 1e6. A client whose numbers are not finite counts in no mean and takes
E steps. With a base that corrects gradients the probe's mean is corrected as well, which
the paper asks for without a formula. Terms that a base adds to the loss (MOON's) are not
seen by the probe, nor is the plan's weight decay. Under an interpolation clients of
n_k = 0 train as well.
"""

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
    Params,
    StepPolicy,
    Traffic,
    with_steps,
)
from ..moments import gradient_moments, merge

LARGEST = 1e6  # of n_k and r_k


class Measured(NamedTuple):
    """What a client measures; zeros where that is not finite."""

    mean: Params  # mu_k
    var: Params  # var_k
    mean_square: Array  # ||mu_k||^2
    total_var: Array  # sum_j var_k[j]
    batch: Array  # B, a scalar
    finite: Array
    draw: Array


class Ratios(NamedTuple):
    """What follows from the cohort's measurements. Leading axis: cohort."""

    optimal: Array  # n_k
    gsnr: Array  # r_k
    usable: Array  # whether there is something to go by
    failed: Array  # whether a number was not finite; then both are 0
    draw: Array  # uniform in [0, 1), for rounding


def gsnr_steps(
    num_steps: int = 20,
    budget: Literal["matched", "raw"] = "matched",
    rounding: Literal["nearest", "stochastic"] = "nearest",
    probe: Literal["corrected", "plain"] = "corrected",
    weights: Literal["data", "uniform"] = "data",
    interpolation: float = 0.0,
    max_steps: int | None = None,
    probe_batches: int = 1,
    micro_batch: int | None = None,
) -> StepPolicy:
    """FedGSNR's answer to "how many local steps?". See `fedgsnr` for the arguments.

    `Info.policy` shows `gsnr` (r_k) and `optimal_steps` (n_k) per client, the `entropy`
    of n_k over the cohort in nats, how many measurements so far were `nonfinite`, and per
    client whether r_k says something (`measured`): of a cohort of one it does not. The
    moments of all clients of a round are held at once: twice the cohort x parameters.

    Raises:
      ValueError: an argument is out of its range.
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

    def moments(view, step):
        batch = view.batch_at(step)
        return gradient_moments(view.task, view.params, batch, micro_batch)

    def measure(view, key):
        found = moments(view, 0)
        for step in range(1, probe_batches):
            found = merge(found, moments(view, step))
        mean = view.corrected(found.mean) if probe == "corrected" else found.mean
        square, total = optax.tree.norm(mean, squared=True), optax.tree.sum(found.var)
        finite = jnp.isfinite(square) & jnp.isfinite(total)
        clean = lambda tree: jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), tree)
        return Measured(
            *clean((mean, found.var, square, total)),
            batch=view.batch.weight.sum(),
            finite=finite,
            draw=jax.random.uniform(key),
        )

    def steps(state, cohort, found):
        del state, cohort
        n, total, members = found.optimal, found.optimal.sum(), found.usable.sum()
        scale = members / jnp.where(total > 0, total, 1) if budget == "matched" else 1
        wanted = (1 - interpolation) * num_steps * scale * n
        wanted = jnp.minimum(wanted + interpolation * num_steps, check.MOST)
        wanted = jnp.where(found.failed, num_steps, wanted)
        if rounding == "stochastic":  # its mean is `wanted`, so it may be 0
            return jnp.floor(wanted + found.draw).astype(jnp.int32)
        whole = jnp.maximum(jnp.round(wanted), 1).astype(jnp.int32)
        return jnp.where(wanted > 0, whole, 0)

    def update(state, cohort, runs, outcome):
        del cohort, runs
        return state + outcome.measured.failed.sum()

    def report(state, cohort, found):
        del cohort
        total = found.optimal.sum()
        q = found.optimal / jnp.where(total > 0, total, 1)
        return {
            "gsnr": found.gsnr,
            "optimal_steps": found.optimal,
            # alone, a client's gradient is everybody's
            "measured": found.usable & (found.usable.sum() > 1),
            "entropy": -(q * jnp.log(jnp.where(q > 0, q, 1))).sum(),
            "nonfinite": state,
        }

    cap = 10 * num_steps if max_steps is None else max_steps
    # mu_k and var_k go up before tau_k comes down
    traffic = Traffic(models_up=2, scalars_down=1, round_trips=1)
    return StepPolicy(
        steps,
        init=lambda params, num_clients: jnp.zeros((), jnp.int32),
        measure=measure,
        digest=lambda cohort, measured: ratios(cohort, measured, weights),
        update=update,
        report=report,
        max_steps=cap,
        traffic=traffic,
        measure_steps=lambda cohort: jnp.full_like(cohort.ids, probe_batches),
    )


def ratios(cohort: Cohort, measured: Measured, weights: str = "data") -> Ratios:
    """n_k and r_k of a cohort; both are 0 in a slot without a client or examples."""
    present = cohort.num_examples > 0
    usable = present & measured.finite
    p = WEIGHTS[weights](cohort._replace(active=usable))
    inner = spread = inner_sd = spread_sd = jnp.zeros(p.shape)
    g_square = g_var = jnp.zeros(())
    leaves = zip(*map(jax.tree.leaves, (measured.mean, measured.var)), strict=True)
    for mu, var in leaves:
        mu, var = (leaf.reshape(len(p), -1) for leaf in (mu, var))
        own = p.astype(mu.dtype)
        mu_g = own @ mu
        off = jnp.square(mu - mu_g[None])
        var_g = own @ var + own @ off
        sd_g = jnp.sqrt(var_g)
        inner += mu @ mu_g
        spread += off.sum(1)
        inner_sd += jnp.sqrt(var) @ sd_g
        spread_sd += jnp.square(jnp.sqrt(var) - sd_g[None]).sum(1)
        g_square += mu_g @ mu_g
        g_var += var_g.sum()
    per = 1 / jnp.maximum(measured.batch, 1)
    a = inner + per * inner_sd
    b = measured.mean_square + per * measured.total_var
    b_g = g_square + per * g_var
    usable &= jnp.isfinite(a) & jnp.isfinite(b) & jnp.isfinite(b_g)
    # b_k / b_g - (a_k / b_g)^2 with R_k = R_g + D, from what is small when R_k and R_g
    # are alike; in units of b_g, whose square no float32 may hold
    cosine = a / jnp.where(b_g > 0, b_g, 1)
    sine = (spread + per * spread_sd) / jnp.where(b_g > 0, b_g, 1)
    sine -= jnp.square(cosine - 1)
    optimal = jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
    gsnr = jnp.where(sine > 0, cosine / jnp.sqrt(jnp.where(sine > 0, sine, 1)), LARGEST)
    gsnr = jnp.where(a > 0, gsnr, 0)
    bounded = lambda values: jnp.where(usable, jnp.clip(values, 0, LARGEST), 0)
    failed = present & ~usable
    return Ratios(bounded(optimal), bounded(gsnr), usable, failed, measured.draw)


def fedgsnr(
    num_steps: int = 20,
    budget: Literal["matched", "raw"] = "matched",
    base: Algorithm | None = None,
    rounding: Literal["nearest", "stochastic"] = "nearest",
    probe: Literal["corrected", "plain"] = "corrected",
    weights: Literal["data", "uniform"] = "data",
    interpolation: float = 0.0,
    max_steps: int | None = None,
    probe_batches: int = 1,
    micro_batch: int | None = None,
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
    """
    policy = gsnr_steps(
        num_steps,
        budget,
        rounding,
        probe,
        weights,
        interpolation,
        max_steps,
        probe_batches,
        micro_batch,
    )
    return with_steps(base or Algorithm(), policy)
