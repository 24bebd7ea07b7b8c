"""The state before round 0, and what it and a round are made from."""

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Algorithm, Array, Key, Origin, Params, Setting, State, Task
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import SCALARS, Plan
from .client_store import store_of
from .cohort import expected_share, num_devices_of, num_slots, participation_of
from .contract import check_parts, guarded_algorithm, guarded_task
from .local import is_zero
from .refine import init_refinement

ALGORITHMS = f"{__name__.partition('.')[0]}.algorithms."
REFINEMENT = 1  # what the first key is folded in by, besides the model's own


def init_state(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan, key: Key
) -> State:
    """The state before round 0. Works under `jax.eval_shape`.

    The client table is `algorithm.local.init(params)` repeated `num_clients` times, cut
    up among the devices of the plan where their number divides `num_clients`.

    Raises:
      SettingError: the client table does not fit into memory, or an argument is not of its
        kind.
    """
    call = "init_state(algorithm, task, data, plan, jax.random.key(0))"
    check_kinds(call, algorithm, task, data, plan, key=(key, check.key))
    algorithm = guarded_algorithm(algorithm)
    params = guarded_task(task).init(key)
    client = algorithm.local.init(params)
    num_clients = data.num_clients
    num_devices = num_devices_of(data, plan)
    store = store_of(plan)
    store.check_devices(num_clients, num_devices)
    traced = check.is_tracer(key)  # then it may be about the shapes alone
    if not traced:
        store.check_room(client, num_clients, num_slots(data, plan), num_devices)
    state = State(
        params=params,
        server=algorithm.server.init(params),
        policy=algorithm.policy.init(params, num_clients),
        clients=(),
        round=jnp.zeros((), jnp.int32),
        refine=init_refinement(
            algorithm, task, data, plan, params, jax.random.fold_in(key, REFINEMENT)
        ),
        origin=origin_of(algorithm, params),
    )
    # a buffer of its own for every leaf, so that the state can be donated
    copied = lambda leaf: strongly_typed(jnp.array(leaf), jnp.asarray(leaf))
    state = jax.tree.map(copied, state)
    state = state._replace(clients=store.create(client, num_clients, num_devices))
    return store.place(state, num_devices)


def origin_of(algorithm: Algorithm, params: Params) -> Origin:
    """Whose functions keep the clients' states and the server's, inside all wrappers."""
    inmost = partial(inspect.unwrap, stop=lambda outer: outer.__wrapped__ is None)

    def name(function: Any, init: Any) -> str:
        if not jax.tree.leaves(jax.eval_shape(inmost(init), params)):
            return ""
        function = inmost(function)
        module = getattr(function, "__module__", "")
        return f"{module}.{getattr(function, '__qualname__', '').partition('.')[0]}"

    local, server = algorithm.local, algorithm.server
    return Origin(name(local.finish, local.init), name(server.update, server.init))


def check_state(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan, state: State
) -> None:
    """Raises SettingError if it is the state of another algorithm, model or data set.

    A step policy that keeps nothing may follow any other: it leaves alone what that one
    kept. What two methods keep alike is known by `State.origin`, for those that come with
    this package.
    """

    def made(key):
        params = task.init(key)
        return (
            params,
            # the table of one device: its shapes are those of any number of them
            store_of(plan).create(algorithm.local.init(params), data.num_clients, 1),
            algorithm.server.init(params),
            algorithm.policy.init(params, data.num_clients),
            init_refinement(algorithm, task, data, plan, params, key),
        )

    check_round(state.round)
    names = {
        "params": "the model",
        "clients": "the clients' states",
        "server": "the server's state",
        "policy": "the step policy's state",
        "refine": "the refinement's state",
    }
    found = [getattr(state, field) for field in names]
    expected = jax.eval_shape(made, jax.random.key(0))  # no shape hangs on the key
    write = (
        "write init_state(algorithm, task, data, plan, key) with the algorithm, model, "
        "data and plan of the round."
    )
    for name, part, other in zip(names, expected, found, strict=True):
        if name == "policy" and not jax.tree.leaves(part):
            continue
        if jax.tree.structure(part) != jax.tree.structure(other):
            raise SettingError(
                f"state is another algorithm's: state.{name}, {names[name]}, is not "
                f"what this one keeps; {write}"
            )
        pairs = zip(
            jax.tree.leaves_with_path(other), jax.tree.leaves(part), strict=True
        )
        for (path, leaf), like in pairs:
            came, wanted = check.leaf(leaf), check.leaf(like)
            if came != wanted:
                where = f"state.{name}{jax.tree_util.keystr(path)}"
                raise SettingError(
                    f"{where}, of {names[name]}, is {came} where this round has {wanted}; "
                    f"{write}"
                )
    if isinstance(state.origin, Origin):
        origin = origin_of(algorithm, state.params)
        for field in Origin.__dataclass_fields__:
            came, wanted = getattr(state.origin, field), getattr(origin, field)
            # whoever wraps a method may well go on from its state
            ours = all(name.startswith(ALGORITHMS) for name in (came, wanted))
            if ours and came != wanted:
                raise SettingError(
                    f"state is another algorithm's: its {field} state is that of {came} "
                    f"but the round's is that of {wanted}; {write}"
                )


