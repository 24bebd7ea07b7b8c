"""The contracts: what a federated algorithm is made of, and what a round is.

    Algorithm = local rule x step policy x server rule x refinement

Every default is FedAvg's, so `Algorithm()` is FedAvg. What concerns a client is
written for ONE client: the engine adds the cohort axis with `jax.vmap` and the round
axis with `jax.lax.scan`. Only step policies and server rules see the axis `cohort`,
and their annotations say so.

State is what the next round needs; Info is what a person wants to see.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from . import check

Array = jax.Array
PyTree = Any
Key = jax.Array
Params = PyTree
ClientState = PyTree  # kept by one client between rounds
ServerExtra = PyTree  # kept by the server beside the parameters
PolicyState = PyTree  # kept by a step policy between rounds
Measurement = PyTree  # taken by one client at the broadcast model, before training
RefineState = PyTree  # kept by a refinement between rounds


# --- the task ----------------------------------------------------------------------


class Outputs(NamedTuple):
    """What a model says about a batch."""

    logits: Array  # [batch, classes]
    features: Array | None = None  # [batch, width], the input of the last layer


class Batch(NamedTuple):
    """Examples of one client. A partial batch is padded and the padding weighs 0."""

    x: Array  # [batch, ...]
    y: Array  # [batch, ...]
    weight: Array  # [batch], 1 for an example, 0 for padding


class Task(NamedTuple):
    """What is being learnt: a model and a loss, as pure functions.

    `apply_train` is the model in training mode (augmentation, dropout), `apply_frozen`
    the model in evaluation mode on the inputs that `apply_train` makes of x under the
    same key. None: `apply`. `head` is the last layer alone, (params, features [batch,
    width]) -> logits, such that head(params, apply(params, x).features) are
    apply(params, x).logits; None: it cannot be told apart. `restore` makes of standardised
    inputs [batch, ...] what `apply` takes, where that standardises; None: it does not.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], Outputs]
    loss: Callable[[Array, Array], Array]  # (logits, y) -> per-example loss [batch]
    apply_train: Callable[[Params, Array, Key], Outputs] | None = None
    apply_frozen: Callable[[Params, Array, Key], Outputs] | None = None
    head: Callable[[Params, Array], Array] | None = None
    restore: Callable[[Array], Array] | None = None


# --- what the parts of an algorithm are shown ----------------------------------------


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


# --- defaults: together they are FedAvg ----------------------------------------------


def no_state(params: Params) -> tuple[()]:
    """Keeps nothing."""
    del params
    return ()


def weighted_loss(task: Task, outputs: Outputs, batch: Batch) -> Array:
    """Mean loss over the examples of a batch; padding does not count. A scalar."""
    losses = task.loss(outputs.logits, batch.y)
    return (losses * batch.weight).sum() / batch.weight.sum()


def predict_train(task: Task, params: Params, x: Array, key: Key) -> Outputs:
    """The model in training mode (dropout, augmentation) where it has one."""
    if task.apply_train is None:
        return task.apply(params, x)
    return task.apply_train(params, x, key)


def predict_frozen(task: Task, params: Params, x: Array, key: Key) -> Outputs:
    """Another model on the inputs that `predict_train` sees: augmented, no dropout."""
    if task.apply_frozen is None:
        return task.apply(params, x)
    return task.apply_frozen(params, x, key)


def task_loss(params: Params, view: LocalView, key: Key) -> Array:
    """The task's mean loss over the batch: FedAvg's local objective."""
    outputs = predict_train(view.task, params, view.batch.x, key)
    return weighted_loss(view.task, outputs, view.batch)


def prepare_nothing(view: LocalView) -> tuple[()]:
    """Needs nothing but the view."""
    del view
    return ()


def keep(grads: Params, view: LocalView) -> Params:
    """Adds nothing to the gradient."""
    del view
    return grads


def send_delta(run: LocalRun) -> tuple[Upload, ClientState]:
    """Sends the displacement; the client's state stays as it was."""
    return Upload(optax.tree.sub(run.params, run.anchor)), run.client


