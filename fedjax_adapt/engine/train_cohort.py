"""A cohort in one round: every client trains, some side by side, some on each device.

A weighted mean is summed as clients end, and client tables that are not copied to every
device are updated in place, so that no copy of the cohort's models is held, unless a
refinement or a policy that learns asks for the runs.
"""

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
    as_refinement,
    measure_of,
    sent_by,
    uniformly,
    weighted_sums,
)
from . import lanes, mesh
from .client_store.exchange import (
    CohortRows,
    receive,
    send_back,
    write,
)
from .local import Broadcast, Client, Setup, parts_of, view_before, view_of
from .packing import pack
from .slots import Slot, assign_slots, num_devices_of, with_states
from .steps import train


class Trained(NamedTuple):
    """What a cohort leaves behind. Leading axis of all but `clients`: cohort."""

    upload: Upload  # combined already where `streams`
    streams: bool
    clients: ClientState  # the whole table, [rows, ...]
    loss: Array
    clipped: Array
    info: PyTree
    runs: Any  # () unless somebody asks for them
    sent: PyTree  # mean of what the active clients sent to the policy
    for_refinement: PyTree  # what each sent for the refinement


class _Result(NamedTuple):
    """What one client leaves behind."""

    upload: Upload
    state: ClientState
    loss: Array
    clipped: Array
    run: Any
    sent: PyTree
    for_refinement: PyTree


class _PerClient(NamedTuple):
    """What is kept of every client."""

    loss: Array
    clipped: Array
    info: PyTree
    upload: Upload | tuple[()] = ()
    run: Any = ()
    for_refinement: PyTree = ()


def train_cohort(
    setup: Setup, broadcast: Broadcast, cohort: Cohort, held: CohortRows, key: Key
) -> Trained:
    """Trains the cohort and puts its rows back into the table they come from."""
    algorithm, pace = setup.algorithm, setup.pace
    combine = algorithm.server.combine
    refine = as_refinement(algorithm.refine) or Refinement()
    streams = isinstance(combine, Mean)
    keep_runs = algorithm.refine is not None or algorithm.policy.update is not None
    weights = (combine.weights(cohort) if streams else (), uniformly(cohort))
    assignment = assign_slots(setup, cohort, held, key, weights)

    def left_by(run: LocalRun, clipped: Array) -> _Result:
        upload, new = algorithm.local.finish(run)
        sent = sent_by(algorithm.policy, run)
        of_run = kept_of(run) if keep_runs else ()
        for_refinement = sent_by(refine, run)
        return _Result(upload, new, run.loss, clipped, of_run, sent, for_refinement)

    def summed(result: _Result) -> tuple[Upload | tuple[()], PyTree]:
        return result.upload._replace(info=()) if streams else (), result.sent

    def collect(carry, slots: Slot, results: _Result, ended: Array | bool = True):
        total, tables = carry
        active = ended & (slots.client.num_steps > 0)
        grown = weighted_sums(slots.weight, active, summed(results))
        total = optax.tree.add(total, grown)
        tables = write(tables, slots.index, active, results.state)
        per_client = _PerClient(
            loss=results.loss,
            clipped=results.clipped,
            info=results.upload.info,
            upload=() if streams else results.upload._replace(info=()),
            run=results.run,
            for_refinement=results.for_refinement,
        )
        return (total, tables), per_client

    def on_device(shared, slots: Slot, own: ClientState):
        data, broadcast, exchange = shared
        num_lanes = assignment.num_lanes
        parts = parts_of(setup._replace(data=data), broadcast, left_by)
        tables = receive(own, exchange, assignment.each)
        begin = lambda carry, some: with_states(carry[1], some).client

        def one(client: Client) -> _Result:
            return train(parts, client, client.num_steps, num_lanes == 1, pace)

        first = begin((None, tables), jax.tree.map(lambda leaf: leaf[:1], slots))
        left = lambda client: summed(parts.end(*parts.begin(client)))
        shapes = jax.eval_shape(left, jax.tree.map(lambda leaf: leaf[0], first))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        carry = zeros, tables
        # no client waits for a lane, or for another client
        if num_lanes in (1, assignment.each) or pace.known is not None:
            together = lanes.each(one, num_lanes)
            (total, tables), per_client = lanes.fold(
                together, collect, carry, slots, num_lanes, begin
            )
        else:
            steps = slots.client.num_steps
            (total, tables), per_client = pack(
                parts, begin, collect, carry, slots, steps, num_lanes, pace.block
            )
        return total, per_client, send_back(tables, exchange)

    shared = (setup.data, broadcast, assignment.exchange)
    total, per_client, written = mesh.run_on_devices(
        on_device, shared, assignment.slots, held.table, assignment.num_devices
    )
    per_client = assignment.in_order(per_client)
    runs = per_client.run
    if keep_runs:
        runs = runs._replace(
            anchor=broadcast.params, server=broadcast.server, setting=broadcast.setting
        )
    upload, sent = total
    upload = upload if streams else per_client.upload
    return Trained(
        upload,
        streams,
        written,
        per_client.loss,
        per_client.clipped,
        per_client.info,
        runs,
        sent,
        per_client.for_refinement,
    )


