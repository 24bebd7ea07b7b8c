"""The trials of a group as one compiled program.

Trials of a group agree in everything but numbers that JAX may trace and the seed. Inside
the program each builds its algorithm and plan from its own numbers, so that what a trial
computes is what its run would.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Array, Key, State
from ..engine import memory, mesh, trials
from ..engine.batches import batch_size
from ..engine.cohort import most_steps, num_slots
from ..engine.forecast import cohort_steps
from ..engine.lanes import choose as choose_lanes
from ..engine.lanes import compiler_options
from ..engine.round import init_state, make_round
from ..engine.trials import Layout
from .build import Federation, build_algorithm, build_plan, completed
from .config import Config
from .program import Program, compile_program, measure, rounds, run_keys
from .traced import number, with_numbers


class Own(NamedTuple):
    """What a trial has of its own; in a program with a leading axis [trials]."""

    numbers: dict[str, Array]
    key_init: Key
    key_train: Key


class Fleet(NamedTuple):
    """A compiled group.

    `program_of(some)` is the program of a run, whose state and results have a leading axis
    [width]: of those trials, and of copies of the last where they are fewer.
    """

    program_of: Callable[[Sequence[int]], Program]
    abstract: State
    width: int


def check_numbers(config: Config, federation: Federation) -> None:
    """Raises ValueError as a run would that knows its numbers, traced or not."""
    data, plan = federation.data, replace(build_plan(config), devices=1)
    algorithm = completed(config, build_algorithm(config), federation)
    make_round(algorithm, federation.task, data, plan)


def can_trace(config: Config, federation: Federation, names: Sequence[str]) -> bool:
    """Whether a run's program can be built without knowing these numbers.

    Raises:
      ValueError: it can be built with none.
    """
    own = _stacked([config], names)
    own = jax.tree.map(lambda leaf: leaf[0], own)
    init, some_rounds = _of_one(replace(config, devices=1), federation)
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


def layout_of(
    config: Config, federation: Federation, num_trials: int, side_by_side: int | str
) -> Layout:
    """How the trials of a group are dealt out; `config.devices` may share them.

    Raises:
      ValueError: JAX has fewer devices, or the clients' states do not fit into memory.
    """
    data, plan = federation.data, federation.plan
    if plan.client_memory == "host" and num_trials > 1:
        raise ValueError(
            "client_memory=host is about one run at a time, but a sweep trains several at "
            "once; leave it out of the sweep."
        )
    own = jax.tree.map(lambda leaf: leaf[0], _stacked([config], ()))
    init, _ = _of_one(replace(config, devices=1), federation)
    state = jax.eval_shape(init, federation.data, own)
    client = jax.eval_shape(federation.algorithm.local.init, state.params)
    memory.check_fits(client, data.num_clients, num_slots(plan, data), 1)
    examples = batch_size(data, plan)
    return trials.choose(
        side_by_side,
        num_trials,
        config.devices,
        lambda devices: _lanes(config, federation, state, devices),
        state,
        (examples, 4 * int(np.prod(data.x.shape[1:]))),
    )


def compile_group(
    configs: Sequence[Config],
    federation: Federation,
    names: Sequence[str],
    layout: Layout,
    fixed: bool = False,
) -> Fleet:
    """Traces and compiles; fewer trials side by side where the program is too large.

    Args:
      configs: of the trials, which differ in `names` and the seed alone. A single one is
        compiled as a run is, and its clients share the devices.
      federation: of each of them.
      names: of the numbers that are traced.
      layout: how the trials are dealt out.
      fixed: and nothing else will do.

    Raises:
      ValueError: not even one trial fits into memory.
    """
    if len(configs) == 1:
        program = compile_program(configs[0], federation)
        return Fleet(lambda some: _alone(program), program.abstract, 1)
    began = time.perf_counter()
    config = configs[0]
    own = _stacked(configs, names)
    shared = federation.data
    plain = _of_one(replace(config, devices=1), federation)[0]
    first = jax.tree.map(lambda leaf: leaf[0], own)
    state = jax.eval_shape(plain, shared, first)
    lanes = _lanes(config, federation, state, layout.num_devices)
    lean = replace(config, devices=1, lanes=lanes)
    init, some_rounds = _of_one(lean, federation)
    options = compiler_options(lanes * layout.each)
    shared = mesh.shown(shared, layout.num_devices)

    def of(some: Sequence[int]) -> Own:
        rows = np.minimum(np.arange(layout.width), len(some) - 1)
        rows = np.asarray(some)[rows]
        return trials.placed(jax.tree.map(lambda leaf: leaf[rows], own), layout)

    begin = jax.jit(trials.over(init, layout))
    abstract = trials.placed(jax.eval_shape(begin, shared, of([0])), layout)

    def compiled(num_rounds: int):
        many = trials.over(partial(some_rounds, num_rounds), layout)
        program = jax.jit(many, donate_argnums=2)
        return program.lower(shared, of([0]), abstract).compile(options)

    every, left_over = config.evaluate_every, config.rounds % config.evaluate_every
    group = compiled(every) if config.rounds >= every else None
    last = compiled(left_over) if left_over else None
    # one that is resumed fitted before
    if not fixed and trials.too_large(group or last, layout.num_devices):
        if layout.width > 1:
            return compile_group(configs, federation, names, trials.halved(layout))
        raise ValueError(
            "a single trial does not fit into memory; write fewer lanes, a smaller "
            "batch_size, fewer clients or a smaller model."
        )
    seconds = time.perf_counter() - began
    most = most_steps(federation.plan, federation.algorithm.policy)

    def program_of(some: Sequence[int]) -> Program:
        own = of(some)
        bound = lambda program: program and (lambda state: program(shared, own, state))
        return Program(
            init=lambda: begin(shared, own),
            abstract=abstract,
            num_devices=layout.num_devices,
            max_steps=most,
            group=bound(group),
            last=bound(last),
            seconds=seconds,
        )

    return Fleet(program_of, abstract, layout.width)


def _alone(program: Program) -> Program:
    """The program of a run, its results those of a single trial, [1, ...]."""

    def stacked(group):
        def call(state):
            state, *part = group(state)
            return state, *jax.tree.map(lambda leaf: leaf[None], part)

        return group and call

    return program._replace(group=stacked(program.group), last=stacked(program.last))


def _stacked(configs: Sequence[Config], names: Sequence[str]) -> Own:
    numbers = {
        name: jnp.array([number(c, name) for c in configs], jnp.result_type(float))
        for name in names
    }
    keys = [run_keys(config.seed) for config in configs]
    return Own(numbers, *map(jnp.stack, zip(*keys, strict=True)))


def _lanes(
    config: Config, federation: Federation, state: State, num_devices: int
) -> int:
    algorithm, task, data, plan = federation[:4]
    slots, width = num_slots(plan, data), batch_size(data, plan)
    steps = partial(cohort_steps, algorithm.policy, task, data, plan)
    return choose_lanes(config.lanes, slots, state.params, width, num_devices, steps)


def _of_one(config: Config, federation: Federation) -> tuple[Callable, Callable]:
    """Functions of one trial, to be traced: its first state, and some of its rounds."""
    task, data = federation.task, federation.data

    def parts(own: Own):
        mine = with_numbers(config, own.numbers)
        return completed(mine, build_algorithm(mine), federation), build_plan(mine)

    def init(shared, own: Own) -> State:
        algorithm, plan = parts(own)
        return init_state(algorithm, task, shared, plan, own.key_init)

    def some_rounds(num_rounds: int, shared, own: Own, state: State):
        algorithm, plan = parts(own)
        # checked with the data at hand, run with those that are an argument
        round_fn = replace(make_round(algorithm, task, data, plan), data=shared)
        averaged = shared if config.evaluate_also else None
        measured = jax.tree_util.Partial(
            partial(measure, algorithm, task, 1, data.num_classes),
            shared.test,
            averaged,
        )
        state, infos, found = rounds(
            num_rounds, state, round_fn, measured, own.key_train
        )
        return state, infos._replace(clients=()), found  # the rows of clients stay away

    return init, some_rounds
