"""The batch of a local step, from nothing but the client, the step and a key.

No permutation is stored: the position of an example in a shuffled epoch is computed
where it is needed, so step counts may be traced, lanes of unequal length never wait for
each other to reshuffle, and memory does not grow with the number of epochs.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Batch, Key
from ..data.dataset import FederatedDataset
from ..plan import Plan

Array = jax.Array

# What a key's noise is folded in by: no step and no epoch is called that.
NOISE = np.uint32(2**32 - 1)

# Each round halves the chance that an example has not moved; 32 make it 2e-10.
SWAP_ROUNDS = 32


@partial(jax.tree_util.register_dataclass, data_fields=["rows"], meta_fields=["shape"])
@dataclass(frozen=True)
class FlatExamples:
    """The inputs of a data set, each as a row of numbers."""

    rows: Array  # [examples, numbers of one]
    shape: tuple[int, ...]  # of an example


class Rows(NamedTuple):
    """Which examples make a batch."""

    index: Array  # of `FederatedDataset.x`, [batch_size] int32
    weight: Array  # 0 for padding, [batch_size]


def batch_size(data: FederatedDataset, plan: Plan) -> int:
    """Examples per local step: the plan's, or all that the largest client has."""
    longest = data.index.shape[1]
    return longest if plan.batch_size is None else min(plan.batch_size, longest)


def epoch_steps(size: Array, batch: int) -> Array:
    """Local steps in one epoch, ceil(n_i / B); 0 for a client without examples."""
    return -(-size // batch)


def permuted(key: Key, positions: Array, size: Array) -> Array:
    """Where a random permutation of range(size) sends `positions` (all < size).

    A swap-or-not shuffle: in each round position p and its mirror image K - p (mod size)
    change places if a random bit of the pair says so. `size` may be traced.

    References:
      Hoang, Morris & Rogaway, "An Enciphering Scheme Based on a Card Shuffle",
      CRYPTO 2012, https://arxiv.org/abs/1208.1176. Figure 1.
    """
    # An accelerator has one kernel for all swaps. On a CPU a loop over four of them takes
    # as long, and compiles sooner; see benchmarks/history.md.
    unroll = 4 if jax.default_backend() == "cpu" else SWAP_ROUNDS
    with jax.disable_jit(False):  # also in debug_round, which runs without jit
        return _permuted(key, positions, size, unroll)


@partial(jax.jit, static_argnums=3)  # traced once for a shape: it is most of a batch
def _permuted(key: Key, positions: Array, size: Array, unroll: int) -> Array:
    bits = jax.random.bits(key, (2, SWAP_ROUNDS), jnp.uint32)
    n = size.astype(jnp.uint32)

    def swap(p: Array, drawn: tuple[Array, Array]) -> tuple[Array, None]:
        mirror, salt = drawn
        # where p > mirror the first wraps around to a large number. With a select here LLVM
        # never ends in JAX 0.12 on a CPU, for one lane whose batch is all its examples
        q = jnp.minimum(mirror - p, mirror + n - p)
        # the finaliser of MurmurHash3 (A. Appleby, public domain); its top bit decides
        h = (jnp.maximum(p, q) ^ salt) * jnp.uint32(0x85EBCA6B)
        h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
        return jnp.where(h >> 31, q, p), None

    drawn = bits[0] % n, bits[1]
    found, _ = jax.lax.scan(swap, positions.astype(jnp.uint32), drawn, unroll=unroll)
    return found.astype(jnp.int32)


def rows_at(
    data: FederatedDataset, plan: Plan, client: Array, key: Key, step: Array
) -> Rows:
    """Which examples make the batch of local step `step` of one client.

    Args:
      data: the federated data set.
      plan: its `batch_size` and `shuffle` say how.
      client: client id, scalar.
      key: the client's key for this round.
      step: zero-based local step, scalar.
    """
    width, size = batch_size(data, plan), jnp.maximum(data.size[client], 1)
    per_epoch = epoch_steps(size, width)
    positions = (step % per_epoch) * width + jnp.arange(width, dtype=jnp.int32)
    real = positions < size
    positions = jnp.minimum(positions, size - 1)
    if plan.shuffle == "replacement":
        key_step = jax.random.fold_in(key, step)
        positions = jax.random.randint(key_step, (width,), 0, size)
        real = jnp.ones_like(real)
    elif plan.shuffle == "epoch" and plan.batch_size is not None:
        key_epoch = jax.random.fold_in(key, step // per_epoch)
        positions = permuted(key_epoch, positions, size)
    return Rows(data.index[client, positions], real.astype(jnp.result_type(float)))


def batch_of(
    data: FederatedDataset, rows: Rows, client: Array, key: Key, step: Array
) -> Batch:
    """The examples in `rows`, of `rows_at` for the same client, key and step."""
    x = _examples(data.x, rows.index)
    if data.noise is not None:
        key_noise = jax.random.fold_in(jax.random.fold_in(key, NOISE), step)
        x = data.noise.add(x, client, key_noise)
    return Batch(x, data.y[rows.index], rows.weight)


def _examples(x: Array | FlatExamples, index: Array) -> Array:
    """`x[index]`, gathered as flat rows."""
    if not isinstance(x, FlatExamples):
        x = _flat(x)
    return x.rows[index].reshape(*index.shape, *x.shape)


def flat_on_tpu(data: FederatedDataset) -> FederatedDataset:
    """`data` with its examples as `FlatExamples` on a TPU, and as it was elsewhere.

    For all local steps of a round. A TPU stores examples along the last axis and copies
    them all before it gathers some, W1 0.6 GB; without the barrier in every local step.
    """
    if jax.default_backend() != "tpu":
        return data
    return replace(data, x=jax.lax.optimization_barrier(_flat(data.x)))


def _flat(x: Array) -> FlatExamples:
    return FlatExamples(x.reshape(x.shape[0], math.prod(x.shape[1:])), x.shape[1:])


def batch_at(
    data: FederatedDataset, plan: Plan, client: Array, key: Key, step: Array
) -> Batch:
    """The batch of a local step; arguments as for `rows_at`.

    Returns:
      `batch_size` examples; in the last partial batch of an epoch the rest weighs 0.
      Inputs carry the client's noise, if the data set has any.
    """
    rows = rows_at(data, plan, client, key, step)
    return batch_of(data, rows, client, key, step)
