"""SGD on a labelled public set, as refinements take it.

    G     <- grad [ mean_{x in B} loss + weight J(B) ] + weight_decay theta
    v     <- rho v + G,    theta <- theta - lr v                      v = 0 at first

The mean over x may be the sum. The public set is passed in batches B, every epoch in a new
order, its last partial batch kept. Inputs are seen as in evaluation, without augmentation
and dropout, unless asked for.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import check
from .core import (
    Array,
    Batch,
    Key,
    Outputs,
    Params,
    RefineSetup,
    RoundView,
    clip,
    predict_train,
    public_examples,
    weighted_loss,
)
from .errors import SettingError


class SGD(NamedTuple):
    """The SGD on a public set. None: as clients train in this round."""

    lr: float | Array | None = None
    momentum: float | Array | None = None
    batch_size: int | None = None
    batch_loss: str = "mean"  # or "sum" of the losses of a batch
    shuffle: bool = True
    augment: bool = False  # and dropout: the model in training mode

    def checked(self) -> "SGD":
        """The same settings, checked.

        Raises:
          SettingError: a number is out of its range.
        """
        check.one_of("batch_loss", self.batch_loss, ("mean", "sum"))
        if self.lr is not None:
            check.positive("lr", self.lr)
        if self.momentum is not None:
            check.between("momentum", self.momentum, 0, 1, closed="left")
        check.at_least("batch_size", self.batch_size, 1, none="the clients'")
        return self

    def width(self, batch_size: int, size: int) -> int:
        """B, at most the whole public set."""
        wanted = batch_size if self.batch_size is None else self.batch_size
        return min(wanted, size)


Penalty = Callable[[Outputs, Batch], Array]


def no_penalty(outputs: Outputs, batch: Batch) -> Array:
    """Nothing besides the loss."""
    return jnp.zeros((), outputs.logits.dtype)


def num_batches(view: RoundView, sgd: SGD) -> int:
    """SGD steps in one pass over the public set, ceil(|P| / B)."""
    size = len(public_examples(view.public)[0])
    return -(-size // sgd.width(view.cohort.batch_size, size))


def finetune(
    view: RoundView,
    params: Params,
    num_epochs: int | Array,
    key: Key,
    sgd: SGD,
    penalty: Penalty = no_penalty,
    weight: float | Array = 0.0,
) -> tuple[Params, Array]:
    """One model after some passes over the public set, and the mean J on the way.

    Args:
      view: of the round; its public set has labels.
      params: where it starts.
      num_epochs: passes; may be traced.
      key: of the order, and of augmentation.
      sgd: how.
      penalty: J of the model's outputs on a batch; constants have no gradient.
      weight: of J in what is minimised.
    """
    task, setting = view.task, view.setting
    x, y = public_examples(view.public)
    size, steps = len(x), num_batches(view, sgd)
    width = sgd.width(view.cohort.batch_size, size)
    lr = setting.lr if sgd.lr is None else sgd.lr
    momentum = setting.momentum if sgd.momentum is None else sgd.momentum
    momentum = 0.0 if momentum is None else momentum  # the clients' is not SGD
    key_order, key_model = jax.random.split(key)
    dtype = jnp.result_type(float)

    def loss(params, batch, key):
        if sgd.augment:
            outputs = predict_train(task, params, batch.x, key)
        else:
            outputs = task.apply(params, batch.x)
        j = penalty(outputs, batch)
        size = batch.weight.sum() if sgd.batch_loss == "sum" else 1
        return size * weighted_loss(task, outputs, batch) + weight * j, j

    def step(carry, taken):
        params, velocity, total = carry
        rows, real, key = taken
        batch = Batch(x[rows], y[rows], real)
        (_, j), grads = jax.value_and_grad(loss, has_aux=True)(params, batch, key)
        grads, _ = clip(grads, setting.clip_norm)
        velocity = jax.tree.map(
            lambda v, g, p: (momentum * v + g + setting.weight_decay * p).astype(p.dtype),
            velocity, grads, params,
        )  # fmt: skip
        params = jax.tree.map(
            lambda p, v: (p - lr * v).astype(p.dtype), params, velocity
        )
        return (params, velocity, total + j.astype(dtype) * real.sum()), ()

    def epoch(i, carry):
        order = jnp.arange(size)
        if sgd.shuffle:
            order = jax.random.permutation(jax.random.fold_in(key_order, i), size)
        position = jnp.arange(steps * width).reshape(steps, width)
        rows = order[jnp.minimum(position, size - 1)]
        real = (position < size).astype(dtype)
        keys = jax.random.split(jax.random.fold_in(key_model, i), steps)
        return jax.lax.scan(step, carry, (rows, real, keys))[0]

    begin = params, jax.tree.map(jnp.zeros_like, params), jnp.zeros((), dtype)
    params, _, total = jax.lax.fori_loop(0, num_epochs, epoch, begin)
    return params, total / jnp.maximum(num_epochs * size, 1)


def num_selected(fraction: float | Array, num_clients: int | Array) -> Any:
    """floor(n p), an int where both are numbers, else an int32 scalar."""
    # 0.29 of 100 are 29, though the product is a little less in floating point
    if isinstance(num_clients, int) and not check.is_tracer(fraction):
        return math.floor(float(fraction) * num_clients * (1 + 1e-6))
    share = jnp.asarray(fraction) * num_clients
    return jnp.floor(share * (1 + 1e-6)).astype(jnp.int32)


def check_labelled(name: str, setup: RefineSetup) -> None:
    """Raises SettingError unless the public set has labels and inputs as the clients'."""
    x, y = public_examples(setup.public)
    shape, dtype = tuple(setup.example.shape), setup.example.dtype
    if tuple(x.shape[1:]) != shape or x.dtype != dtype:
        raise SettingError(
            f"public inputs are {x.dtype}{list(x.shape[1:])} but the clients' "
            f"{dtype}{list(shape)}; give them alike."
        )
    if y is None:
        raise SettingError(
            f"{name} trains on labels but the public set has none; give public=(x, y)."
        )
    if y.ndim != 1 or not jnp.issubdtype(y.dtype, jnp.integer) or not len(y):
        raise SettingError(
            f"{name} needs one integer label per public example but got "
            f"{y.dtype}{list(y.shape)}; give such labels."
        )
    if check.is_tracer(y):
        return
    low, high = np.asarray(y).min(), np.asarray(y).max()
    if low < 0 or high >= setup.num_classes:
        raise SettingError(
            f"public labels lie in [{low}, {high}] but there are {setup.num_classes} "
            "classes; give labels from 0 on, below that."
        )


def check_selects(fraction: float | Array, setup: RefineSetup) -> None:
    """Raises SettingError if no cohort is large enough that the fraction is anybody."""
    size = setup.cohort_size
    if not check.is_tracer(fraction) and num_selected(fraction, size) == 0:
        raise SettingError(
            f"fraction={fraction:g} of a cohort of {size} is no client; write at least "
            f"{-(-10_000 // size) / 10_000:g}, or leave the refinement out.",
            setting="fraction",
        )
