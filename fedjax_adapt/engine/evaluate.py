"""What a model is worth: on a test set, on each of its classes, and to each client.

All three count the same: whether the model is right about each example, its loss, and
what the task's metrics need of it, found in one pass in evaluation mode.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import (
    Algorithm,
    Array,
    Metrics,
    Params,
    State,
    Task,
    accuracy_of,
    logits_of,
    losses_of,
)
from ..data.dataset import FederatedDataset
from ..errors import SettingError
from .personal import OwnExamples, blocks_of, one_for_each, own_examples, own_means
from .scores import (
    Scores,
    by_class,
    by_client,
    check_model,
    named,
    named_by_client,
    overall,
    scores,
)


def evaluate(
    task: Task,
    params: Params,
    test: tuple[Array, Array],
    batch_size: int = 500,
    devices: int | str = 1,
) -> Metrics:
    """Accuracy, mean loss and the task's metrics over all examples, in evaluation mode.

    Accuracy is NaN where the targets are no labels, as in a regression.

    Args:
      task: the task.
      params: parameters of its model.
      test: (x [n, ...], y [n]).
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.

    Raises:
      ValueError: there are no test examples, or fewer than `devices` devices, or an
        argument is not of its kind; or the task's loss, its accuracy or a metric does
        not return one number per example.
    """
    check.at_least("batch_size", batch_size, 1)
    _check_call("evaluate(task, params, test)", task, params, test)
    scored = scores(task, params, test, batch_size, devices)
    metrics = overall(scored)
    if not task.metrics:
        return metrics
    every = jnp.ones(scored.loss.shape)
    return metrics._replace(named=named(task, scored.each, every))


def class_accuracy(
    task: Task,
    params: Params,
    test: tuple[Array, Array],
    num_classes: int,
    batch_size: int = 500,
    devices: int | str = 1,
) -> Array:
    """The share of each label's examples that the model gets right, [num_classes].

    It is 0 for a label without examples.

    Args:
      task: the task.
      params: parameters of its model.
      test: (x [n, ...], y [n]), integer labels.
      num_classes: how many labels there are.
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.

    Raises:
      ValueError: there are no test examples, they have not one integer label each, one
        is `num_classes` or more, or there are fewer than `devices` devices.
    """
    check.at_least("batch_size", batch_size, 1)
    _check_call("class_accuracy(task, params, test, num_classes)", task, params, test)
    check.at_least("num_classes", num_classes, 1)
    y = test[1] if check.array(test[1]) else np.asarray(test[1])
    if not jnp.issubdtype(y.dtype, jnp.integer) or y.ndim != 1:
        raise SettingError(
            f"class_accuracy got labels {y.dtype}{list(y.shape)} but counts by label; give "
            f"one integer each, [{len(y)}], such as y.argmax(1) of one-hot labels."
        )
    if not check.is_tracer(test[1]):
        largest = int(jnp.max(jnp.asarray(test[1])))
        if largest >= num_classes:
            raise SettingError(
                f"num_classes={num_classes} but a test label is {largest}; write "
                f"num_classes={largest + 1} or more."
            )
    scored = scores(task, params, test, batch_size, devices)
    return by_class(scored, jnp.asarray(test[1]), num_classes)


def evaluate_clients(
    task: Task,
    params: Params,
    data: FederatedDataset,
    batch_size: int = 500,
    devices: int | str = 1,
    on: Literal["test", "train"] | None = None,
) -> Metrics:
    """Accuracy, mean loss and metrics on every client's own examples, [clients].

    Of one model, in one pass over all examples, or of a model per client, each on those
    of its client; then the task's metrics are left out. No copy of the examples is made,
    and they are seen without noise. All are 0 for a client without examples: average over
    the others.

    Args:
      task: the task.
      params: parameters of its model; or a stack of them, leading axis clients, as from
        `personal_models`.
      data: the federated data set.
      batch_size: examples at a time; it bounds memory and changes no result.
      devices: how many devices share the examples; "auto": all.
      on: the clients' "test" sets, `data.client_tests`, or what they "train" on; None:
        their test sets where the data have them, else what they train on.

    Raises:
      ValueError: there are fewer than `devices` devices, or no test sets of clients, or
        `params` are neither of one model nor of one for each client.
    """
    check.kinds(
        "evaluate_clients(task, params, data)",
        task=(task, Task),
        params=(params, check.tree),
        data=(data, FederatedDataset),
    )
    check.at_least("batch_size", batch_size, 1)
    own = own_examples(data, on)
    if one_for_each(task, params, data.num_clients):
        return _of_own_models(task, _row, (), params, own, batch_size, devices)
    scored = scores(task, params, (own.x, own.y), batch_size, devices)
    metrics = by_client(scored, own.index, own.size)
    if not task.metrics:
        return metrics
    named = named_by_client(task, scored.each, own.index, own.size)
    return metrics._replace(named=named)


def evaluate_personal(
    algorithm: Algorithm,
    task: Task,
    state: State,
    data: FederatedDataset,
    batch_size: int = 500,
    devices: int | str = 1,
    on: Literal["test", "train"] | None = None,
) -> Metrics:
    """As `evaluate_clients` of `personal_models`, which are never there all at once."""
    own, found = own_examples(data, on), []
    for ids, rows in blocks_of(algorithm, state):
        some = own._replace(index=own.index[ids], size=own.size[ids])
        found.append(
            _of_own_models(
                task, algorithm.local.personal, state.params, rows, some, batch_size,
                devices,
            )
        )  # fmt: skip
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)


def _row(shared: tuple[()], row: Params) -> Params:
    """A client's model, of a stack of models."""
    del shared
    return row


