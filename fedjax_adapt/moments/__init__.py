r"""Mean and variance of per-example gradients, without a gradient per example.

    mean = 1/B sum_b g_b        var = 1/B sum_b (g_b - mean)^2        for every parameter

One pass forward and one backward over the whole batch give what every operation that
reads a parameter is given, x, and the gradient of each example's loss by what it gives, d.
For a product x W the gradients per example are outer products x_b d_b, and with x = X + x',
d = D + d' around the means X and D over the batch

    mean = X D + E[x' d']
    var  = E[x'^2 d^2] + X^2 E[d'^2] + 2 X E[x' d' d] - E[x' d']^2

which are matrix products. In this form nothing but deviations is subtracted, so that a
variance far below the squared mean survives float32. Every other operation (convolutions,
recurrent layers, biases) is differentiated for some examples at a time, and so is the
whole loss by parameters that are read in several places.

References:
  Dangel, Kunstner & Hennig, "BackPACK: Packing more into Backprop", ICLR 2020,
  https://arxiv.org/abs/1912.10985. Appendix A.3 (the second moment).
  Chan, Golub & LeVeque, "Algorithms for Computing the Sample Variance", The American
  Statistician 37(3), 1983. Eq. (2.1): merging parts.
"""

import jax
import jax.numpy as jnp
import numpy as np

from .. import check
from ..core import Array, Batch, Params, Task, losses_of
from ..errors import SettingError
from .program import Program, Tap, taps_of, trace
from .sums import Moments, Parts, Products, accumulated, leaves_of, moments_of


def gradient_moments(
    task: Task,
    params: Params,
    batch: Batch,
    micro_batch: int | None = None,
    generic: bool = False,
) -> Moments:
    """The moments of the loss's gradients over a batch, the model in evaluation mode.

    Equal to what `jax.vmap(jax.grad(...))` over the examples says, within rounding, for
    every task whose outputs for an example do not depend on the others in the batch.

    Args:
      task: its `apply` and `loss`.
      params: where the gradients are taken.
      batch: its weights say which examples count: 1, or 0 for padding.
      micro_batch: examples whose gradients are held at once; None: what is fast.
      generic: whether to take each example's gradient as it is, whatever the model.

    Raises:
      SettingError: an argument is not of its kind, the parts of the batch are not of as
        many examples, or a weight is neither 0 nor 1.
    """
    check.kinds(
        "gradient_moments(task, params, Batch(x, y, weight)), with weights of 1",
        task=(task, Task),
        params=(params, check.tree),
        batch=(batch, Batch),
        generic=(generic, bool),
    )
    check.at_least("micro_batch", micro_batch, 1, none="what is fast")
    shapes = [jnp.shape(part) for part in batch]
    if len({shape[:1] for shape in shapes}) > 1 or len(shapes[2]) != 1:
        x, y, weight = map(list, shapes)
        raise SettingError(
            f"gradient_moments got a batch of x{x}, y{y} and weight{weight}; give every "
            "example one label and one weight."
        )
    if not check.is_tracer(batch.weight):
        weights = np.asarray(batch.weight)
        other = np.flatnonzero((weights != 0) & (weights != 1))
        if len(other):
            raise SettingError(
                f"gradient_moments got a weight of {weights[other[0]]} (example "
                f"{other[0]}); write 1 for an example that counts and 0 for padding."
            )
    # a mask becomes the numbers that the products by weight need
    batch = batch._replace(weight=jnp.asarray(batch.weight) + 0.0)
    parts = gradient_parts(task, params, batch, micro_batch, generic)
    mean, var, _ = zip(*map(moments_of, leaves_of(parts)), strict=True)
    whole = jax.tree.structure(params).unflatten
    return Moments(whole(mean), whole(var), batch.weight.sum())


