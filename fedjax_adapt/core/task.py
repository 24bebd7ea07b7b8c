"""The types that everything is made of, and what is being learnt."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import check
from ..errors import SettingError

Array = jax.Array
PyTree = Any
Key = jax.Array
Params = PyTree
ClientState = PyTree  # kept by one client between rounds
ServerExtra = PyTree  # kept by the server besides the parameters
PolicyState = PyTree  # kept by a step policy between rounds
Measurement = PyTree  # taken by one client at the broadcast model, before training
RefineState = PyTree  # kept by a refinement between rounds


class Outputs(NamedTuple):
    """The outputs of a model for a batch.

    Attributes:
      logits: [batch, classes]; numbers that are predicted, [batch, outputs], in a
        regression, and [batch, time, vocabulary] of a language model.
      features: the input of the last layer, [batch, width]; None: not shown.
    """

    logits: Array
    features: Array | None = None


class Batch(NamedTuple):
    """Examples of one client. A partial batch is padded and the padding weighs 0.

    Attributes:
      x: inputs, [batch, ...], in the dtype of the data set.
      y: labels or targets, [batch, ...].
      weight: [batch], 1 for an example, 0 for padding.
    """

    x: Array
    y: Array
    weight: Array


class Metric(NamedTuple):
    """A number of many examples that need not be a mean of theirs.

    Attributes:
      each: (logits, y) -> what it needs of each example, a tree of [batch, ...].
      final: (that of all examples, weight [n]) -> the number, a scalar; the weight is 1
        for an example that counts and 0 for one that does not.
    """

    each: Callable[[Array, Array], PyTree]
    final: Callable[[PyTree, Array], Array]


class Task(NamedTuple):
    """A learning task: a model and a loss, as pure functions.

    Attributes:
      init: key -> parameters, a tree of float arrays.
      apply: (params, x [batch, ...]) -> Outputs, the model in evaluation mode.
      loss: (logits, y) -> the loss of each example, [batch]; means are taken outside.
      apply_train: (params, x, key) -> Outputs, the model in training mode: augmentation,
        dropout. None: `apply`.
      apply_frozen: likewise, the model in evaluation mode on the inputs that
        `apply_train` makes of x under the same key. None: `apply`.
      head: (params, features [batch, width]) -> logits, the last layer alone, such that
        head(params, apply(params, x).features) are apply(params, x).logits. None: it
        cannot be distinguished.
      restore: standardised inputs [batch, ...] -> what `apply` takes, where that
        standardises. None: it does not.
      precision: what `with_precision` was given.
      accuracy: (logits, y) -> the share of each example that is right, [batch], in
        [0, 1]. None: whether its largest logit is its integer label, the mean over the
        labels of an example that has several, and NaN where there is no such label.
      metrics: what `evaluate` reports besides accuracy and loss, by name: a function
        (logits, y) -> [batch], whose mean is taken, or a `Metric`; see `metrics`.
    """

    init: Callable[[Key], Params]
    apply: Callable[[Params, Array], Outputs]
    loss: Callable[[Array, Array], Array]
    apply_train: Callable[[Params, Array, Key], Outputs] | None = None
    apply_frozen: Callable[[Params, Array, Key], Outputs] | None = None
    head: Callable[[Params, Array], Array] | None = None
    restore: Callable[[Array], Array] | None = None
    precision: str = "float32"
    accuracy: Callable[[Array, Array], Array] | None = None
    metrics: Mapping[str, Metric | Callable[[Array, Array], Array]] = {}

    def __hash__(self) -> int:
        """That of the functions: programs are kept by task, and a dict has none.

        Raises:
          SettingError: `metrics` is no mapping of names; every program asks here first.
        """
        if not isinstance(self.metrics, Mapping):
            raise SettingError(
                f"Task.metrics is {check.kind_of(self.metrics)}; write a dict by name, "
                'such as metrics={"f1": fa.metrics.f1}.'
            )
        for name in self.metrics:
            if not isinstance(name, str) or not name:
                raise SettingError(
                    f"Task.metrics has a metric named {name!r}; write a name in quotes, "
                    'such as metrics={"f1": fa.metrics.f1}.'
                )
        return hash((*self[:-1], frozenset(self.metrics.items())))


def wrapped(task: Task, around: Callable[[Callable], Callable]) -> Task:
    """The task with `around(function)` for every function that computes its model."""
    names = ("apply", "apply_train", "apply_frozen", "head")
    given = {name: getattr(task, name) for name in names}
    return task._replace(
        **{name: around(f) for name, f in given.items() if f is not None}
    )


def tree_bytes(tree: PyTree) -> int:
    """Bytes of a tree of arrays, such as a model; works on shapes alone too."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def shapes_of(tree: PyTree) -> tuple[Any, list[tuple[int, ...]]]:
    """The structure of a tree and the shapes of its leaves."""
    return jax.tree.structure(tree), [jnp.shape(leaf) for leaf in jax.tree.leaves(tree)]


def rows_are_like(table: PyTree, row: PyTree) -> bool:
    """Whether every row of a table has the structure, shapes and dtypes of `row`."""
    kinds = lambda tree, axis: [
        (jnp.shape(leaf)[axis:], jnp.result_type(leaf))
        for leaf in jax.tree.leaves(tree)
    ]
    alike = jax.tree.structure(table) == jax.tree.structure(row)
    return alike and kinds(table, 1) == kinds(row, 0)


def by_row(values: Array, leaf: Array) -> Array:
    """`values` with as many axes as `leaf`, whose first axes are theirs."""
    return values.reshape(*values.shape, *(1,) * (leaf.ndim - values.ndim))


def all_finite(tree: PyTree) -> Array:
    """Whether all numbers of a tree are finite, a scalar; true of a tree without any."""
    each = [jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(tree)]
    return jnp.stack(each).all() if each else jnp.array(True)


def equal(one: PyTree, other: PyTree) -> Array:
    """Whether all numbers of two trees are equal, a scalar; NaN equals nothing."""
    each = jax.tree.leaves(jax.tree.map(jnp.array_equal, one, other))
    return jnp.stack(each).all()
