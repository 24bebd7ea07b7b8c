"""The contract of a method's parts: what each is given, and what it must return.

`make_round` traces every part once on abstract values, before anything is compiled. A part
that raises, or returns something else than the engine can use, becomes one sentence that
names it; `debug_round` runs the parts under the same checks.

What is kept keeps its dtype. Only in half precision, or where `init` gave float32 under
jax_enable_x64, a floating number may come in another and is rounded to what `init` gave, as
a local step rounds its model.
"""

import traceback
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from pathlib import Path
from types import CodeType
from typing import Any

import jax
import optax

from .. import check
from ..core import (
    Algorithm,
    Array,
    LocalRule,
    Mean,
    Measure,
    Probe,
    PyTree,
    Refinement,
    ServerRule,
    StepPolicy,
    Task,
    Traffic,
    as_refinement,
    check_private,
    cross_entropy,
    is_private,
    logits_of,
)
from ..errors import SettingError
from . import returned

MOST = 160  # characters of what another error says

# part -> (what it is given, what it returns)
TAKES = {
    "Task.init": "(key) and returns parameters",
    "Task.apply": "(params, x [batch, ...]) and returns Outputs(logits [batch, ...])",
    "Task.apply_train": "(params, x [batch, ...], key) and returns Outputs",
    "Task.loss": "(logits, y) and returns one loss per example, [batch]",
    "Task.accuracy": "(logits, y) and returns one number per example, [batch]",
    "Task.metrics": "(logits, y) and returns one number per example, [batch]",
    "LocalRule.init": "(params) and returns a client's state",
    "LocalRule.start": (
        "(view), where view.batch is None, and returns parameters like view.params"
    ),
    "LocalRule.prepare": (
        "(view), where view.batch is None, and returns what view.prepared will be"
    ),
    "LocalRule.objective": "(params, view, key) and returns a scalar",
    "LocalRule.correct": "(grads, view) and returns a gradient like grads",
    "LocalRule.decay": "(grads, view) and returns a gradient like grads",
    "LocalRule.finish": "(run) and returns (Upload(delta), client state)",
    "LocalRule.refined": "(client, params) and returns the client's state",
    "LocalRule.personal": "(params, client) and returns parameters like params",
    "LocalRule.optimizer": "(lr) and returns an optax transformation, as optax.adam does",
    "LocalRule.optimizer's init": "(params) and returns arrays",
    "LocalRule.optimizer's update": "(gradient, state, params), and nothing else, and "
    "returns moves and the state",
    "StepPolicy.init": "(params, num_clients) and returns the policy's state",
    "StepPolicy.measure": "(view, key) and returns a measurement",
    "StepPolicy.steps": "(state, cohort, measurement) and returns integers [cohort]",
    "StepPolicy.best": "(state) and returns a model",
    "StepPolicy.mean_steps": "(epoch_steps) and returns one number",
    "StepPolicy.send": "(run) and returns arrays",
    "StepPolicy.update": "(state, cohort, runs, outcome) and returns the policy's state",
    "StepPolicy.report": "(state, cohort, measurement) and returns a dict of arrays",
    "Measure.client": "(view, key) and returns a measurement",
    "Measure.pool": "(cohort, measured) and returns what is known of all",
    "Measure.digest": "(pooled, measurement) and returns a measurement",
    "Measure.steps": "(cohort) and returns a number for each, [cohort]",
    "Probe.init": "(view) and returns the probe",
    "Probe.update": "(probe, grads, view) and returns the probe",
    "ServerRule.init": "(params) and returns the server's state",
    "ServerRule.combine": "(uploads, cohort) and returns one Upload",
    "ServerRule.update": "(params, extra, upload, cohort) and returns (params, extra)",
    "ServerRule.refined": (
        "(params, extra, upload, cohort, shift) and returns (params, extra)"
    ),
    "ServerRule.report": "(extra, upload, cohort) and returns a dict of arrays",
    "ServerRule.busy": "(extra) and returns client ids, -1 for none",
    "Participation.sample": "(key, num_clients) and returns client ids, int32 [slots]",
    "Refinement.init": "(task, setup, key) and returns the refinement's state",
    "Refinement.clients": "(view, key) and returns Refined(params, steps, report)",
    "Refinement.server": (
        "(params, state, view, key) and returns (params, state, report), or as a function "
        "by itself (params, view, key) and returns params"
    ),
    "Refinement.send": "(run) and returns arrays",
}


def guarded(
    part: str, function: Callable, accept: Callable[..., None] | None = None
) -> Callable:
    """`function`, which raises SettingError where it raises, or returns what is no use.

    Args:
      part: its name in `TAKES`.
      function: what it is.
      accept: (name, result, *arguments) -> None; raises SettingError.
    """
    name = f"{part} ({name_of(function)})"

    def call(*arguments: Any) -> Any:
        try:
            result = function(*arguments)
        except SettingError:
            raise
        except Exception as error:
            raise _raised(part, function, error) from error
        if accept is not None:
            accept(name, result, *arguments)
        return result

    return update_wrapper(call, function) if hasattr(function, "__name__") else call


