"""The cohort of a round, its step counts, and the values that all clients share."""

from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import (
    Algorithm,
    Array,
    Cohort,
    Key,
    Participation,
    PyTree,
    ServerExtra,
    Setting,
    StepPolicy,
    by_row,
)
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..participation import everyone, uniform
from ..plan import Plan
from . import mesh, processes
from .batches import epoch_steps
from .client_store import store_of

# what a round's key is folded in by for `Cohort.key`: no client, nor the clock's delays
SERVER = np.uint32(2**32 - 2)
SECONDS = "simulated_seconds"  # of a server rule's report, what `Info.seconds` is


def participation_of(plan: Plan) -> Participation:
    """The participation rule of this plan."""
    if plan.participation is not None:
        return plan.participation
    return everyone() if plan.cohort_size is None else uniform(plan.cohort_size)


def num_slots(data: FederatedDataset, plan: Plan) -> int:
    """The static size of a cohort.

    Raises:
      SettingError: the plan asks for more clients than there are to draw from.
    """
    eligible = len(eligible_clients(data, plan))
    slots = participation_of(plan).slots(eligible)
    if not isinstance(slots, int | np.integer) or slots < 1:
        raise SettingError(
            f"Participation.slots returned {slots!r} for {eligible} clients; return how "
            "many take part at most, an int of at least 1."
        )
    return int(slots)


def num_devices_of(data: FederatedDataset, plan: Plan) -> int:
    """The number of devices that serve a round.

    Tables in the host's memory are cut into equal parts: "auto" takes a number that does.
    """
    slots = num_slots(data, plan)
    most = mesh.count(plan.devices, slots)
    uncut = plan.devices != "auto" or store_of(plan).any_devices
    if uncut or processes.several():
        return most
    serving = (mesh.serving(number, slots) for number in range(most, 0, -1))
    return next(number for number in serving if data.num_clients % number == 0)


def may_have_empty_slots(data: FederatedDataset, plan: Plan) -> bool:
    """Whether a cohort may hold fewer clients than slots."""
    who = plan.participation
    # with a rate slots are more than come; among holders a draw fills all of them
    if who is not None and (who.rate is not None or who.among_holders):
        return who.rate is not None
    return plan.cohort_size is None and data.holders is not None