def by_examples(cohort: Cohort) -> Array:
    """Weights n_i / sum n over the active clients, [cohort]. All zero if none is."""
    n = jnp.where(cohort.active, cohort.num_examples, 0)
    return n / jnp.maximum(n.sum(), 1)


def uniformly(cohort: Cohort) -> Array:
    """Weights 1 / m over the active clients, [cohort]. All zero if none is."""
    return cohort.active / jnp.maximum(cohort.num_active, 1)


WEIGHTS = {"data": by_examples, "uniform": uniformly}

# FedAvg's: the model there, and back
ONE_MODEL_EACH_WAY = Traffic(models_down=1, models_up=1, round_trips=1)


@dataclass(frozen=True)
class Mean:
    """A weighted mean of uploads: a combine rule the engine may sum as clients end.

    `delta(cohort)` and `extra(cohort)` are weights [cohort], or a tree of such weights
    that is a prefix of `Upload.delta` and `Upload.extra`.
    """

    delta: Callable[[Cohort], PyTree]
    extra: Callable[[Cohort], PyTree]

    def weights(self, cohort: Cohort) -> Upload:
        """The weights [cohort] of `Upload.delta` and of `Upload.extra`."""
        return Upload(self.delta(cohort), self.extra(cohort))

    def __call__(self, uploads: Upload, cohort: Cohort) -> Upload:
        """Averages the leading axis `cohort` of every leaf."""
        weights = self.weights(cohort)
        return weighted_sums(weights, cohort.active, uploads._replace(info=()))


def weighted_sums(weights: Upload, active: Array, uploads: Upload) -> Upload:
    """`weighted_sum` of every leaf of `uploads`, of which `weights` is a prefix."""
    over = lambda w, tree: jax.tree.map(lambda x: weighted_sum(w, active, x), tree)
    return jax.tree.map(over, weights, uploads)


def weighted_sum(weights: Array, active: Array, leaf: Array) -> Array:
    """Sums weights [cohort] x leaf [cohort, ...] over the active clients."""
    shape = (-1, *(1,) * (leaf.ndim - 1))
    # an idle slot may hold NaN, and 0 x NaN is NaN
    leaf = jnp.where(active.reshape(shape), leaf, 0)
    return (weights.reshape(shape).astype(leaf.dtype) * leaf).sum(0)


def mean(
    weights: Callable[[Cohort], Array] = by_examples,
    extra: Callable[[Cohort], Array] | None = None,
) -> Mean:
    """Averages uploads: `Upload.delta` with `weights(cohort)`, `Upload.extra` with
    `extra(cohort)` or, by default, the same. See `by_examples` and `uniformly`."""
    return Mean(weights, weights if extra is None else extra)


def keep_state(client: ClientState, params: Params) -> ClientState:
    """The client's state stays as `finish` left it."""
    del params
    return client


def add_delta(
    params: Params, extra: ServerExtra, upload: Upload, cohort: Cohort
) -> tuple[Params, ServerExtra]:
    """The new global model is the old one plus the mean displacement."""
    del cohort
    return optax.tree.add(params, upload.delta), extra


def no_policy_state(params: Params, num_clients: int) -> tuple[()]:
    """Keeps nothing."""
    del params, num_clients
    return ()


def no_probe_state(view: LocalView) -> tuple[()]:
    """Keeps nothing."""
    del view
    return ()


def no_probe_update(probe: PyTree, grads: Params, view: LocalView) -> PyTree:
    """Measures nothing."""
    del grads, view
    return probe


def send_nothing(run: LocalRun) -> tuple[()]:
    """Tells the policy nothing."""
    del run
    return ()


def pool_nothing(cohort: Cohort, measurement: Measurement) -> tuple[()]:
    """Everybody's measurements say nothing about one."""
    del cohort, measurement
    return ()


def as_measured(pooled: PyTree, measurement: Measurement) -> Measurement:
    """One client's measurement as it is."""
    del pooled
    return measurement


def report_nothing(
    state: PolicyState, cohort: Cohort, measurement: Measurement
) -> dict[str, Array]:
    """Shows nothing."""
    del state, cohort, measurement
    return {}