def name_of(function: Callable) -> str:
    """The name of a function where it was written, inside of wrappers: "fedexp.update"."""
    return _name(_layers(function)[-1])


def _name(function: Callable) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    return name.replace(".<locals>", "")


def _layers(function: Callable) -> list[Callable]:
    """A function and those that it is around, the innermost last."""
    is_partial = isinstance(function, partial)
    wrapped = getattr(function, "__dict__", {}).get("__wrapped__")
    inner = function.func if is_partial else wrapped
    return [function, *(_layers(inner) if callable(inner) else [])]


def _code(function: Callable) -> CodeType | None:
    own = getattr(function, "__code__", None)
    return own or getattr(type(function).__call__, "__code__", None)


def _raised(part: str, function: Callable, error: Exception) -> Exception:
    """The error to raise in place of what a part raised.

    It names the innermost function that was entered, with the line, or the innermost of
    all where a function around it could not call it.
    """
    layers, trace = _layers(function), error.__traceback__
    entered = [frame.f_code for frame, _ in traceback.walk_tb(trace)][1:]
    named = layers[-1]
    if reached := [layer for layer in layers if _code(layer) in entered]:
        is_call = isinstance(error, TypeError) and _code(reached[-1]) is entered[-1]
        named = named if is_call else reached[-1]
    name, code = f"{part} ({_name(named)})", _code(named)
    frames = traceback.extract_tb(trace)[1:]
    lines = {f.filename: f.lineno for f in frames}
    file = code.co_filename if code else ""
    if check.is_of_library(file):  # a wrapper: the innermost of what a user wrote
        others = [f.filename for f in frames if not check.is_of_library(f.filename)]
        file = others[-1] if others else file
    place = f" at {Path(file).name}:{lines[file]}" if file in lines else ""
    says = (str(error).strip().splitlines() or [""])[0][:MOST].rstrip(".")
    traced = isinstance(error, jax.errors.ConcretizationTypeError)
    hint = "write jnp.where(condition, a, b) for if, and " if traced else ""
    return SettingError(
        f"{name} raised {type(error).__name__}{place}: {says}; {hint}it takes "
        f"{TAKES[part]}."
    )


def check_parts(algorithm: Algorithm) -> None:
    """Raises SettingError unless every part, and every field of it, is of its kind."""
    kinds = {"local": LocalRule, "policy": StepPolicy, "server": ServerRule}
    for name, kind in kinds.items():
        part = getattr(algorithm, name)
        if not isinstance(part, kind):
            raise SettingError(
                f"Algorithm.{name} is {check.kind_of(part)}; write a {kind.__name__}, or "
                "leave it out."
            )
        _check_fields(part)
    if algorithm.policy.probe is not None:
        _check_fields(algorithm.policy.probe)
    if isinstance(algorithm.policy.measure, Measure):
        _check_fields(algorithm.policy.measure)
    refine = algorithm.refine
    if not (refine is None or isinstance(refine, Refinement) or callable(refine)):
        raise SettingError(
            f"Algorithm.refine is {check.kind_of(refine)}; write a Refinement, or leave "
            "it out."
        )
    if isinstance(refine, Refinement):
        _check_fields(refine)
    check.at_least("StepPolicy.max_steps", algorithm.policy.max_steps, 1, none="no cap")
    if is_private(algorithm):  # a policy or refinement may have come after it
        check_private(algorithm)


def _check_fields(part: Any) -> None:
    """Each field is of the kind of its default: a function, or None where that is."""
    for field, value in part._asdict().items():
        default = part._field_defaults.get(field, part)
        where = f"{type(part).__name__}.{field}"
        if field.startswith("traffic"):
            # of a model and an upload, or of the refinement's setup
            follows = callable(value) and not isinstance(part, StepPolicy)
            wrong = not (isinstance(value, Traffic) or follows)
            write = "Traffic(...)"
        elif field == "probe":
            wrong, write = not isinstance(value, Probe | None), "Probe(init, update)"
        elif isinstance(value, Measure) and field == "measure":
            continue
        elif isinstance(default, bool):
            wrong, write = not isinstance(value, bool), "True or False"
        elif field == "given":
            wrong, write = not isinstance(value, str | None), "a text"
        elif field == "max_steps":
            continue
        else:
            optional = default is None
            wrong = not (callable(value) or (optional and value is None))
            write = (
                f"a function that takes {TAKES[where]}"
                if where in TAKES
                else "a function"
            )
        if isinstance(value, Traffic):
            check_traffic(where, value)
        if wrong:
            raise SettingError(
                f"{where} is {check.kind_of(value)}; write {write}, or leave it out."
            )


