"""Seconds of a round on a simulated clock.

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

from ..core import Algorithm, Array, Cohort, Key, Params, Traffic, measure_of
from .clock import Clock, drawn, drawn_by, keys
from .traffic import (
    has_traffic,
    late_upload,
    legs,
    messages,
    refined_traffic,
    steps_follow_measurements,
    traffic_of,
    without,
)

# what a round's key is folded in by for the delays, so that they change nothing else:
# neither a part of the split key nor a client is called that
DELAYS = np.uint32(2**32 - 1)


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
