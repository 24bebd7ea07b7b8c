"""Clients on few lanes: the same as one after the other, in no more steps than it takes."""

import heapq

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt.engine.steps import Parts, pack

SIZE = 8  # of the cohorts below: one program for each number of lanes
BLOCK = 3
BACKENDS = "cpu", "gpu"


def longest_first(num_steps, num_lanes):
    """Steps of the lane that ends last, where each client goes to the first free one."""
    lanes = [0] * num_lanes
    for steps in sorted(num_steps, reverse=True):
        heapq.heappush(lanes, heapq.heappop(lanes) + steps)
    return max(lanes)


def counting(count):
    """A client adds its number to itself at every step."""

    def step(number, total, done, rows):
        return total + number * rows

    def counted(number, total, done, rows):
        jax.debug.callback(count)  # of no lane: once for all of them
        return step(number, total, done, rows)

    return Parts(
        begin=lambda number: (number, jnp.zeros((), jnp.int32)),
        draw=lambda number, done: done + 1,
        step=counted if count else step,
        end=lambda number, total: total,
    )


def collect(carry, clients, results, ended=True):
    """Sums up, and keeps in a table who was there."""
    total, table = carry
    table = table.at[jnp.where(ended, clients["row"], SIZE)].add(1, mode="drop")
    total += jnp.where(ended, results, 0).sum()
    return (total, table), {"total": results, "row": clients["row"]}


def packed(num_steps, num_lanes, backend="cpu", count=None):
    rows = jnp.arange(len(num_steps), dtype=jnp.int32)
    clients = {"number": rows + 1, "row": rows}
    carry = (jnp.zeros((), jnp.int32), jnp.zeros(len(num_steps), jnp.int32))
    begin = lambda carry, some: some["number"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: backend)
        return pack(
            counting(count), begin, collect, carry, clients, num_steps, num_lanes, BLOCK
        )


run = jax.jit(packed, static_argnums=(1, 2))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE),
    st.sampled_from([1, 3, 8]),
    st.sampled_from(BACKENDS),
)
def test_every_client_takes_its_own_steps_once(num_steps, num_lanes, backend):
    (total, ended), kept = run(jnp.array(num_steps, jnp.int32), num_lanes, backend)
    expected = [(i + 1) * t * (t + 1) // 2 for i, t in enumerate(num_steps)]
    assert kept["total"].tolist() == expected and int(total) == sum(expected)
    assert kept["row"].tolist() == list(range(SIZE))
    assert ended.tolist() == [1] * SIZE


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_lanes", [1, 3, 8])
@pytest.mark.parametrize(
    "num_steps", [[7, 2, 5, 1, 3, 0, 0, 9], [4] * 8, [0] * 8, [9, 0, 0, 0, 0, 0, 0, 0]]
)
def test_lanes_step_until_the_last_ends_and_no_longer(num_steps, num_lanes, backend):
    """Graham's bound follows: the sum over the lanes, and at most the longest more."""
    counts, count = [], lambda: counts.append(1)
    carry = packed(jnp.array(num_steps, jnp.int32), num_lanes, backend, count)
    jax.block_until_ready(carry)
    jax.effects_barrier()
    if backend == "gpu":  # whole blocks, and none for a client without steps
        num_steps = [BLOCK * -(-steps // BLOCK) for steps in num_steps]
    assert len(counts) == longest_first(num_steps, num_lanes)
    executed = num_lanes * len(counts)
    assert executed <= sum(num_steps) + num_lanes * max(num_steps)
