"""The traffic of an algorithm, the bytes of a round, and the cost of accuracy.

They follow from the `traffic` of its parts, and from the model's size.
"""

import jax.numpy as jnp

from ..core import (
    Algorithm,
    Array,
    Cohort,
    Params,
    Refinement,
    StepPolicy,
    Traffic,
    as_refinement,
    measure_of,
    tree_bytes,
)
from ..core.views import SCALAR
from ..errors import SettingError


def messages(traffic: Traffic, params: Params) -> tuple[int, int]:
    """The bytes one client receives and sends in a round."""
    model = tree_bytes(params)
    down = traffic.models_down * model + traffic.scalars_down * SCALAR
    up = traffic.models_up * model + traffic.scalars_up * SCALAR
    return round(down), round(up)  # a part of a model is a fraction of it


def traffic_of(algorithm: Algorithm) -> Traffic:
    """The traffic of a client that trains, of all parts of its algorithm.

    Raises:
      SettingError: the traffic of the local rule or the refinement follows from model and
        data.
    """
    return _sum(_rule_traffic(algorithm), algorithm.policy.traffic)


def _sum(*traffics: Traffic) -> Traffic:
    return Traffic(*map(sum, zip(*traffics, strict=True)))


def _rule_traffic(algorithm: Algorithm) -> Traffic:
    """The traffic of all but the policy."""
    refine = as_refinement(algorithm.refine) or Refinement()
    rule, more = algorithm.local.traffic, refine.traffic
    if not (isinstance(rule, Traffic) and isinstance(more, Traffic)):
        what = "local rule" if isinstance(more, Traffic) else "refinement"
        raise SettingError(
            f"the traffic of this {what} follows from model and data; call "
            "fedjax_adapt.engine.round.checked(algorithm, task, data, plan) before."
        )
    return _sum(rule, more)


def refined_traffic(algorithm: Algorithm) -> Traffic:
    """The added traffic of a client that refines its model."""
    refine = as_refinement(algorithm.refine)
    assert refine is not None and isinstance(refine.traffic_refined, Traffic)
    return refine.traffic_refined


def late_upload(algorithm: Algorithm) -> Traffic:
    """The part of a client's traffic that waits until it is known who refines."""
    refine, rule = as_refinement(algorithm.refine), algorithm.local.traffic
    if refine is None or not refine.uploads_late:
        return Traffic()
    assert isinstance(rule, Traffic)
    return Traffic(models_up=rule.models_up, scalars_up=rule.scalars_up)


def without(traffic: Traffic, other: Traffic) -> Traffic:
    """The part of `traffic` that is not `other`."""
    return Traffic(*(a - b for a, b in zip(traffic, other, strict=True)))


def has_traffic(algorithm: Algorithm) -> bool:
    """Whether a round exchanges anything with clients; else what they do is of no cost."""
    return traffic_of(algorithm) != Traffic()


def steps_follow_measurements(policy: StepPolicy) -> bool:
    """Whether tau comes down only when all clients of the cohort have measured."""
    measures = measure_of(policy).client is not None
    return measures and policy.traffic.round_trips > 0


def legs(algorithm: Algorithm) -> tuple[Traffic, Traffic]:
    """`traffic_of` a policy that waits for measurements, cut where tau is known.

    First the model goes down and the measurements up, then tau goes down and the rest up.
    """
    rule, policy = _rule_traffic(algorithm), algorithm.policy.traffic

    def leg(down: Traffic, up: Traffic) -> Traffic:
        # the round trip is that of what goes up
        return up._replace(models_down=down.models_down, scalars_down=down.scalars_down)

    return leg(rule, policy), leg(policy, rule)


def round_bytes(
    algorithm: Algorithm,
    params: Params,
    cohort: Cohort,
    starters: Cohort | None = None,
    refined: Array | None = None,
) -> tuple[Array, Array]:
    """The bytes that all clients of a round receive and send, two scalars.

    Where a policy measures first, a client that it then leaves out, or that is too late,
    has received all and has sent the policy's part. If no client trains, none was asked,
    unless that followed from what they measured.

    Args:
      algorithm: what is sent how often.
      params: how large a model is.
      cohort: who trained.
      starters: all that began, where the first to end are the cohort.
      refined: steps on a public set, [cohort]; None: no client refines.
    """
    asked = cohort.active
    if measure_of(algorithm.policy).client is not None:
        asked = (starters or cohort).num_examples > 0
        asked &= steps_follow_measurements(algorithm.policy) | (cohort.num_active > 0)
    count = lambda who: who.sum().astype(float)
    down, _ = messages(traffic_of(algorithm), params)
    _, trained = messages(_rule_traffic(algorithm), params)
    _, measured = messages(algorithm.policy.traffic, params)
    # in floating point: an int32 would overflow
    down = count(asked) * float(down)
    up = count(cohort.active) * float(trained) + count(asked) * float(measured)
    if refined is None:
        return down, up
    more_down, more_up = messages(refined_traffic(algorithm), params)
    again = count(refined > 0)
    return down + again * float(more_down), up + again * float(more_up)


def wasted(
    algorithm: Algorithm, params: Params, cohort: Cohort, starters: Cohort
) -> tuple[Array, Array]:
    """The bytes and local steps of clients that train and are too late, two scalars.

    As if each took all its steps, received all and sent all; without what `round_bytes`
    counts of them, where a policy measures first.

    Args:
      algorithm: what is sent how often.
      params: how large a model is.
      cohort: who was waited for.
      starters: all that began.
    """
    if not has_traffic(algorithm):
        return jnp.zeros(()), jnp.zeros(())
    late = (starters.active.sum() - cohort.active.sum()).astype(float)
    steps = (starters.num_steps.sum() - cohort.num_steps.sum()).astype(float)
    _, each = messages(_rule_traffic(algorithm), params)
    if measure_of(algorithm.policy).client is None:
        each += messages(traffic_of(algorithm), params)[0]
        each += messages(algorithm.policy.traffic, params)[1]
    return late * float(each), steps


def kappa(accuracy: float, seconds: float) -> float:
    """Accuracy by time: accuracy times 1e4 over seconds, as FNR-FL's Table 3 has it.

    Seconds on one clock compare with those on no other.

    Example:
      >>> fa.costs.kappa(accuracy=0.9, seconds=300)
      30.0
    """
    return 1e4 * accuracy / seconds


def rho(accuracy: float, num_bytes: float) -> float:
    """Accuracy by traffic: accuracy times 1e4 over MiB, as FNR-FL's Table 3 has it.

    The traffic is all that clients receive and send; the table's "MB" are 2**20 bytes.

    Example:
      >>> fa.costs.rho(accuracy=0.9, num_bytes=300 * 2**20)
      30.0
    """
    return 1e4 * accuracy / (num_bytes / 2**20)
