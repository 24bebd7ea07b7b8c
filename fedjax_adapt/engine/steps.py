"""The loop over the local steps of clients that take other numbers of them.

Clients side by side step together: a lane is a row of a vmapped local step. On a CPU the
loop ends with the longest of them. Before each trip of such a loop the host of an
accelerator waits for the device, which takes longer than a step of a small model: there
the number of trips is known when the round is traced, wherever that of the steps is, and
else the loop looks once in a block of steps who goes on. Which examples a step reads hangs
on no model, so it is worked out for many steps at once.

Where there are fewer lanes than clients, and these are unequal, they are packed: who is
done makes room for the next. The longest client not begun yet goes to the first lane that
is free, so that no lane ends much after the others: with L lanes

    executed steps = L max_lane (its steps) <= sum_i tau_i + L max_i tau_i

and never fewer than L max_i tau_i, which is why lanes should be no more than the sum over
the longest. A client does the same whichever lane it has, and whoever was there before.

On a CPU clients come and go one at a time, at the step at which they do. On an
accelerator all that are done make room at once, after each block of steps: one loop,
before each trip of which the host waits. There a client's steps count as whole blocks, and
those without any, as of empty slots, come at the end, in a loop that takes no step.

References:
  Graham, "Bounds on Multiprocessing Timing Anomalies", 1969: the longest first.
"""

from collections.abc import Callable
from functools import partial
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


class Lanes(NamedTuple):
    """The clients of the lanes. Leading axis: lanes."""

    ready: PyTree
    progress: PyTree
    slot: Array  # of the client; as many as there are clients: empty
    done: Array  # its local steps so far
    length: Array  # of all it takes