def gradient_parts(
    task: Task,
    params: Params,
    batch: Batch,
    micro_batch: int | None = None,
    generic: bool = False,
) -> Parts:
    """The factors of the moments: per parameter `Products`, or its `Moments`.

    Products are as small as the batch, and those of many clients can be had at once; see
    `gradient_moments` for the arguments.
    """
    leaves, structure = jax.tree.flatten(params)

    def losses(leaves, x, y):  # [batch]
        return losses_of(task, task.apply(structure.unflatten(leaves), x), y)

    x, y, weight = batch
    found: dict[int, Products | Moments] = {}
    if not generic and x.shape[0] > 1:  # one example's axis is like any other
        program, taps = _traced(losses, leaves, x, y)
        for tap, seen in zip(taps, _seen(program, taps, leaves, x, y), strict=True):
            found.update(_tap_parts(tap, leaves, *seen, weight, micro_batch))
    rest = [i for i in range(len(leaves)) if i not in found]
    if rest:
        found.update(_generic(losses, leaves, rest, x, y, weight, micro_batch))
    return structure.unflatten([found[i] for i in range(len(leaves))])


def _traced(losses, leaves, x, y) -> tuple[Program, list[Tap]]:
    """The losses of the batch, and the operations whose parameters have moments there."""
    shape = lambda array, n: jax.ShapeDtypeStruct((n, *array.shape[1:]), array.dtype)
    whole, single = (
        trace(losses, leaves, [shape(x, n), shape(y, n)]) for n in (x.shape[0], 1)
    )
    return whole, taps_of(whole, single)


def _seen(program: Program, taps: list[Tap], leaves, x, y):
    """For every tap what it is given, and the losses' gradients by what it gives.

    Pairs ([values], [gradients]), each with the examples along the tap's axes.
    """

    def total(added):
        values = {**program.known, **dict(enumerate([*leaves, x, y]))}
        extras = {
            id(tap.whole): zip(tap.gives, some, strict=True)
            for tap, some in zip(taps, added, strict=True)
        }
        for step in program.steps:
            results = step(*(values[n] for n in step.takes))
            for i, extra in extras.get(id(step), ()):
                results[i] = results[i] + extra
            values.update(zip(step.gives, results, strict=True))
        given = [[values[n] for n in tap.takes] for tap in taps]
        return values[program.result].sum(), given

    results = [[tap.whole.alone.outvars[i].aval for i in tap.gives] for tap in taps]
    nothing = jax.tree.map(lambda aval: jnp.zeros(aval.shape, aval.dtype), results)
    gradients, given = jax.grad(total, has_aux=True)(nothing)
    return zip(given, gradients, strict=True)


def _tap_parts(
    tap: Tap, leaves, values, gradients, weight: Array, micro_batch: int | None
) -> dict[int, Products | Moments]:
    """The factors of the moments of the parameters of one operation."""
    if tap.is_product:
        (x,), (d,) = values, gradients
        return {tap.params[0]: Products(x, d, weight)}
    tap_params = [leaves[i] for i in tap.params]
    front = lambda arrays, axes: [
        jnp.moveaxis(a, axis, 0) for a, axis in zip(arrays, axes, strict=True)
    ]
    back = lambda arrays, axes: [
        jnp.expand_dims(a, axis) for a, axis in zip(arrays, axes, strict=True)
    ]

    def gradient(example):  # of one example
        values, gradients = example
        run = lambda tap_params: tap.single(tap_params, back(values, tap.axes))
        return jax.vjp(run, tap_params)[1](back(gradients, tap.given_axes))[0]

    examples = (front(values, tap.axes), front(gradients, tap.given_axes))
    moments = accumulated(gradient, examples, weight, tap_params, micro_batch)
    return _by_leaf(tap.params, moments)


def _generic(losses, leaves, rest, x, y, weight, micro_batch) -> dict[int, Moments]:
    """The moments by some parameters from the gradient of every example's loss."""

    def loss(params, example):
        all_ = list(leaves)
        for i, leaf in zip(rest, params, strict=True):
            all_[i] = leaf
        x, y = example
        return losses(all_, x[None], y[None])[0]

    params = [leaves[i] for i in rest]
    gradient = lambda example: jax.grad(loss)(params, example)
    return _by_leaf(rest, accumulated(gradient, (x, y), weight, params, micro_batch))


def _by_leaf(numbers, moments: Moments) -> dict[int, Moments]:
    return {
        i: Moments(mean, var, moments.count)
        for i, mean, var in zip(numbers, moments.mean, moments.var, strict=True)
    }
