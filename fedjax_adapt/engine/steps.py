"""The loop over the local steps of a client, among clients that take other numbers of them.

Clients side by side step together, and one that is done keeps its model. On a CPU the
loop ends with the longest of them. Before each trip of such a loop the host of an
accelerator waits for the device, which takes longer than a step of a small model: there
the number of trips is known when the round is traced, wherever that of the steps is, and
else the loop looks once in a block of steps who goes on. Which examples a step reads hangs
on no model, so it is worked out for many steps at once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Array, PyTree, by_row, wide_dtype
from . import xla

# steps between two waits of an accelerator's host, where nothing better is known
BLOCK = 8
DRAWN = 64  # steps whose rows are worked out at once


class Pace(NamedTuple):
    """The step counts that are known before a round is traced."""

    known: int | None = None  # steps that every client takes which trains at all
    block: int = BLOCK  # steps between two looks at who is done, on an accelerator


class Parts(NamedTuple):
    """The functions of one client's local training, without a client axis.

    `ready` is what stays until its last step, `progress` what a step changes, `rows` what
    a step reads that hangs on neither.
    """

    begin: Callable[[PyTree], tuple[PyTree, PyTree]]  # client -> (ready, progress)
    draw: Callable[[PyTree, Array], PyTree]  # (ready, step) -> rows
    step: Callable[[PyTree, PyTree, Array, PyTree], PyTree]  # -> progress
    end: Callable[[PyTree, PyTree], PyTree]  # (ready, progress) -> result


def train(
    parts: Parts, client: PyTree, num_steps: Array, alone: bool, pace: Pace
) -> PyTree:
    """The result of a client after all its local steps.

    Args:
      parts: of its round.
      client: what `parts.begin` takes.
      num_steps: of the client.
      alone: whether no other client steps with it.
      pace: of the round.
    """
    ready, progress = parts.begin(client)
    progress = xla.written_once(progress, num_steps)
    one = lambda progress, step, rows: parts.step(ready, progress, step, rows)
    draw = lambda step: parts.draw(ready, step)
    progress = repeat(one, draw, progress, num_steps, alone, pace)
    return parts.end(ready, progress)


def repeat(
    one: Callable[[PyTree, Array, PyTree], PyTree],
    draw: Callable[[Array], PyTree],
    progress: PyTree,
    num_steps: Array,
    alone: bool,
    pace: Pace,
) -> PyTree:
    """`progress` after so many steps of one client.

    Args:
      one: (progress, step, rows) -> progress.
      draw: step -> the rows it reads.
      progress: before the first step.
      num_steps: of the client.
      alone: whether no other client steps with it, as far as anybody knows.
      pace: what is known of the number.
    """
    on_cpu = jax.default_backend() == "cpu"
    ends_exactly = alone and on_cpu
    longest = num_steps if ends_exactly else xla.largest(num_steps)

    def masked(progress: PyTree, step: Array, rows: PyTree) -> PyTree:
        new = xla.apart_on_tpu(one(progress, step, rows))
        return new if ends_exactly else chosen(step < num_steps, new, progress)

    block = lambda progress, first, size: take(masked, draw, progress, first, size)
    if pace.known is not None and not ends_exactly:
        num_blocks, size = known_blocks(pace.known)
        if num_blocks == 1:
            return block(progress, jnp.zeros((), jnp.int32), size)
        next_one = lambda i, progress: block(progress, i * size, size)
        return jax.lax.fori_loop(0, num_blocks, next_one, progress)

    size = 1 if on_cpu else pace.block
    go_on = lambda state: state[0] < longest
    more = lambda state: (state[0] + size, block(state[1], state[0], size))
    first = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(go_on, more, (first, progress))[1]


def known_blocks(num_steps: int) -> tuple[int, int]:
    """The number of blocks of a known number of steps, and the steps of each."""
    num_blocks = max(-(-num_steps // DRAWN), 1)
    return num_blocks, -(-num_steps // num_blocks)


def take(
    one: Callable[[PyTree, Array, PyTree], PyTree],
    draw: Callable[[Array], PyTree],
    progress: PyTree,
    first: Array,
    size: int,
) -> PyTree:
    """`progress` after `size` steps from `first` on."""
    if size == 1:
        return one(progress, first, draw(first))
    steps = first + np.arange(size, dtype=np.int32)
    each = lambda progress, drawn: (one(progress, *drawn), None)
    return jax.lax.scan(each, progress, (steps, jax.vmap(draw)(steps)))[0]


def chosen(here: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` where `here` is true, else `old`. Both have the axes of `here` in front."""
    return jax.tree.map(lambda a, b: jnp.where(by_row(here, a), a, b), new, old)


def accumulator(like: PyTree) -> PyTree:
    """Zeros to which trees like this one are added, in their `wide_dtype`."""
    zeros = lambda leaf: jnp.zeros(leaf.shape, wide_dtype(leaf.dtype))
    return jax.tree.map(zeros, like)


def side_by_side(function: Callable, num_lanes: int) -> Callable:
    """`function` of one client as a function of several, [lanes, ...]."""
    if num_lanes > 1:
        return jax.vmap(function)

    def alone(*stacked):  # no vmap: a plain matmul beats a batched one of batch 1
        result = function(*jax.tree.map(lambda leaf: leaf[0], stacked))
        return jax.tree.map(lambda leaf: leaf[None], result)

    return alone


def zeros_if_empty(there: Array, make: Callable[[], PyTree]) -> PyTree:
    """`make()`, or zeros of its shapes, without calling it, if all slots are empty."""
    zeros = lambda: jax.tree.map(jnp.zeros_like, jax.eval_shape(make))
    occupied = xla.largest(there.any().astype(jnp.int32)) > 0
    return jax.lax.cond(occupied, make, zeros)


def in_groups(
    step: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    carry: PyTree,
    clients: PyTree,
    num_lanes: int,
) -> tuple[PyTree, PyTree]:
    """`jax.lax.scan` over a cohort, `num_lanes` clients at a time.

    Args:
      step: (carry, some clients) -> (carry, what is kept of each of them).
      carry: before the first of them.
      clients: leading axis cohort, a multiple of `num_lanes`.
      num_lanes: how many clients at a time.

    Returns:
      The last carry, and what was kept of every client, with leading axis cohort.
    """
    split = lambda leaf: leaf.reshape(-1, num_lanes, *leaf.shape[1:])
    join = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    carry, per_client = jax.lax.scan(step, carry, jax.tree.map(split, clients))
    return carry, jax.tree.map(join, per_client)
