"""One round: choose the cohort, train it, combine the uploads, keep the states.

    (state, key) -> (state, info)

Clients are independent within a round: they read the round-start model and server state
only, so the order in which lanes and devices take them cannot change a result.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    Info,
    Key,
    Outcome,
    RoundView,
    State,
    Task,
    precise,
    side_by_side,
    update_refined,
)
from ..costs import (
    end_times,
    refine_seconds,
    round_bytes,
    round_seconds,
    step_seconds,
)
from ..data.dataset import FederatedDataset
from ..plan import NUMBERS, Plan
from . import device, host, memory, mesh
from .batches import batch_size
from .cohort import (
    first_to_end,
    gather_cohort,
    mask_absent,
    mask_idle,
    num_slots,
    rows_of,
    sample_cohort,
    setting_of,
    unless_idle,
    with_num_steps,
)
from .home import home_of, lend, take_back
from .local import Broadcast, Setup, is_zero, train_loss
from .refine import (
    init_refinement,
    public_steps,
    refine_clients,
    refine_server,
    settled,
    shown,
)
from .slots import num_devices_of, with_lanes
from .walk import afterwards, digest_cohort, measure_cohort, train_cohort

REFINEMENT = 1  # what the first key is folded in by, beside the model's own


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Round:
    """A round as a pure function (state, key) -> (state, info).

    It is also a pytree whose leaves are the data and the numbers of the plan, so a jitted
    function that takes it as an argument does not bake them into its program: another
    learning rate does not compile anew.
    """

    data: FederatedDataset
    numbers: dict[
        str, Any
    ]  # of the plan; those that are 0 are left out, and their terms
    step: Callable[..., tuple[State, Info]] = field(metadata={"static": True})
    num_devices: int = field(default=1, metadata={"static": True})
    home: ModuleType = field(default=device, metadata={"static": True})
    num_lanes: int = field(default=1, metadata={"static": True})  # on a device

    def __call__(self, state: State, key: Key) -> tuple[State, Info]:
        """Runs one round."""
        return self.step(self.data, self.placed(state), key, **self.numbers)

    def placed(self, state: State) -> State:
        """`state` on the devices of this round, where another plan's lay elsewhere.

        A round called as it is and `train` do so themselves; `jax.jit(round_fn)` cannot.
        """
        return self.home.moved(state, self.num_devices)


def init_state(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan, key: Key
) -> State:
    """The state before round 0. Works under `jax.eval_shape`.

    The client table is `algorithm.local.init(params)` repeated `num_clients` times, cut
    up among the devices of the plan where their number divides `num_clients`.

    Raises:
      ValueError: the client table does not fit into memory, or an argument is not of its
        kind.
    """
    check.kinds(
        "init_state(algorithm, task, data, plan, jax.random.key(0))",
        **federation_kinds(algorithm, task, data, plan),
        key=(key, check.array),
    )
    params = task.init(key)
    client = algorithm.local.init(params)
    num_clients = data.num_clients
    num_devices = num_devices_of(plan, data)
    on_host = plan.client_memory == "host"
    if on_host:
        host.check_cut(num_clients, num_devices)
    traced = check.is_tracer(key)  # then it may be about the shapes alone
    if on_host and not traced:
        memory.check_host(client, num_clients)
    elif not traced:
        slots = num_slots(plan, data)
        memory.check_fits(client, num_clients, slots, num_devices)
    state = State(
        params=params,
        server=algorithm.server.init(params),
        policy=algorithm.policy.init(params, num_clients),
        clients=(),
        round=jnp.zeros((), jnp.int32),
        refine=init_refinement(
            algorithm, task, data, plan, params, jax.random.fold_in(key, REFINEMENT)
        ),
    )
    # a buffer of its own for every leaf, so that the state can be donated
    state = jax.tree.map(lambda leaf: _like(jnp.array(leaf), jnp.asarray(leaf)), state)
    home = home_of(plan)
    state = state._replace(clients=home.table_of(client, num_clients, num_devices))
    return home.placed(state, num_devices)


def make_round(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Round:
    """Builds the round function: pure, so jit, vmap and scan it as you like.

    Raises:
      ValueError: the plan asks for more clients than the data set has, or for more
        devices than there are, or the model has fewer outputs than there are labels; or
        a refinement finds no public set, or nothing to refine; or an argument is not of
        its kind.
    """
    check.kinds(
        "make_round(algorithm, task, data, plan)",
        **federation_kinds(algorithm, task, data, plan),
    )
    _check_outputs(task, data)
    algorithm = settled(algorithm, task, data, plan)
    num_devices = num_devices_of(plan, data)
    plan = with_lanes(algorithm, task, data, plan)
    data = mesh.shown(data, num_devices)
    step = precise(task)(partial(_round, algorithm, task, plan))
    return Round(
        data, _numbers(plan), step, num_devices, home_of(plan), int(plan.lanes)
    )


def federation_kinds(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> dict[str, tuple[Any, type]]:
    """For `check.kinds`: what a round is made from, and the type of each."""
    return {
        "algorithm": (algorithm, Algorithm),
        "task": (task, Task),
        "data": (data, FederatedDataset),
        "plan": (plan, Plan),
    }


def _numbers(plan: Plan) -> dict[str, Any]:
    """What the plan holds of `NUMBERS`, but for those that leave a term out."""
    numbers = {name: getattr(plan, name) for name in NUMBERS}
    return {
        name: value
        for name, value in numbers.items()
        if value is not None and not is_zero(value)
    }


def _check_outputs(task: Task, data: FederatedDataset) -> None:
    """A label that a softmax has no output for would be another label's, silently."""
    if task.loss is not optax.softmax_cross_entropy_with_integer_labels:
        return

    def logits(key, x):
        return task.apply(task.init(key), x[:1]).logits

    outputs = jax.eval_shape(logits, jax.random.key(0), data.x).shape[-1]
    if outputs < data.num_classes:
        raise ValueError(
            f"the model has {outputs} outputs but the data set {data.num_classes} labels; "
            f"build the model with {data.num_classes}."
        )


