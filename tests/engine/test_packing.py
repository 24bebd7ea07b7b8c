"""Clients on few lanes: the same as one after the other, in no more steps than it takes."""

import heapq

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_adapt.engine.packing import Parts, pack

SIZE = 8  # of the cohorts below: one program for each number of lanes


def longest_first(num_steps, num_lanes):
    """Steps of the lane that ends last, where each client goes to the first free one."""
    lanes = [0] * num_lanes
    for steps in sorted(num_steps, reverse=True):
        heapq.heappush(lanes, heapq.heappop(lanes) + steps)
    return max(lanes)


def counting(count):
    """A client adds its number to itself at every step; the table keeps who was there."""

    def step(running, done):
        number, total = running
        return number, total + number * (done + 1)

    def collect(carry, client, result):
        total, table = carry
        ended = table.at[client["row"]].add(1)
        return (total + result.sum(), ended), {"total": result, "row": client["row"]}

    def counted(running, done):
        jax.debug.callback(count)  # of no lane: once for all of them
        return step(running, done)

    return Parts(
        begin=lambda carry, client: (client["number"][0], jnp.zeros((), jnp.int32)),
        step=counted if count else step,
        end=lambda running: running[1],
        collect=collect,
    )


def packed(num_steps, num_lanes, count=None):
    rows = jnp.arange(len(num_steps), dtype=jnp.int32)
    clients = {"number": rows + 1, "row": rows}
    carry = (jnp.zeros((), jnp.int32), jnp.zeros(len(num_steps), jnp.int32))
    return pack(counting(count), carry, clients, num_steps, num_lanes)


run = jax.jit(packed, static_argnums=1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE),
    st.sampled_from([1, 3, 8]),
)
def test_every_client_takes_its_own_steps_once(num_steps, num_lanes):
    (total, ended), kept = run(jnp.array(num_steps, jnp.int32), num_lanes)
    expected = [(i + 1) * t * (t + 1) // 2 for i, t in enumerate(num_steps)]
    assert kept["total"].tolist() == expected and int(total) == sum(expected)
    assert kept["row"].tolist() == list(range(SIZE))
    assert ended.tolist() == [1] * SIZE


@pytest.mark.parametrize("num_lanes", [1, 3, 8])
@pytest.mark.parametrize(
    "num_steps", [[7, 2, 5, 1, 3, 0, 0, 9], [4] * 8, [0] * 8, [9, 0, 0, 0, 0, 0, 0, 0]]
)
def test_lanes_step_until_the_last_ends_and_no_longer(num_steps, num_lanes):
    """Graham's bound follows: the sum over the lanes, and at most the longest more."""
    counts = []
    carry = packed(jnp.array(num_steps, jnp.int32), num_lanes, lambda: counts.append(1))
    jax.block_until_ready(carry)
    jax.effects_barrier()
    assert len(counts) == longest_first(num_steps, num_lanes)
    executed = num_lanes * len(counts)
    assert executed <= sum(num_steps) + num_lanes * max(num_steps)