def unchanged(
    state: PolicyState, cohort: Cohort, runs: LocalRun, outcome: Outcome
) -> PolicyState:
    """The policy's state stays as it was."""
    del cohort, runs, outcome
    return state


# --- the four parts --------------------------------------------------------------------


class LocalRule(NamedTuple):
    """What one client minimises, adds to its gradient, remembers and sends.

    `prepare(view)` runs once before the first step; the steps find its result in
    `view.prepared`. A correction that is constant over the round belongs there: one
    vector then streams through memory at every step instead of all it is made of.
    `correct` adds to the gradient what is clipped with it, `decay` what is added after
    the clip, where weight decay is. `traffic` is all that a client which trains receives
    and sends in a round, the model included. `refined(client, params)` is the state of a
    client whose model became `params` on a public set after `finish`.
    """

    init: Callable[[Params], ClientState] = no_state
    objective: Callable[[Params, LocalView, Key], Array] = task_loss
    correct: Callable[[Params, LocalView], Params] = keep  # before clipping
    finish: Callable[[LocalRun], tuple[Upload, ClientState]] = send_delta
    prepare: Callable[[LocalView], PyTree] = prepare_nothing
    decay: Callable[[Params, LocalView], Params] = keep  # after clipping
    traffic: Traffic = ONE_MODEL_EACH_WAY
    refined: Callable[[ClientState, Params], ClientState] = keep_state


class Probe(NamedTuple):
    """A measurement along the local steps: a fold, `init(view)` then `update`.

    `init(view)` stands before the first step, where `view.batch` is None.
    `update(probe, grads, view)` sees the gradient of each step with all that the local
    rule adds to it, before clipping and without the plan's weight decay. A probe as large
    as the parameters costs lanes x params of memory.
    """

    init: Callable[[LocalView], PyTree] = no_probe_state
    update: Callable[[PyTree, Params, LocalView], PyTree] = no_probe_update


no_probe = Probe()


class StepPolicy(NamedTuple):
    """How many local steps each client takes. Leading axis: cohort.

    `steps(state, cohort, measurement) -> [cohort] int`; 0 = this client sits the round
    out and is not averaged. `mean_steps(epoch_steps)` answers the same question for a
    client of average size (Kbar of SCAFFOLD's descendants); None: the cohort's mean.

    A policy that learns has `update(state, cohort, runs, outcome)`. What it needs as a
    mean over the clients that trained it should take from `outcome.sent`, the mean of
    `send(run)`, which is summed as clients end: of `runs`, [cohort, ...], only what it
    reads is kept, and a model per client is much.

    `pool(cohort, measurement)` makes of all measurements, [cohort, ...], what the server
    knows of everybody, and `digest(pooled, measurement)` of ONE client's, once, what the
    other functions are given as the measurement: of large ones, something small.

    `report(state, cohort, measurement)` names what a person wants to see, for
    `Info.policy`: scalars of the round or values [cohort, ...]; `state` is the new one.

    `traffic` is what the policy adds to the local rule's. Round trips of its own are those
    in which measurements go up before tau comes down: all wait for the last of them.
    `measure_steps(cohort) -> [cohort]` is how long a client measures, in local steps:
    gradients on a batch beside those it follows. None: no time.

    `best(state)` is the model that a run ends with, where it is not the server's last; it
    is evaluated beside it.
    """

    steps: Callable[[PolicyState, Cohort, Measurement], Array]
    init: Callable[[Params, int], PolicyState] = no_policy_state
    measure: Callable[[LocalView, Key], Measurement] | None = None
    pool: Callable[[Cohort, Measurement], PyTree] = pool_nothing
    digest: Callable[[PyTree, Measurement], Measurement] = as_measured
    probe: Probe = no_probe
    update: Callable[[PolicyState, Cohort, LocalRun, Outcome], PolicyState] = unchanged
    mean_steps: Callable[[Array], Array] | None = None
    send: Callable[[LocalRun], PyTree] = send_nothing
    report: Callable[[PolicyState, Cohort, Measurement], dict[str, Array]] = (
        report_nothing
    )
    max_steps: int | None = None  # what more it asks for is cut and counted
    traffic: Traffic = Traffic()
    measure_steps: Callable[[Cohort], Array] | None = None
    best: Callable[[PolicyState], Params] | None = None


