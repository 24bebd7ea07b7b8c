"""The costs of a round: bytes that clients exchange, and seconds on a simulated clock.

Bytes follow from the `traffic` of an algorithm's parts, and from the model's size. A client
is done after

    t_i = tau_i c_i + b_i + xi_i        tau_i local steps of c_i seconds, b_i of messages,
                                        xi_i of delay

Measuring for a step policy takes q_i c_i more: a step for each gradient on a batch, and
nothing for a loss alone. Where tau follows from what the cohort measured, no client begins
to train before the last client has measured and sent it:

    t_i = max_j (q_j c_j + b'_j + xi_j) + tau_i c_i + b''_i         b_i = b'_i + b''_i

A round ends with the last client whose upload the server waits for, or with the last that
refines its model on a public set after that. Where a refinement uploads late, b_i has what
it measured in place of the model, and the round goes on, from the last t_i, with

    e_i c_i + b_i^late                  e_i steps on the public set, 0 for most clients
"""

import jax
import jax.numpy as jnp
import numpy as np

from ..core import (
    Algorithm,
    Array,
    Cohort,
    Key,
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
from .clock import Clock, drawn, drawn_by, keys

# what a round's key is folded in by for the delays, so that they change nothing else:
# neither a part of the split key nor a client is called that
DELAYS = np.uint32(2**32 - 1)


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


def step_seconds(clock: Clock | None, cohort: Cohort) -> Array | None:
    """c_i, [cohort]; None without a clock."""
    if clock is None:
        return None
    key = keys(clock)[0]
    seconds = drawn("step_seconds", clock.step_seconds, cohort, key)
    return jnp.broadcast_to(seconds, cohort.ids.shape)


def end_times(
    clock: Clock | None, algorithm: Algorithm, params: Params, cohort: Cohort, key: Key
) -> Array:
    """t_i, in seconds since the round began, [cohort]; zeros without a clock or traffic.

    Where a refinement uploads late, that is when what it measured has arrived. Where the
    policy waits for measurements, a client that it leaves out ends when tau is known, and
    the delay of a client delays what it measured, so that all wait for it.

    Args:
      clock: of the plan.
      algorithm: what is measured, and what is sent how often.
      params: how large a model is.
      cohort: all that start, with their steps; an empty slot has a time that says nothing.
      key: of the round. The delay of a client depends on nothing else but its id.
    """
    if clock is None or not has_traffic(algorithm):
        return jnp.zeros(cohort.ids.shape)
    policy = algorithm.policy
    key_step, key_up, key_down, key_late = keys(clock)
    key_delay = key_late if clock.delay_persists else jax.random.fold_in(key, DELAYS)

    def of(name: str, key: Key) -> Array:
        return drawn(name, getattr(clock, name), cohort, key)

    def carried(traffic: Traffic) -> Array:
        down, up = messages(traffic, params)
        seconds = 8.0 * up / of("bandwidth", key_up)
        if clock.download_bandwidth is not None:
            seconds += 8.0 * down / of("download_bandwidth", key_down)
        return seconds + traffic.round_trips * clock.latency

    step, delay = of("step_seconds", key_step), of("delay", key_delay)
    trains, measure_steps = cohort.num_steps * step, measure_of(policy).steps
    measures = 0 if measure_steps is None else measure_steps(cohort) * step
    if not steps_follow_measurements(policy):
        sent = without(traffic_of(algorithm), late_upload(algorithm))
        return trains + measures + carried(sent) + delay
    first, second = legs(algorithm)
    second = without(second, late_upload(algorithm))
    measured = measures + carried(first) + delay
    known = jnp.where(cohort.num_examples > 0, measured, 0).max()
    return known + jnp.where(cohort.active, trains + carried(second), 0)


def round_seconds(algorithm: Algorithm, cohort: Cohort, times: Array) -> Array:
    """When the server has all it waits for; 0 if that is nothing. A scalar.

    It waits for whoever trains, and for whoever measures where the policy does.
    """
    late = steps_follow_measurements(algorithm.policy)
    awaited = cohort.num_examples > 0 if late else cohort.active
    return jnp.where(awaited, times, 0).max()


def refine_seconds(
    clock: Clock | None,
    algorithm: Algorithm,
    params: Params,
    cohort: Cohort,
    steps: Array | None,
) -> Array:
    """The added seconds of a round until the last client has refined. A scalar.

    Those who refine begin when the server has all uploads; where a refinement uploads late,
    when it has what all have measured, and then the others send their models too, asked by
    one more round trip. What clients do without training, as evaluating the public set,
    takes no time.

    Args:
      clock: of the plan; None: 0.
      algorithm: what a client exchanges more that refines its model.
      params: how large a model is.
      cohort: of the round.
      steps: on the public set, [cohort], 0 for those that do not refine; None: none does.
    """
    if clock is None or steps is None:
        return jnp.zeros(())
    key_step, key_up, key_down, _ = keys(clock)
    traffic, late = refined_traffic(algorithm), late_upload(algorithm)
    down, up = messages(traffic, params)
    width = drawn("bandwidth", clock.bandwidth, cohort, key_up)
    answered = traffic.round_trips * clock.latency
    seconds = steps * drawn("step_seconds", clock.step_seconds, cohort, key_step)
    seconds += 8.0 * up / width
    if clock.download_bandwidth is not None:
        downward = drawn(
            "download_bandwidth", clock.download_bandwidth, cohort, key_down
        )
        seconds += 8.0 * down / downward
    seconds = jnp.where(steps > 0, seconds + answered, 0)
    if late != Traffic():
        sent = 8.0 * messages(late, params)[1] / width
        seconds = jnp.where(steps > 0, seconds, answered) + sent
    return jnp.where(cohort.active, seconds, 0).max()


def broadcast_seconds(clock: Clock | None, bytes_each: int, num_clients: int) -> float:
    """When the last client has what all are sent before the first round.

    0 without a clock, or where it has no download bandwidth.
    """
    if clock is None or clock.download_bandwidth is None or not bytes_each:
        return 0.0
    ids, key = jnp.arange(num_clients), keys(clock)[2]
    bandwidth = clock.download_bandwidth
    width = drawn_by("download_bandwidth", bandwidth, ids, num_clients, key)
    return float((8.0 * bytes_each / width).max())


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