def check_traffic(where: str, traffic: Traffic) -> None:
    """Raises SettingError where something negative is sent."""
    for name, number in traffic._asdict().items():
        check.nonnegative(f"{name} of {where}", number)


def guarded_algorithm(algorithm: Algorithm) -> Algorithm:
    """The same algorithm, each of its own functions under its contract."""
    gradient = returned.as_first("the gradient", "jax.grad")
    local = {
        "init": returned.arrays,
        "start": returned.as_first("the model a client starts from", "view.params"),
        "prepare": returned.arrays,
        "objective": returned.scalar,
        "correct": gradient,
        "decay": gradient,
        "finish": partial(
            returned.upload_and_state, isinstance(algorithm.server.combine, Mean)
        ),
        "refined": returned.like_state("the client's state", "LocalRule.init"),
        "personal": returned.as_first("a client's own model", "Task.init"),
        "optimizer": returned.transformation,
    }
    policy = {
        "init": returned.arrays,
        "steps": returned.steps,
        "send": returned.sent,
        "update": returned.like_state("the policy's state", "StepPolicy.init"),
        "report": returned.report_of(1),
        "mean_steps": returned.one_number,
    }
    measure = {
        "client": returned.arrays,
        "pool": returned.arrays,
        "digest": returned.arrays,
        "steps": returned.per_client,
    }
    probe = {
        "init": returned.arrays,
        "update": returned.like_state("the probe", "Probe.init"),
    }
    server = {
        "init": returned.arrays,
        "combine": returned.one_upload,
        "update": returned.params_and_extra,
        "refined": returned.params_and_extra,
        "report": returned.report_of(2),
        "busy": returned.ids,
    }
    refine = as_refinement(algorithm.refine)
    steps = _under(StepPolicy, algorithm.policy, policy)
    if isinstance(steps.measure, Measure):
        steps = steps._replace(measure=_under(Measure, steps.measure, measure))
    elif steps.measure is not None:
        checked = guarded("StepPolicy.measure", steps.measure, returned.arrays)
        steps = steps._replace(measure=checked)
    if steps.probe is not None:
        steps = steps._replace(probe=_under(Probe, steps.probe, probe))
    return Algorithm(
        local=_with_guarded_optimizer(_under(LocalRule, algorithm.local, local)),
        policy=steps,
        server=_under(ServerRule, algorithm.server, server),
        refine=None
        if refine is None
        else _under(
            Refinement,
            refine,
            {
                "clients": returned.refined,
                "send": returned.arrays,
                "server": returned.refined_server,
            },
        ),
    )


def _under(kind: type, part: Any, accepts: dict[str, Callable]) -> Any:
    """A part whose own functions are guarded."""
    changed = {}
    for field, accept in accepts.items():
        function = getattr(part, field)
        default = kind._field_defaults.get(field)
        # a `Mean` is known by its type
        if function is None or function is default or isinstance(function, Mean):
            continue
        changed[field] = guarded(f"{kind.__name__}.{field}", function, accept)
    return part._replace(**changed) if changed else part


def _with_guarded_optimizer(rule: LocalRule) -> LocalRule:
    """The rule, what its optimizer returns under its contract as well."""
    of_lr = rule.optimizer
    if of_lr is None:
        return rule

    def optimizer(lr: Array) -> optax.GradientTransformation:
        functions = of_lr(lr)._asdict()
        part = "LocalRule.optimizer's"
        guards = {n: guarded(f"{part} {n}", one) for n, one in functions.items()}
        return optax.GradientTransformation(**guards)

    return rule._replace(optimizer=optimizer)


def guarded_task(task: Task) -> Task:
    """The same task, its functions under their contract."""

    def outputs(name: str, result: Any, params: PyTree, x: Any, *key: Any) -> None:
        logits = logits_of(result)
        if logits.shape[:1] != x.shape[:1]:
            raise SettingError(
                f"{name} returned logits {check.leaf(logits)} for a batch of "
                f"{x.shape[0]}; return one row per example."
            )

    train, accuracy, metrics = task.apply_train, task.accuracy, task.metrics
    if isinstance(metrics, Mapping):  # else its hash says so
        metrics = {
            name: guarded("Task.metrics", metric) if callable(metric) else metric
            for name, metric in metrics.items()
        }
    return task._replace(
        init=guarded("Task.init", task.init, returned.parameters),
        apply=guarded("Task.apply", task.apply, outputs),
        # known by identity, and its labels are looked at: see core/scores.py
        loss=task.loss
        if task.loss is cross_entropy
        else guarded("Task.loss", task.loss),
        apply_train=train and guarded("Task.apply_train", train, outputs),
        accuracy=accuracy and guarded("Task.accuracy", accuracy),
        metrics=metrics,
    )
