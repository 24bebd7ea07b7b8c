"""The four parts of an algorithm: local rule, step policy, server rule, refinement."""

from collections.abc import Callable
from functools import wraps
from typing import NamedTuple

import jax
import optax

from ..errors import SettingError
from .defaults import (
    Mean,
    as_uploaded,
    by_examples,
    mean,
    no_report,
    no_state,
    send_delta,
    task_loss,
)
from .task import (
    Array,
    ClientState,
    Key,
    Measurement,
    Params,
    PolicyState,
    PyTree,
    RefineState,
    ServerExtra,
    Task,
)
from .views import (
    Cohort,
    LocalRun,
    LocalView,
    Outcome,
    Refined,
    RefineSetup,
    RoundView,
    Setting,
    Traffic,
    Upload,
)


class LocalRule(NamedTuple):
    """The local part of a method: objective, corrections, client state and upload.

    `prepare(view)` runs once before the first step; the steps find its result in
    `view.prepared`. A correction that is constant over the round belongs there: one
    vector then streams through memory at every step instead of all it is made of.
    `correct` adds to the gradient what is clipped with it, `decay` what is added after
    the clip, where weight decay is; None: nothing. `refined(client, params)` is the state
    of a client whose model became `params` on a public set after `finish`; None: as
    `finish` left it.

    `start(view)` is the model a client trains from, where `view.params` is the broadcast:
    personal parameters come in here. It becomes `anchor` of the client's views and run.
    None: the broadcast.

    `check(setting)` raises a SettingError where the rule contradicts the run. It is asked
    before the first round, with the plan's numbers, and by `fa.train`, with `round` the
    rounds that will have been run then. None: any run will do.

    `personal(params, client)` is the model a client uses itself, of the server's model and
    the client's state. None: the server's.

    `optimizer(lr)` is the optax transformation that makes a local step of the gradient,
    new in every round. None: SGD with the plan's momentum.

    `traffic(params, upload)`, or a `Traffic`, is all that a client which trains receives
    and sends in a round, the model included; of the parameters and of what `finish`
    uploads it sees shapes and dtypes. By default one model goes down and the upload up.
    A rule that needs more from the server says `partial(as_uploaded, models_down=2)`.
    """

    init: Callable[[Params], ClientState] = no_state
    objective: Callable[[Params, LocalView, Key], Array] = task_loss
    correct: Callable[[Params, LocalView], Params] | None = None  # before clipping
    finish: Callable[[LocalRun], tuple[Upload, ClientState]] = send_delta
    prepare: Callable[[LocalView], PyTree] = no_state
    decay: Callable[[Params, LocalView], Params] | None = None  # after clipping
    traffic: Traffic | Callable[[Params, Upload], Traffic] = as_uploaded
    refined: Callable[[ClientState, Params], ClientState] | None = None
    start: Callable[[LocalView], Params] | None = None
    check: Callable[[Setting], None] | None = None
    personal: Callable[[Params, ClientState], Params] | None = None
    optimizer: Callable[[Array], optax.GradientTransformation] | None = None


class Probe(NamedTuple):
    """A measurement along the local steps: a fold, `init(view)` then `update`.

    `init(view)` stands before the first step, where `view.batch` is None.
    `update(probe, grads, view)` sees the gradient of each step with all that the local
    rule adds to it, before clipping and without the plan's weight decay. A probe as large
    as the parameters costs lanes x params of memory.
    """

    init: Callable[[LocalView], PyTree]
    update: Callable[[PyTree, Params, LocalView], PyTree]


class Measure(NamedTuple):
    """Measurements of clients for a step policy. Leading axis of `measured`: cohort.

    `client(view, key)` is what one client measures at the model it would train from,
    before anybody trains. None: nothing, but for what a probe measures along the steps.

    `pool(cohort, measured)` makes of all measurements what the server knows of all
    clients, and `digest(pooled, measurement)` of ONE client's, once, what the policy is
    given in its place: of large ones, something small. `pooled` is `()` without `pool`,
    and measurements stay as they are without `digest`.

    `steps(cohort) -> [cohort]` is how long a client measures, in local steps: gradients
    on a batch besides those it follows. None: no time.
    """

    client: Callable[[LocalView, Key], Measurement] | None = None
    pool: Callable[[Cohort, Measurement], PyTree] | None = None
    digest: Callable[[PyTree, Measurement], Measurement] | None = None
    steps: Callable[[Cohort], Array] | None = None


