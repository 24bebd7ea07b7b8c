"""The slow twin: the same round as plain Python loops over clients and steps, no jit.

It shares with the fast path what a client does in one step, which batch it gets and what
the server knows of the cohort; loops, masks, sums, tables and lanes are written again the
obvious way. Use it to step through a round, and as the oracle of every engine trick.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from ..core import (
    Algorithm,
    Info,
    Key,
    Outcome,
    Refinement,
    RoundFn,
    RoundView,
    State,
    Task,
    Traffic,
    measure_of,
    merged_report,
    model_weights,
    precise,
    sent_by,
    uniformly,
    updated,
    weighted_sums,
    widened,
)
from ..costs import (
    end_times,
    refine_seconds,
    round_bytes,
    step_seconds,
    steps_follow_measurements,
    wasted,
)
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import Plan
from .batches import batch_size
from .build import with_lanes
from .client_store import store_of
from .cohort import (
    SERVER,
    busy_of,
    expected_share,
    gather_cohort,
    masked,
    num_slots,
    participation_of,
    rows_of,
    sample_cohort,
    seconds_by,
    setting_of,
    with_num_steps,
)
from .contract import guarded_algorithm, guarded_task
from .initial import check_state, strongly_typed
from .local import (
    Broadcast,
    advance,
    client_of,
    finished,
    start,
    train_loss,
    view_before,
    view_of,
)
from .refine import REFINEMENT_PARTS, masked_report, public_steps, settled
from .setup import Setup, check_kinds, check_rule
from .train_cohort import per_client_run
from .verify import verify


def debug_round(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> RoundFn:
    """A round function like `make_round`'s, slow and easy to look into.

    Where the plan leaves out who is not finite, no error says so.

    Raises (when the round runs):
      FloatingPointError: a loss or parameter is not finite; names client and step.
      RuntimeError: the task or algorithm raised; names the client and where it stood.
    """
    call = "debug_round(algorithm, task, data, plan)"
    setup = Setup(algorithm, task, data, plan)
    check_kinds(call, setup)
    setup = settled(setup)
    check_rule(setup)
    try:
        setup = verify(setup)
    except SettingError:
        # the round raises it with client and step; what cannot be traced alone, such as
        # float(loss), runs in it, and is counted as a model each way
        one = Traffic(models_down=1, models_up=1, round_trips=1)
        local = setup.algorithm.local._replace(traffic=one)
        setup = setup._replace(algorithm=setup.algorithm._replace(local=local))
    plan = with_lanes(setup).plan
    algorithm = guarded_algorithm(setup.algorithm)
    task = guarded_task(task)
    setup = Setup(algorithm, task, data, plan)
    policy, server_rule = algorithm.policy, algorithm.server
    store, all_ids = store_of(plan), jnp.arange(data.num_clients)

    def round_fn(state: State, key: Key) -> tuple[State, Info]:
        with jax.disable_jit(), precise(task):
            return slow_round(state, key)

    def slow_round(state, key):
        check_state(setup, state)
        with jax.disable_jit(False):  # what a store does to a table may need programs
            state = store.move(state, 1)
            held = store.gather(state.clients, all_ids, 1)
        table = of_clients = jax.tree.map(lambda leaf: leaf[held.row], held.table)
        key_cohort, key_local, key_refine = jax.random.split(key, 3)
        key_train, key_measure = jax.random.split(key_local)
        key_refine_clients, key_refine_server = jax.random.split(key_refine)
        width = batch_size(data, plan)
        busy = busy_of(algorithm, state.server)
        ids = sample_cohort(data, plan, key_cohort, busy)
        cohort = gather_cohort(data, ids, state.round, width)
        cohort = cohort._replace(train_loss=partial(train_loss, setup))
        share = expected_share(data, plan)
        cohort = cohort._replace(key=jax.random.fold_in(key, SERVER))
        cohort = cohort._replace(setting=setting_of(plan, algorithm, cohort, share))
        broadcast = Broadcast(state.params, state.server, cohort.setting, state.refine)

        def client(slot, key, num_steps):
            i = int(ids[slot])
            row = jax.tree.map(
                lambda leaf: leaf[min(i, data.num_clients - 1)], of_clients
            )
            key_client = jax.random.fold_in(key, i)
            return client_of(jnp.int32(i), row, num_steps, key_client)

        slots = range(len(ids))
        measured = ()
        measure = measure_of(policy)
        if measure.client is not None:
            rows = []
            for slot in slots:
                idle = client(slot, key_measure, jnp.int32(0))
                with _named(f"client {int(ids[slot])}, measurement"):
                    before = view_before(setup, broadcast, idle)
                    view = view_of(setup, before, idle)
                    rows.append(measure.client(*view(before.params, jnp.int32(0))))
            measured = _stack(rows)
            if measure.digest is not None:
                pooled = () if measure.pool is None else measure.pool(cohort, measured)
                measured = _stack([measure.digest(pooled, row) for row in rows])
        num_steps = policy.steps(state.policy, cohort, measured)
        cohort, cut = with_num_steps(cohort, num_steps, plan, policy)
        times = end_times(plan.clock, algorithm, state.params, cohort, key)
        asked, seen, kept = cohort, measured, list(slots)
        if participation_of(plan).first_to_end:
            kept = _first_to_end(cohort, times, key_cohort, num_slots(data, plan))
            pick = lambda tree: jax.tree.map(lambda leaf: leaf[kept], tree)
            cut, times, measured = pick(cut), pick(times), pick(measured)
            cohort = rows_of(cohort, kept)
            ids, slots = cohort.ids, range(len(kept))
        awaited = (
            cohort.num_examples > 0
            if steps_follow_measurements(policy)
            else cohort.active
        )
        seconds = jnp.asarray(max([0.0, *(float(t) for t in times[awaited])]))
        setting = setting_of(plan, algorithm, cohort, share)
        cohort = cohort._replace(setting=setting, seconds=times)
        broadcast = broadcast._replace(setting=setting)

        runs, uploads, sent, for_refinement, clipped = [], [], [], [], []
        left_out = [False] * len(slots)
        for slot in slots:
            member = client(slot, key_train, cohort.num_steps[slot])
            run, share = _slow_client(setup, broadcast, member)
            with _named(f"client {int(ids[slot])}, after its local steps"):
                upload, row = algorithm.local.finish(run)
                _warn_of_a_model(upload, run)
                sent.append(sent_by(policy, run))
                for_refinement.append(sent_by(algorithm.refine or Refinement(), run))
            if plan.nonfinite_updates == "leave_out" and cohort.active[slot]:
                everything = (upload.delta, upload.extra, sent[-1], for_refinement[-1])
                leaves = jax.tree.leaves(everything)
                left_out[slot] = not all(np.isfinite(leaf).all() for leaf in leaves)
            if cohort.active[slot] and not left_out[slot]:
                i = int(member.id)
                table = jax.tree.map(partial(_put, i), table, row)
            runs.append(run)
            uploads.append(upload)
            clipped.append(share)

        trained_by, out = cohort, jnp.array(left_out)
        cohort = cohort._replace(
            active=cohort.active & ~out, num_steps=cohort.num_steps * ~out
        )
        stacked = _stack(uploads)
        upload = server_rule.combine(stacked._replace(info=()), cohort)
        losses = jnp.stack([run.loss for run in runs])
        if algorithm.refine is not None or policy.update is not None:
            runs = _stack([per_client_run(run) for run in runs])._replace(
                anchor=state.params, server=state.server, setting=setting
            )
        refine, trained = algorithm.refine or Refinement(), runs
        lanes = int(plan.lanes)
        view = RoundView(
            task, cohort, runs, data.public, setting, data.num_classes, lanes,
            _stack(for_refinement),
        )  # fmt: skip
        shift = steps = None
        report = {}
        if refine.clients is not None:
            runs, table, shift, steps, report = _refine(
                algorithm, view, table, key_refine_clients
            )
            view = view._replace(runs=runs)
        seconds = seconds + refine_seconds(
            plan.clock, algorithm, state.params, cohort, steps
        )
        params, server = updated(
            server_rule, state.params, state.server, upload, cohort, shift
        )
        kept_by_refinement = state.refine
        if refine.server is not None:
            params, kept_by_refinement, more = refine.server(
                params, state.refine, view, key_refine_server
            )
            report = merged_report(report, more, *REFINEMENT_PARTS)
        if not cohort.active.any():
            params, server = state.params, state.server
            kept_by_refinement = state.refine
        num_public = public_steps(cohort, steps, report)
        refinement = masked_report(cohort, report)
        sent = weighted_sums(uniformly(cohort), cohort.active, _stack(sent))
        said = server_rule.report(server, upload, cohort)
        seconds = seconds_by(cohort, said, seconds)
        outcome = Outcome(
            state.params, params, server, upload, setting, sent, seconds, measured,
            step_seconds(plan.clock, cohort),
        )  # fmt: skip
        policy_state = state.policy
        if policy.update is not None:
            policy_state = policy.update(policy_state, cohort, trained, outcome)
        down, up = round_bytes(algorithm, state.params, trained_by, asked, steps)
        lost = (), ()
        if asked.ids.shape != cohort.ids.shape:
            lost = wasted(algorithm, state.params, trained_by, asked)
        report = policy.report(policy_state, asked, seen)
        of_kept = lambda leaf: leaf[jnp.array(kept)] if jnp.ndim(leaf) else leaf
        report = jax.tree.map(of_kept, report)
        moved = jax.tree.map(jnp.subtract, params, state.params)
        squares = [float((leaf**2).sum()) for leaf in jax.tree.leaves(widened(moved))]
        put = lambda all_, rows: all_.at[held.row].set(rows)
        table = jax.tree.map(put, held.table, table)
        with jax.disable_jit(False):
            clients = store.scatter(state.clients, all_ids, table, 1)
        done = state.round + 1
        new = State(
            params,
            server,
            policy_state,
            clients,
            done,
            kept_by_refinement,
            state.origin,
        )
        return jax.tree.map(strongly_typed, new, state), Info(
            cohort=ids,
            num_steps=trained_by.num_steps,
            loss=losses,
            clipped=jnp.stack(clipped),
            num_active=trained_by.num_active,
            delta_norm=jnp.asarray(np.sqrt(sum(squares))),
            clients=masked(trained_by.active, stacked.info),
            policy=masked(cohort.ids < cohort.num_clients, report),
            cut=cut,
            seconds=seconds,
            bytes_down=down,
            bytes_up=up,
            public_steps=num_public,
            refine=refinement,
            server=masked_report(cohort, said),
            wasted_bytes=lost[0],
            wasted_steps=lost[1],
            left_out=out if plan.nonfinite_updates == "leave_out" else (),
        )

    return round_fn


def _refine(algorithm, view, table, key):
    """Refined client models, and what they add to the mean, one client at a time."""
    cohort = view.cohort
    refined = algorithm.refine.clients(view, key)
    weights = model_weights(algorithm.server, cohort)
    shift = jax.tree.map(jnp.zeros_like, view.runs.anchor)
    for slot in range(len(cohort.ids)):
        if not cohort.active[slot] or not refined.steps[slot]:
            continue
        i = int(cohort.ids[slot])
        of = lambda leaf, slot=slot: leaf[slot]
        new = jax.tree.map(of, refined.params)
        old = jax.tree.map(of, view.runs.params)
        shift = jax.tree.map(
            lambda s, a, b, slot=slot: s + weights[slot].astype(s.dtype) * (a - b),
            shift, new, old,
        )  # fmt: skip
        if algorithm.local.refined is None:
            continue
        row = algorithm.local.refined(
            jax.tree.map(lambda leaf, i=i: leaf[i], table), new
        )
        table = jax.tree.map(partial(_put, i), table, row)
    steps = jnp.where(cohort.active, refined.steps, 0)
    runs = view.runs._replace(params=refined.params)
    return runs, table, shift, steps, dict(refined.report)


def _warn_of_a_model(upload, run):
    """A rule that sends its model where the server adds a difference."""
    params, sent = jax.tree.leaves(run.params), jax.tree.leaves(upload.delta)
    if len(params) == len(sent) and all(
        a is b for a, b in zip(params, sent, strict=True)
    ):
        warnings.warn(
            "LocalRule.finish sends run.params, the model itself, as Upload.delta, which "
            "the server adds to its own; write Upload(optax.tree.sub(run.params, "
            "run.anchor)), unless your ServerRule.update takes models.",
            stacklevel=2,
        )


def _first_to_end(cohort, times, key, most):
    """The rows of those the server waits for: loops and a sort."""
    tie = jax.random.uniform(key, times.shape)
    late = lambda row: (not cohort.active[row], float(times[row]), float(tie[row]))
    return jnp.array(sorted(sorted(range(len(times)), key=late)[:most]))


def _slow_client(setup, broadcast, client):
    with _named(f"client {int(client.id)}, before its first local step"):
        before = view_before(setup, broadcast, client)
        view = view_of(setup, before, client)
        progress = start(setup, before)
    for i in range(int(client.num_steps)):
        where = f"client {int(client.id)}, local step {i}"
        with _named(where):
            progress = advance(setup, progress, *view(progress.params, jnp.int32(i)))
        if setup.plan.nonfinite_updates == "leave_out":
            continue
        if not np.isfinite(progress.loss):
            raise FloatingPointError(f"{where}: the loss is {progress.loss}.")
        for path, leaf in jax.tree_util.tree_leaves_with_path(progress.params):
            if not np.isfinite(leaf).all():
                name = jax.tree_util.keystr(path)
                raise FloatingPointError(f"{where}: params{name} is not finite.")
    run = finished(setup, broadcast, client, progress)
    return run, progress.clipped / max(int(client.num_steps), 1)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Says in every exception where it arose."""
    try:
        yield
    except Exception as error:
        raise RuntimeError(f"{where}: {error}") from error


def _stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def _put(i, all_, one):
    """The table with the row of client i, rounded as the fast path rounds it."""
    return all_.at[i].set(jnp.asarray(one, all_.dtype))
