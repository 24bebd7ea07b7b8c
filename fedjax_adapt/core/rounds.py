"""What a round begins with and leaves behind."""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax

from .. import check
from .task import (
    Array,
    ClientState,
    Key,
    Params,
    PolicyState,
    PyTree,
    RefineState,
    ServerExtra,
)


class Participation(NamedTuple):
    """Who takes part in a round.

    `slots(num_clients)` is the static size of a cohort; `sample(key, num_clients)` fills
    it with client ids [slots] int32, each at most once, empty slots = num_clients.
    With `among_holders` both count only the clients that hold examples, in their order:
    a draw should not fall on a client that has nothing to learn from.
    With `first_to_end` the sample may be longer: all in it start, and those that end
    first, by the plan's clock, are the cohort.
    """

    slots: Callable[[int], int]
    sample: Callable[[Key, int], Array]
    among_holders: bool = False
    first_to_end: bool = False


class State(NamedTuple):
    """What the next round needs."""

    params: Params
    server: ServerExtra
    policy: PolicyState
    clients: ClientState  # stacked: leading axis num_clients
    round: Array  # int32, rounds done
    refine: RefineState = ()


class Info(NamedTuple):
    """What a person wants to see of a round. Leading axis: cohort, unless said."""

    cohort: Array  # [cohort] int32 client ids; an empty slot holds num_clients
    num_steps: Array  # [cohort] int32; 0 in an empty slot
    loss: Array  # [cohort] mean local objective; 0 for a client that took no step
    clipped: Array  # [cohort] share of the local steps whose gradient was clipped
    num_active: Array  # scalar int32, clients that trained
    delta_norm: Array  # scalar, norm of the global model's move
    clients: PyTree = ()  # the local rule's diagnostics (`Upload.info`), [cohort, ...]
    policy: PyTree = ()  # the policy's (`StepPolicy.report`): scalars or [cohort, ...]
    cut: PyTree = ()  # [cohort] int32, steps the policy asked for beyond max_steps
    # scalars, of the clients that took part:
    seconds: Array | float = 0.0  # simulated; 0 without `Plan.clock`
    bytes_down: Array | float = 0.0
    bytes_up: Array | float = 0.0
    public_steps: Array | float = 0.0  # SGD steps on the public set, clients and server
    refine: PyTree = ()  # the refinement's report: scalars or [cohort, ...]


RoundFn = Callable[[State, Key], tuple[State, Info]]


class Metrics(NamedTuple):
    """What a model is worth on a data set. Both scalars."""

    accuracy: Array  # share of examples whose largest logit is the label
    loss: Array  # mean per-example loss


def num_parameters(params: Params) -> int:
    """The number of scalars in `params`; works on shapes alone too."""
    check.kinds("num_parameters(state.params)", params=(params, check.tree))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
