"""A cohort in one round: every client trains, some side by side, some on each device.

The slots of the cohort are given out to lanes and devices. A weighted mean is summed as
clients end, and client tables that are not copied to every device are updated in place, so
that no copy of the cohort's models is held, unless a refinement or a policy that learns
asks for the runs.

Where the plan leaves out who sends a number that is not finite, what others sent is summed
with the weights of the whole cohort and scaled afterwards. Weights that are not the same
but for a factor without a client are asked for again, for which all uploads are kept.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from ..core import (
    Array,
    ClientState,
    Cohort,
    Key,
    LocalRun,
    Mean,
    PyTree,
    Refinement,
    Upload,
    all_finite,
    as_refinement,
    by_examples,
    measure_of,
    sent_by,
    uniformly,
    weighted_sums,
)
from . import mesh
from .batches import flat_on_tpu
from .client_store.exchange import (
    CohortRows,
    DeviceRows,
    Exchange,
    RowIndex,
    num_rows_of,
    plan_exchange,
    read,
    receive,
    send_back,
    write,
)
from .cohort import may_have_empty_slots, num_devices_of, without
from .local import Broadcast, Client, client_of, parts_of, view_before, view_of
from .setup import Setup
from .steps import accumulator, in_groups, pack, side_by_side, train, zeros_if_empty


class Slot(NamedTuple):
    """One slot of the cohort."""

    client: Client  # its state still lies in the table
    weight: PyTree  # of what is summed up as clients end
    index: RowIndex


class Assignment(NamedTuple):
    """All slots, in the order in which lanes and devices take them."""

    slots: Slot
    exchange: Exchange | None  # None: every slot finds its row on its own device
    back: Array | None  # where the clients of the cohort are among the slots
    cohort_size: int
    num_lanes: int
    num_devices: int

    @property
    def slots_per_device(self) -> int:
        """The number of slots that a device serves."""
        return self.slots.client.id.shape[0] // self.num_devices

    def in_order(self, per_slot: PyTree) -> PyTree:
        """[slots, ...] as [cohort, ...]."""
        if self.back is None:  # which copies nothing, and leaves it where it is
            return jax.tree.map(lambda leaf: leaf[: self.cohort_size], per_slot)
        back = self.back[: self.cohort_size]
        return jax.tree.map(lambda leaf: leaf[back], per_slot)


class Result(NamedTuple):
    """The results of one client, or of each of a cohort, [cohort, ...]."""

    upload: Upload
    state: ClientState
    loss: Array
    clipped: Array
    run: Any  # () unless a policy or a refinement reads it
    sent: PyTree  # to the policy
    for_refinement: PyTree
    left_out: Any = ()  # a bool, for what it sent; () where no client may be


class Trained(NamedTuple):
    """The results of a cohort."""

    cohort: Cohort  # without who was left out
    upload: Upload  # combined
    clients: ClientState  # the whole table, [rows, ...]
    sent: PyTree  # mean of what the active clients sent to the policy
    runs: Any  # [cohort, ...]; () unless a policy or a refinement reads them
    each: Result  # but for what was summed up or written to the table


def train_cohort(
    setup: Setup, broadcast: Broadcast, cohort: Cohort, rows: CohortRows, key: Key
) -> Trained:
    """Trains the cohort and puts its rows back into the table they come from."""
    algorithm, pace = setup.algorithm, setup.pace
    combine = algorithm.server.combine
    refine = as_refinement(algorithm.refine) or Refinement()
    leaves_out = setup.plan.nonfinite_updates == "leave_out"
    streams = isinstance(combine, Mean) and not (leaves_out and _asks_again(combine))
    keep_runs = algorithm.refine is not None or algorithm.policy.update is not None
    weights = (combine.weights(cohort) if streams else (), uniformly(cohort))
    assignment = assign_slots(setup, cohort, rows, key, weights)
    num_lanes = assignment.num_lanes

    def result_of(run: LocalRun, clipped: Array) -> Result:
        upload, state = algorithm.local.finish(run)
        sent = sent_by(algorithm.policy, run)
        kept = per_client_run(run) if keep_runs else ()
        for_refinement = sent_by(refine, run)
        left_out = ()
        if leaves_out:
            left_out = ~all_finite((upload._replace(info=()), sent, for_refinement))
        return Result(
            upload, state, run.loss, clipped, kept, sent, for_refinement, left_out
        )

    def summed(result: Result) -> tuple[Upload | tuple[()], PyTree]:
        return result.upload._replace(info=()) if streams else (), result.sent

    def collect(carry, slots: Slot, results: Result, ended: Array | bool = True):
        total, tables = carry
        active = ended & (slots.client.num_steps > 0)
        if leaves_out:
            active &= ~results.left_out
        grown = weighted_sums(slots.weight, active, summed(results))
        total = optax.tree.add(total, grown)
        tables = write(tables, slots.index, active, results.state)
        upload = results.upload
        upload = upload._replace(delta=(), extra=()) if streams else upload
        return (total, tables), results._replace(upload=upload, state=(), sent=())

    def on_device(shared, slots: Slot, table: ClientState):
        data, broadcast, exchange = shared
        parts = parts_of(setup._replace(data=flat_on_tpu(data)), broadcast, result_of)
        tables = receive(table, exchange, assignment.slots_per_device)
        begin = lambda carry, slots: with_states(carry[1], slots).client
        alone = num_lanes == 1
        one = lambda client: train(parts, client, client.num_steps, alone, pace)
        first = begin((None, tables), jax.tree.map(lambda leaf: leaf[:1], slots))
        left = lambda client: summed(parts.end(*parts.begin(client)))
        shapes = jax.eval_shape(left, jax.tree.map(lambda leaf: leaf[0], first))
        carry = accumulator(shapes), tables
        # no client waits for a lane, or for another client
        if num_lanes in (1, assignment.slots_per_device) or pace.known is not None:
            several = side_by_side(one, num_lanes)
            if num_lanes > 1 or jax.default_backend() != "cpu":
                # the loop of a single lane on a CPU takes no steps for an empty slot
                several = skip_empty_groups(setup, assignment, several)
            run = lambda carry, group: several(begin(carry, group))
            step = lambda carry, group: collect(carry, group, run(carry, group))
            (total, tables), each = in_groups(step, carry, slots, num_lanes)
        else:
            steps = slots.client.num_steps
            (total, tables), each = pack(
                parts, begin, collect, carry, slots, steps, num_lanes, pace.block
            )
        return optax.tree.cast_like(total, shapes), each, send_back(tables, exchange)

    shared = (setup.data, broadcast, assignment.exchange)
    (upload, sent), each, table = mesh.run_on_devices(
        on_device, shared, assignment.slots, rows.table, assignment.num_devices
    )
    each = assignment.in_order(each)
    if leaves_out:
        each = each._replace(left_out=each.left_out & cohort.active)
        cohort = without(cohort, each.left_out)
        weight, uniform = weights
        upload = _scaled(weight, cohort.active, upload)
        sent = _scaled(uniform, cohort.active, sent)
    if not streams:
        upload = combine(each.upload._replace(info=()), cohort)
    runs = each.run
    if keep_runs:
        runs = runs._replace(
            anchor=broadcast.params, server=broadcast.server, setting=broadcast.setting
        )
    return Trained(cohort, upload, table, sent, runs, each)


def skip_empty_groups(
    setup: Setup, assignment: Assignment, several: Callable[[Client], PyTree]
) -> Callable[[Client], PyTree]:
    """A function of a group of lanes, but zeros for one of empty slots alone."""
    one_group = assignment.num_lanes == assignment.slots_per_device
    if one_group or not may_have_empty_slots(setup.data, setup.plan):
        return several
    there = lambda clients: clients.id < setup.data.num_clients
    return lambda clients: zeros_if_empty(there(clients), lambda: several(clients))


def _asks_again(combine: Mean) -> bool:
    """Whether the weights of some clients are not those of all but for a factor."""
    known = (by_examples, uniformly)
    return not (combine.delta in known and combine.extra in known)


def _scaled(weights: PyTree, active: Array, sums: PyTree) -> PyTree:
    """Means over the active clients, of sums over them with the weights of a cohort.

    Args:
      weights: of the whole cohort, [cohort], a prefix of `sums`.
      active: who is in the sums, [cohort].
      sums: each is the mean already if all are in it, and its factor 1.
    """

    def scaled(weight: Array, tree: PyTree) -> PyTree:
        share = jnp.where(active, weight, 0).sum()
        factor = jnp.where(share > 0, weight.sum() / share, 0)
        return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, tree)

    return jax.tree.map(scaled, weights, sums)


def assign_slots(
    setup: Setup,
    cohort: Cohort,
    rows: CohortRows,
    key: Key,
    weights: PyTree = (),
    alike: bool = False,
) -> Assignment:
    """The cohort by lanes and devices, the last group of lanes filled with empty slots.

    Args:
      setup: of the round, its lanes a number.
      cohort: who trains.
      rows: where the rows of clients are.
      key: of the clients.
      weights: of what is summed up as clients end, [cohort].
      alike: all clients have as much to do, whatever their number of steps.
    """
    plan, data = setup.plan, setup.data
    num_clients, size = data.num_clients, cohort.ids.shape[0]
    num_devices = num_devices_of(data, plan)
    num_lanes = int(plan.lanes)
    extra = -size % (num_lanes * num_devices)
    pad = lambda leaf, value=0: jnp.pad(leaf, (0, extra), constant_values=value)
    ids, num_steps = pad(cohort.ids, num_clients), pad(cohort.num_steps)
    weights = jax.tree.map(pad, weights)

    # of a table of several devices, which hold an equal part each
    num_rows = num_rows_of(rows.table) // num_devices if num_devices > 1 else 0
    row = pad(rows.row, num_rows_of(rows.table))
    # all do as much, or wait for the longest client, wherever it trains
    alike |= num_lanes == (size + extra) // num_devices
    # but for groups of lanes that are passed over, those of empty slots alone
    alike |= setup.pace.known is not None and not may_have_empty_slots(data, plan)
    back, swaps = None, 0 if alike else mesh.SWAPS
    if num_devices > 1 and (num_rows or swaps):
        no_owner = jnp.full_like(ids, num_devices)
        owner = jnp.minimum(row // num_rows, no_owner) if num_rows else no_owner
        order, back = mesh.assign(num_steps, owner, num_devices, swaps)
        pick = lambda leaf: leaf[order]
        ids, row, num_steps, weights = jax.tree.map(
            pick, (ids, row, num_steps, weights)
        )
    index, exchange = RowIndex(row, row), None
    if num_rows:
        active = num_steps > 0
        index, exchange = plan_exchange(row, active, num_rows, num_devices, swaps)
    # the same key whoever else is in the cohort, and wherever the client runs
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)
    client = jax.vmap(client_of, (0, None, 0, 0))(ids, (), num_steps, keys)
    slots = Slot(client, weights, index)
    # XLA would share this arithmetic out, and have devices send each other its parts
    slots, exchange, back = mesh.everywhere((slots, exchange, back), num_devices)
    return Assignment(slots, exchange, back, size, num_lanes, num_devices)


def with_states(tables: DeviceRows, slots: Slot) -> Slot:
    """Some slots, their clients given their rows of the table."""
    return slots._replace(client=slots.client._replace(state=read(tables, slots.index)))


def per_client_run(run: LocalRun) -> LocalRun:
    """A run without what all clients share, and without functions: what can be stacked."""
    shared = dict.fromkeys(("anchor", "server", "setting"), ())
    functions = ("full_gradient", "full_loss", "batch_at", "over_steps", "task", "key")
    functions = dict.fromkeys(functions)
    return run._replace(**shared, **functions)


def measure_cohort(
    setup: Setup, broadcast: Broadcast, cohort: Cohort, rows: CohortRows, key: Key
) -> PyTree:
    """The measurements of all clients at the broadcast model, [cohort, ...]."""
    measure = measure_of(setup.algorithm.policy).client
    if measure is None:
        return ()
    assignment = assign_slots(setup, cohort, rows, key, alike=True)

    def on_device(shared, slots: Slot, table: ClientState):
        data, broadcast, exchange = shared
        here = setup._replace(data=flat_on_tpu(data))
        tables = receive(table, exchange, assignment.slots_per_device)

        def one(client: Client):
            before = view_before(here, broadcast, client)
            view = view_of(here, before, client)
            return measure(*view(before.params, jnp.zeros((), jnp.int32)))

        several = side_by_side(one, assignment.num_lanes)
        several = skip_empty_groups(setup, assignment, several)
        step = lambda carry, group: (carry, several(with_states(tables, group).client))
        return (), in_groups(step, (), slots, assignment.num_lanes)[1], ()

    shared = (setup.data, broadcast, assignment.exchange)
    _, measured, _ = mesh.run_on_devices(
        on_device, shared, assignment.slots, rows.table, assignment.num_devices
    )
    return assignment.in_order(measured)


def digest_cohort(setup: Setup, cohort: Cohort, measured: PyTree) -> PyTree:
    """The part of each measurement that differs by client, [cohort, ...]."""
    measure, size = measure_of(setup.algorithm.policy), cohort.ids.shape[0]
    if measure.digest is None:
        return measured
    num_devices = num_devices_of(setup.data, setup.plan)
    num_lanes = int(setup.plan.lanes)
    extra = -size % (num_lanes * num_devices)
    fill = lambda leaf: jnp.pad(leaf, [(0, extra), *[(0, 0)] * (leaf.ndim - 1)])
    slots = jax.tree.map(fill, measured) if extra else measured

    def on_device(pooled, slots, table):
        several = side_by_side(partial(measure.digest, pooled), num_lanes)
        step = lambda carry, group: (carry, several(group))
        return (), in_groups(step, (), slots, num_lanes)[1], table

    pooled = () if measure.pool is None else measure.pool(cohort, measured)
    _, digests, _ = mesh.run_on_devices(on_device, pooled, slots, (), num_devices)
    return jax.tree.map(lambda leaf: leaf[:size], digests)
