"""The state before round 0, and what it and a round are made from."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import check
from ..core import Algorithm, Array, Key, State, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from . import host, memory
from .cohort import num_slots
from .home import home_of
from .refine import init_refinement
from .slots import num_devices_of

REFINEMENT = 1  # what the first key is folded in by, beside the model's own


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
    own = lambda leaf: strongly_typed(jnp.array(leaf), jnp.asarray(leaf))
    state = jax.tree.map(own, state)
    home = home_of(plan)
    state = state._replace(clients=home.table_of(client, num_clients, num_devices))
    return home.placed(state, num_devices)


def check_state(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan, state: State
) -> None:
    """Raises ValueError if it is the state of an algorithm that keeps something else.

    By its structure alone: what two algorithms keep alike cannot be told apart. A step
    policy that keeps nothing may follow any other: it leaves alone what that one kept.
    """

    def made(params):
        key = jax.random.key(0)  # no structure hangs on it
        return (
            algorithm.local.init(params),
            algorithm.server.init(params),
            algorithm.policy.init(params, data.num_clients),
            init_refinement(algorithm, task, data, plan, params, key),
        )

    names = ("each client", "the server", "the step policy", "the refinement")
    found = (state.clients, state.server, state.policy, state.refine)
    expected = jax.eval_shape(made, state.params)
    for name, own, other in zip(names, expected, found, strict=True):
        follows = name == "the step policy" and not jax.tree.leaves(own)
        if not follows and jax.tree.structure(own) != jax.tree.structure(other):
            raise ValueError(
                f"state is another algorithm's: what {name} keeps is not what this one "
                "keeps; write init_state(algorithm, task, data, plan, key) with the "
                "algorithm of the round."
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


def strongly_typed(new, old) -> Array:
    """`new` in the dtype of `old`, which gives way to no other, so that rounds scan."""
    return jax.lax.convert_element_type(new, old.dtype)
