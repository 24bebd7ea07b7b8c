"""What the parts of an algorithm are shown."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from .task import (
    Array,
    Batch,
    ClientState,
    Measurement,
    Outputs,
    Params,
    PyTree,
    RefineState,
    ServerExtra,
    Task,
)


class Setting(NamedTuple):
    """What is the same for every client of a round. All scalars."""

    round: Array  # int32, zero based
    lr: Array  # this round's local learning rate, lr * lr_decay**round
    base_lr: Array  # the learning rate of round 0
    weight_decay: Array
    momentum: Array  # of local SGD
    mean_steps: Array  # Kbar: the local steps of a client of average size
    share: Array  # m / N: clients that train this round over all that hold examples
    num_clients: int
    clip_norm: Array | None = None  # what a client's gradient is clipped to


class LocalView(NamedTuple):
    """Where a client stands when it takes one local step."""

    task: Task
    params: Params
    anchor: Params  # parameters the server broadcast this round
    client: ClientState
    server: ServerExtra
    batch: Batch | None  # None before the first step
    step: Array  # zero based
    size_ratio: Array  # n_i over the mean client size; 1 when balanced
    setting: Setting
    prepared: PyTree = ()  # what `LocalRule.prepare` made, once
    # of the mean loss over all the client's data, weight decay included
    full_gradient: Callable[[Params], Params] | None = None
    # a gradient with all that the local rule adds to it here, as a probe is shown it; None:
    # it adds nothing
    corrected: Callable[[Params], Params] | None = None
    batch_at: Callable[[Array], Batch] | None = None  # the batch of a local step
    refine: RefineState = ()  # what the refinement keeps, as the round began


class LocalRun(NamedTuple):
    """What one client did this round."""

    params: Params
    anchor: Params
    client: ClientState
    server: ServerExtra
    num_steps: Array
    loss: Array  # mean objective over the steps taken
    probe: PyTree
    size_ratio: Array
    setting: Setting
    # of the mean loss over all the client's data: its gradient, weight decay included,
    full_gradient: Callable[[Params], Params] | None = None
    full_loss: Callable[[Params], Array] | None = None  # and itself, without
    batch_at: Callable[[Array], Batch] | None = None  # the batch of a local step
    task: Task | None = None

    @property
    def lr(self) -> Array:
        """The local learning rate of this round."""
        return self.setting.lr


class Upload(NamedTuple):
    """What a client sends: its displacement, and whatever its rule adds.

    `delta` and `extra` are averaged by `ServerRule.combine`; `info` is not sent, it is
    shown per client in `Info.clients`.
    """

    delta: Params
    extra: PyTree = ()
    info: PyTree = ()


class Cohort(NamedTuple):
    """The clients of one round, as the server knows them.

    Slots that hold no client (a Bernoulli cohort is padded) have `ids == num_clients`;
    they and clients that take no step are not `active`: they are not averaged.
    """

    ids: Array  # [cohort] int32
    num_examples: Array  # [cohort] int32
    epoch_steps: Array  # [cohort] int32, batches in one epoch: ceil(n_i / B)
    num_steps: Array  # [cohort] int32; zeros until the policy has spoken
    active: Array  # [cohort] bool
    round: Array  # int32
    num_clients: int
    num_holders: int  # N of means over all clients: those that hold examples
    mean_epoch_steps: Array  # int32, batches in one epoch of a client of mean size
    label_counts: Array | None = None  # [num_clients, classes] of ALL clients' labels
    # mean loss over all clients' examples: an oracle that only a simulator has
    train_loss: Callable[[Params], Array] | None = None
    batch_size: int = 1  # B, examples per local step

    @property
    def num_active(self) -> Array:
        """The number of clients that train this round, int32."""
        return self.active.sum()

    @property
    def share(self) -> Array:
        """m / N: clients that train this round over all that hold examples."""
        return self.num_active / self.num_holders


class Outcome(NamedTuple):
    """What the server made of a round, for policies that learn from it."""

    anchor: Params  # before
    params: Params  # after
    server: ServerExtra
    upload: Upload  # combined
    setting: Setting
    sent: PyTree = ()  # mean over the active clients of `StepPolicy.send`
    seconds: Array | float = 0.0  # simulated, of this round; 0 without `Plan.clock`
    measured: Measurement = ()  # before anybody trained, digested, [cohort, ...]
    step_seconds: Array | None = None  # c_i, [cohort]; None without `Plan.clock`


class RoundView(NamedTuple):
    """Where a round stands when its clients have trained.

    `runs` has a leading axis cohort, but for `anchor`, `server` and `setting`, which all
    share. A slot that is not `cohort.active` holds anything.
    """

    task: Task
    cohort: Cohort
    runs: LocalRun
    public: PyTree
    setting: Setting
    num_classes: int
    num_lanes: int = 1  # how many models the engine has side by side
    sent: PyTree = ()  # `Refinement.send` of the clients, [cohort, ...]


class RefineSetup(NamedTuple):
    """What a refinement may know before round 0."""

    params: Params  # of one model; perhaps shapes alone
    num_classes: int
    num_clients: int
    cohort_size: int  # slots of a cohort, of which some may stay empty
    example: jax.ShapeDtypeStruct  # one input, without a batch axis
    batch_size: int  # B, examples per local step
    public: PyTree
    outputs: Outputs  # shapes of what a model says about one example
    labelled: bool  # whether a client's label counts are known


class Refined(NamedTuple):
    """What a refinement made of the clients' models. Leading axis: cohort."""

    params: Params  # those not refined as they were
    steps: Array  # [cohort] int32, on the public set, in the time of a local step each
    report: dict[str, Array]  # for `Info.refine`: scalars or [cohort, ...]


class Traffic(NamedTuple):
    """What one client and the server exchange in a round.

    Messages that a run needs once, such as label counts, are not counted.
    """

    models_down: float = 0  # in multiples of the model's own bytes
    models_up: float = 0
    scalars_down: int = 0  # of 4 bytes each
    scalars_up: int = 0
    round_trips: int = 0  # legs, each to the client and back: what latency is paid for