class ServerRule(NamedTuple):
    """How uploads become the next global model. `combine` sees the cohort axis.

    `adds_mean` says that `update` adds the combined displacement to the model as it is,
    whatever else it adds: then its weights may be changed from outside.

    `refined(params, extra, upload, cohort, shift)` is `update` where the mean of the
    cohort's models has moved by `shift` on a public set since the upload. None: `update`,
    and then `shift` is added to the new model.
    """

    init: Callable[[Params], ServerExtra] = no_state
    combine: Callable[[Upload, Cohort], Upload] = mean(by_examples)
    update: Callable[
        [Params, ServerExtra, Upload, Cohort], tuple[Params, ServerExtra]
    ] = add_delta
    adds_mean: bool = False  # not needed for `add_delta`
    refined: (
        Callable[
            [Params, ServerExtra, Upload, Cohort, Params], tuple[Params, ServerExtra]
        ]
        | None
    ) = None


def update_refined(
    rule: ServerRule,
    params: Params,
    extra: ServerExtra,
    upload: Upload,
    cohort: Cohort,
    shift: Params | None,
) -> tuple[Params, ServerExtra]:
    """`rule.update`, the mean of the cohort's models moved by `shift` since; None: not."""
    if shift is None:
        return rule.update(params, extra, upload, cohort)
    if rule.refined is not None:
        return rule.refined(params, extra, upload, cohort, shift)
    params, extra = rule.update(params, extra, upload, cohort)
    return optax.tree.add(params, shift), extra


def model_weights(rule: ServerRule, cohort: Cohort) -> Array:
    """p_i, with which a server averages models, [cohort]; n_i / n if it takes no mean."""
    if not isinstance(rule.combine, Mean):
        return by_examples(cohort)
    # of several it means the last: feddisco sends the usual mean first, then its own
    return jax.tree.leaves(rule.combine.delta(cohort))[-1]


def no_refine_state(task: Task, setup: RefineSetup, key: Key) -> tuple[()]:
    """Keeps nothing."""
    del task, setup, key
    return ()


class Refinement(NamedTuple):
    """What happens on a public set before a round ends.

    `clients(view, key)` refines the models of some clients, which then count in place of
    those that they had sent: w + sum_i p_i (refined_i - theta_i) more, p_i the server's
    weights. What a rule sends beside its displacement is made before.

    `server(params, state, view, key) -> (params, state, report)` comes after the server
    rule; `view.runs.params` are the refined models then. `state` begins as
    `init(task, setup, key)` and is shown to the next round's clients as
    `LocalView.refine`. `report` is a dict for `Info.refine`, scalars or [cohort, ...].

    `send(run)` is what a client sends for it beside its upload, `view.sent`.

    `check(task, setup)` raises a ValueError where the run cannot be refined. `traffic`
    is what it adds for every client that trains, `traffic_refined` for each of those whose
    models are refined as well.
    """

    init: Callable[[Task, RefineSetup, Key], RefineState] = no_refine_state
    clients: Callable[[RoundView, Key], Refined] | None = None
    server: (
        Callable[
            [Params, RefineState, RoundView, Key],
            tuple[Params, RefineState, dict[str, Array]],
        ]
        | None
    ) = None
    check: Callable[[Task, RefineSetup], None] | None = None
    traffic: Traffic | Callable[[RefineSetup], Traffic] = Traffic()
    traffic_refined: Traffic | Callable[[RefineSetup], Traffic] = Traffic()
    needs_public: bool = True
    needs_validation: bool = False  # examples of the public set to choose a model by
    send: Callable[[LocalRun], PyTree] = send_nothing


def public_examples(public: PyTree) -> tuple[Array, Array | None]:
    """(x, y) of a public set: with attributes x and y, a pair, or x alone (y None)."""
    if hasattr(public, "x"):
        return public.x, public.y
    return public if isinstance(public, tuple) else (public, None)


