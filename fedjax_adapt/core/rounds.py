"""The state and the infos of rounds, and who takes part."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    """The rule that draws the cohort of a round.

    `slots(num_clients)` is the static size of a cohort; `sample(key, num_clients)` fills
    it with client ids [slots] int32, each at most once, empty slots = num_clients.
    With `among_holders` both count only the clients that hold examples, in their order:
    a draw should not fall on a client that has nothing to learn from.
    With `first_to_end` the sample may be longer: all in it start, and those that end
    first, by the plan's clock, are the cohort.
    `rate(num_clients)` is the share expected in a round; None: that of full slots.
    `order(key, num_clients)` is all of them in the order of which the sample is the
    beginning, so that some can be passed over; None: there is no such order.
    """

    slots: Callable[[int], int]
    sample: Callable[[Key, int], Array]
    among_holders: bool = False
    first_to_end: bool = False
    rate: Callable[[int], float] | None = None
    order: Callable[[Key, int], Array] | None = None


def nonempty_rate(probability: float, num_clients: int | float) -> float:
    """q / (1 - (1-q)^N): the share of clients expected in a cohort that is never empty."""
    if probability == 1:
        return 1.0
    # q may be tiny
    return probability / -math.expm1(num_clients * math.log1p(-probability))


@jax.tree_util.register_static
@dataclass(frozen=True)
class Origin:
    """Whose functions keep each part of a state; a pytree without leaves.

    What two methods keep may have one structure, as SCAFFOLD's c_i and FedDyn's
    gradients: their names tell them apart. "" where a part keeps nothing.
    """

    client: str
    server: str


class State(NamedTuple):
    """The state between two rounds: all that the next one needs.

    Attributes:
      params: the server's model.
      server: what `ServerRule` keeps besides it.
      policy: what `StepPolicy` keeps.
      clients: what `LocalRule` keeps of every client, leading axis num_clients.
      round: rounds done, int32.
      refine: what `Refinement` keeps.
      origin: whose state this is, without arrays; () where that is unknown.
    """

    params: Params
    server: ServerExtra
    policy: PolicyState
    clients: ClientState
    round: Array
    refine: RefineState = ()
    origin: Origin | tuple[()] = ()


class Info(NamedTuple):
    """The figures of a round, for people. Slots without a client hold zeros.

    Attributes:
      cohort: client ids, [cohort] int32; an empty slot holds num_clients.
      num_steps: local steps, [cohort] int32.
      loss: mean local objective, [cohort]; 0 for a client that took no step.
      clipped: share of the local steps whose gradient was clipped, [cohort].
      num_active: clients that trained, scalar int32.
      delta_norm: norm of the global model's move, scalar.
      clients: the local rule's diagnostics (`Upload.info`), [cohort, ...]; 0 for a client
        that took no step.
      policy: the step policy's (`StepPolicy.report`), scalars or [cohort, ...], those of
        clients that it gave no step as well.
      cut: steps the policy asked for beyond max_steps, [cohort] int32.
      seconds: simulated, of the round; 0 without `Plan.clock`.
      bytes_down: received by all clients that took part.
      bytes_up: sent by them.
      public_steps: SGD steps on the public set, of clients and server.
      wasted_bytes: received and sent by clients that trained and were not waited for,
        which is in none of the above; () where the cohort is all that began.
      wasted_steps: their local steps.
      left_out: clients that trained and count for nothing, since what they sent was not
        finite, [cohort] bool; () unless `Plan.nonfinite_updates` is "leave_out".
      refine: the refinement's report, scalars or [cohort, ...].
      server: the server rule's (`ServerRule.report`), scalars or [cohort, ...].
    """

    cohort: Array
    num_steps: Array
    loss: Array
    clipped: Array
    num_active: Array
    delta_norm: Array
    clients: PyTree = ()
    policy: PyTree = ()
    cut: PyTree = ()
    seconds: Array | float = 0.0
    bytes_down: Array | float = 0.0
    bytes_up: Array | float = 0.0
    public_steps: Array | float = 0.0
    refine: PyTree = ()
    server: PyTree = ()
    wasted_bytes: PyTree = ()
    wasted_steps: PyTree = ()
    left_out: PyTree = ()

    @property
    def num_left_out(self) -> Array | int:
        """The number of clients of each round that were left out."""
        return 0 if isinstance(self.left_out, tuple) else self.left_out.sum(-1)


RoundFn = Callable[[State, Key], tuple[State, Info]]


class _Scores(NamedTuple):
    accuracy: Array
    loss: Array


@jax.tree_util.register_pytree_with_keys_class
class Metrics(_Scores):
    """The metrics of a model on a data set: (accuracy, loss), and `named` besides them.

    All are scalars, or [clients] from `evaluate_clients`.

    Attributes:
      accuracy: the share of examples whose largest logit is their label, see
        `Task.accuracy`; NaN where there is no such label, as in a regression.
      loss: the mean of the examples' losses.
      named: what `Task.metrics` asks for, by name; {} if nothing.
    """

    named: Mapping[str, Array] = {}

    def __new__(
        cls, accuracy: Array, loss: Array, named: Mapping[str, Array] | None = None
    ) -> "Metrics":
        """A pair still: `accuracy, loss = evaluate(...)`."""
        self = super().__new__(cls, accuracy, loss)
        self.named = dict(named or {})
        return self

    def __repr__(self) -> str:
        """As it is written."""
        return (
            f"Metrics(accuracy={self.accuracy}, loss={self.loss}, named={self.named})"
        )

    def _replace(self, **changes) -> "Metrics":
        """With some of the three changed; a tuple's own would leave out `named`."""
        return Metrics(**{**self._asdict(), "named": self.named, **changes})

    def tree_flatten_with_keys(self):
        """For JAX: the three, by name."""
        names = ("accuracy", "loss", "named")
        key = jax.tree_util.GetAttrKey
        return [(key(name), getattr(self, name)) for name in names], None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Iterable) -> "Metrics":
        """For JAX: from the three, whatever stands for them."""
        accuracy, loss, named = children
        self = cls(accuracy, loss)
        self.named = named
        return self


def num_parameters(params: Params) -> int:
    """The number of scalars in `params`; works on shapes alone too.

    Example:
      >>> fa.num_parameters({"weight": jnp.zeros((3, 4)), "bias": jnp.zeros(4)})
      16
    """
    check.kinds("num_parameters(state.params)", params=(params, check.tree))
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
