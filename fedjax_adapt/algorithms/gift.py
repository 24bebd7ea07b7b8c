r"""GIFT: fewer local steps each time the clients' updates stop pulling together less.

    u_i  = theta_i - w                                    the whole round's update
    A    = <mean_{i in S} u_i>,  B = <mean_{i in S} |u_i|>     kept by coordinate
    <x> <- theta <x> + (1 - theta) x
    C    = mean_k |A_k| / B_k  in [0, 1],  0/0 = 0             gradient consistency
    w   <- mean_{i in S} theta_i                          uniform, or the base's own rule
    tau <- tau / gamma            where C no longer falls; it begins at initial_steps
    tau <- tau + relax_by         where C fell relax_after rounds running (if relax)

A + B and A - B are the paper's P and N times 2, which the ratio does not see: C is 1
when all clients push every coordinate one way and 0 when they cancel. What "no longer
falls" is, the detector says. C falls for some twenty rounds on pure noise too, while the
averages warm up, and jumps up when they start anew.

References:
  Chen et al., "GIFT: Toward Accurate and Efficient Federated Learning With
  Gradient-Instructed Frequency Tuning", JSAC 2023,
  https://doi.org/10.1109/JSAC.2023.3242721. Algorithm 1, eq. 1. The detector "patience"
  and |A| instead of A in C are those of https://github.com/TL-System/plato.

Departs from the paper: as printed C is signed and averages to about 0 over coordinates
(reduce="signed_mean"), and tau falls in any round with C_r >= C_{r-1} (detector=
"literal"), which noise alone brings about; "patience" waits until C has seen no new low
for a window of rounds. tau is rounded and falls by at least 1 at a time, down to 1.
"""

from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    Params,
    ServerRule,
    StepPolicy,
    Traffic,
    all_finite,
    mean,
    part_of,
    uniformly,
    with_steps,
)

SHOWN = ("consistency", "tau", "triggers", "nonfinite")
NOTHING = 2.0  # above every C: there is nothing to compare with

Detector = Literal["patience", "literal_guard", "literal"]
Reducer = Literal[
    "mean_abs_ratio", "ratio_of_sums", "exclude_zero", "per_layer_mean", "signed_mean"
]
Rounding = Literal["ceil", "floor"]


class GiftState(NamedTuple):
    """The state of GIFT's server: two averages of the model's size, and scalars."""

    signed: Params  # A
    size: Params  # B
    tau: Array  # int32, the local steps of the next round, before the cap
    consistency: Array  # C of the last round
    reference: Array  # the C to compare with: of the round before, or the lowest
    rounds: Array  # int32, rounds with an update
    marked: Array  # int32, the round of the lowest C, or of the last change
    window: Array  # rounds without a new low that are waited for
    falls: Array  # int32, rounds running in which C fell and tau stayed
    triggers: Array  # int32, how often tau fell
    nonfinite: Array  # int32, updates left out because they were not finite


