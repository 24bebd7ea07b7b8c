"""The types that everything is made of, and what is being learnt."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

Array = jax.Array
PyTree = Any
Key = jax.Array
Params = PyTree
ClientState = PyTree  # kept by one client between rounds
ServerExtra = PyTree  # kept by the server beside the parameters
PolicyState = PyTree  # kept by a step policy between rounds
Measurement = PyTree  # taken by one client at the broadcast model, before training
RefineState = PyTree  # kept by a refinement between rounds


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
    `precision` is what `with_precision` was told.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], Outputs]
    loss: Callable[[Array, Array], Array]  # (logits, y) -> per-example loss [batch]
    apply_train: Callable[[Params, Array, Key], Outputs] | None = None
    apply_frozen: Callable[[Params, Array, Key], Outputs] | None = None
    head: Callable[[Params, Array], Array] | None = None
    restore: Callable[[Array], Array] | None = None
    precision: str = "float32"


def wrapped(task: Task, around: Callable[[Callable], Callable]) -> Task:
    """The task with `around(function)` for every function that computes its model."""
    names = ("apply", "apply_train", "apply_frozen", "head")
    given = {name: getattr(task, name) for name in names}
    return task._replace(
        **{name: around(f) for name, f in given.items() if f is not None}
    )
