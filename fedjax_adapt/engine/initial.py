"""The state before round 0, and whether a state is a round's."""

import inspect
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Algorithm, Array, Key, Origin, Params, State, Task
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from ..plan import Plan
from .client_store import store_of
from .cohort import num_devices_of, num_slots
from .contract import guarded_algorithm, guarded_task
from .refine import init_refinement
from .setup import Setup, check_kinds

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
    setup = Setup(algorithm, task, data, plan)
    check_kinds(call, setup, key=(key, check.key))
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
        refine=init_refinement(setup, params, jax.random.fold_in(key, REFINEMENT)),
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


def check_state(setup: Setup, state: State) -> None:
    """Raises SettingError if it is the state of another algorithm, model or data set.

    A step policy that keeps nothing may follow any other: it leaves alone what that one
    kept. What two methods keep alike is known by `State.origin`, for those that come with
    this package.
    """
    algorithm, task, data, plan = setup[:4]

    def made(key):
        params = task.init(key)
        return (
            params,
            # the table of one device: its shapes are those of any number of them
            store_of(plan).create(algorithm.local.init(params), data.num_clients, 1),
            algorithm.server.init(params),
            algorithm.policy.init(params, data.num_clients),
            init_refinement(setup, params, key),
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


def strongly_typed(new, old) -> Array:
    """`new` in the dtype of `old`, which gives way to no other, so that rounds scan."""
    return jax.lax.convert_element_type(new, jnp.result_type(old))
