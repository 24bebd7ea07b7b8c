"""One round: choose the cohort, train it, combine the uploads, keep the states.

    (state, key) -> (state, info)

Clients are independent within a round: they read the round-start model and server state
only, so the order in which lanes and devices take them cannot change a result.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
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
    cross_entropy,
    logits_of,
    merged_report,
    precise,
    updated,
    widened,
)
from ..costs import (
    end_times,
    refine_seconds,
    round_bytes,
    round_seconds,
    step_seconds,
    wasted,
)
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import SCALARS, Plan
from . import mesh, xla
from .batches import batch_size
from .client_store import DEVICE, ClientStore, store_of
from .cohort import (
    SERVER,
    busy_of,
    expected_share,
    first_to_end,
    gather_cohort,
    masked,
    num_devices_of,
    rows_of,
    sample_cohort,
    seconds_by,
    setting_of,
    with_num_steps,
)
from .initial import check_round, check_state, strongly_typed
from .lanes import executed_steps, pace_of
from .local import Broadcast, train_loss
from .refine import (
    REFINEMENT_PARTS,
    masked_report,
    public_steps,
    refine_clients,
    refine_server,
    settled,
)
from .setup import Setup, check_rule, scalars_of
from .steps import Pace
from .train_cohort import digest_cohort, measure_cohort, train_cohort
from .verify import verify


class Step:
    """The computation of a round, of any data and any scalars of the plan.

    Equal to another of the very same parts, so that a jitted function that takes a `Round`
    knows its program again when the round was made anew for another learning rate.
    """

    def __init__(self, algorithm: Algorithm, task: Task, plan: Plan, pace: Pace):
        """A round of `algorithm` under `plan`, but for its `scalars_of`."""
        self.algorithm, self.task, self.plan = algorithm, task, plan
        self.pace = pace
        given = scalars_of(plan)
        rest = {name: v for name, v in vars(plan).items() if name not in given}
        rest |= {name: 0.0 for name in SCALARS if rest.get(name) is not None}
        parts, structure = jax.tree.flatten((algorithm, task, rest, pace))
        self._parts = structure, tuple(map(_identity, parts))
        self._hash = hash(self._parts)  # asked for at every call

    def __call__(
        self, data: FederatedDataset, state: State, key: Key, **scalars: Any
    ) -> tuple[State, Info]:
        """Runs one round; `scalars` take the place of the plan's."""
        plan = replace(self.plan, **scalars)
        with precise(self.task):
            setup = Setup(self.algorithm, self.task, data, plan, self.pace)
            return _round(setup, state, key)

    def __eq__(self, other: object) -> bool:
        """Whether it is made of the very same parts."""
        if self is other:
            return True
        return isinstance(other, Step) and self._parts == other._parts

    def __hash__(self) -> int:
        """The hash of its parts."""
        return self._hash