def slots_per_device(data: FederatedDataset, plan: Plan) -> int:
    """The number of slots of a round on each device."""
    return -(-num_slots(data, plan) // num_devices_of(data, plan))


def sample_cohort(
    data: FederatedDataset, plan: Plan, key: Key, busy: Array | None = None
) -> Array:
    """The ids of a round's clients, [slots] int32; an empty slot holds num_clients.

    Where the first to end are the cohort, these are all that start.

    Args:
      plan: says who takes part.
      data: who there is.
      key: of the draw.
      busy: ids that are passed over, see `ServerRule.busy`; None: no client.
    """
    eligible, who = eligible_clients(data, plan), participation_of(plan)
    if busy is None:
        drawn = who.sample(key, len(eligible))
    else:
        assert who.order is not None  # see `setup.check_rule`
        order = who.order(key, len(eligible))
        absent = data.num_clients
        away = jnp.zeros(absent, bool)
        away = away.at[jnp.where(busy < 0, absent, busy)].set(True, mode="drop")
        free_first = jnp.argsort(away[eligible[order]], stable=True)
        drawn = order[free_first[: who.slots(len(eligible))]]
    return jnp.append(eligible, data.num_clients)[drawn].astype(jnp.int32)


def busy_of(algorithm: Algorithm, server: ServerExtra) -> Array | None:
    """The clients that cannot be drawn; None: the server rule has none."""
    busy = algorithm.server.busy
    return None if busy is None else busy(server)


def seconds_by(cohort: Cohort, said: dict[str, Array], seconds: Array) -> Array:
    """`seconds` of a round, or what the server rule's report says of them. A scalar.

    Raises:
      SettingError: it says more than one number.
    """
    if SECONDS not in said:
        return seconds
    if jnp.ndim(said[SECONDS]):
        raise SettingError(
            f"ServerRule.report says {check.leaf(said[SECONDS])} for {SECONDS!r}, which "
            "are those of the round; return a scalar, or give it another name."
        )
    return jnp.where(cohort.num_active > 0, said[SECONDS], 0.0)


def eligible_clients(data: FederatedDataset, plan: Plan) -> Array:
    """The ids a cohort is drawn from."""
    if participation_of(plan).among_holders and data.holders is not None:
        return data.holders
    return jnp.arange(data.num_clients)


def gather_cohort(
    data: FederatedDataset, ids: Array, round: Array, width: int
) -> Cohort:
    """The cohort of the clients `ids`, before the policy has chosen steps."""
    present = ids < data.num_clients
    num_examples = jnp.where(
        present, data.size[jnp.minimum(ids, data.num_clients - 1)], 0
    )
    return Cohort(
        ids=ids,
        num_examples=num_examples,
        epoch_steps=epoch_steps(num_examples, width),
        num_steps=jnp.zeros_like(num_examples),
        active=num_examples > 0,
        round=round,
        num_clients=data.num_clients,
        num_holders=data.num_holders,
        mean_epoch_steps=epoch_steps(data.size.sum(), data.num_holders * width),
        label_counts=data.label_counts,
        batch_size=width,
    )


def first_to_end(
    data: FederatedDataset, plan: Plan, cohort: Cohort, times: Array, key: Key
) -> Array | slice:
    """The rows of those that make the cohort, in client order; all unless some are late.

    A tie is broken by chance, else the same clients would win it every round.
    """
    if not participation_of(plan).first_to_end:
        return slice(None)
    late = jnp.where(cohort.active, times, jnp.inf)
    order = jnp.lexsort((jax.random.uniform(key, late.shape), late))
    return jnp.sort(order[: num_slots(data, plan)])


def rows_of(cohort: Cohort, rows: Array | slice) -> Cohort:
    """Some clients of the cohort."""
    of_clients = ("ids", "num_examples", "epoch_steps", "num_steps", "active")
    kept = {name: getattr(cohort, name)[rows] for name in of_clients}
    return cohort._replace(**kept)


def without(cohort: Cohort, left_out: Array) -> Cohort:
    """The cohort as if some of it, [cohort] bool, had taken no step."""
    return cohort._replace(
        num_steps=jnp.where(left_out, 0, cohort.num_steps),
        active=cohort.active & ~left_out,
    )


def with_num_steps(
    cohort: Cohort, wanted: Array, plan: Plan, policy: StepPolicy
) -> tuple[Cohort, Array]:
    """The cohort, once the policy has said how many steps each client takes.

    Returns:
      The cohort, and how many of the steps were cut off by `max_steps`, [cohort] int32.
    """
    wanted = jnp.where(cohort.num_examples > 0, wanted, 0)
    num_steps = jnp.clip(wanted, 0, most_steps(plan, policy)).astype(jnp.int32)
    cut = jnp.maximum(wanted - num_steps, 0).astype(jnp.int32)
    return cohort._replace(num_steps=num_steps, active=num_steps > 0), cut


def most_steps(plan: Plan, policy: StepPolicy) -> int | Array | None:
    """The cap on the local steps of a client in a round; None: there is none."""
    caps = [most for most in (plan.max_steps, policy.max_steps) if most is not None]
    if any(map(check.is_tracer, caps)):
        return reduce(jnp.minimum, caps)
    return min(caps, default=None)


def expected_share(data: FederatedDataset, plan: Plan) -> float:
    """The share of the clients one draws from that is expected in a round."""
    who, eligible = participation_of(plan), len(eligible_clients(data, plan))
    if who.rate is not None:
        return who.rate(eligible)
    return who.slots(eligible) / eligible


def setting_of(
    plan: Plan, algorithm: Algorithm, cohort: Cohort, participation: float
) -> Setting:
    """The `Setting` of a round; `participation` is `expected_share`."""
    policy = algorithm.policy
    if policy.mean_steps is not None:
        mean_steps = policy.mean_steps(cohort.mean_epoch_steps)
        mean_steps = jnp.clip(mean_steps, 0, most_steps(plan, policy))
    else:
        mean_steps = cohort.num_steps.sum() / jnp.maximum(cohort.num_active, 1)
    sgd = algorithm.local.optimizer is None
    momentum = jnp.asarray(plan.momentum) if sgd else None
    return Setting(
        round=cohort.round,
        lr=plan.lr * plan.lr_decay**cohort.round,
        base_lr=jnp.asarray(plan.lr),
        weight_decay=jnp.asarray(plan.weight_decay),
        momentum=momentum,
        mean_steps=mean_steps,
        share=cohort.share,
        num_clients=cohort.num_clients,
        clip_norm=None if plan.clip_norm is None else jnp.asarray(plan.clip_norm),
        rounds=plan.rounds,
        participation=participation,
        num_holders=cohort.num_holders,
    )


def masked(here: Array, report: PyTree) -> PyTree:
    """Diagnostics with zeros where `here` [cohort] is false; their scalars as they are."""

    def mask(leaf):
        leaf = jnp.asarray(leaf)
        if leaf.ndim == 0:
            return leaf
        return jnp.where(by_row(here, leaf), leaf, 0)

    return jax.tree.map(mask, report)
