r"""Client-level differential privacy: the models do not show whether one client took part.

    D_i  <- (theta_i - w) min(1, C / ||theta_i - w||)      over all tensors
    D     = (sum_{i in S} D_i + z C N(0, I)) / (q N)
    w    <- w + D

Each of N clients takes part with probability q, so that q N is how many do on average;
dividing by that and not by how many came bounds what one client can change by C / (q N).
As no cohort is empty, q is `Participation.rate(N)`, a little more than a coin's.

References:
  McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018,
  https://arxiv.org/abs/1710.06963. Algorithm 1 with weights w_k = 1, flat clipping and
  the estimator f_f.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from . import check
from .core import (
    Algorithm,
    Array,
    ClientState,
    Cohort,
    LocalRun,
    Mean,
    Params,
    Participation,
    ServerExtra,
    ServerRule,
    Upload,
    by_examples,
    by_expected,
    check_private,
    expected_cohort_size,
    merged_report,
    norm_of,
    traffic_within,
    uniformly,
    updated,
    wide_dtype,
)
from .core import clip as clipped_to
from .errors import SettingError
from .wrap import around, sent_part

NOISE = 0x6470  # what `Cohort.key` is folded in by
MANY = 10**15  # clients, of whom some come anyway: their share is the coin's q
LOSS_STEP = 1e-4  # of the grid of privacy losses, dp-accounting's own default
LOSSES = 1e7  # points of the grid at most, about: with little noise losses are wide


class Shown(NamedTuple):
    """The part of a client's upload for the report alone; it is not sent."""

    clipped: Array  # whether it was, 0 or 1


def with_privacy(
    algorithm: Algorithm, clip: float, noise_multiplier: float
) -> Algorithm:
    """The same algorithm, each client's upload clipped, and noise on their mean.

    The mean is uniform, of fixed denominator q N, q the share of the clients that the
    plan's participation expects and N those that hold examples: an algorithm whose mean is
    by examples has one by clients here. With `bernoulli` participation what `epsilon` says
    holds for the models of all rounds, and so for whatever the server keeps, if it is no
    secret how many took part (FedDyn's server reads it) and how many local steps they took
    (FedCM's reads their mean). It does not hold for
    states of clients nor for `Info`, which shows every client.

    Noise is drawn in floating point, for simulation and no deployment.

    `info.server` has `noise_std`, z C / (q N), and `clipped_fraction`, of the clients that
    trained; `info.clients["privacy_clipped"]` says who was clipped.

    Args:
      algorithm: any that sends one displacement, averaged, and nothing else. Wrap last: a
        policy that learns, a refinement, `with_compression` and `with_aggregation` that
        come later are refused, as they would get round the clip.
      clip: C, what the norm of an upload is clipped to.
      noise_multiplier: z, the noise's standard deviation over C; 0: none.

    Raises:
      SettingError: `algorithm` is no Algorithm, or its clients send something besides the
        displacement (SCAFFOLD, FedNova, FedSSG), its policy learns from what clients
        measure or send (`gsnr_steps`), its refinement sees their models (FNR-FL), or its
        server takes no plain mean (FedDisco, `with_aggregation`).
    """
    check.kinds(
        "with_privacy(fedavg(), clip=1.0, noise_multiplier=1.0)",
        algorithm=(algorithm, Algorithm),
    )
    check.positive("clip", clip)
    check.nonnegative("noise_multiplier", noise_multiplier)
    _check_parts(algorithm)
    local, rule = algorithm.local, algorithm.server

    def finish(run: LocalRun) -> tuple[Upload, ClientState]:
        upload, client = local.finish(run)
        if jax.tree.leaves(upload.extra):
            raise SettingError(
                f"with_privacy clips Upload.delta alone, but the clients send "
                f"{check.shown(upload.extra)} besides it; write it around an algorithm "
                "that sends no more, such as fedavg(), fedprox() or feddyn()."
            )
        leaves, whole = sent_part(upload.delta)  # what a client keeps has no part in it
        upload = upload._replace(delta=whole(leaves))
        # what is not finite has no norm to clip: it is left out, and counts as clipped
        finite = jnp.isfinite(norm_of(upload.delta))
        delta = jax.tree.map(lambda leaf: jnp.where(finite, leaf, 0), upload.delta)
        delta, clipped = clipped_to(delta, clip)
        clipped = jnp.where(finite, clipped, 1)
        info = upload.info if isinstance(upload.info, dict) else {"inner": upload.info}
        info = info | {"privacy_clipped": clipped}
        return Upload(delta, Shown(clipped), info), client

    def noise_std(cohort: Cohort) -> Array:
        return jnp.asarray(noise_multiplier * clip / expected_cohort_size(cohort))

    def noisy(upload: Upload, cohort: Cohort) -> Upload:
        assert cohort.key is not None
        key = jax.random.fold_in(cohort.key, NOISE)
        leaves, structure = jax.tree.flatten(upload.delta)
        wide = lambda leaf: wide_dtype(leaf.dtype)
        noise = structure.unflatten(
            jax.random.normal(jax.random.fold_in(key, i), leaf.shape, wide(leaf))
            for i, leaf in enumerate(leaves)
        )
        return Upload(optax.tree.add_scale(upload.delta, noise_std(cohort), noise))

    def update(
        params: Params, extra: ServerExtra, upload: Upload, cohort: Cohort
    ) -> tuple[Params, ServerExtra]:
        return updated(rule, params, extra, noisy(upload, cohort), cohort)

    def report(extra: ServerExtra, upload: Upload, cohort: Cohort) -> dict[str, Array]:
        shown = rule.report(extra, noisy(upload, cohort), cohort)
        more = {
            "clipped_fraction": upload.extra.clipped,
            "noise_std": noise_std(cohort),
        }
        return merged_report(shown, more, "ServerRule.report", "with_privacy")

    return algorithm._replace(
        local=local._replace(
            finish=around(finish, local.finish),
            traffic=traffic_within(local, lambda upload: upload._replace(extra=())),
        ),
        server=ServerRule(
            rule.init,
            Mean(by_expected, uniformly),
            around(update, rule.update),
            report=report,
            given=rule.given,
        ),
    )