class StepPolicy(NamedTuple):
    """The number of local steps of each client, tau in papers. Leading axis: cohort.

    `steps(state, cohort, measurement) -> [cohort] int`; 0 or less: this client sits the
    round out and is not averaged. `mean_steps(epoch_steps)` answers the same question for a
    client of average size (Kbar of SCAFFOLD's descendants); None: the cohort's mean.

    A policy that learns has `update(state, cohort, runs, outcome)`; None: its state stays
    as it is. What it needs as a mean over the clients that trained it should take from
    `outcome.sent`, the mean of `send(run)`, which is summed as clients end: of `runs`,
    [cohort, ...], only what it reads is kept, and a model per client is much.

    `measure` is a `Measure`, or its `client` alone: a function (view, key) -> measurement.

    `report(state, cohort, measurement)` names what a person wants to see, for
    `Info.policy`: scalars of the round or values [cohort, ...]; `state` is the new one.

    `traffic` is what the policy adds to the local rule's. Round trips of its own are those
    in which measurements go up before tau comes down: all wait for the last of them.

    `best(state)` is the model that a run ends with, where it is not the server's last; it
    is evaluated besides it.
    """

    steps: Callable[[PolicyState, Cohort, Measurement], Array]
    init: Callable[[Params, int], PolicyState] = no_state
    measure: Measure | Callable[[LocalView, Key], Measurement] | None = None
    probe: Probe | None = None
    update: Callable[[PolicyState, Cohort, LocalRun, Outcome], PolicyState] | None = (
        None
    )
    mean_steps: Callable[[Array], Array] | None = None
    send: Callable[[LocalRun], PyTree] | None = None
    report: Callable[[PolicyState, Cohort, Measurement], dict[str, Array]] = no_report
    max_steps: int | None = None  # what more it asks for is cut and counted
    traffic: Traffic = Traffic()
    best: Callable[[PolicyState], Params] | None = None


def measure_of(policy: StepPolicy) -> Measure:
    """The measurement that a policy asks for; an empty `Measure` if none."""
    if isinstance(policy.measure, Measure):
        return policy.measure
    return Measure(policy.measure)


def learns(policy: StepPolicy) -> bool:
    """Whether a policy goes by what clients measure or send."""
    from_clients = measure_of(policy).client, policy.send, policy.update
    return any(part is not None for part in from_clients)


LABEL_COUNTS = "label counts of every client"  # as `given` says it


class ServerRule(NamedTuple):
    """The server's part: uploads to the next model. `combine` sees the cohort axis.

    `extra` is what the server keeps besides the model, at first `init(params)`; a client
    sees it as `view.server`. What clients send besides a displacement is `Upload.extra`.

    `combine(uploads, cohort)` makes one upload of all, `[cohort, ...]`, of which `info` is
    `()`; `update(params, extra, upload, cohort)` the next model and state. None: the
    combined displacement is added to the model, and the state stays. The round's learning
    rate is `cohort.setting.lr`, and `cohort.key` is for noise.

    `report(extra, upload, cohort)` names what a person wants to see, for `Info.server`:
    scalars of the round or values [cohort, ...]; `extra` is the new one.
    "simulated_seconds" in it are what the round took on the plan's clock, a scalar for
    `Info.seconds` in place of the time of its slowest client.

    `busy(extra)` are the ids of clients that are still under way when a round begins,
    which an asynchronous server has: an array of any length, -1 where there is none. They
    are not drawn. It needs a clock, a cohort of a fixed size, and no refinement. None: all
    of a round end with it.

    `adds_mean` says that `update` adds the combined displacement to the model as it is,
    whatever else it adds: then its weights may be changed from outside.

    `refined(params, extra, upload, cohort, shift)` is `update` where the mean of the
    cohort's models has moved by `shift` on a public set since the upload. None: `update`,
    and then `shift` is added to the new model.

    `given` says in words what the server is given besides the clients' own training.
    """

    init: Callable[[Params], ServerExtra] = no_state
    combine: Callable[[Upload, Cohort], Upload] = mean(by_examples)
    update: (
        Callable[[Params, ServerExtra, Upload, Cohort], tuple[Params, ServerExtra]]
        | None
    ) = None
    adds_mean: bool = False  # not needed where `update` is None
    refined: (
        Callable[
            [Params, ServerExtra, Upload, Cohort, Params], tuple[Params, ServerExtra]
        ]
        | None
    ) = None
    report: Callable[[ServerExtra, Upload, Cohort], dict[str, Array]] = no_report
    busy: Callable[[ServerExtra], Array] | None = None
    given: str | None = None


