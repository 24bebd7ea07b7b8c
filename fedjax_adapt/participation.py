"""Participation rules: everyone, a uniform draw, a coin for each, or the earliest.

A cohort has a static number of slots so that a round compiles once. A Bernoulli cohort
varies in size: its empty slots hold the id `num_clients`, and the engine passes over them.
A draw falls only on clients that hold examples.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from . import check
from .core import Participation, nonempty_rate
from .errors import SettingError

# A Bernoulli cohort larger than its slots would be cut; slots are chosen so that this
# happens less than once in a billion rounds.
OVERFLOW = 1e-9


def everyone() -> Participation:
    """All clients, in client order."""
    return Participation(
        slots=lambda num_clients: num_clients,
        sample=lambda key, num_clients: jnp.arange(num_clients, dtype=jnp.int32),
    )


def uniform(cohort_size: int) -> Participation:
    """`cohort_size` clients, drawn uniformly without replacement.

    Raises:
      SettingError: `cohort_size` is no positive integer or exceeds the number of clients
        that hold examples.
    """
    check.at_least("cohort_size", cohort_size, 1)

    def slots(num_clients):
        if cohort_size > num_clients:
            raise SettingError(
                f"cohort_size={cohort_size} but the data set has {num_clients} clients "
                f"that hold examples; take at most {num_clients}.",
                setting="cohort_size",
            )
        return cohort_size

    order = jax.random.permutation

    def sample(key, num_clients):
        return order(key, num_clients)[:cohort_size].astype(jnp.int32)

    return Participation(slots, sample, among_holders=True, order=order)


def bernoulli(probability: float) -> Participation:
    """Each client takes part with `probability`; at least one does.

    The cohort has the distribution of independent coins given that they are not all
    tails (FedDyn, FedDC and FedSSG draw until that holds). It is drawn without drawing
    again: the first participant J has P(J = j) = q (1-q)^j / (1 - (1-q)^N), the clients
    after it toss their own coins. A client takes part with q / (1 - (1-q)^N), which is q
    but where few are drawn: `Participation.rate(N)`, which FedSSG's gate and `with_privacy`
    go by.

    Raises:
      SettingError: `probability` is outside (0, 1], or traced: slots follow from it.
    """
    if check.is_tracer(probability):
        raise SettingError(
            "participation is traced, but a cohort has a fixed number of slots; write a "
            "number, or build the plan outside jit and vmap."
        )
    check.between("participation", probability, 0, 1, closed="right")
    q = float(probability)

    rate = partial(nonempty_rate, q)

    def slots(num_clients):
        return _binomial_quantile(num_clients, q, OVERFLOW)

    def sample(key, num_clients):
        key_first, key_coins = jax.random.split(key)
        ids = jnp.arange(num_clients, dtype=jnp.int32)
        coins = jax.random.uniform(key_coins, (num_clients,)) < q
        if q < 1:
            # the inverse distribution function of J, in logarithms: q may be tiny
            some = q / rate(num_clients)
            u = jax.random.uniform(key_first)
            first = jnp.floor(jnp.log1p(-u * some) / math.log1p(-q)).astype(jnp.int32)
            first = jnp.clip(first, 0, num_clients - 1)
        else:
            first = 0
        taken = (ids == first) | ((ids > first) & coins)
        chosen = jnp.nonzero(taken, size=slots(num_clients), fill_value=num_clients)[0]
        return chosen.astype(jnp.int32)

    return Participation(slots, sample, among_holders=True, rate=rate)


def earliest(fraction: float = 0.4) -> Participation:
    """Every client starts; the ceil(fraction N) that end first are averaged.

    They end when the plan's clock says: it needs one. What the others did is thrown away,
    so the simulator never does it; `Info.wasted_steps` and `Info.wasted_bytes` count it
    apart, but for what a policy measured on all. Where tau follows from that, all measure,
    the server waits for the last of them, and those that end first from then on are
    averaged. GIFT keeps 40 of 100.

    Raises:
      SettingError: `fraction` is outside (0, 1].
    """
    check.between("participation", fraction, 0, 1, closed="right")
    # 0.07 x 100 is a little more than 7
    slots = lambda num_clients: max(math.ceil(round(fraction * num_clients, 9)), 1)
    sample = lambda key, num_clients: jnp.arange(num_clients, dtype=jnp.int32)
    return Participation(slots, sample, among_holders=True, first_to_end=True)


def _binomial_quantile(n: int, q: float, tail: float) -> int:
    """The smallest c >= 1 with P(Binomial(n, q) > c) < tail."""
    from scipy.special import bdtrc  # slow to import, and only needed here

    return 1 + int((bdtrc(np.arange(1, n), n, q) >= tail).sum())
