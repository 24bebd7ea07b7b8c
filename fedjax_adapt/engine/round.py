"""One round: choose the cohort, train it, combine the uploads, keep the states.

    (state, key) -> (state, info)

Clients are independent within a round: they read the round-start model and server state
only, so the order in which lanes take them cannot change a result. A weighted mean is
summed as clients end and the client tables are updated in place, so that no copy of the
cohort's models is held, unless a refinement or a policy that learns asks for the runs.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..core import (
    Algorithm,
    Array,
    ClientState,
    Cohort,
    Info,
    Key,
    Mean,
    Outcome,
    Params,
    Participation,
    Plan,
    PyTree,
    RoundView,
    Setting,
    State,
    Task,
    Upload,
    unchanged,
    weighted_sum,
)
from ..data.dataset import FederatedDataset
from ..participation import everyone, uniform
from . import lanes
from .batches import batch_size, epoch_steps
from .local import Broadcast, Client, Setup, train_client, view_of


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Round:
    """A round as a pure function (state, key) -> (state, info).

    It is also a pytree whose leaves are the data, so a jitted function that takes it as
    an argument does not bake the data into its program.
    """

    data: FederatedDataset
    step: Callable[..., tuple[State, Info]] = field(metadata={"static": True})

    def __call__(self, state: State, key: Key) -> tuple[State, Info]:
        """Runs one round."""
        return self.step(self.data, state, key)


def participation_of(plan: Plan) -> Participation:
    """Who takes part under this plan."""
    if plan.participation is not None:
        return plan.participation
    return everyone() if plan.cohort_size is None else uniform(plan.cohort_size)


def init_state(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan, key: Key
) -> State:
    """The state before round 0. Works under `jax.eval_shape`.

    The client table is `algorithm.local.init(params)` repeated `num_clients` times.
    """
    del plan
    params = task.init(key)
    client = algorithm.local.init(params)
    num_clients = data.num_clients
    repeat = lambda leaf: jnp.broadcast_to(leaf, (num_clients, *jnp.shape(leaf)))
    state = State(
        params=params,
        server=algorithm.server.init(params),
        policy=algorithm.policy.init(params, num_clients),
        clients=jax.tree.map(repeat, client),
        round=jnp.zeros((), jnp.int32),
    )
    # a buffer of its own for every leaf, so that the state can be donated
    return jax.tree.map(lambda leaf: _like(jnp.array(leaf), jnp.asarray(leaf)), state)


def make_round(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Round:
    """Builds the round function: pure, so jit, vmap and scan it as you like.

    Raises:
      ValueError: the plan asks for more clients than the data set has.
    """
    participation_of(plan).slots(data.num_clients)
    return Round(data, partial(_round, algorithm, task, plan))


def num_lanes_of(plan: Plan, data: FederatedDataset, params: Params) -> int:
    """How many clients of a round run side by side."""
    slots = participation_of(plan).slots(data.num_clients)
    return lanes.choose(plan.lanes, slots, params, batch_size(data, plan))


def setting_of(plan: Plan, policy, cohort: Cohort, width: int) -> Setting:
    """What all clients of the round share; `width` is the batch size."""
    if policy.mean_steps is not None:
        mean_steps = jnp.clip(
            policy.mean_steps(cohort.mean_epoch_steps), 0, plan.max_steps
        )
    else:
        mean_steps = cohort.num_steps.sum() / jnp.maximum(cohort.num_active, 1)
    return Setting(
        round=cohort.round,
        lr=plan.lr * plan.lr_decay**cohort.round,
        base_lr=jnp.asarray(plan.lr),
        weight_decay=jnp.asarray(plan.weight_decay),
        mean_steps=mean_steps,
        share=cohort.num_active / cohort.num_clients,
        num_clients=cohort.num_clients,
    )


def gather_cohort(
    data: FederatedDataset, ids: Array, round: Array, width: int
) -> Cohort:
    """What the server knows of the clients `ids`, before the policy has spoken."""
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
        mean_epoch_steps=epoch_steps(data.size.sum(), data.num_clients * width),
    )


def with_num_steps(cohort: Cohort, num_steps: Array, plan: Plan) -> Cohort:
    """The cohort, once the policy has said how many steps each client takes."""
    num_steps = jnp.clip(num_steps, 0, plan.max_steps).astype(jnp.int32)
    num_steps = jnp.where(cohort.num_examples > 0, num_steps, 0)
    return cohort._replace(num_steps=num_steps, active=num_steps > 0)


def unless_idle(cohort: Cohort, new: PyTree, old: PyTree) -> PyTree:
    """`new`, or `old` where nobody trained: a mean over nobody says nothing."""
    trained = cohort.num_active > 0
    return jax.tree.map(lambda a, b: jnp.where(trained, a, b), new, old)


def mask_idle(cohort: Cohort, infos: PyTree) -> PyTree:
    """Per-client diagnostics [cohort, ...] with zeros where a client did not train."""
    live = lambda leaf: cohort.active.reshape(-1, *(1,) * (leaf.ndim - 1))
    return jax.tree.map(lambda leaf: jnp.where(live(leaf), leaf, 0), infos)


class _Total(NamedTuple):
    """What the walk over the cohort sums up: uploads, and the client table."""

    upload: Upload | None
    clients: ClientState


class _Slot(NamedTuple):
    """One slot of the cohort, as the walk takes it."""

    client: Client
    weight: Upload | tuple[()]


class _Result(NamedTuple):
    """What one client leaves behind."""

    upload: Upload
    state: ClientState
    loss: Array
    clipped: Array
    run: Any


def _round(
    algorithm: Algorithm,
    task: Task,
    plan: Plan,
    data: FederatedDataset,
    state: State,
    key: Key,
) -> tuple[State, Info]:
    setup = Setup(algorithm, task, plan, data)
    key_cohort, key_local, key_refine = jax.random.split(key, 3)
    key_train, key_measure = jax.random.split(key_local)
    width = batch_size(data, plan)
    ids = participation_of(plan).sample(key_cohort, data.num_clients)

    cohort = gather_cohort(data, ids, state.round, width)
    broadcast = Broadcast(
        state.params, state.server, setting_of(plan, algorithm.policy, cohort, width)
    )
    measured = _measure(setup, broadcast, cohort, state.clients, key_measure)
    num_steps = algorithm.policy.steps(state.policy, cohort, measured)
    cohort = with_num_steps(cohort, num_steps, plan)
    setting = setting_of(plan, algorithm.policy, cohort, width)

    broadcast = Broadcast(state.params, state.server, setting)
    total, kept = _train(setup, broadcast, cohort, state.clients, key_train)
    losses, clipped, infos, uploads, runs = kept

    if total.upload is None:
        upload = algorithm.server.combine(uploads, cohort)
    else:
        upload = total.upload
    params, server = algorithm.server.update(state.params, state.server, upload, cohort)
    if algorithm.refine is not None:
        view = RoundView(task, cohort, runs, data.public)
        params = algorithm.refine(params, view, key_refine)
    params, server = unless_idle(cohort, (params, server), (state.params, state.server))
    outcome = Outcome(state.params, params, server, upload, setting)
    policy = algorithm.policy.update(state.policy, cohort, runs, outcome)

    new = State(params, server, policy, total.clients, state.round + 1)
    info = Info(
        cohort=cohort.ids,
        num_steps=cohort.num_steps,
        loss=losses,
        clipped=clipped,
        num_active=cohort.num_active,
        delta_norm=optax.tree.norm(optax.tree.sub(params, state.params)),
        clients=mask_idle(cohort, infos),
    )
    return jax.tree.map(_like, new, state), info


def _train(setup, broadcast, cohort, table, key):
    """Trains the cohort; returns totals, and per client [cohort, ...] what is kept."""
    algorithm, num_clients = setup.algorithm, setup.data.num_clients
    combine = algorithm.server.combine
    streams = isinstance(combine, Mean)
    keep_runs = algorithm.refine is not None or algorithm.policy.update is not unchanged
    num_lanes = num_lanes_of(setup.plan, setup.data, broadcast.params)
    weights = combine.weights(cohort) if streams else ()
    slots = _slots(cohort, table, key, num_lanes, weights)

    def train(slot: _Slot) -> _Result:
        run, clipped = train_client(setup, broadcast, slot.client)
        upload, new = algorithm.local.finish(run)
        run = run._replace(anchor=(), server=(), setting=(), full_gradient=None)
        return _Result(upload, new, run.loss, clipped, run if keep_runs else ())

    def collect(total: _Total, slots: _Slot, results: _Result):
        active = slots.client.num_steps > 0
        # idle clients keep their rows to the bit
        ids = jnp.where(active, slots.client.id, num_clients)
        clients = jax.tree.map(
            lambda all_, some: all_.at[ids].set(some.astype(all_.dtype), mode="drop"),
            total.clients,
            results.state,
        )
        sent = results.upload._replace(info=())
        kept = (results.loss, results.clipped, results.upload.info)
        if not streams:
            return _Total(None, clients), (*kept, sent, results.run)
        grown = _add_weighted(slots.weight, active, total.upload, sent)
        return _Total(grown, clients), (*kept, (), results.run)

    upload = None
    if streams:
        one = jax.tree.map(lambda leaf: leaf[0], slots)
        sent = jax.eval_shape(train, one).upload._replace(info=())
        upload = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sent)
    total, kept = lanes.fold(train, collect, _Total(upload, table), slots, num_lanes)
    losses, clipped, infos, uploads, runs = jax.tree.map(
        lambda leaf: leaf[: cohort.ids.shape[0]], kept
    )
    if keep_runs:
        runs = runs._replace(
            anchor=broadcast.params, server=broadcast.server, setting=broadcast.setting
        )
    return total, (losses, clipped, infos, uploads, runs)


def _measure(setup, broadcast, cohort, table, key):
    """What each client measures at the broadcast model, [cohort, ...]."""
    measure = setup.algorithm.policy.measure
    if measure is None:
        return ()
    num_lanes = num_lanes_of(setup.plan, setup.data, broadcast.params)
    slots = _slots(cohort, table, key, num_lanes)

    def one(slot: _Slot):
        view = view_of(setup, broadcast, slot.client)
        return measure(*view(broadcast.params, jnp.zeros((), jnp.int32)))

    keep = lambda carry, slots, results: (carry, results)
    _, measured = lanes.fold(one, keep, (), slots, num_lanes)
    return jax.tree.map(lambda leaf: leaf[: cohort.ids.shape[0]], measured)


def _slots(
    cohort: Cohort, table: ClientState, key: Key, num_lanes: int, weights: PyTree = ()
) -> _Slot:
    """The cohort as the walk takes it, the last group of lanes filled with empty slots.

    The rows of the client table are gathered here, all before the first is written: a
    read inside the walk would make XLA copy the whole table for every client.
    """
    extra = -cohort.ids.shape[0] % num_lanes
    pad = lambda leaf, value=0: jnp.pad(leaf, (0, extra), constant_values=value)
    ids = pad(cohort.ids, cohort.num_clients)
    # an empty slot reads the last client, and nothing comes of it
    rows = jnp.minimum(ids, cohort.num_clients - 1)
    client = Client(
        id=ids,
        state=jax.tree.map(lambda leaf: leaf[rows], table),
        num_steps=pad(cohort.num_steps),
        # the same key whoever else is in the cohort, and wherever the client runs
        key=jax.vmap(lambda i: jax.random.fold_in(key, i))(ids),
    )
    return _Slot(client, jax.tree.map(pad, weights))


def _add_weighted(
    weights: Upload, active: Array, total: Upload, sent: Upload
) -> Upload:
    """Adds a group of uploads to the running weighted sum."""

    def add(weights, total, tree):
        grow = lambda t, leaf: t + weighted_sum(weights, active, leaf)
        return jax.tree.map(grow, total, tree)

    return Upload(
        delta=add(weights.delta, total.delta, sent.delta),
        extra=add(weights.extra, total.extra, sent.extra),
    )


def _like(new, old) -> Array:
    """`new` in the dtype of `old`, strongly typed, so that rounds can be scanned."""
    return jax.lax.convert_element_type(new, old.dtype)