def traffic_for(rule: LocalRule, params: Params, upload: Upload) -> Traffic:
    """The traffic of a client that trains, of its local rule alone.

    Args:
      rule: its rule.
      params: a model; shapes are enough, as of the upload.
      upload: what `rule.finish` uploads.
    """
    return rule.traffic(params, upload) if callable(rule.traffic) else rule.traffic


def traffic_within(
    rule: LocalRule, unwrap: Callable[[Upload], Upload]
) -> Callable[[Params, Upload], Traffic]:
    """`LocalRule.traffic` of a wrapper that sends no more than the rule it wraps.

    Args:
      rule: the rule inside.
      unwrap: the wrapper's upload -> that of the rule.
    """
    return lambda params, upload: traffic_for(rule, params, unwrap(upload))


def adds_mean(rule: ServerRule) -> bool:
    """Whether the server adds the combined displacement to the model as it is."""
    return rule.update is None or rule.adds_mean


def updated(
    rule: ServerRule,
    params: Params,
    extra: ServerExtra,
    upload: Upload,
    cohort: Cohort,
    shift: Params | None = None,
) -> tuple[Params, ServerExtra]:
    """The next model and state of the server.

    `shift` is how far the mean of the cohort's models has moved since; None: not at all.
    """
    if shift is not None and rule.refined is not None:
        return rule.refined(params, extra, upload, cohort, shift)
    if rule.update is None:
        params = optax.tree.add(params, upload.delta)
    else:
        params, extra = rule.update(params, extra, upload, cohort)
    return params if shift is None else optax.tree.add(params, shift), extra


def sent_by(part: "StepPolicy | Refinement", run: LocalRun) -> PyTree:
    """The arrays that a client sends for a part besides its upload."""
    return () if part.send is None else part.send(run)


def model_weights(rule: ServerRule, cohort: Cohort) -> Array:
    """p_i, with which a server averages models, [cohort]; n_i / n if it takes no mean."""
    if not isinstance(rule.combine, Mean):
        return by_examples(cohort)
    # of several it means the last: feddisco sends the usual mean first, then its own
    return jax.tree.leaves(rule.combine.delta(cohort))[-1]


class Refinement(NamedTuple):
    """The training on a public set before a round ends.

    `clients(view, key)` refines the models of some clients, which then count in place of
    those that they had sent: w + sum_i p_i (refined_i - theta_i) more, p_i the server's
    weights. What a rule sends besides its displacement is made before.

    `server(params, state, view, key) -> (params, state, report)` comes after the server
    rule; `view.runs.params` are the refined models then. `state` begins as
    `init(task, setup, key)` and is shown to the next round's clients as
    `LocalView.refine`. `report` is a dict for `Info.refine`, scalars or [cohort, ...];
    "public_steps" in it are steps on the public set, for `Info.public_steps`.

    `send(run)` is what a client sends for it besides its upload, `view.sent`.

    `check(task, setup)` raises a SettingError where the run cannot be refined. `traffic`
    is what it adds for every client that trains, `traffic_refined` for each of those whose
    models are refined as well. Where `uploads_late`, `traffic` goes up alone, and all send
    their models only when the server has said who refines. `given` says in words what it
    is given besides the clients' own training.
    """

    init: Callable[[Task, RefineSetup, Key], RefineState] = no_state
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
    uploads_late: bool = False
    needs_public: bool = True
    needs_validation: bool = False  # examples of the public set to choose a model by
    send: Callable[[LocalRun], PyTree] | None = None
    given: str | None = None


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

    @wraps(refine)
    def server(params, state, view, key):
        return refine(params, view, key), state, {}

    return Refinement(server=server, needs_public=False)


def merged_report(
    first: dict[str, Array], second: dict[str, Array], of_first: str, of_second: str
) -> dict[str, Array]:
    """The reports of two parts as one; the error names the parts.

    Raises:
      SettingError: both show something of the same name.
    """
    for name in first.keys() & second.keys():
        raise SettingError(
            f"{of_second} shows {name!r}, which is the name of what {of_first} shows; "
            "give it another name."
        )
    return first | second
