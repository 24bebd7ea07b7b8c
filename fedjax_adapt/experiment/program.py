"""The compiled heart of a run: some rounds and an evaluation, as one program."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..averaging import averages
from ..core import Algorithm, Array, Key, Params, RoundFn, State, Task
from ..data.dataset import FederatedDataset
from ..engine import mesh
from ..engine.build import make_round
from ..engine.client_store import store_of
from ..engine.cohort import most_steps, num_devices_of
from ..engine.evaluate import by_class, named_overall, overall, scores
from ..engine.footprint import Footprint, footprint, num_equations
from ..engine.initial import init_state
from ..engine.memory import check_room
from ..engine.round import Round
from ..engine.train import train_and_evaluate
from ..engine.xla import arrays_of, compiler_options
from .build import Federation
from .config import Config
from .rows import Measured, check_columns

Group = Callable[[State], tuple[State, Any, Any]]


# seconds to compile an equation of a program: the median over those of 8 methods, which
# took 1.2 to 2.4 ms each (2 cores of an AMD EPYC, commit bd24ca6, jax 0.10.2, n = 3)
SECONDS_PER_EQUATION = 1.6e-3


class Program(NamedTuple):
    """What a run calls on the device. A group gives up the memory of its argument.

    `group(state) -> (state, infos [rounds, cohort, ...], measured [1])` runs the rounds
    up to the next evaluation; `last` those left over where `evaluate_every` does not
    divide the rounds.
    """

    init: Callable[[], State]
    abstract: State  # shapes, dtypes and where they lie
    num_devices: int
    num_lanes: int  # clients side by side on a device, of a run or of one trial
    max_steps: int | None  # of a client in a round
    group: Group | None
    last: Group | None
    seconds: float  # to trace and compile
    footprint: Footprint | None = None  # of a run; trials side by side have none
    xla_options: dict[str, str] | None = None  # under which it is compiled


class Traced(NamedTuple):
    """A program before it is compiled, and what it will hold in memory."""

    round_fn: Round
    abstract: State  # as in `Program`
    key_init: Key
    arrays: list[Array]  # the argument of each group, besides the state
    groups: dict[int, Any]  # by how many rounds they have, as JAX traces them
    footprint: Footprint  # of the group that takes most


def trace_program(config: Config, federation: Federation) -> Traced:
    """Traces; what does not fit is found here: a model, an option, or the memory."""
    algorithm, task, data, plan = federation[:4]
    key_init, key_train = run_keys(config.seed)
    init = partial(init_state, algorithm, task, data, plan, key_init)
    num_devices = num_devices_of(data, plan)
    abstract = abstract_state(init, federation)
    round_fn = make_round(algorithm, task, data, plan)
    test = mesh.to_read(data.test, num_devices)
    averaged = round_fn.data if config.evaluate_also else None
    value = partial(measure, algorithm, task, num_devices, data.num_classes)
    # a Partial's arrays are arguments of the program, not constants in it
    measured = jax.tree_util.Partial(value, test, averaged)
    arrays, rebuild = arrays_of((round_fn, measured, key_train))
    held, groups, others = [], {}, jax.eval_shape(lambda: arrays)

    def some_rounds(num_rounds: int, state: State, arrays: list[Array]) -> tuple:
        return rounds(num_rounds, state, *rebuild(arrays))

    for num_rounds in group_sizes(config):
        group = jax.jit(partial(some_rounds, num_rounds), donate_argnums=0)
        traced = groups[num_rounds] = group.trace(abstract, arrays)
        held.append(footprint(traced.jaxpr.jaxpr, abstract, others, num_devices))
        check_room(held[-1])
    largest = max(held, key=lambda one: one.total)
    return Traced(round_fn, abstract, key_init, arrays, groups, largest)


def group_sizes(config: Config) -> list[int]:
    """The rounds of each program of a run: up to an evaluation, and those left over."""
    every, left_over = config.evaluate_every, config.rounds % config.evaluate_every
    return [every] * (config.rounds >= every) + [left_over] * (left_over > 0)


def compile_seconds(traced: Iterable[Any]) -> float | None:
    """About how long programs take to compile that JAX has traced; None: not known.

    A program that was compiled before is read from the cache, which takes less.
    """
    if jax.default_backend() != "cpu":
        return None
    equations = sum(num_equations(one.jaxpr.jaxpr) for one in traced)
    return equations * SECONDS_PER_EQUATION


def compiling(traced: Iterable[Any]) -> str:
    """What to say while programs are compiled: about how long it takes."""
    seconds = compile_seconds(traced)
    about = "" if seconds is None else f", about {math.ceil(seconds)} s"
    return f"compiling{about}"


def compiled_groups(
    config: Config,
    traced: Mapping[int, Any],
    options: dict[str, str] | None,
    tell: Callable[[str], None],
) -> tuple[Any, Any]:
    """The program up to an evaluation and that of the rounds left over; None: no such.

    `traced` has them by their rounds, as JAX traces them; `tell` hears how long it takes.
    """
    tell(compiling(traced.values()))
    done = {number: one.lower().compile(options) for number, one in traced.items()}
    every = config.evaluate_every
    return done.get(every), done.get(config.rounds % every)


def compile_program(
    config: Config,
    federation: Federation,
    tell: Callable[[str], None] = lambda doing: None,
) -> Program:
    """Traces, tells about how long it takes to compile, and compiles."""
    algorithm, task, data, plan = federation[:4]
    began = time.perf_counter()
    round_fn, abstract, key, arrays, groups, held = trace_program(config, federation)
    options = compiler_options(round_fn.num_lanes)
    on = lambda program: program and (lambda state: program(state, arrays))
    group, last = map(on, compiled_groups(config, groups, options, tell))
    begin = jax.jit(partial(init_state, algorithm, task, data, plan))
    return Program(
        lambda: begin(key),  # another seed is no other program
        abstract,
        round_fn.num_devices,
        round_fn.num_lanes,
        most_steps(plan, algorithm.policy),
        group,
        last,
        seconds=time.perf_counter() - began,
        footprint=held,
        xla_options=options,
    )


def abstract_state(init: Callable[[], State], federation: Federation) -> State:
    """Shapes and dtypes of the state that `init` returns, and where a run has it lie."""
    plan, data = federation.plan, federation.data
    return store_of(plan).place(jax.eval_shape(init), num_devices_of(data, plan))


def run_keys(seed: int) -> tuple[Key, Key]:
    """The keys of the initial model and of the rounds; round t folds in t."""
    key = jax.random.key(seed)
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def round_keys(key_train: Key, done: Array | int, num_rounds: int) -> Array:
    """The keys of the rounds after `done` rounds, [num_rounds]."""
    numbers = done + jnp.arange(num_rounds)
    return jax.vmap(partial(jax.random.fold_in, key_train))(numbers)


def rounds(
    num_rounds: int, state: State, round_fn: RoundFn, measure: Callable, key_train: Key
) -> tuple[State, Any, Any]:
    """As many rounds, and what `measure` says of the state after them, [1, ...]."""
    keys = round_keys(key_train, state.round, num_rounds)
    state, infos, measured = train_and_evaluate(
        round_fn, state, keys, measure, num_rounds, num_rounds
    )
    check_columns(infos, measured.named)
    return state, infos, measured


def measure(
    algorithm: Algorithm,
    task: Task,
    num_devices: int,
    num_classes: int,
    test: tuple[Array, Array],
    averaged: FederatedDataset | None,
    state: State,
) -> Measured:
    """What a state is worth on the test set; `averaged`: evaluate averages of it too."""
    score = lambda params: scores(task, params, test, devices=num_devices)
    scored = score(state.params)
    return Measured(
        server=overall(scored),
        classes=by_class(scored, test[1], num_classes),
        also={
            name: overall(score(params))
            for name, params in _others(algorithm, averaged, state).items()
        },
        named=named_overall(task, scored),
    )


def _others(
    algorithm: Algorithm, averaged: FederatedDataset | None, state: State
) -> dict[str, Params]:
    """The models besides the server's: averages, and the policy's best."""
    models = {} if averaged is None else averages(algorithm, state, averaged)
    if algorithm.policy.best is not None:
        models["result"] = algorithm.policy.best(state.policy)
    return models
