"""The trials of a group as one compiled program, whole runs side by side.

Trials of a group agree in everything but numbers that JAX may trace, seeds, and who holds
which examples. Inside the program each trial builds its algorithm, plan and data from its
inputs, so that what it computes is what its run would. A function of one trial becomes a
function of `width` of them: `width / devices` under `vmap` on each device, which need not
talk to each other.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from ...core import Array, Key, PyTree, State
from ...engine import memory, mesh
from ...engine.batches import batch_size
from ...engine.build import lanes_that_fit, make_round
from ...engine.client_store import store_of
from ...engine.cohort import most_steps, num_slots
from ...engine.initial import init_state
from ...engine.lanes import choose as choose_lanes
from ...engine.lanes import cohort_steps
from ...engine.steps import side_by_side
from ...engine.xla import compiler_options
from ...errors import SettingError
from ..algorithm import clock_seed
from ..build import Federation, build_algorithm, build_plan, completed
from ..config import Config
from ..program import (
    Program,
    compile_program,
    compiled_groups,
    group_sizes,
    measure,
    rounds,
    run_keys,
)
from .differences import (
    PartitionTables,
    TrialPartitions,
    trial_partitions,
    value_of,
    with_traced,
)


class Layout(NamedTuple):
    """How the trials of a group are laid out."""

    num_devices: int
    each: int  # side by side on a device

    @property
    def width(self) -> int:
        """Trials in one call of the program."""
        return self.num_devices * self.each


def over(one: Callable, layout: Layout) -> Callable:
    """`one(shared, *trials)` of a trial as a function of `layout.width`, stacked."""

    def some(shared, *trials):
        return side_by_side(partial(one, shared), layout.each)(*trials)

    if layout.num_devices == 1:
        return some
    every, cut = PartitionSpec(), PartitionSpec(mesh.AXIS)

    def spread(shared, *trials):
        takes = every, *(cut for _ in trials)
        return mesh.by_device(some, layout.num_devices, takes, cut)(shared, *trials)

    return spread


def placed(tree: PyTree, layout: Layout) -> PyTree:
    """What trials own, [width, ...], where each trial runs; shapes stay shapes."""
    lies = SingleDeviceSharding(jax.local_devices()[0])
    if layout.num_devices > 1:
        lies = NamedSharding(mesh.mesh_of(layout.num_devices), PartitionSpec(mesh.AXIS))

    def place(leaf: Any) -> Any:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=lies)
        return jax.device_put(leaf, lies)

    return jax.tree.map(place, tree)


def choose_layout(
    side_by_side: int | str,
    num_trials: int,
    devices: int | str,
    num_lanes: Callable[[int], int],
    state: State,
    batch: tuple[int, int],
) -> Layout:
    """How many trials run at once, and where.

    "auto" takes all on an accelerator, as far as memory goes; on a CPU as many as there
    would be clients side by side if they were all of one run, see `engine.lanes`. Trials
    are then divided evenly: 12 where 10 would fit are 2 times 6.

    `num_lanes` says how many clients of one trial run side by side on so many devices.
    `state` is that of one trial, in shapes, and `batch` the examples of a local step and
    the bytes of one as a number. SettingError: JAX has fewer devices.
    """
    num_devices = mesh.count(devices, num_trials)
    there = -(-num_trials // num_devices)
    clients = num_lanes(num_devices)
    most = there
    if side_by_side != "auto":
        most = int(side_by_side)
    elif jax.default_backend() == "cpu":
        slots, params = clients * there, state.params
        most = choose_lanes("auto", slots, params, batch[0], num_devices) // clients
    if side_by_side == "auto":
        most = min(most, _fitting(state, clients, batch, num_devices))
    calls = -(-there // max(most, 1))
    return Layout(num_devices, -(-there // calls))


def halved(layout: Layout) -> Layout:
    """Half as many trials at once: side by side, or else on half as many devices."""
    if layout.each > 1:
        return layout._replace(each=-(-layout.each // 2))
    return layout._replace(num_devices=-(-layout.num_devices // 2))


def _fitting(
    state: State, num_lanes: int, batch: tuple[int, int], num_devices: int
) -> int:
    free = memory.free_memory()
    if free is None:
        return 2**30
    each = memory.guessed_bytes(state, num_lanes, batch)
    return int(memory.SHARE * free / mesh.sharing_memory(num_devices)) // max(each, 1)


class TrialInputs(NamedTuple):
    """What differs between trials; in a program with a leading axis [trials]."""

    traced: dict[str, Array]
    key_init: Key
    key_train: Key
    clock_seed: Array
    tables: PartitionTables | tuple[()] = ()  # (): those of the data that all share


def stack_inputs(configs: Sequence[Config], names: Sequence[str]) -> TrialInputs:
    """What trials have of their inputs, but for who holds what, [trials, ...]."""
    traced = {
        name: jnp.array([value_of(c, name) for c in configs], jnp.result_type(float))
        for name in names
    }
    key_init, key_train = zip(*(run_keys(c.seed) for c in configs), strict=True)
    clocks = jnp.array([clock_seed(config) for config in configs], jnp.uint32)
    return TrialInputs(traced, jnp.stack(key_init), jnp.stack(key_train), clocks)


def trial_functions(
    config: Config, federation: Federation
) -> tuple[Callable, Callable]:
    """Functions of one trial, to be traced: its first state, and some of its rounds."""
    task, data = federation.task, federation.data

    def parts(shared, inputs: TrialInputs):
        mine = with_traced(config, inputs.traced)
        algorithm, plan = build_algorithm(mine), build_plan(mine)
        if plan.clock is not None:
            plan = replace(plan, clock=replace(plan.clock, seed=inputs.clock_seed))
        data_of_trial = inputs.tables.put_into(shared) if inputs.tables else shared
        return completed(mine, algorithm, federation), plan, data_of_trial

    def init(shared, inputs: TrialInputs) -> State:
        algorithm, plan, data_of_trial = parts(shared, inputs)
        return init_state(algorithm, task, data_of_trial, plan, inputs.key_init)

    def some_rounds(num_rounds: int, shared, inputs: TrialInputs, state: State):
        algorithm, plan, data_of_trial = parts(shared, inputs)
        # checked with the data at hand, run with those that are an argument
        round_fn = replace(make_round(algorithm, task, data, plan), data=data_of_trial)
        averaged = data_of_trial if config.evaluate_also else None
        value = partial(measure, algorithm, task, 1, data.num_classes)
        measured = jax.tree_util.Partial(value, shared.test, averaged)
        return rounds(num_rounds, state, round_fn, measured, inputs.key_train)

    return init, some_rounds


def check_values(config: Config, federation: Federation) -> None:
    """Raises SettingError as a run would that knows the values of traced settings."""
    # one lane: no rule needs to look at cohorts for what is not run
    data, plan = federation.data, replace(build_plan(config), devices=1, lanes=1)
    algorithm = completed(config, build_algorithm(config), federation)
    make_round(algorithm, federation.task, data, plan)


# a part needs values, not tracers
VALUES_NEEDED = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)


def can_trace(config: Config, federation: Federation, names: Sequence[str]) -> bool:
    """Whether a program can trace these settings; SettingError: none can be built."""
    inputs = stack_inputs([config], names)
    inputs = jax.tree.map(lambda leaf: leaf[0], inputs)
    init, some_rounds = trial_functions(replace(config, devices=1, lanes=1), federation)
    shared = federation.data

    def both(shared, inputs):
        return some_rounds(1, shared, inputs, init(shared, inputs))

    try:
        jax.eval_shape(both, shared, inputs)
    except (TypeError, jax.errors.JAXIndexError):  # Python needed to know
        if not names:
            raise
        return False
    except SettingError as error:  # in a part of the user's
        if names and isinstance(error.__cause__, VALUES_NEEDED):
            return False
        raise
    return True


class CompiledGroup(NamedTuple):
    """A compiled group.

    `program_of(numbers)` is the program of a run, whose state and results have a leading
    axis [width]: of those trials, and of copies of the last where they are fewer. Those of
    a group of one trial are those of a run.
    """

    program_of: Callable[[Sequence[int]], Program]
    abstract: State
    width: int
    num_devices: int
    of_trial: Callable[[PyTree, int], PyTree]  # a state's part, on the host
    partitions: TrialPartitions


def layout_of(
    config: Config, federation: Federation, num_trials: int, side_by_side: int | str
) -> Layout:
    """How the trials of a group are laid out; `config.devices` may share them.

    Raises:
      SettingError: JAX has fewer devices, or the clients' states do not fit into memory.
    """
    data, plan = federation.data, federation.plan
    if plan.client_memory == "host" and num_trials > 1:
        raise SettingError(
            "client_memory=host is about one run at a time, but a sweep trains several at "
            "once; leave it out of the sweep."
        )
    state = _state_of_trial(config, federation)
    client = jax.eval_shape(federation.algorithm.local.init, state.params)
    slots = num_slots(data, plan)
    store_of(plan).check_room(client, data.num_clients, slots, 1)
    lanes = lambda devices: lanes_of(config, federation, state, Layout(devices, 1))
    asked = side_by_side, num_trials, config.devices
    return choose_layout(*asked, lanes, state, _batch(federation))


def guessed_memory(config: Config, federation: Federation, layout: Layout) -> int:
    """What trials at once take besides the data, by the guess that `layout_of` goes by."""
    state = _state_of_trial(config, federation)
    lanes = lanes_of(config, federation, state, layout)
    each = memory.guessed_bytes(state, lanes, _batch(federation))
    return layout.each * each * mesh.sharing_memory(layout.num_devices)


def _state_of_trial(config: Config, federation: Federation) -> State:
    """The state of one trial, in shapes."""
    inputs = jax.tree.map(lambda leaf: leaf[0], stack_inputs([config], ()))
    init, _ = trial_functions(replace(config, devices=1), federation)
    return jax.eval_shape(init, federation.data, inputs)


def _batch(federation: Federation) -> tuple[int, int]:
    """The examples of a local step, and the bytes of one as a number."""
    data, plan = federation.data, federation.plan
    return batch_size(data, plan), 4 * int(np.prod(data.x.shape[1:]))


def compile_group(
    configs: Sequence[Config],
    federation: Federation,
    names: Sequence[str],
    layout: Layout,
    fixed: bool = False,
    tell: Callable[[str], None] = lambda doing: None,
) -> CompiledGroup:
    """Traces and compiles; fewer trials side by side where the program is too large.

    Trials differ in the settings `names`, which are traced, in seeds and in who holds which
    examples; the federation is that of the first. A single one is compiled as a run is, and
    its clients share the devices. Nothing but the layout will do if it is `fixed`.
    """
    if len(configs) == 1:
        program = compile_program(configs[0], federation, tell=tell)
        return CompiledGroup(
            program_of=lambda numbers: program,
            abstract=program.abstract,
            width=1,
            num_devices=program.num_devices,
            of_trial=lambda tree, i: jax.device_get(tree),
            partitions=trial_partitions(configs, federation),
        )
    began = time.perf_counter()
    config = configs[0]
    all_inputs = stack_inputs(configs, names)
    partitions = trial_partitions(configs, federation)
    shared = federation.data

    def inputs_of(rows: np.ndarray) -> TrialInputs:
        inputs = jax.tree.map(lambda leaf: leaf[rows], all_inputs)
        return inputs._replace(tables=partitions.of(rows))

    lanes = lanes_of(config, federation, _state_of_trial(config, federation), layout)
    lean = replace(config, devices=1, lanes=lanes)
    init, some_rounds = trial_functions(lean, federation)
    options = compiler_options(lanes * layout.each)
    shared = mesh.to_read(shared, layout.num_devices)

    def placed_inputs(numbers: Sequence[int]) -> TrialInputs:
        rows = np.minimum(np.arange(layout.width), len(numbers) - 1)
        return placed(inputs_of(np.asarray(numbers)[rows]), layout)

    begin = jax.jit(over(init, layout))
    abstract = placed(jax.eval_shape(begin, shared, placed_inputs([0])), layout)

    traced = {}
    for num_rounds in group_sizes(config):
        many = over(partial(some_rounds, num_rounds), layout)
        program = jax.jit(many, donate_argnums=2)
        traced[num_rounds] = program.trace(shared, placed_inputs([0]), abstract)
    group, last = compiled_groups(config, traced, options, tell)
    # one that is resumed fitted before
    if not fixed and memory.too_large(group or last, layout.num_devices):
        if layout.width > 1:
            fewer = halved(layout)
            return compile_group(configs, federation, names, fewer, tell=tell)
        raise SettingError(
            "a single trial does not fit into memory; write fewer lanes, a smaller "
            "batch_size, fewer clients or a smaller model."
        )
    seconds = time.perf_counter() - began
    most = most_steps(federation.plan, federation.algorithm.policy)

    def program_of(numbers: Sequence[int]) -> Program:
        inputs = placed_inputs(numbers)
        on = lambda program: program and (lambda state: program(shared, inputs, state))
        return Program(
            init=lambda: begin(shared, inputs),
            abstract=abstract,
            num_devices=layout.num_devices,
            num_lanes=lanes,
            max_steps=most,
            group=on(group),
            last=on(last),
            seconds=seconds,
            xla_options=options,
        )

    def of_trial(tree: PyTree, i: int) -> PyTree:
        # one trial and one leaf at a time: the host may not have room for all of them
        return jax.tree.map(lambda leaf: np.asarray(leaf[i]), tree)

    where = layout.width, layout.num_devices
    return CompiledGroup(program_of, abstract, *where, of_trial, partitions)


def lanes_of(
    config: Config, federation: Federation, state: State, layout: Layout
) -> int:
    """How many clients of a trial run side by side.

    On a CPU "auto" has as many models side by side on a device as a run would: trials
    take the place of clients.
    """
    setup, plan = federation.setup, federation.plan
    work = num_slots(setup.data, plan), state.params, batch_size(setup.data, plan)
    steps = partial(cohort_steps, setup)
    lanes = choose_lanes(config.lanes, *work, layout.num_devices, steps)
    if config.lanes != "auto":
        return lanes
    if jax.default_backend() == "cpu":
        return max(1, lanes // layout.each)
    return lanes_that_fit(setup._replace(plan=replace(plan, devices=1)), lanes)