def _of_own_models(
    task, model_of, shared, table, own: OwnExamples, batch_size, devices
) -> Metrics:
    """What each client's own model is worth on its own examples, [clients]."""
    mean = own_means(task, score, model_of, shared, table, own, batch_size, devices)
    return Metrics(accuracy=mean.right, loss=mean.loss)


def score(task: Task, params: Params, x: Array, y: Array) -> Scores:
    """What a model makes of each of the examples x [n, ...], y [n]."""
    outputs = task.apply(params, x)
    right = accuracy_of(task, logits_of(outputs), y)
    return Scores(right, losses_of(task, outputs, y), {})


def _check_call(call: str, task: Task, params: Params, test: Any) -> None:
    """Raises ValueError unless a model can be evaluated so."""
    check.kinds(call, task=(task, Task), params=(params, check.tree))
    caller = call.partition("(")[0]
    if test is None or (check.pair(test) and np.shape(test[1]) == (0,)):
        raise SettingError(
            f"{caller} got test={test}; give (x, y), as in "
            "from_clients(..., test=(x, y))."
        )
    check.kinds(call, test=(test, check.pair))
    check_model(caller, task, params)
    for name, part in zip("xy", test, strict=True):
        _check_examples(caller, name, part)
    n, labels = np.shape(test[0])[0], np.shape(test[1])[0]
    if n != labels:
        raise SettingError(
            f"{caller} got {n} inputs and {labels} labels for test=(x, y); give one label "
            "per input."
        )


def _check_examples(caller: str, name: str, part: Any) -> None:
    """Raises ValueError unless it is an array of numbers, or becomes one."""
    if isinstance(part, dict):
        raise SettingError(
            f"{caller} got a dict for {name} of test=(x, y); give one array, such as its "
            "columns side by side, and let the model cut them up."
        )
    part = part if check.array(part) else np.asarray(part)
    if part.dtype.kind in "USO":
        raise SettingError(
            f"{caller} got text for {name} of test=(x, y); write numbers, such as "
            f"numpy.unique({name}, return_inverse=True)[1]."
        )
    if part.ndim == 0:
        raise SettingError(
            f"{caller} got one number for {name} of test=(x, y); give an array with a row "
            "per example."
        )
