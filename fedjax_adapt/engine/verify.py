"""Every part of a method traced once on abstract values, before anything is compiled."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from .. import check
from ..core import (
    Outcome,
    Params,
    Refinement,
    RoundView,
    ServerRule,
    Upload,
    as_refinement,
    measure_of,
    precise,
    sent_by,
    traffic_for,
    updated,
)
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import Plan
from . import returned
from .batches import batch_size
from .cohort import (
    busy_of,
    expected_share,
    gather_cohort,
    num_slots,
    rows_of,
    sample_cohort,
    setting_of,
)
from .contract import check_traffic, guarded, guarded_algorithm, guarded_task, name_of
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
from .refine import init_refinement, refine_server
from .setup import Setup
from .train_cohort import per_client_run


def verify(setup: Setup) -> Setup:
    """The setup, every part of its algorithm traced once on abstract values.

    The traffic of its local rule are numbers then.

    Raises:
      SettingError: a part raises, or returns what the engine cannot use; the sentence says
        which, what it returned and what was expected.
    """
    algorithm, task, data, plan = setup[:4]
    if data.noise is not None and data.noise.std.shape != (data.num_clients,):
        raise SettingError(
            f"data.noise is of {data.noise.std.size} clients but the data have "
            f"{data.num_clients}; write feature_noise({data.num_clients}, sigma, x)."
        )
    if plan.rounds is None:
        plan = replace(plan, rounds=1)  # whatever `train` will say
    parts = Setup(guarded_algorithm(algorithm), guarded_task(task), data, plan)
    with precise(task):
        once = lambda data, key: _once(parts._replace(data=data), key)
        model, upload = jax.eval_shape(once, data, jax.random.key(0))
    traffic = traffic_for(algorithm.local, model, upload)
    check_traffic("LocalRule.traffic", traffic)
    local = algorithm.local._replace(traffic=traffic)
    return setup._replace(algorithm=algorithm._replace(local=local))


def _once(setup: Setup, key: Any) -> tuple[Params, Upload]:
    """One client's step and one round's end, as the engine has them.

    Returns:
      A model, and what a client uploads.
    """
    algorithm, task, data, plan = setup[:4]
    size = num_slots(data, plan)
    local, policy, server = algorithm.local, algorithm.policy, algorithm.server
    params = jax.tree.map(jnp.asarray, task.init(key))
    client = jax.tree.map(jnp.asarray, local.init(params))
    extra = jax.tree.map(jnp.asarray, server.init(params))
    kept = jax.tree.map(jnp.asarray, policy.init(params, data.num_clients))
    refine_state = init_refinement(setup, params, key)
    refine = as_refinement(algorithm.refine) or Refinement()

    # where the first to end are the cohort, more start
    ids = _check_ids(data, plan, key, size, busy_of(algorithm, extra))
    cohort = gather_cohort(data, ids, jnp.int32(0), batch_size(data, plan))
    share = expected_share(data, plan)
    setting = setting_of(plan, algorithm, cohort, share)
    cohort = cohort._replace(
        key=key, setting=setting, train_loss=partial(train_loss, setup)
    )
    broadcast = Broadcast(params, extra, setting, refine_state)
    one = client_of(cohort.ids[0], client, jnp.int32(1), key)
    before = view_before(setup, broadcast, one)
    view = view_of(setup, before, one)

    def times(count: int, tree: Any) -> Any:
        stack = lambda leaf: jnp.broadcast_to(leaf, (count, *jnp.shape(leaf)))
        return jax.tree.map(stack, tree)

    all_of, every = partial(times, len(ids)), partial(times, size)
    measured, measure = (), measure_of(policy)
    if measure.client is not None:
        measured = measure.client(*view(before.params, jnp.int32(0)))
        if measure.digest is not None:
            every_one = all_of(measured)
            pooled = () if measure.pool is None else measure.pool(cohort, every_one)
            measured = measure.digest(pooled, measured)
        measured = all_of(measured)
    if measure.steps is not None:
        measure.steps(cohort)
    num_steps = policy.steps(kept, cohort, measured)
    cohort = cohort._replace(num_steps=num_steps, active=num_steps > 0)
    asked, seen = cohort, measured
    cohort = rows_of(cohort, slice(size))._replace(seconds=jnp.zeros(size))
    measured = jax.tree.map(lambda leaf: leaf[:size], measured)
    cohort = cohort._replace(setting=setting_of(plan, algorithm, cohort, share))

    progress = start(setup, before)
    progress = advance(setup, progress, *view(before.params, jnp.int32(0)))
    run = finished(setup, broadcast, one, progress)
    upload, client = local.finish(run)
    if server.update is None:
        check.same_kind(
            f"LocalRule.finish ({name_of(local.finish)})", "Upload.delta", upload.delta,
            params, "Task.init",
        )  # fmt: skip
    sent, for_refinement = sent_by(policy, run), sent_by(refine, run)
    combined = _combined(server, every(upload._replace(info=())), cohort)
    new, extra = updated(server, params, extra, combined, cohort)
    server.report(extra, combined, cohort)
    if local.refined is not None:
        local.refined(client, params)
    if local.personal is not None:
        local.personal(params, client)
    runs = every(per_client_run(run))._replace(
        anchor=params, server=extra, setting=setting
    )
    if refine.clients is not None or refine.server is not None:
        view = RoundView(
            task,
            cohort,
            runs,
            data.public,
            setting,
            data.num_classes,
            1,
            every(for_refinement),
        )
        if refine.clients is not None:
            refine.clients(view, key)
        refine_server(algorithm, new, refine_state, view, key)
    if policy.update is not None:
        outcome = Outcome(
            params, new, extra, combined, setting, sent, jnp.zeros(()), measured,
            None if plan.clock is None else jnp.zeros(size),
        )  # fmt: skip
        kept = policy.update(kept, cohort, runs, outcome)
    policy.report(kept, asked, seen)
    if policy.best is not None:
        best = guarded("StepPolicy.best", policy.best)(kept)
        name = f"StepPolicy.best ({name_of(policy.best)})"
        check.same_kind(name, "a model", best, params, "Task.init")
    return params, upload


def _combined(server: ServerRule, uploads: Upload, cohort: Any) -> Upload:
    """The upload of a cohort; the weights of a mean are one for each client."""
    if hasattr(server.combine, "weights"):
        size, weights = cohort.ids.shape, server.combine.weights(cohort)
        for leaf in jax.tree.leaves(weights):
            if jnp.shape(leaf) != size:
                raise SettingError(
                    "the weights of ServerRule.combine=mean(...) are "
                    f"{check.leaf(leaf)} for a cohort of {size[0]}; return one weight "
                    f"for each, {list(size)}."
                )
        for leaf in jax.tree.leaves(weights.delta):
            floats = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
            if server.update is None and not floats:
                raise SettingError(
                    "the weights of ServerRule.combine=mean(...) are "
                    f"{check.leaf(leaf)}, but the mean is added to the model and they are "
                    "not divided by their sum; return shares, such as by_examples(cohort)."
                )
    combine = guarded("ServerRule.combine", server.combine, returned.one_upload)
    combined = combine(uploads, cohort)
    if server.update is None:
        one = jax.tree.map(lambda leaf: leaf[0], uploads.delta)
        name = f"ServerRule.combine ({name_of(server.combine)})"
        check.same_kind(name, "Upload.delta", combined.delta, one, "LocalRule.finish")
    return combined


def _check_ids(
    data: FederatedDataset, plan: Plan, key: Any, size: int, busy: Any
) -> Any:
    """The cohort that starts a round; SettingError unless the plan's rule draws it."""

    def accept(name: str, ids: Any) -> None:
        enough = jnp.ndim(ids) == 1 and jnp.shape(ids)[0] >= size
        if not enough or not jnp.issubdtype(jnp.result_type(ids), jnp.integer):
            raise SettingError(
                f"{name} returned {check.shown(ids)} for {size} slots; return "
                f"int32[{size}]."
            )

    return guarded(
        "Participation.sample", lambda: sample_cohort(data, plan, key, busy), accept
    )()