def _identity(part: Any) -> tuple[type, Any]:
    """The value that equal parts share: itself if plain, else its address."""
    plain = isinstance(part, bool | int | float | str)
    return type(part), part if plain else id(part)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Round:
    """A round as a pure function (state, key) -> (state, info).

    It is also a pytree whose leaves are the data and the scalars of the plan, so a jitted
    function that takes it as an argument does not bake them into its program: that of a
    round made anew of the same algorithm and task, with `replace(plan, lr=...)` or on data
    of the same shape, is the same program. It holds functions, so it cannot be pickled.
    """

    data: FederatedDataset
    # of the plan; those that are 0 or None are left out, and their terms with them
    scalars: dict[str, Any]
    step: Step = field(metadata={"static": True})
    num_devices: int = field(default=1, metadata={"static": True})
    store: ClientStore = field(default=DEVICE, metadata={"static": True})
    num_lanes: int = field(default=1, metadata={"static": True})  # on a device

    def __call__(self, state: State, key: Key) -> tuple[State, Info]:
        """Runs one round."""
        check.kinds(
            "round_fn(state, jax.random.key(0))",
            state=(state, State),
            key=(key, check.key),
        )
        return self.step(self.data, self.placed(state), key, **self.scalars)

    def placed(self, state: State) -> State:
        """`state` on the devices of this round, where another plan's lay elsewhere.

        A round called as it is and `train` do so themselves; `jax.jit(round_fn)` cannot.
        """
        return self.store.move(state, self.num_devices)

    def executed_steps(self, info: Info) -> int:
        """The local steps that the device took in a round, or in several.

        Those of `info.num_steps`, and those of lanes that were idle: a lane whose client
        is done steps on until the others of its group end, on an accelerator until its
        block of steps does.

        Args:
          info: of this round, or of rounds as `train` returns it.

        Raises:
          SettingError: several devices share the round.
        """
        check.kinds("round_fn.executed_steps(info)", info=(info, Info))
        if self.num_devices > 1:
            raise SettingError(
                f"executed_steps counts the steps of one device, but {self.num_devices} "
                "share this round; give Plan(devices=1)."
            )
        steps = np.atleast_2d(info.num_steps)
        if steps.ndim > 2:
            raise SettingError(
                f"info.num_steps is {list(steps.shape)}; give the Info of one run, as "
                "jax.tree.map(lambda leaf: leaf[0], infos)."
            )
        there = np.atleast_2d(info.cohort) < self.data.num_clients
        return executed_steps(steps, there, self.num_lanes, self.step.pace)

    def for_rounds(self, done: Array, more: int) -> "Round":
        """The round in a run of `done + more` rounds, where the plan does not say.

        Raises:
          SettingError: the plan, or the algorithm itself, says another number; or `done` is
            no number of rounds.
        """
        check_round(done)
        algorithm, plan = self.step.algorithm, self.step.plan
        if plan.rounds is None:
            if algorithm.local.check is not None and not check.is_tracer(done):
                setup = Setup(algorithm, self.step.task, self.data, plan)
                check_rule(setup, int(done) + more)
            scalars = {**self.scalars, "rounds": done + more}
            return replace(self, scalars=scalars)
        known = not (check.is_tracer(done) or check.is_tracer(plan.rounds))
        if known and int(done) + more > plan.rounds:
            raise SettingError(
                f"train got {more} keys after {int(done)} rounds but the plan says "
                f"rounds={plan.rounds}; write Plan(rounds={int(done) + more})."
            )
        return self