def kept_of(run: LocalRun) -> LocalRun:
    """What is kept of a run: neither what all clients share nor functions."""
    shared = dict.fromkeys(("anchor", "server", "setting"), ())
    functions = ("full_gradient", "full_loss", "batch_at", "task", "key")
    functions = dict.fromkeys(functions)
    return run._replace(**shared, **functions)


def measure_cohort(
    setup: Setup, broadcast: Broadcast, cohort: Cohort, held: CohortRows, key: Key
) -> PyTree:
    """What each client measures at the broadcast model, [cohort, ...]."""
    measure = measure_of(setup.algorithm.policy).client
    if measure is None:
        return ()
    assignment = assign_slots(setup, cohort, held, key, alike=True)

    def on_device(shared, slots: Slot, own: ClientState):
        data, broadcast, exchange = shared
        here = setup._replace(data=data)
        tables = receive(own, exchange, assignment.each)

        def one(client: Client):
            before = view_before(here, broadcast, client)
            view = view_of(here, before, client)
            return measure(*view(before.params, jnp.zeros((), jnp.int32)))

        keep = lambda carry, slots, results: (carry, results)
        begin = lambda carry, some: with_states(tables, some).client
        measured = lanes.each(one, assignment.num_lanes)
        _, per_client = lanes.fold(
            measured, keep, (), slots, assignment.num_lanes, begin
        )
        return (), per_client, ()

    shared = (setup.data, broadcast, assignment.exchange)
    _, measured, _ = mesh.run_on_devices(
        on_device, shared, assignment.slots, held.table, assignment.num_devices
    )
    return assignment.in_order(measured)


def digest_cohort(setup: Setup, cohort: Cohort, measured: PyTree) -> PyTree:
    """What each client's measurement says besides the cohort's, [cohort, ...]."""
    measure, size = measure_of(setup.algorithm.policy), cohort.ids.shape[0]
    if measure.digest is None:
        return measured
    num_devices = num_devices_of(setup.data, setup.plan)
    num_lanes = int(setup.plan.lanes)
    extra = -size % (num_lanes * num_devices)
    fill = lambda leaf: jnp.pad(leaf, [(0, extra), *[(0, 0)] * (leaf.ndim - 1)])
    slots = jax.tree.map(fill, measured) if extra else measured

    def on_device(pooled, slots, own):
        keep = lambda carry, slots, results: (carry, results)
        digest = lanes.each(partial(measure.digest, pooled), num_lanes)
        return (), lanes.fold(digest, keep, (), slots, num_lanes)[1], own

    pooled = () if measure.pool is None else measure.pool(cohort, measured)
    _, found, _ = mesh.run_on_devices(on_device, pooled, slots, (), num_devices)
    return jax.tree.map(lambda leaf: leaf[:size], found)
