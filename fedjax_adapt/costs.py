"""What a method costs: bytes a round moves, and seconds on a simulated clock.

    t_i = tau_i c_i + b_i + xi_i        tau_i local steps of c_i seconds, b_i of messages,
                                        xi_i of delay

Measuring for a step policy takes q_i c_i more: a step for each gradient on a batch, and
nothing for a loss alone. Where tau follows from what the cohort measured, nobody begins
to train before the last client has measured and sent it:

    t_i = max_j (q_j c_j + b'_j + xi_j) + tau_i c_i + b''_i         b_i = b'_i + b''_i

A round ends with the last client whose upload the server waits for, or with the last that
refines its model on a public set after that. Bytes follow from what the parts of an
algorithm declare as their `traffic` and from the size of the model.

References:
  GIFT's defaults: 5 Mbit/s for the upload, the broadcast free, no time for the server.
  FNR-FL, Table 3: kappa and rho.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import check
from .core import (
    Algorithm,
    Array,
    Cohort,
    Key,
    Params,
    Refinement,
    StepPolicy,
    Traffic,
    as_refinement,
)

SCALAR = 4  # bytes

# what a round's key is folded in by for the delays, so that they change nothing else:
# neither a part of the split key nor a client is called that
DELAYS = np.uint32(2**32 - 1)


# what a quantity may be, so that no time is too long for a float32
SMALLEST, LARGEST = 1e-9, 1e15
WIDEST = 10  # sigma; a client in a million is e^50 times the median then


class Law(NamedTuple):
    """How a quantity is drawn: `sample(key)` is a scalar of at least 0."""

    sample: Callable[[Key], Array]
    positive: bool = False  # and never 0, nor next to it


def exponential(mean: float) -> Law:
    """Waiting times without memory, by their mean."""
    _check_law("mean", mean)
    return Law(lambda key: mean * jax.random.exponential(key))


def uniform(most: float) -> Law:
    """Anything from 0 to `most`, alike."""
    _check_law("most", most)
    return Law(lambda key: most * jax.random.uniform(key))


def normal(mean: float, deviation: float) -> Law:
    """Normal, by mean and standard deviation; what falls below 0 is 0."""
    _check_law("mean", mean)
    check.between("deviation", deviation, 0, LARGEST)
    draw = lambda key: mean + deviation * jax.random.normal(key)
    return Law(lambda key: jnp.maximum(draw(key), 0))


def lognormal(median: float, sigma: float) -> Law:
    """Lognormal, by its median and the standard deviation of its logarithm."""
    _check_law("median", median)
    check.between("sigma", sigma, 0, WIDEST)
    draw = lambda key: median * jnp.exp(sigma * jax.random.normal(key))
    return Law(draw, positive=True)


def _check_law(name: str, value: float) -> None:
    check.positive(name, value)
    check.between(name, value, SMALLEST, LARGEST)


LAWS = {law.__name__: law for law in (exponential, uniform, normal, lognormal)}

Quantity = float | Array | np.ndarray | Law


@dataclass(frozen=True, eq=False)
class Clock:
    """How long clients take. A quantity is a number, or one of each client
    [num_clients], or a law, such as `costs.lognormal(0.05, 0.5)`.

    Attributes:
      step_seconds: c_i, seconds per local step; by a law every client draws once.
      bandwidth: of a client's upload, bits per second; by a law every client draws once.
      download_bandwidth: of its download, likewise; None: the broadcast takes no time.
      latency: seconds per round trip of messages; FedAvg makes one.
      delay: xi_i, seconds; by a law every client draws anew each round.
      delay_persists: whether it draws once, so that the same clients are always late.
      seed: of what clients draw once.

    Raises:
      ValueError: a number is negative, not finite or above 1e15, or a bandwidth 0.
    """

    step_seconds: Quantity
    bandwidth: Quantity = 5e6
    download_bandwidth: Quantity | None = None
    latency: float | Array = 0.0
    delay: Quantity = 0.0
    delay_persists: bool = False
    seed: int = 0

    def __post_init__(self):
        if jnp.ndim(self.latency) > 0 or isinstance(self.latency, Law):
            raise ValueError(
                f"latency={self.latency!r} is no single number; write seconds per round "
                "trip, and what differs between clients as delay."
            )
        for name in ("step_seconds", "latency", "delay"):
            _check(check.nonnegative, name, getattr(self, name))
        for name in ("step_seconds", "bandwidth", "delay"):
            if getattr(self, name) is None:
                raise ValueError(f"{name}=None says nothing; write a number or a law.")
        for name in ("bandwidth", "download_bandwidth"):
            law = getattr(self, name)
            if isinstance(law, Law) and not law.positive:
                raise ValueError(
                    f"{name} may be 0 under this law, and a message would never arrive; "
                    "write a number or lognormal(median, sigma)."
                )
            _check(check.positive, name, getattr(self, name))


def _check(
    wanted: Callable[[str, Quantity], None], name: str, value: Quantity | None
) -> None:
    if isinstance(value, Law | None) or check.is_tracer(value):
        return
    numbers = {name: value}
    if getattr(value, "ndim", 0) > 0:
        several = enumerate(np.asarray(value).ravel())
        numbers = {f"{name} of client {client}": number for client, number in several}
    least = 0 if wanted is check.nonnegative else SMALLEST
    for title, number in numbers.items():
        wanted(title, number)
        check.between(title, number, least, LARGEST)


def messages(traffic: Traffic, params: Params) -> tuple[int, int]:
    """The bytes one client receives and sends in a round."""
    leaves = jax.tree.leaves(params)
    model = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    down = traffic.models_down * model + traffic.scalars_down * SCALAR
    return int(down), int(traffic.models_up * model + traffic.scalars_up * SCALAR)


def traffic_of(algorithm: Algorithm) -> Traffic:
    """What a client that trains exchanges: all that the parts of its algorithm declare.

    Raises:
      ValueError: the refinement's traffic depends on model and data.
    """
    return _sum(_rule_traffic(algorithm), algorithm.policy.traffic)


def _sum(*traffics: Traffic) -> Traffic:
    return Traffic(*map(sum, zip(*traffics, strict=True)))


def _rule_traffic(algorithm: Algorithm) -> Traffic:
    """The traffic of all but the policy."""
    refine = as_refinement(algorithm.refine) or Refinement()
    if not isinstance(refine.traffic, Traffic):
        raise ValueError(
            "the traffic of this refinement depends on model and data; call "
            "fedjax_adapt.engine.refine.settled(algorithm, task, data, plan) before."
        )
    return _sum(algorithm.local.traffic, refine.traffic)


def asks_clients(algorithm: Algorithm) -> bool:
    """Whether a round exchanges anything with clients; else what they do is of no cost."""
    return traffic_of(algorithm) != Traffic()


def answers_late(policy: StepPolicy) -> bool:
    """Whether tau comes down only when all clients of the cohort have measured."""
    return policy.measure is not None and policy.traffic.round_trips > 0


def legs(algorithm: Algorithm) -> tuple[Traffic, Traffic]:
    """`traffic_of` a policy that answers late, cut where tau is known.

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
    has received all and has sent the policy's part. If nobody trains, nobody was asked,
    unless that followed from what they measured.

    Args:
      algorithm: what is sent how often.
      params: how large a model is.
      cohort: who trained.
      starters: all that began, where the first to end are the cohort.
      refined: steps on a public set, [cohort]; None: nobody refines.
    """
    asked = cohort.active
    if algorithm.policy.measure is not None:
        asked = (starters or cohort).num_examples > 0
        asked &= answers_late(algorithm.policy) | (cohort.num_active > 0)
    count = lambda who: who.sum().astype(float)
    down, _ = messages(traffic_of(algorithm), params)
    _, own = messages(_rule_traffic(algorithm), params)
    _, measured = messages(algorithm.policy.traffic, params)
    # in floating point: an int32 would overflow
    down = count(asked) * down
    up = count(cohort.active) * own + count(asked) * measured
    if refined is None:
        return down, up
    more_down, more_up = messages(_refined_traffic(algorithm), params)
    again = count(refined > 0)
    return down + again * more_down, up + again * more_up


def _refined_traffic(algorithm: Algorithm) -> Traffic:
    """What a client exchanges more that refines its model."""
    refine = as_refinement(algorithm.refine)
    assert refine is not None and isinstance(refine.traffic_refined, Traffic)
    return refine.traffic_refined


def step_seconds(clock: Clock | None, cohort: Cohort) -> Array | None:
    """c_i, [cohort]; None without a clock."""
    if clock is None:
        return None
    key = _keys(clock)[0]
    seconds = _drawn("step_seconds", clock.step_seconds, cohort, key)
    return jnp.broadcast_to(seconds, cohort.ids.shape)


def end_times(
    clock: Clock | None, algorithm: Algorithm, params: Params, cohort: Cohort, key: Key
) -> Array:
    """t_i, in seconds since the round began, [cohort]; zeros without a clock or traffic.

    Where the policy answers late, a client that it leaves out ends when tau is known, and
    the delay of a client delays what it measured, so that all wait for it.

    Args:
      clock: of the plan.
      algorithm: what is measured, and what is sent how often.
      params: how large a model is.
      cohort: all that start, with their steps; an empty slot has a time that says nothing.
      key: of the round. The delay of a client depends on nothing else but its id.
    """
    if clock is None or not asks_clients(algorithm):
        return jnp.zeros(cohort.ids.shape)
    policy = algorithm.policy
    key_step, key_up, key_down, key_late = _keys(clock)
    key_delay = key_late if clock.delay_persists else jax.random.fold_in(key, DELAYS)

    def of(name: str, key: Key) -> Array:
        return _drawn(name, getattr(clock, name), cohort, key)

    def carried(traffic: Traffic) -> Array:
        down, up = messages(traffic, params)
        seconds = 8 * up / of("bandwidth", key_up)
        if clock.download_bandwidth is not None:
            seconds += 8 * down / of("download_bandwidth", key_down)
        return seconds + traffic.round_trips * clock.latency

    step, delay = of("step_seconds", key_step), of("delay", key_delay)
    trains = cohort.num_steps * step
    measures = (
        0 if policy.measure_steps is None else policy.measure_steps(cohort) * step
    )
    if not answers_late(policy):
        return trains + measures + carried(traffic_of(algorithm)) + delay
    first, second = legs(algorithm)
    measured = measures + carried(first) + delay
    known = jnp.where(cohort.num_examples > 0, measured, 0).max()
    return known + jnp.where(cohort.active, trains + carried(second), 0)


def round_seconds(algorithm: Algorithm, cohort: Cohort, times: Array) -> Array:
    """When the server has all it waits for; 0 if that is nothing. A scalar.

    It waits for whoever trains and, where the policy answers late, whoever measures.
    """
    late = answers_late(algorithm.policy)
    awaited = cohort.num_examples > 0 if late else cohort.active
    return jnp.where(awaited, times, 0).max()


def refine_seconds(
    clock: Clock | None,
    algorithm: Algorithm,
    params: Params,
    cohort: Cohort,
    steps: Array | None,
) -> Array:
    """What a round takes more until the last client has refined its model. A scalar.

    Those who refine begin when the server has all uploads. What they do without training,
    as evaluating the public set, takes no time.

    Args:
      clock: of the plan; None: 0.
      algorithm: what a client exchanges more that refines its model.
      params: how large a model is.
      cohort: of the round.
      steps: on the public set, [cohort], 0 for those that do not refine; None: nobody.
    """
    if clock is None or steps is None:
        return jnp.zeros(())
    key_step, key_up, key_down, _ = _keys(clock)
    traffic = _refined_traffic(algorithm)
    down, up = messages(traffic, params)
    seconds = steps * _drawn("step_seconds", clock.step_seconds, cohort, key_step)
    seconds += 8 * up / _drawn("bandwidth", clock.bandwidth, cohort, key_up)
    if clock.download_bandwidth is not None:
        width = _drawn("download_bandwidth", clock.download_bandwidth, cohort, key_down)
        seconds += 8 * down / width
    seconds += traffic.round_trips * clock.latency
    return jnp.where(steps > 0, seconds, 0).max()


def kappa(accuracy: float, seconds: float) -> float:
    """Accuracy by time: accuracy times 1e4 over seconds, as FNR-FL's Table 3 has it.

    Seconds on one clock compare with those on no other.
    """
    return 1e4 * accuracy / seconds


def rho(accuracy: float, num_bytes: float) -> float:
    """Accuracy by traffic: accuracy times 1e4 over MiB, as FNR-FL's Table 3 has it.

    The traffic is all that clients receive and send; the table's "MB" are 2**20 bytes.
    """
    return 1e4 * accuracy / (num_bytes / 2**20)


def _keys(clock: Clock) -> Array:
    """Of what clients draw for good: steps, upload, download, delay. [4]

    A round's own key is for the delays alone.
    """
    return jax.random.split(jax.random.key(clock.seed), 4)


def _drawn(name: str, quantity: Quantity, cohort: Cohort, key: Key) -> Array:
    """A quantity of the clients of a cohort: a scalar, or [cohort]."""
    if isinstance(quantity, Law):
        draw = lambda client: quantity.sample(jax.random.fold_in(key, client))
        return jax.vmap(draw)(cohort.ids)
    quantity = jnp.asarray(quantity)
    if quantity.ndim == 0:
        return quantity
    if quantity.shape != (cohort.num_clients,):
        raise ValueError(
            f"{name} has shape {quantity.shape} but there are {cohort.num_clients} "
            "clients; give one number per client."
        )
    return quantity[jnp.minimum(cohort.ids, cohort.num_clients - 1)]