def checked(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Algorithm:
    """The algorithm as a round runs it.

    Raises:
      SettingError: as `make_round`, but for the number of lanes.
    """
    setup = settled(Setup(algorithm, task, data, plan))
    check_rule(setup)
    setup = verify(setup)
    _check_outputs(task, data)
    return setup.algorithm


def round_of(setup: Setup) -> Round:
    """The round of an algorithm that is `checked`; `plan.lanes` is a number."""
    algorithm, task, data, plan = setup[:4]
    num_devices = num_devices_of(data, plan)
    step, store = Step(algorithm, task, plan, pace_of(setup)), store_of(plan)
    data = mesh.to_read(data, num_devices)
    return Round(data, scalars_of(plan), step, num_devices, store, int(plan.lanes))


def _check_outputs(task: Task, data: FederatedDataset) -> None:
    """A label that a softmax has no output for would be another label's, silently."""
    tokens = task.accuracy is not None and data.y.ndim > 1
    if task.loss is not cross_entropy and not tokens:
        return

    def logits(key, x):
        return logits_of(task.apply(task.init(key), x[:1]))

    outputs = jax.eval_shape(logits, jax.random.key(0), data.x).shape[-1]
    if outputs < data.num_classes:
        raise SettingError(
            f"the model has {outputs} outputs but the data set {data.num_classes} labels; "
            f"build the model with {data.num_classes}."
        )


def _round(setup: Setup, state: State, key: Key) -> tuple[State, Info]:
    algorithm, task, data, plan = setup[:4]
    check_state(setup, state)
    key_cohort, key_local, key_refine = jax.random.split(key, 3)
    key_train, key_measure = jax.random.split(key_local)
    key_refine_clients, key_refine_server = jax.random.split(key_refine)
    width = batch_size(data, plan)
    busy = busy_of(algorithm, state.server)
    num_devices = num_devices_of(data, plan)
    ids = sample_cohort(data, plan, key_cohort, busy)
    ids = mesh.everywhere(ids, num_devices)  # or XLA would have each draw its part

    cohort = gather_cohort(data, ids, state.round, width)
    cohort = cohort._replace(train_loss=partial(train_loss, setup))
    cohort = cohort._replace(key=jax.random.fold_in(key, SERVER))
    share = expected_share(data, plan)
    setting = setting_of(plan, algorithm, cohort, share)
    cohort = cohort._replace(setting=setting)
    broadcast = Broadcast(state.params, state.server, setting, state.refine)
    store = store_of(plan)
    rows = store.gather(state.clients, ids, num_devices)
    measured = measure_cohort(setup, broadcast, cohort, rows, key_measure)
    measured = digest_cohort(setup, cohort, measured)
    num_steps = algorithm.policy.steps(state.policy, cohort, measured)
    num_steps = xla.known_after(num_steps, jax.tree.leaves(measured)[:1])
    cohort, cut = with_num_steps(cohort, num_steps, plan, algorithm.policy)
    times = end_times(plan.clock, algorithm, state.params, cohort, key)
    first = first_to_end(data, plan, cohort, times, key_cohort)
    asked, seen, cohort = cohort, measured, rows_of(cohort, first)
    pick = partial(jax.tree.map, lambda leaf: leaf[first])
    cut, times, measured = pick((cut, times, measured))
    rows = rows._replace(row=pick(rows.row))
    setting = setting_of(plan, algorithm, cohort, share)
    cohort = cohort._replace(setting=setting, seconds=times)

    broadcast = broadcast._replace(setting=setting)
    trained = train_cohort(setup, broadcast, cohort, rows, key_train)
    rows = rows._replace(table=trained.clients)
    upload, counted = trained.upload, trained.cohort
    view = RoundView(
        task,
        counted,
        trained.runs,
        data.public,
        setting,
        data.num_classes,
        int(plan.lanes),
        trained.each.for_refinement,
    )
    moved = refine_clients(algorithm, view, rows, key_refine_clients)
    seconds = round_seconds(algorithm, cohort, times)
    seconds += refine_seconds(plan.clock, algorithm, state.params, counted, moved.steps)
    params, server = updated(
        algorithm.server, state.params, state.server, upload, counted, moved.shift
    )
    view = view._replace(runs=moved.runs)
    params, refine, refinement = refine_server(
        algorithm, params, state.refine, view, key_refine_server
    )
    # where no client trained there is no mean
    params, server, refine = optax.tree.where(
        counted.num_active > 0,
        (params, server, refine),
        (state.params, state.server, state.refine),
    )
    said = algorithm.server.report(server, upload, counted)
    seconds = seconds_by(counted, said, seconds)
    outcome = Outcome(
        state.params,
        params,
        server,
        upload,
        setting,
        sent=trained.sent,
        seconds=seconds,
        measured=measured,
        step_seconds=step_seconds(plan.clock, cohort),
    )
    policy = state.policy
    if algorithm.policy.update is not None:
        policy = algorithm.policy.update(policy, counted, trained.runs, outcome)
    report = algorithm.policy.report(policy, asked, seen)  # of all it decided about
    report = jax.tree.map(lambda leaf: leaf[first] if jnp.ndim(leaf) else leaf, report)
    clients = store.scatter(state.clients, ids, moved.clients, num_devices)
    new = State(params, server, policy, clients, state.round + 1, refine, state.origin)
    bytes_down, bytes_up = round_bytes(
        algorithm, state.params, cohort, asked, moved.steps
    )
    lost = (), ()
    if asked.ids.shape != cohort.ids.shape:  # else two kernels would write zeros
        lost = wasted(algorithm, state.params, cohort, asked)
    change = widened(optax.tree.sub(params, state.params))
    info = Info(
        cohort=cohort.ids,
        num_steps=cohort.num_steps,
        loss=trained.each.loss,
        clipped=trained.each.clipped,
        num_active=cohort.num_active,
        delta_norm=optax.tree.norm(change),
        clients=masked(cohort.active, trained.each.upload.info),
        policy=masked(cohort.ids < cohort.num_clients, report),
        cut=cut,
        seconds=seconds,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        public_steps=public_steps(counted, moved.steps, refinement),
        refine=masked_report(
            counted, merged_report(moved.report, refinement, *REFINEMENT_PARTS)
        ),
        server=masked_report(counted, said),
        wasted_bytes=lost[0],
        wasted_steps=lost[1],
        left_out=trained.each.left_out,
    )
    check.same_kind("the round", "the state", new, state, "init_state")
    new = jax.tree.map(strongly_typed, new, state)
    placed = store.place(new, num_devices)
    return placed, mesh.readable(info, num_devices)