def gift(
    initial_steps: int = 100,
    *,
    theta: float = 0.9,
    gamma: float = 2.0,
    detector: Detector = "patience",
    reduce: Reducer = "mean_abs_ratio",
    rounding: Rounding = "ceil",
    reset_ema: bool | None = None,
    window: float = 5,
    grow_window: bool = True,
    warmup: int = 50,
    relax: bool = False,
    relax_after: int = 10,
    relax_by: int = 5,
    max_steps: int | None = None,
    base: Algorithm | None = None,
) -> Algorithm:
    """Builds GIFT on a base. Policy state: `GiftState`, twice the size of the model.

    Args:
      initial_steps: tau of the first round, the same for every client.
      theta: what the averages keep of the past, in [0, 1).
      gamma: what tau is divided by, above 1.
      detector: "patience": tau falls when C has seen no new low for more than `window`
        rounds, after `warmup`; "literal": whenever C >= C of the round before
        (Algorithm 1); "literal_guard": the same, but not in the round after a change.
      reduce: C over coordinates: the mean of |A|/B; sum |A| / sum B, which dead
        coordinates do not weigh on; the mean over those with B > 0; the mean over layers
        of their means; or the mean of A/B (eq. 1 to the letter).
      rounding: of tau / gamma.
      reset_ema: whether A and B start anew when tau falls; none: under "patience".
      window: rounds that "patience" waits for.
      grow_window: whether the window is multiplied by gamma when tau falls.
      warmup: rounds in which "patience" leaves tau alone; 0 for short runs.
      relax: whether tau may grow as well, by `relax_by` steps.
      relax_after: rounds running in which C must fall (a new low each, for "patience").
      relax_by: steps added.
      max_steps: tau grows no further, what is cut is counted; none: no limit.
      base: any algorithm; none: FedAvg with weights 1 / m.
    """
    check.at_least("initial_steps", initial_steps, 1)
    check.between("theta", theta, 0, 1, closed="left")
    check.between("gamma", gamma, 1, 1_000_000, closed="right")
    check.one_of("detector", detector, get_args(Detector))
    check.one_of("reduce", reduce, get_args(Reducer))
    check.one_of("rounding", rounding, get_args(Rounding))
    check.nonnegative("window", window)
    check.at_least("warmup", warmup, 0)
    check.at_least("relax_after", relax_after, 1)
    check.at_least("relax_by", relax_by, 1)
    check.at_least("max_steps", max_steps, 1, none="no limit")
    if max_steps is not None:
        check.between("initial_steps", initial_steps, 1, max_steps)
    patient = detector == "patience"
    resets = patient if reset_ema is None else reset_ema

    def init(params, num_clients):
        zeros, count = optax.tree.zeros_like(params), jnp.zeros((), jnp.int32)
        return GiftState(
            signed=zeros,
            size=zeros,
            tau=jnp.asarray(initial_steps, jnp.int32),
            consistency=jnp.zeros(()),
            reference=jnp.asarray(NOTHING),
            rounds=count,
            marked=count,
            window=jnp.asarray(window, float),
            falls=count,
            triggers=count,
            nonfinite=count,
        )

    def steps(state, cohort, measurement):
        return jnp.broadcast_to(state.tau, cohort.ids.shape)

    def send(run):
        moved = optax.tree.sub(run.params, run.anchor)
        return moved, jax.tree.map(jnp.abs, moved)

    def shorter(tau):  # 1e-4: a quotient that is whole may come out a little off
        ceil = rounding == "ceil"
        part = jnp.ceil(tau / gamma - 1e-4) if ceil else jnp.floor(tau / gamma + 1e-4)
        return jnp.clip(part, 1, tau - 1).astype(jnp.int32)

    def capped(tau):
        return tau if max_steps is None else jnp.minimum(tau, max_steps)

    def detect(state):
        c, tau, reference = state.consistency, capped(state.tau), state.reference
        lower, compared = c < reference, reference < NOTHING
        waited = state.rounds - state.marked > state.window
        stalls = ~lower & (waited & (state.rounds > warmup) if patient else compared)
        trigger = stalls & (tau > 1)
        falls = jnp.where(lower & compared, state.falls + 1, 0)
        relaxes = relax & (falls >= relax_after)
        longer = jnp.where(relaxes, tau + relax_by, state.tau)
        new = jnp.where(trigger, shorter(tau), longer)
        if patient:
            reference = jnp.where(trigger, NOTHING, jnp.minimum(c, reference))
        else:
            guard = (detector == "literal_guard") & (capped(new) != tau)
            reference = jnp.where(guard, NOTHING, c)
        forget = lambda leaf: jnp.where(trigger & resets, 0, leaf)
        return state._replace(
            signed=jax.tree.map(forget, state.signed),
            size=jax.tree.map(forget, state.size),
            tau=new,
            reference=reference,
            marked=jnp.where(trigger | lower, state.rounds, state.marked),
            window=jnp.where(trigger & grow_window, gamma, 1.0) * state.window,
            falls=jnp.where(trigger | relaxes, 0, falls),
            triggers=state.triggers + trigger,
        )

    def update(state, cohort, runs, outcome):
        average = lambda old, new: theta * old + (1 - theta) * new
        signed, size = jax.tree.map(average, (state.signed, state.size), outcome.sent)
        seen = detect(
            state._replace(
                signed=signed,
                size=size,
                consistency=consistency(signed, size, reduce),
                rounds=state.rounds + 1,
            )
        )
        trained = cohort.num_active > 0
        finite = all_finite(outcome.sent)
        kept = state._replace(nonfinite=state.nonfinite + (trained & ~finite))
        return optax.tree.where(trained & finite, seen, kept)

    def report(state, cohort, measurement):
        shown = {name: getattr(state, name) for name in SHOWN}
        return shown | {"tau": capped(state.tau)}

    if base is None:
        base = Algorithm(server=ServerRule(combine=mean(uniformly)))
    policy = StepPolicy(
        steps,
        init,
        update=update,
        send=send,
        report=report,
        max_steps=max_steps,
        traffic=Traffic(scalars_down=1),  # tau
    )
    return with_steps(base, policy)


@part_of(gift, "base")
def gift_steps(algorithm: Algorithm) -> StepPolicy:
    """GIFT's local steps for any algorithm; see `gift` for the arguments.

    It reports the scalars consistency (C), tau (of the next round), triggers and
    nonfinite. A round with an update that is not finite changes only the last, a round
    no client trains in no time.
    """
    return algorithm.policy


def consistency(signed: Params, size: Params, reduce: str = "mean_abs_ratio") -> Array:
    """C of A = `signed` and B = `size`, |A| <= B: a scalar, see `gift` for `reduce`."""
    # half precision cannot hold a smaller fall of C than by a 256th
    signed, size = (optax.tree.cast(tree, float) for tree in (signed, size))
    over = lambda a, b: jnp.where(b > 0, a / jnp.where(b > 0, b, 1), 0)
    of = lambda f, *trees: jnp.stack(jax.tree.leaves(jax.tree.map(f, *trees)))
    if reduce == "per_layer_mean":
        return of(lambda a, b: over(jnp.abs(a), b).mean(), signed, size).mean()
    if reduce == "ratio_of_sums":
        total = of(lambda a: jnp.abs(a).sum(), signed).sum()
        return over(total, of(jnp.sum, size).sum())
    sign = (lambda x: x) if reduce == "signed_mean" else jnp.abs
    ratios = of(lambda a, b: over(sign(a), b).sum(), signed, size).sum()
    if reduce == "exclude_zero":
        return ratios / jnp.maximum(of(lambda b: (b > 0).sum(), size).sum(), 1)
    return ratios / sum(leaf.size for leaf in jax.tree.leaves(size))
