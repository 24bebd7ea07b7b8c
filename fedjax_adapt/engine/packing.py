"""Unequal clients on few lanes: who is done makes room for the next.

A lane is a row of a vmapped local step. The longest client not begun yet goes to the
first lane that is free, so that no lane ends much after the others: with L lanes

    executed steps = L max_lane (its steps) <= sum_i tau_i + L max_i tau_i

and never fewer than L max_i tau_i, which is why lanes should be no more than the sum over
the longest. A client does the same whichever lane it has, and whoever was there before.

References:
  Graham, "Bounds on Multiprocessing Timing Anomalies", 1969: the longest first.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..core import Array, PyTree


class Lanes(NamedTuple):
    """Who runs where. Leading axis: lanes."""

    running: PyTree
    slot: Array  # of the client; as many as there are clients: nobody
    done: Array  # its local steps so far
    length: Array  # of all it takes


class Parts(NamedTuple):
    """What is done with one client, which has no axis of its own here.

    `begin(carry, client)` takes the client with a leading axis of 1, as does `collect`;
    `step` is vmapped over lanes.
    """

    begin: Callable[[PyTree, PyTree], PyTree]  # -> running
    step: Callable[[PyTree, Array], PyTree]  # (running, steps done) -> running
    end: Callable[[PyTree], PyTree]  # running -> result
    collect: Callable[[PyTree, PyTree, PyTree], tuple[PyTree, PyTree]]


def pack(
    parts: Parts, carry: PyTree, clients: PyTree, num_steps: Array, num_lanes: int
) -> tuple[PyTree, PyTree]:
    """Takes every client through all its steps, `num_lanes` at a time.

    Args:
      parts: what is done.
      carry: what `collect` sums up, in the order in which clients end.
      clients: leading axis clients.
      num_steps: of each, [clients].
      num_lanes: at most as many as clients.

    Returns:
      The last carry, and what was kept of every client, with leading axis clients.
    """
    size = num_steps.shape[0]
    order = jnp.argsort(-num_steps).astype(jnp.int32)
    of = lambda slot: jax.tree.map(lambda leaf: _row(leaf, slot)[None], clients)

    def enter(lane, turn, lanes: Lanes, carry) -> Lanes:
        """The client whose turn it is; nobody, which takes no step, after the last."""
        slot = order[jnp.minimum(turn, size - 1)]
        there = turn < size
        entering = Lanes(
            running=parts.begin(carry, of(slot)),
            slot=jnp.where(there, slot, size),
            done=jnp.zeros((), jnp.int32),
            length=jnp.where(there, num_steps[slot], 0),
        )
        return jax.tree.map(lambda all_, one: _put(all_, one, lane), lanes, entering)

    def leave(state):
        lanes, turn, carry, kept = state
        lane = jnp.argmax(_ended(lanes, size))
        slot = lanes.slot[lane]
        running = jax.tree.map(lambda leaf: _row(leaf, lane), lanes.running)
        result = jax.tree.map(lambda leaf: leaf[None], parts.end(running))
        carry, new = parts.collect(carry, of(slot), result)
        kept = jax.tree.map(lambda all_, one: _put(all_, one[0], slot), kept, new)
        lane = _after((carry, kept), lane)
        return enter(lane, turn, lanes, carry), turn + 1, carry, kept

    def advance(lanes):  # a lane without a client does what nobody reads
        running = jax.vmap(parts.step)(lanes.running, lanes.done)
        return lanes._replace(running=running, done=lanes.done + 1)

    def until_one_ends(state):
        some_end = lambda state: _ended(state[0], size).any()
        lanes, *rest = jax.lax.while_loop(some_end, leave, state)
        go_on = lambda lanes: _active(lanes, size).any() & ~_ended(lanes, size).any()
        return jax.lax.while_loop(go_on, advance, lanes), *rest

    def left_of_one():
        running = parts.begin(carry, of(0))
        result = jax.tree.map(lambda leaf: leaf[None], parts.end(running))
        kept = parts.collect(carry, of(0), result)[1]
        return running, jax.tree.map(lambda leaf: leaf[0], kept)

    running, kept = jax.eval_shape(left_of_one)
    kept = _zeros(size, kept)
    slot, none = (jnp.full(num_lanes, n, jnp.int32) for n in (size, 0))
    lanes = Lanes(_zeros(num_lanes, running), slot, done=none, length=none)
    lanes = jax.lax.fori_loop(
        0, num_lanes, lambda lane, lanes: enter(lane, lane, lanes, carry), lanes
    )
    turn = jnp.asarray(num_lanes, jnp.int32)
    _, _, carry, kept = jax.lax.while_loop(
        lambda state: _active(state[0], size).any(),
        until_one_ends,
        (lanes, turn, carry, kept),
    )
    return carry, kept


def _zeros(count: int, shapes: PyTree) -> PyTree:
    """So many of each."""
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), shapes)


def _active(lanes: Lanes, size: int) -> Array:
    return lanes.slot < size


def _ended(lanes: Lanes, size: int) -> Array:
    return _active(lanes, size) & (lanes.done >= lanes.length)


def _row(leaf: Array, at: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(leaf, at, keepdims=False)


def _put(leaf: Array, row: Array, at: Array) -> Array:
    return jax.lax.dynamic_update_index_in_dim(leaf, row.astype(leaf.dtype), at, 0)


def _after(tree: PyTree, index: Array) -> Array:
    """`index`, known no sooner than what was made of a lane.

    Else XLA, which does not see that a lane is read before it is written, copies all.
    """
    for leaf in jax.tree.leaves(tree):
        if leaf.size and jnp.issubdtype(leaf.dtype, jnp.number):
            first = leaf.reshape(-1)[0]
            index += (first != first).astype(index.dtype) >> 1  # 0, unknown to XLA
    return index
