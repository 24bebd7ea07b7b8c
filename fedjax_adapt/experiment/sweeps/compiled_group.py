"""The trials of a group as one compiled program.

Trials of a group agree in everything but numbers that JAX may trace, seeds, and who holds
which examples.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from ...core import Params, State
from ...engine import memory, mesh
from ...engine.batches import batch_size
from ...engine.build import lanes_that_fit
from ...engine.client_store import store_of
from ...engine.cohort import most_steps, num_slots
from ...engine.lanes import choose as choose_lanes
from ...engine.lanes import cohort_steps
from ...engine.xla import compiler_options
from ...errors import SettingError
from ..config import Config
from ..federation import Federation
from ..program import Program, compile_program
from . import trials
from .one_trial import Own, of_one, stacked
from .partitions import TrialPartitions, trial_partitions
from .trials import Layout


class CompiledGroup(NamedTuple):
    """A compiled group.

    `program_of(some)` is the program of a run, whose state and results have a leading axis
    [width]: of those trials, and of copies of the last where they are fewer. Those of a
    group of one trial are those of a run.
    """

    program_of: Callable[[Sequence[int]], Program]
    abstract: State
    width: int
    num_devices: int
    params_of: Callable[[State], Params]  # with a leading axis [width], always
    partitions: TrialPartitions


def layout_of(
    config: Config, federation: Federation, num_trials: int, side_by_side: int | str
) -> Layout:
    """How the trials of a group are laid out; `config.devices` may share them.

    Raises:
      ValueError: JAX has fewer devices, or the clients' states do not fit into memory.
    """
    data, plan = federation.data, federation.plan
    if plan.client_memory == "host" and num_trials > 1:
        raise SettingError(
            "client_memory=host is about one run at a time, but a sweep trains several at "
            "once; leave it out of the sweep."
        )
    own = jax.tree.map(lambda leaf: leaf[0], stacked([config], ()))
    init, _ = of_one(replace(config, devices=1), federation)
    state = jax.eval_shape(init, federation.data, own)
    client = jax.eval_shape(federation.algorithm.local.init, state.params)
    slots = num_slots(data, plan)
    store_of(plan).check_room(client, data.num_clients, slots, 1)
    examples = batch_size(data, plan)
    return trials.choose(
        side_by_side,
        num_trials,
        config.devices,
        lambda devices: lanes_of(config, federation, state, Layout(devices, 1)),
        state,
        (examples, 4 * int(np.prod(data.x.shape[1:]))),
    )


def compile_group(
    configs: Sequence[Config],
    federation: Federation,
    names: Sequence[str],
    layout: Layout,
    fixed: bool = False,
) -> CompiledGroup:
    """Traces and compiles; fewer trials side by side where the program is too large.

    Args:
      configs: of the trials, which differ in `names`, in seeds and in who holds which
        examples. A single one is compiled as a run is, and its clients share the devices.
      federation: of the first of them.
      names: of the numbers that are traced.
      layout: how the trials are laid out.
      fixed: and nothing else will do.

    Raises:
      ValueError: not even one trial fits into memory.
    """
    if len(configs) == 1:
        program = compile_program(configs[0], federation)
        with_axis = lambda state: jax.tree.map(lambda leaf: leaf[None], state.params)
        return CompiledGroup(
            program_of=lambda some: program,
            abstract=program.abstract,
            width=1,
            num_devices=program.num_devices,
            params_of=with_axis,
            partitions=trial_partitions(configs, federation),
        )
    began = time.perf_counter()
    config = configs[0]
    every_own, partitions = (
        stacked(configs, names),
        trial_partitions(configs, federation),
    )
    shared = federation.data

    def owned(rows: np.ndarray) -> Own:
        own = jax.tree.map(lambda leaf: leaf[rows], every_own)
        return own._replace(tables=partitions.of(rows))

    plain = of_one(replace(config, devices=1), federation)[0]
    first = jax.tree.map(lambda leaf: leaf[0], owned(np.array([0])))
    state = jax.eval_shape(plain, shared, first)
    lanes = lanes_of(config, federation, state, layout)
    lean = replace(config, devices=1, lanes=lanes)
    init, some_rounds = of_one(lean, federation)
    options = compiler_options(lanes * layout.each)
    shared = mesh.to_read(shared, layout.num_devices)

    def of(some: Sequence[int]) -> Own:
        rows = np.minimum(np.arange(layout.width), len(some) - 1)
        return trials.placed(owned(np.asarray(some)[rows]), layout)

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
    if not fixed and memory.too_large(group or last, layout.num_devices):
        if layout.width > 1:
            return compile_group(configs, federation, names, trials.halved(layout))
        raise SettingError(
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

    params_of = lambda state: state.params
    where = layout.width, layout.num_devices
    return CompiledGroup(program_of, abstract, *where, params_of, partitions)


def lanes_of(
    config: Config, federation: Federation, state: State, layout: Layout
) -> int:
    """How many clients of a trial run side by side.

    On a CPU "auto" has as many models side by side on a device as a run would: trials
    take the place of clients.
    """
    algorithm, task, data, plan = federation[:4]
    slots, width = num_slots(data, plan), batch_size(data, plan)
    steps = partial(cohort_steps, algorithm.policy, task, data, plan)
    lanes = choose_lanes(
        config.lanes, slots, state.params, width, layout.num_devices, steps
    )
    if config.lanes != "auto":
        return lanes
    if jax.default_backend() == "cpu":
        return max(1, lanes // layout.each)
    return lanes_that_fit(algorithm, task, data, replace(plan, devices=1), lanes)
