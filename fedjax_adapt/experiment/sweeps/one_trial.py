"""What one trial computes, as functions to be traced.

Inside a program each trial builds its algorithm, plan and data from what is its own, so
that what it computes is what its run would.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...core import Array, Key, State
from ...engine.build import make_round
from ...engine.initial import init_state
from ..algorithm import clock_seed
from ..build import build_algorithm, build_plan, completed
from ..config import Config
from ..federation import Federation
from ..program import measure, rounds, run_keys
from .partitions import PartitionTables
from .traced import number, with_numbers


class Own(NamedTuple):
    """What a trial has of its own; in a program with a leading axis [trials]."""

    numbers: dict[str, Array]
    key_init: Key
    key_train: Key
    clock_seed: Array
    tables: PartitionTables | tuple[()] = ()  # (): those of the data that all share


def stacked(configs: Sequence[Config], names: Sequence[str]) -> Own:
    """What trials have of their own, but for who holds what, [trials, ...]."""
    numbers = {
        name: jnp.array([number(c, name) for c in configs], jnp.result_type(float))
        for name in names
    }
    key_init, key_train = zip(*(run_keys(c.seed) for c in configs), strict=True)
    clocks = np.array([clock_seed(config) for config in configs], np.uint32)
    return Own(numbers, jnp.stack(key_init), jnp.stack(key_train), jnp.asarray(clocks))


def of_one(config: Config, federation: Federation) -> tuple[Callable, Callable]:
    """Functions of one trial, to be traced: its first state, and some of its rounds."""
    task, data = federation.task, federation.data

    def parts(shared, own: Own):
        mine = with_numbers(config, own.numbers)
        algorithm, plan = build_algorithm(mine), build_plan(mine)
        if plan.clock is not None:
            plan = replace(plan, clock=replace(plan.clock, seed=own.clock_seed))
        held = own.tables.put_into(shared) if own.tables else shared
        return completed(mine, algorithm, federation), plan, held

    def init(shared, own: Own) -> State:
        algorithm, plan, held = parts(shared, own)
        return init_state(algorithm, task, held, plan, own.key_init)

    def some_rounds(num_rounds: int, shared, own: Own, state: State):
        algorithm, plan, held = parts(shared, own)
        # checked with the data at hand, run with those that are an argument
        round_fn = replace(make_round(algorithm, task, data, plan), data=held)
        averaged = held if config.evaluate_also else None
        measured = jax.tree_util.Partial(
            partial(measure, algorithm, task, 1, data.num_classes),
            shared.test,
            averaged,
        )
        return rounds(num_rounds, state, round_fn, measured, own.key_train)

    return init, some_rounds


def check_numbers(config: Config, federation: Federation) -> None:
    """Raises ValueError as a run would that knows its numbers, traced or not."""
    # one lane: no rule needs to look at cohorts for what is not run
    data, plan = federation.data, replace(build_plan(config), devices=1, lanes=1)
    algorithm = completed(config, build_algorithm(config), federation)
    make_round(algorithm, federation.task, data, plan)


def can_trace(config: Config, federation: Federation, names: Sequence[str]) -> bool:
    """Whether a run's program can be built without knowing these numbers.

    Raises:
      ValueError: it can be built with none.
    """
    own = stacked([config], names)
    own = jax.tree.map(lambda leaf: leaf[0], own)
    init, some_rounds = of_one(replace(config, devices=1, lanes=1), federation)
    shared = federation.data

    def both(shared, own):
        return some_rounds(1, shared, own, init(shared, own))

    try:
        jax.eval_shape(both, shared, own)
    except (TypeError, jax.errors.JAXIndexError):  # Python needed to know
        if not names:
            raise
        return False
    return True