def pack(
    parts: Parts,
    begin: Callable[[PyTree, PyTree], PyTree],
    collect: Callable[..., tuple[PyTree, PyTree]],
    carry: PyTree,
    clients: PyTree,
    num_steps: Array,
    num_lanes: int,
    block: int,
) -> tuple[PyTree, PyTree]:
    """Takes every client through all its steps, `num_lanes` at a time.

    Args:
      parts: what is done with one client.
      begin: (carry, some of `clients`) -> what `parts.begin` takes, stacked.
      collect: (carry, some of `clients`, results, which of them have ended) -> (carry,
        per_client), where those of other clients are not read.
      carry: what `collect` sums up, in the order in which clients end.
      clients: leading axis clients.
      num_steps: of each, [clients].
      num_lanes: at most as many as clients.
      block: steps between two looks at who is done, on an accelerator.

    Returns:
      The last carry, and what was kept of every client, with leading axis clients.
    """
    size = num_steps.shape[0]
    order = jnp.argsort(-num_steps).astype(jnp.int32)
    of = lambda slots: jax.tree.map(lambda leaf: leaf[slots], clients)

    def enter(lanes: Lanes, lane: Array | None, turn: Array, carry):
        """The next clients in the lanes that are free, while there are any."""
        here = _at(lanes, lane)
        free = ~_busy(here, size)
        rank = turn + jnp.cumsum(free, dtype=turn.dtype) - 1
        slots, there = order[jnp.clip(rank, 0, size - 1)], free & (rank < size)
        ready, progress = jax.vmap(parts.begin)(begin(carry, of(slots)))
        entering = Lanes(
            ready,
            progress,
            slot=jnp.where(there, slots, size),
            done=jnp.zeros_like(here.done),
            length=jnp.where(there, num_steps[slots], 0),
        )
        if lane is None:
            entering = chosen(free, entering, here)
        return _with(lanes, lane, entering), turn + free.sum(dtype=turn.dtype)

    def leave(lanes: Lanes, lane: Array | None, carry, per_client):
        """The results with those of clients that have ended; their lanes are free."""
        here = _at(lanes, lane)
        ended = _ended(here, size)
        slots = jnp.minimum(here.slot, size - 1)
        results = jax.vmap(parts.end)(here.ready, here.progress)
        carry, new = collect(carry, of(slots), results, ended)
        if lane is None:
            place = jnp.where(ended, slots, size)
            put = lambda all_, some: all_.at[place].set(some, mode="drop")
            per_client = jax.tree.map(put, per_client, new)
        else:
            per_client = _with(per_client, slots[0], new)
        free = here._replace(slot=jnp.where(ended, size, here.slot))
        return _with(lanes, lane, free), carry, per_client

    def advance(lanes: Lanes, count: int) -> Lanes:
        """So many steps; what a lane without a client does is not read."""

        def one(progress, step, rows):
            at = lanes.done + step
            new = jax.vmap(parts.step)(lanes.ready, progress, at, rows)
            return new if count == 1 else chosen(at < lanes.length, new, progress)

        draw = lambda step: jax.vmap(parts.draw)(lanes.ready, lanes.done + step)
        none = jnp.zeros((), jnp.int32)
        progress = take(one, draw, lanes.progress, none, count)
        return lanes._replace(progress=progress, done=lanes.done + count)

    def left_of_one():
        some = of(jnp.zeros(1, jnp.int32))
        ready, progress = jax.vmap(parts.begin)(begin(carry, some))
        per_client = collect(carry, some, jax.vmap(parts.end)(ready, progress))[1]
        return ready, progress, per_client

    ready, progress, per_client = jax.eval_shape(left_of_one)
    per_client = _zeros(size, per_client)
    slot, none = (jnp.full(num_lanes, n, jnp.int32) for n in (size, 0))
    ready, progress = _zeros(num_lanes, (ready, progress))
    lanes = Lanes(ready, progress, slot, done=none, length=none)
    turn = jnp.zeros((), jnp.int32)

    def at_once(state, steps=block):
        lanes, turn, carry, per_client = state
        lanes, turn = enter(lanes, None, turn, carry)
        lanes = advance(lanes, steps) if steps else lanes
        lanes, carry, per_client = leave(lanes, None, carry, per_client)
        return lanes, turn, carry, per_client

    def make_room(state):
        lanes, turn, carry, per_client = state
        lane = jnp.argmax(_ended(lanes, size))
        lanes, carry, per_client = leave(lanes, lane, carry, per_client)
        return *enter(lanes, lane, turn, carry), carry, per_client

    def until_one_ends(state):
        some_end = lambda state: _ended(state[0], size).any()
        lanes, *rest = jax.lax.while_loop(some_end, make_room, state)
        go_on = lambda lanes: _busy(lanes, size).any() & ~_ended(lanes, size).any()
        step = lambda lanes: advance(lanes, 1)
        return jax.lax.while_loop(go_on, step, lanes), *rest

    def fill(lane, state):
        return enter(state[0], lane, state[1], carry)

    def while_left(count, body, state):
        """Goes on while some of the first clients wait for a lane or are in one."""
        left = lambda state: (state[1] < count) | _busy(state[0], size).any()
        return jax.lax.while_loop(lambda state: xla.largest(left(state)), body, state)

    state = lanes, turn, carry, per_client
    if jax.default_backend() == "cpu":
        state = *jax.lax.fori_loop(0, num_lanes, fill, state[:2]), carry, per_client
        state = while_left(size, until_one_ends, state)
    else:
        state = while_left((num_steps > 0).sum(), at_once, state)
        state = while_left(size, partial(at_once, steps=0), state)
    return state[2:]


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


def _zeros(count: int, shapes: PyTree) -> PyTree:
    """So many of each, whose leading axis was 1."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape[1:]), x.dtype), shapes)


def _busy(lanes: Lanes, size: int) -> Array:
    return lanes.slot < size


def _ended(lanes: Lanes, size: int) -> Array:
    return _busy(lanes, size) & (lanes.done >= lanes.length)


def _at(lanes: Lanes, lane: Array | None) -> Lanes:
    """One lane, its axis kept; None: all."""
    if lane is None:
        return lanes
    row = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, lane)
    return jax.tree.map(row, lanes)


def _with(tree: PyTree, at: Array | None, rows: PyTree) -> PyTree:
    """`tree` with another row at `at`; None: with all rows."""
    if at is None:
        return rows

    def put(all_, some):
        some = some[0].astype(all_.dtype)
        return jax.lax.dynamic_update_index_in_dim(all_, some, at, 0)

    return jax.tree.map(put, tree, rows)
