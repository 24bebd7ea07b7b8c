"""In which precision a model is computed.

    "float32"  products and convolutions of float32 on accelerators, too, where JAX would
               round their factors (to TF32 on a GPU); the default
    "tf32"     factors rounded to TF32's 10 bits where an accelerator has it, sums in
               float32; on a CPU nothing changes
    "bf16"     the model, forward and backward, in bfloat16 from parameters in float32:
               rounded on the way in, as are the examples; logits and features come out in
               float32, and so does the gradient

Whatever it is, parameters, the states of clients and server, sums over clients, losses
and metrics are float32. What is computed besides the model is never in bfloat16.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike

from .. import check
from ..errors import SettingError
from .task import Array, PyTree, Task, wrapped

PRECISIONS = ("float32", "tf32", "bf16")


def with_precision(task: Task, precision: str) -> Task:
    """The task, trained and evaluated in another precision.

    A model written by hand must not widen what it is given: "bf16" is what its parameters
    and floating inputs come in. They are rounded before they are normalised, so that
    those far from 0, such as 1000 +- 1, want to be normalised beforehand.

    Args:
      task: from `classification`, or by hand.
      precision: "float32", "tf32" or "bf16".

    Raises:
      SettingError: there is no such precision, or the task is in bf16 already.
    """
    check.kinds(
        "with_precision(task, precision)",
        task=(task, Task),
        precision=(precision, str),
    )
    check.one_of("precision", precision, PRECISIONS)
    if task.precision == precision:
        return task
    if task.precision == "bf16":
        raise SettingError(
            f"precision={precision} came to a task in bf16; give it the task that bf16 "
            "was made of.",
            setting="precision",
        )
    computed = task._replace(precision=precision)
    return wrapped(computed, _in_bfloat16) if precision == "bf16" else computed


@contextmanager
def precise(task: Task) -> Iterator[None]:
    """A context in which matrix products have the precision of the task.

    The block is around whole rounds, since a gradient that is written by hand is traced
    after what it is the gradient of.
    """
    level = products(task.precision, jax.default_backend())
    if level is None:
        yield
        return
    with jax.default_matmul_precision(level):
        yield


def products(precision: str, backend: str) -> str | None:
    """`jax.default_matmul_precision` for products of float32; None: JAX's own.

    A CPU has no less than float32, whatever it is asked for. XLA's kernels for a GPU take
    TF32 where nothing is asked for, and float32 where "tensorfloat32" is.
    """
    if backend == "cpu":
        return None
    if precision != "tf32":
        return "float32"
    return "default" if backend == "gpu" else "tensorfloat32"


def wide_dtype(dtype: DTypeLike) -> DTypeLike:
    """float32 for half precision, any other dtype as it is.

    In half precision a sum no longer grows by terms that are a 512th of it, noise has a
    mean that is not 0, and in float16 the square of 256 is infinite.
    """
    floats = jnp.issubdtype(dtype, jnp.inexact)
    return jnp.promote_types(dtype, jnp.float32) if floats else dtype


def widened(tree: PyTree) -> PyTree:
    """`tree` in `wide_dtype`, for norms, sums and means."""
    return jax.tree.map(lambda leaf: leaf.astype(wide_dtype(leaf.dtype)), tree)


def norm_of(tree: PyTree, squared: bool = False) -> Array:
    """The norm over all tensors of `tree`, or its square, added up in `wide_dtype`."""
    return optax.tree.norm(widened(tree), squared=squared)


def of_widened(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The same optimizer, given parameters and gradients that are `widened`.

    In float16 Adam's epsilon is 0 and so are squares of small gradients.
    """

    def update(grads, state, params):
        return optimizer.update(widened(grads), state, widened(params))

    return optax.GradientTransformation(
        lambda params: optimizer.init(widened(params)), update
    )


def _in_bfloat16(function: Callable) -> Callable:
    """A function of parameters and other arguments, computed in bfloat16."""

    def rounded(params, *arguments):
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(params) if _is_float(leaf)]
        wide = jnp.result_type(*dtypes) if dtypes else jnp.float32
        result = function(*_floats_as(jnp.bfloat16, (params, *arguments)))
        return _floats_as(wide, result)

    return rounded


def _floats_as(dtype, tree: PyTree) -> PyTree:
    change = lambda leaf: leaf.astype(dtype) if _is_float(leaf) else leaf
    return jax.tree.map(change, tree)


def _is_float(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.floating)