def _round(
    algorithm: Algorithm,
    task: Task,
    plan: Plan,
    data: FederatedDataset,
    state: State,
    key: Key,
    **numbers: Any,
) -> tuple[State, Info]:
    plan = replace(plan, **numbers)
    setup = Setup(algorithm, task, plan, data)
    key_cohort, key_local, key_refine = jax.random.split(key, 3)
    key_train, key_measure = jax.random.split(key_local)
    key_refine_clients, key_refine_server = jax.random.split(key_refine)
    width = batch_size(data, plan)
    ids = sample_cohort(plan, data, key_cohort)

    cohort = gather_cohort(data, ids, state.round, width)
    cohort = cohort._replace(train_loss=partial(train_loss, setup))
    broadcast = Broadcast(
        state.params,
        state.server,
        setting_of(plan, algorithm.policy, cohort),
        state.refine,
    )
    num_devices = num_devices_of(plan, data)
    held = lend(plan, num_devices, state.clients, ids)
    measured = measure_cohort(setup, broadcast, cohort, held, key_measure)
    measured = digest_cohort(setup, cohort, measured)
    num_steps = algorithm.policy.steps(state.policy, cohort, measured)
    num_steps = afterwards(measured, num_steps)
    cohort, cut = with_num_steps(cohort, num_steps, plan, algorithm.policy)
    times = end_times(plan.clock, algorithm, state.params, cohort, key)
    rows = first_to_end(plan, data, cohort, times, key_cohort)
    asked, seen, cohort = cohort, measured, rows_of(cohort, rows)
    pick = partial(jax.tree.map, lambda leaf: leaf[rows])
    cut, times, measured = pick((cut, times, measured))
    held = held._replace(row=pick(held.row))
    setting = setting_of(plan, algorithm.policy, cohort)

    broadcast = broadcast._replace(setting=setting)
    walked = train_cohort(setup, broadcast, cohort, held, key_train)
    held = held._replace(table=walked.clients)
    upload = walked.upload
    if not walked.streams:
        upload = algorithm.server.combine(upload, cohort)
    view = RoundView(
        task,
        cohort,
        walked.runs,
        data.public,
        setting,
        data.num_classes,
        int(plan.lanes),
        walked.told,
    )
    with side_by_side(int(plan.lanes)):
        moved = refine_clients(algorithm, view, held, key_refine_clients)
    seconds = round_seconds(algorithm, cohort, times)
    seconds += refine_seconds(plan.clock, algorithm, state.params, cohort, moved.steps)
    params, server = update_refined(
        algorithm.server, state.params, state.server, upload, cohort, moved.shift
    )
    view = view._replace(runs=moved.runs)
    params, refine, refinement = refine_server(
        algorithm, params, state.refine, view, key_refine_server
    )
    params, server, refine = unless_idle(
        cohort,
        (params, server, refine),
        (state.params, state.server, state.refine),
    )
    outcome = Outcome(
        state.params,
        params,
        server,
        upload,
        setting,
        sent=walked.sent,
        seconds=seconds,
        measured=measured,
        step_seconds=step_seconds(plan.clock, cohort),
    )
    policy = algorithm.policy.update(state.policy, cohort, walked.runs, outcome)

    report = algorithm.policy.report(policy, asked, seen)  # of all it decided about
    report = jax.tree.map(lambda leaf: leaf[rows] if jnp.ndim(leaf) else leaf, report)
    clients = take_back(plan, num_devices, state.clients, ids, moved.clients)
    new = State(params, server, policy, clients, state.round + 1, refine)
    bytes_down, bytes_up = round_bytes(
        algorithm, state.params, cohort, asked, moved.steps
    )
    info = Info(
        cohort=cohort.ids,
        num_steps=cohort.num_steps,
        loss=walked.loss,
        clipped=walked.clipped,
        num_active=cohort.num_active,
        delta_norm=optax.tree.norm(optax.tree.sub(params, state.params)),
        clients=mask_idle(cohort, walked.info),
        policy=mask_absent(cohort, report),
        cut=cut,
        seconds=seconds,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        public_steps=public_steps(cohort, moved.steps, refinement),
        refine=shown(cohort, moved.report | refinement),
    )
    new = jax.tree.map(_like, new, state)
    placed = home_of(plan).placed(new, num_devices)
    return placed, mesh.readable(info, num_devices)


def _like(new, old) -> Array:
    """`new` in the dtype of `old`, strongly typed, so that rounds can be scanned."""
    return jax.lax.convert_element_type(new, old.dtype)
