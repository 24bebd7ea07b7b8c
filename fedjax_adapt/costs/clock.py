"""The simulated clock of clients, and the laws of their seconds and bandwidths."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Array, Cohort, Key
from ..errors import SettingError

# what a quantity may be, so that no time is too long for a float32
SMALLEST, LARGEST = 1e-9, 1e15
WIDEST = 10  # sigma; a client in a million is e^50 times the median then


class Law(NamedTuple):
    """The law of a quantity: `sample(key)` is a scalar of at least 0."""

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
    check.positive(name, value, any_size=True)
    check.between(name, value, SMALLEST, LARGEST)


LAWS = {law.__name__: law for law in (exponential, uniform, normal, lognormal)}

Quantity = float | Array | np.ndarray | Law
QUANTITIES = ("step_seconds", "bandwidth", "download_bandwidth", "delay")


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
      SettingError: a number is negative, not finite or above 1e15, or a bandwidth 0;
        `delay_persists` is neither True nor False, or True where `delay` is no law, or
        `seed` no integer of at least 0.
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
            raise SettingError(
                f"latency={self.latency!r} is not a single number; write seconds per round "
                "trip, and what differs between clients as delay.",
                setting="latency",
            )
        for name in ("step_seconds", "latency", "delay"):
            _check(check.nonnegative, name, getattr(self, name))
        for name in ("step_seconds", "bandwidth", "delay"):
            if getattr(self, name) is None:
                raise SettingError(
                    f"{name}=None says nothing; write a number or a law.", setting=name
                )
        for name in ("bandwidth", "download_bandwidth"):
            law = getattr(self, name)
            if isinstance(law, Law) and not law.positive:
                raise SettingError(
                    f"{name} may be 0 under this law, and a message would never arrive; "
                    "write a number or lognormal(median, sigma)."
                )
            _check(check.positive, name, getattr(self, name))
        if not isinstance(self.delay_persists, bool | np.bool_):
            raise SettingError(
                f"delay_persists={self.delay_persists!r} is neither True nor False; write "
                "one of them.",
                setting="delay_persists",
            )
        if self.delay_persists and not isinstance(self.delay, Law):
            raise SettingError(
                f"delay_persists=True but delay={self.delay} is the same in every round; "
                "leave it out, or write delay as a law, as in exponential(1.0).",
                setting="delay_persists",
            )
        check.at_least("seed", self.seed, 0, most=math.inf)

    def of_clients(self, ids: np.ndarray) -> "Clock":
        """The clock of a federation of these clients alone, which draw anew by laws."""

        def own(quantity):
            if isinstance(quantity, Law | None) or jnp.ndim(quantity) == 0:
                return quantity
            return jnp.asarray(quantity)[ids]

        return replace(self, **{name: own(getattr(self, name)) for name in QUANTITIES})


def _check(wanted: Callable[..., None], name: str, value: Quantity | None) -> None:
    if isinstance(value, Law | None) or check.is_tracer(value):
        return
    if isinstance(value, list | tuple):
        raise SettingError(
            f"{name} is {check.kind_of(value)}; write a number, a law, or an array of one "
            f"number per client, as numpy.array({name}).",
            setting=name,
        )
    numbers = {name: value}
    if getattr(value, "ndim", 0) > 0:
        several = enumerate(np.asarray(value).ravel())
        numbers = {f"{name} of client {client}": number for client, number in several}
    least = 0 if wanted is check.nonnegative else SMALLEST
    for title, number in numbers.items():
        wanted(title, number, any_size=True)
        check.between(title, number, least, LARGEST)


def keys(clock: Clock) -> Array:
    """The keys of what clients draw once: steps, upload, download, delay. [4]

    A round's own key is for the delays alone.
    """
    return jax.random.split(jax.random.key(clock.seed), 4)


def drawn(name: str, quantity: Quantity, cohort: Cohort, key: Key) -> Array:
    """A quantity of the clients of a cohort: a scalar, or [cohort]."""
    return drawn_by(name, quantity, cohort.ids, cohort.num_clients, key)


def drawn_by(
    name: str, quantity: Quantity, ids: Array, num_clients: int | Array, key: Key
) -> Array:
    """A quantity of some clients: a scalar, or [clients]."""
    if isinstance(quantity, Law):
        draw = lambda client: quantity.sample(jax.random.fold_in(key, client))
        return jax.vmap(draw)(ids)
    quantity = jnp.asarray(quantity)
    if quantity.ndim == 0:
        return quantity
    if quantity.shape != (num_clients,):
        raise SettingError(
            f"{name} has shape {quantity.shape} but there are {num_clients} "
            "clients; give one number per client."
        )
    return quantity[jnp.minimum(ids, num_clients - 1)]