def epsilon(
    noise_multiplier: float,
    participation: float | Participation,
    rounds: int,
    delta: float,
) -> float:
    """The epsilon of (epsilon, delta)-differential privacy after so many rounds.

    For the removal or addition of one client, of `with_privacy` under Poisson sampling,
    where every client tosses a coin of its own, by the privacy loss distribution of
    dp-accounting, on a grid of step 1e-4 or, with little noise, of a ten millionth of what
    they span. `bernoulli(q)` is Poisson sampling but for never being empty, which
    differs with probability (1 - q)^N: negligible where q N is 20 or more. At q = 1 it is
    the Gaussian mechanism. Cohorts of a fixed size, `uniform(m)` and `cohort_size=m`, have
    another epsilon, for which this says nothing.

    Args:
      noise_multiplier: z of `with_privacy`, above 0.
      participation: q in (0, 1], or the `bernoulli(q)` of the plan.
      rounds: how many the run has.
      delta: in (0, 1), below 1 / N if it is to mean anything.

    Raises:
      SettingError: a number is out of range, or `participation` is another sampler's, or
        dp-accounting is missing.

    Example:
      >>> round(fa.epsilon(1.1, participation=0.1, rounds=100, delta=1e-5), 2)
      5.91
    """
    check.positive("noise_multiplier", noise_multiplier)
    check.at_least("rounds", rounds, 1)
    check.between("delta", delta, 0, 1, closed="none")
    if isinstance(participation, Participation):
        if participation.rate is None or participation.first_to_end:
            raise SettingError(
                "participation is of a cohort of fixed size, where epsilon is for coins "
                "of every client alone; write bernoulli(q) in the plan and here."
            )
        participation = participation.rate(MANY)
    check.between("participation", participation, 0, 1, closed="right")
    try:
        import dp_accounting  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise SettingError(
            "epsilon needs dp-accounting, which cannot be imported; write pip install "
            "'fedjax-adapt[privacy]'."
        ) from None
    # it takes Python's own numbers alone
    z, q, rounds = float(noise_multiplier), float(participation), int(rounds)
    if q == 1:  # one release with the noise of all
        return dp_accounting.get_epsilon_gaussian(z / math.sqrt(rounds), float(delta))
    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(z))
    accountant = dp_accounting.pld.PLDAccountant(
        value_discretization_interval=max(LOSS_STEP, _loss_span(z, q, rounds) / LOSSES)
    )
    try:
        return float(accountant.compose(event, rounds).get_epsilon(float(delta)))
    except OverflowError:
        raise SettingError(
            f"noise_multiplier={noise_multiplier} is so small that there is no privacy, "
            "and dp-accounting has no number for it; write 0.001 or more.",
            setting="noise_multiplier",
        ) from None


def _loss_span(z: float, q: float, rounds: int) -> float:
    """About how far the privacy losses of one round, and of all, reach from 0."""
    of_one = 1 / (2 * z**2) + 8 / z
    variance = q * (1 / (4 * z**4) + 1 / z**2)
    of_all = rounds * q / (2 * z**2) + 10 * math.sqrt(rounds * variance)
    return max(of_one, of_all)


def _check_parts(algorithm: Algorithm) -> None:
    """Raises SettingError where a part gets round the clip."""
    combine = algorithm.server.combine
    if not isinstance(combine, Mean) or combine.delta not in (by_examples, uniformly):
        raise SettingError(
            "with_privacy takes a plain mean of the clients, but the algorithm's server "
            "weighs or combines them in its own way; write it around fedavg(), fedprox() "
            "or feddyn()."
        )
    check_private(algorithm)
