"""The arguments of the parts of an algorithm."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from .task import (
    Array,
    Batch,
    ClientState,
    Key,
    Measurement,
    Outputs,
    Params,
    PyTree,
    RefineState,
    ServerExtra,
    Task,
)


class Setting(NamedTuple):
    """The values that all clients of a round share. Scalars.

    Attributes:
      round: int32, zero based.
      lr: this round's local learning rate, `Plan.lr * Plan.lr_decay**round`.
      base_lr: the learning rate of round 0.
      weight_decay: of local SGD, added after clipping.
      momentum: of local SGD; None: the local rule has another optimizer.
      mean_steps: Kbar, the local steps of a client of average size.
      share: m / N, clients that train this round over all that hold examples.
      num_clients: all clients, a Python int.
      clip_norm: what the norm of a client's gradient is clipped to; None: nothing.
      rounds: T, the rounds the run will have, by `Plan.rounds` or `fa.train`; None:
        that is unknown.
      participation: q, the share of the clients holding examples that the plan's
        `Participation` expects in a round, a Python float.
      num_holders: N, clients that hold examples, a Python int.
      lr_decay: of the plan, given to `LocalRule.check` alone.
    """

    round: Array
    lr: Array
    base_lr: Array
    weight_decay: Array
    momentum: Array | None
    mean_steps: Array
    share: Array
    num_clients: int
    clip_norm: Array | None = None
    rounds: Array | int | None = None
    participation: float | None = None
    num_holders: int | None = None
    lr_decay: Array | float | None = None


class LocalView(NamedTuple):
    """Where a client stands when it takes one local step. No client axis.

    Attributes:
      task: the task.
      params: the client's parameters now.
      anchor: the parameters it started the round from: those of the server's broadcast,
        unless its rule has a `LocalRule.start`.
      client: its state, as the round began.
      server: `ServerRule`'s state, as the round began.
      batch: the examples of this step; None before the first step.
      step: int32, local steps taken so far.
      size_ratio: n_i over the mean client size; 1 when clients are equal.
      setting: what all clients of the round share.
      prepared: what `LocalRule.prepare` returned, once a round.
      full_gradient: params -> gradient of the mean loss over all the client's examples,
        weight decay included, in evaluation mode.
      corrected: gradient -> the gradient with all that the local rule adds to it here,
        as a probe is shown it, never clipped; None: the rule adds nothing.
      batch_at: step -> the batch of that local step; None before the first step.
      refine: what the refinement keeps, as the round began.
      id: the client's id, int32.
      num_steps: int32, local steps it takes this round; 0 while a policy measures.
    """

    task: Task
    params: Params
    anchor: Params
    client: ClientState
    server: ServerExtra
    batch: Batch | None
    step: Array
    size_ratio: Array
    setting: Setting
    prepared: PyTree = ()
    full_gradient: Callable[[Params], Params] | None = None
    corrected: Callable[[Params], Params] | None = None
    batch_at: Callable[[Array], Batch] | None = None
    refine: RefineState = ()
    id: Array | None = None
    num_steps: Array | None = None


class LocalRun(NamedTuple):
    """The local training of one client in a round. No client axis in `LocalRule.finish`.

    Attributes:
      params: its parameters after the last local step.
      anchor: those it started from, as `LocalView.anchor`.
      client: its state, as the round began.
      server: `ServerRule`'s state, as the round began.
      num_steps: int32, local steps it took; 0: it sat the round out.
      loss: mean objective over the steps taken; 0 if there were none.
      probe: what the step policy's `Probe` measured on the way.
      size_ratio: n_i over the mean client size; 1 when clients are equal.
      setting: what all clients of the round share.
      full_gradient: params -> gradient of the mean loss over all the client's examples,
        weight decay included, in evaluation mode.
      full_loss: params -> that mean loss, without weight decay.
      batch_at: step -> the batch of a local step.
      over_steps: (one, begin, number=None) -> `begin` after `one` of every local step of
        the client, where one(value, batch, step) -> value. `number`: of steps, which a
        client takes that trained at all; None: as many as its others.
      task: the task.
      id: the client's id, int32.
      key: for what is random after the local steps, such as noise on an upload; of the
        run's seed, the round and the client alone. Fold in a number of your own for each
        use. None where runs are stacked.
    """

    params: Params
    anchor: Params
    client: ClientState
    server: ServerExtra
    num_steps: Array
    loss: Array
    probe: PyTree
    size_ratio: Array
    setting: Setting
    full_gradient: Callable[[Params], Params] | None = None
    full_loss: Callable[[Params], Array] | None = None
    batch_at: Callable[[Array], Batch] | None = None
    over_steps: Callable[..., PyTree] | None = None
    task: Task | None = None
    id: Array | None = None
    key: Key | None = None

    @property
    def lr(self) -> Array:
        """The local learning rate of this round."""
        return self.setting.lr


class Upload(NamedTuple):
    """The upload of a client.

    Attributes:
      delta: its displacement, `run.params - run.anchor`, or what its rule sends in its
        place; `ServerRule.combine` averages it.
      extra: whatever else the rule sends, averaged as well; a tree of arrays, or `()`.
      info: what is not sent but shown per client, in `Info.clients`; `()`: nothing.
    """

    delta: Params
    extra: PyTree = ()
    info: PyTree = ()


class Cohort(NamedTuple):
    """The clients of one round, as the server knows them.

    Slots that hold no client (a Bernoulli cohort is padded) have `ids == num_clients`;
    they and clients that take no step are not `active`: they are not averaged.

    Attributes:
      ids: client ids, [cohort] int32.
      num_examples: n_i, [cohort] int32.
      epoch_steps: batches in one epoch, ceil(n_i / B), [cohort] int32.
      num_steps: local steps, [cohort] int32; zeros until the policy has spoken.
      active: who trains, [cohort] bool.
      round: int32, zero based.
      num_clients: all clients, a Python int.
      num_holders: N of means over all clients: those that hold examples; a Python int.
      mean_epoch_steps: batches in one epoch of a client of mean size, int32.
      label_counts: of ALL clients' labels, [num_clients, classes] int32; None where
        labels are not one integer per example.
      train_loss: params -> mean loss over all clients' examples, which `jax.grad` takes: an
        oracle that only a simulator has.
      batch_size: B, examples per local step, a Python int.
      setting: what the round's clients share, lr among it; before the policy has spoken
        `mean_steps` and `share` in it are those of everyone who could train.
      key: for what is random at the server, such as noise on a mean, or in a step
        policy; of the run's seed and the round alone. Fold in a number of your own for
        each use.
      seconds: simulated seconds from the round's beginning until each client has ended,
        [cohort]; zeros without `Plan.clock`, None until the policy has spoken.
    """

    ids: Array
    num_examples: Array
    epoch_steps: Array
    num_steps: Array
    active: Array
    round: Array
    num_clients: int
    num_holders: int
    mean_epoch_steps: Array
    label_counts: Array | None = None
    train_loss: Callable[[Params], Array] | None = None
    batch_size: int = 1
    setting: Setting | None = None
    key: Key | None = None
    seconds: Array | None = None

    @property
    def num_active(self) -> Array:
        """The number of clients that train this round, int32."""
        return self.active.sum()

    @property
    def share(self) -> Array:
        """m / N: clients that train this round over all that hold examples."""
        return self.num_active / self.num_holders


class Outcome(NamedTuple):
    """The result of a round at the server, for policies that learn from it.

    Attributes:
      anchor: the server's model before the round.
      params: the server's model after it.
      server: `ServerRule`'s state after it.
      upload: what `ServerRule.combine` returned.
      setting: what the round's clients shared.
      sent: mean over the active clients of what `StepPolicy.send` returned.
      seconds: simulated, of this round; 0 without `Plan.clock`.
      measured: what clients measured before anybody trained, digested, [cohort, ...].
      step_seconds: c_i, simulated seconds of a local step, [cohort]; None without
        `Plan.clock`.
    """

    anchor: Params
    params: Params
    server: ServerExtra
    upload: Upload
    setting: Setting
    sent: PyTree = ()
    seconds: Array | float = 0.0
    measured: Measurement = ()
    step_seconds: Array | None = None


class RoundView(NamedTuple):
    """Where a round stands when its clients have trained.

    A slot that is not `cohort.active` holds anything.

    Attributes:
      task: the task.
      cohort: who trained.
      runs: what each did, leading axis cohort, but for `anchor` (the broadcast model),
        `server` and `setting`, which all share; without functions and key.
      public: the public set.
      setting: what the round's clients share.
      num_classes: number of labels, a Python int.
      num_lanes: how many models the engine has side by side, a Python int.
      sent: what each sent for the refinement (`Refinement.send`), [cohort, ...].
    """

    task: Task
    cohort: Cohort
    runs: LocalRun
    public: PyTree
    setting: Setting
    num_classes: int
    num_lanes: int = 1
    sent: PyTree = ()


class RefineSetup(NamedTuple):
    """The task and sizes that a refinement may know before round 0.

    Attributes:
      params: of one model; perhaps shapes alone.
      num_classes: number of labels.
      num_clients: all clients.
      cohort_size: slots of a cohort, of which some may stay empty.
      example: shape and dtype of one input, without a batch axis.
      batch_size: B, examples per local step.
      public: the public set.
      outputs: shapes of what a model says about one example.
      labelled: whether a client's label counts are known.
    """

    params: Params
    num_classes: int
    num_clients: int
    cohort_size: int
    example: jax.ShapeDtypeStruct
    batch_size: int
    public: PyTree
    outputs: Outputs
    labelled: bool


class Refined(NamedTuple):
    """The clients' models after a refinement. Leading axis: cohort.

    Attributes:
      params: the models, those not refined as they were.
      steps: [cohort] int32, on the public set, in the time of a local step each.
      report: for `Info.refine`, scalars or [cohort, ...].
    """

    params: Params
    steps: Array
    report: dict[str, Array]


SCALAR = 4  # bytes


class Traffic(NamedTuple):
    """The traffic between one client and the server in a round.

    Messages that a run needs once, such as label counts, are not counted.

    Attributes:
      models_down: what a client receives, in multiples of the model's own bytes.
      models_up: what it sends, likewise.
      scalars_down: what else it receives, in scalars of 4 bytes.
      scalars_up: what else it sends, likewise.
      round_trips: messages to the client and back, which latency is paid for.
    """

    models_down: float = 0
    models_up: float = 0
    scalars_down: float = 0
    scalars_up: float = 0
    round_trips: int = 0