def check_round(done: Any) -> None:
    """Raises SettingError unless it is a number of rounds, as `State.round` has it."""
    number = done if check.array(done) else np.asarray(done)
    whole = number.shape == () and jnp.issubdtype(number.dtype, jnp.integer)
    # int, as a comparison of an array is traced inside a jitted function
    if whole and (check.is_tracer(done) or int(number) >= 0):
        return
    came = check.leaf(done) if check.is_tracer(done) else repr(done)
    raise SettingError(
        f"state.round is {came} but counts the rounds before this one; write an integer "
        "of at least 0, as in state._replace(round=100)."
    )


def check_rule(
    algorithm: Algorithm, data: FederatedDataset, plan: Plan, done: int = 0
) -> None:
    """Raises SettingError where the local or the server rule contradicts the run.

    Args:
      algorithm: of the run.
      data: who takes part.
      plan: of the run.
      done: rounds that it will at least have.
    """
    sgd = algorithm.local.optimizer is None
    if not sgd and not is_zero(plan.momentum):
        raise SettingError(
            f"momentum={plan.momentum} is of local SGD, but the clients have another "
            "optimizer; write momentum=0, and give the optimizer its own.",
            setting="momentum",
        )
    setting = Setting(
        round=done,
        lr=plan.lr,
        base_lr=plan.lr,
        weight_decay=plan.weight_decay,
        momentum=plan.momentum if sgd else None,
        mean_steps=None,
        share=None,
        num_clients=data.num_clients,
        clip_norm=plan.clip_norm,
        rounds=plan.rounds,
        participation=expected_share(data, plan),
        num_holders=data.num_holders,
        lr_decay=plan.lr_decay,
    )
    if algorithm.local.check is not None:
        algorithm.local.check(setting)
    if algorithm.server.busy is not None:
        _check_under_way(algorithm, plan)


def _check_under_way(algorithm: Algorithm, plan: Plan) -> None:
    """Raises SettingError unless clients may be under way when a round begins."""
    if plan.clock is None:
        raise SettingError(
            "the server rule goes by who ends first, but the plan has no clock; write "
            "Plan(clock=Clock(step_seconds=0.05))."
        )
    if participation_of(plan).order is None:
        raise SettingError(
            "the server rule passes over clients that are still under way, but the plan's "
            "participation cannot; write Plan(cohort_size=10) for ten clients a round."
        )
    if algorithm.refine is not None:
        raise SettingError(
            "the algorithm refines models on a public set, for which a round's clients "
            "must have ended, but its server rule does not wait for them; leave one out."
        )


def check_kinds(
    call: str,
    algorithm: Algorithm,
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    **others: tuple[Any, Any],
) -> None:
    """`check.kinds` of what a round is made from, and of others.

    Raises:
      SettingError: one of them is of another kind, or a part of the algorithm is.
    """
    if isinstance(algorithm, Algorithm):
        check_parts(algorithm)
    check.kinds(
        call,
        algorithm=(algorithm, Algorithm),
        task=(task, Task),
        data=(data, FederatedDataset),
        plan=(plan, Plan),
        **others,
    )


def strongly_typed(new, old) -> Array:
    """`new` in the dtype of `old`, which gives way to no other, so that rounds scan."""
    return jax.lax.convert_element_type(new, jnp.result_type(old))


def scalars_of(plan: Plan) -> dict[str, Any]:
    """The plan's `SCALARS`, but for those that leave a term out, and rounds.

    As host scalars, which go to whatever devices a program runs on.
    """
    given = {name: getattr(plan, name) for name in SCALARS}
    found = {
        name: _host_scalar(number)
        for name, number in given.items()
        if number is not None and not is_zero(number)
    }
    rounds = plan.rounds  # an integer to `Plan`, which a round makes again
    if rounds is not None:
        found["rounds"] = rounds if check.is_tracer(rounds) else int(rounds)
    return found


def _host_scalar(number: Any) -> Any:
    """The same number, whose dtype gives way to others, but for an array of JAX's own."""
    if check.is_tracer(number):
        return number
    if isinstance(number, jax.Array) and not number.weak_type:
        return np.asarray(number)[()]
    # 1 and np.float32(0.5) are no other program than 0.5
    if isinstance(number, jax.Array | np.generic | np.ndarray | int):
        return float(number)
    return number