Refine = Callable[[Params, RoundView, Key], Params]


def as_refinement(refine: Refinement | Refine | None) -> Refinement | None:
    """A function (params, view, key) -> params as a refinement of the server's model."""
    if refine is None or isinstance(refine, Refinement):
        return refine

    def server(params, state, view, key):
        return refine(params, view, key), state, {}

    return Refinement(server=server, needs_public=False)


def constant_steps(num_steps: int) -> StepPolicy:
    """Every client takes `num_steps` local steps, whatever it holds."""
    check.at_least("num_steps", num_steps, 1)

    def steps(state, cohort, measurement):
        del state, measurement
        return jnp.full(cohort.ids.shape, num_steps, jnp.int32)

    return StepPolicy(
        steps, mean_steps=lambda epoch_steps: jnp.full_like(epoch_steps, num_steps)
    )


def epochs(num_epochs: float = 1) -> StepPolicy:
    """Every client passes `num_epochs` times over its data.

    That is ceil(num_epochs * ceil(n_i / B)) local steps: the last partial batch counts.
    """
    check.positive("num_epochs", num_epochs)

    def of(epoch_steps):
        # 0.3 epochs of 50 steps are 15, though 0.3 x 50 is a little more in float32
        return jnp.ceil(num_epochs * epoch_steps - 1e-4).astype(jnp.int32)

    def steps(state, cohort, measurement):
        del state, measurement
        return of(cohort.epoch_steps)

    return StepPolicy(steps, mean_steps=of)


class Algorithm(NamedTuple):
    """Four independent parts; the default of every part is FedAvg's."""

    local: LocalRule = LocalRule()
    policy: StepPolicy = epochs(1)
    server: ServerRule = ServerRule()
    refine: Refinement | Refine | None = None  # None: client models need not be kept


def with_steps(algorithm: Algorithm, policy: StepPolicy) -> Algorithm:
    """The same algorithm, with another answer to "how many local steps?".

    Raises:
      ValueError: `algorithm` is no Algorithm or `policy` no StepPolicy.
    """
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"with_steps got algorithm={algorithm!r}; call its constructor, as in "
            "with_steps(fedavg(), epochs(5))."
        )
    if not isinstance(policy, StepPolicy):
        raise ValueError(
            f"with_steps got policy={policy!r}; "
            + (
                "call it, as in gsnr_steps(20)."
                if callable(policy)
                else f"write epochs({policy}) or constant_steps({policy})."
            )
        )
    return algorithm._replace(policy=policy)


def with_refinement(
    algorithm: Algorithm, refine: "Refinement | Refine | Algorithm | None"
) -> Algorithm:
    """The same algorithm, followed by `refine` on the public set.

    Args:
      algorithm: any; a refinement that it has is replaced.
      refine: a Refinement; an algorithm, whose refinement it is, as in
        with_refinement(moon(), fnr()); or a function (params, view, key) -> params of the
        server's model; None: nothing.

    Raises:
      ValueError: `algorithm` is no Algorithm or `refine` none of these.
    """
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f"with_refinement got algorithm={algorithm!r}; call its constructor, as in "
            "with_refinement(fedavg(), fnr_refinement())."
        )
    if isinstance(refine, Algorithm):
        refine = refine.refine
    if not (refine is None or isinstance(refine, Refinement) or callable(refine)):
        raise ValueError(
            f"with_refinement got refine={refine!r}; write a Refinement, or a function "
            "(params, view, key) -> params."
        )
    return algorithm._replace(refine=as_refinement(refine))


# --- a round ---------------------------------------------------------------------------


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
    refine: PyTree = ()  # the refinement's report: scalars or [cohort, ...]


RoundFn = Callable[[State, Key], tuple[State, Info]]


class Metrics(NamedTuple):
    """What a model is worth on a data set. Both scalars."""

    accuracy: Array  # share of examples whose largest logit is the label
    loss: Array  # mean per-example loss


def num_parameters(params: Params) -> int:
    """The number of scalars in `params`; works on shapes alone too."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))
