"""The operations of a traced function on its parameters, one by one.

The losses of a batch are traced twice, for the whole batch and for a batch of one. In
both, an operation that reads a parameter and something computed from the examples is
found by the parameters it reads. The first trace says what such operations are given in
one pass over the batch, the second what each does to a single example: so the parameter's
gradients per example follow from the gradient of the operation's result, whatever the
model is written in.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import eval_jaxpr
from jax.extend import core

Array = jax.Array
INLINED = ("jit", "pjit", "closed_call", "core_call")


class Step(NamedTuple):
    """One operation of a program."""

    alone: Any  # a jaxpr of this operation and nothing else
    takes: tuple[int, ...]
    gives: tuple[int, ...]

    def __call__(self, *values: Array) -> list[Array]:
        """The results of the operation for the values it takes."""
        return list(eval_jaxpr(self.alone, (), *values))

    @property
    def equation(self) -> Any:
        """The operation as JAX has it: a primitive and its parameters."""
        return self.alone.eqns[0]


@dataclass
class Program:
    """A traced function of parameters and examples as a list of operations.

    Values have numbers; the first are the parameters, then come the examples.
    """

    num_params: int
    num_inputs: int
    known: dict[int, Any] = field(default_factory=dict)  # constants
    steps: list[Step] = field(default_factory=list)
    result: int = -1
    size: int = 0  # how many values there are
    origin: dict[int, Step] = field(default_factory=dict)
    fed: set[int] = field(default_factory=set)  # values computed from the examples
    reads: dict[int, frozenset[int]] = field(
        default_factory=dict
    )  # from parameters only
    taps: dict[frozenset[int], Step] = field(default_factory=dict)

    def value(self, number: int, values: dict[int, Any]) -> Any:
        """A value that does not depend on the examples, computed from `values`."""
        if number not in values:
            step = self.origin[number]
            given = [self.value(taken, values) for taken in step.takes]
            values.update(zip(step.gives, step(*given), strict=True))
        return values[number]


def trace(function: Callable, params: Sequence[Any], inputs: Sequence[Any]) -> Program:
    """`function(params, *inputs)` as a program; shapes of the arguments are enough.

    Args:
      function: of a list of arrays and of arrays, with one array for a result.
      params: the list.
      inputs: the other arrays.
    """
    closed = jax.make_jaxpr(function)(list(params), *inputs)
    program = Program(len(params), len(inputs), size=len(params) + len(inputs))
    (program.result,) = _append(program, closed, range(program.size))
    _find_taps(program)
    return program


def _append(program: Program, closed: Any, arguments: Sequence[int]) -> list[int]:
    """Adds the operations of a closed jaxpr; returns the numbers of its results."""
    jaxpr = closed.jaxpr

    def new(value=None):
        number, program.size = program.size, program.size + 1
        if value is not None:
            program.known[number] = value
        return number

    numbers = {v: new(c) for v, c in zip(jaxpr.constvars, closed.consts, strict=True)}
    numbers.update(zip(jaxpr.invars, arguments, strict=True))
    read = lambda v: new(v.val) if isinstance(v, core.Literal) else numbers[v]
    for equation in jaxpr.eqns:
        if equation.primitive.name in INLINED:
            given = [read(v) for v in equation.invars]
            inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
            gives = _append(program, inner, given)
        else:
            takes = dict.fromkeys(
                v for v in equation.invars if not isinstance(v, core.Literal)
            )
            alone = jaxpr.replace(
                constvars=[], invars=[*takes], outvars=equation.outvars, eqns=[equation]
            )
            gives = [new() for _ in equation.outvars]
            step = Step(alone, tuple(numbers[v] for v in takes), tuple(gives))
            program.steps.append(step)
            program.origin.update(dict.fromkeys(gives, step))
        numbers.update(zip(equation.outvars, gives, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _find_taps(program: Program) -> None:
    """Where parameters meet examples: `taps`, by the parameters such an operation reads.

    One that is read in several places is in none of them: squares of sums are not sums
    of squares.
    """
    first, last = program.num_params, program.num_params + program.num_inputs
    program.reads = {i: frozenset((i,)) for i in range(first)}
    program.fed = set(range(first, last))
    uses, found = Counter(), []
    for step in program.steps:
        reads = [program.reads[n] for n in step.takes if n in program.reads]
        params = frozenset().union(*reads)
        if not program.fed.isdisjoint(step.takes):
            program.fed.update(step.gives)
            for some in reads:
                uses.update(some)
            if params:
                found.append((params, step))
        elif params:
            program.reads.update(dict.fromkeys(step.gives, params))
    for params, step in found:
        if all(uses[i] == 1 for i in params):
            program.taps[params] = step


class Tap(NamedTuple):
    """An operation that reads parameters: of the batch, and of a single example."""

    params: tuple[int, ...]
    whole: Step
    takes: tuple[int, ...]  # of the batch: what has an axis of examples
    axes: tuple[int, ...]  # which axis that is
    gives: tuple[int, ...]  # which of its results are differentiated
    given_axes: tuple[int, ...]
    single: Callable[..., list[Array]]  # (parameters, what it takes) -> what it gives
    is_product: bool  # [examples, in] x [in, out], by the parameter itself


def taps_of(batch: Program, single: Program) -> list[Tap]:
    """The operations found in both programs, as far as examples can be distinguished."""
    found = []
    for params, whole in batch.taps.items():
        one = single.taps.get(params)
        if one is None or one.equation.primitive != whole.equation.primitive:
            continue
        tap = _tap(batch, single, params, whole, one)
        if tap is not None:
            found.append(tap)
    return found


def _tap(batch, single, params, whole: Step, one: Step) -> Tap | None:
    # what else the operations are given is the same for every example, and known
    fed = [
        [i for i, n in enumerate(step.takes) if n in program.fed]
        for step, program in ((whole, batch), (one, single))
    ]
    slots = fed[1]
    shapes = lambda step, which: [step.alone.invars[i].aval.shape for i in which]
    if len(fed[0]) != len(fed[1]) or len(whole.gives) != len(one.gives):
        return None
    pairs = zip(shapes(whole, fed[0]), shapes(one, fed[1]), strict=True)
    axes = [_example_axis(*pair) for pair in pairs]
    takes = [whole.takes[i] for i in fed[0]]
    if None in axes:
        return None
    gives, given_axes = [], []
    pairs = zip(whole.alone.outvars, one.alone.outvars, strict=True)
    for i, (var, var_one) in enumerate(pairs):
        if jnp.issubdtype(var.aval.dtype, jnp.inexact):
            axis = _example_axis(var.aval.shape, var_one.aval.shape)
            if axis is None:
                return None
            gives.append(i)
            given_axes.append(axis)
    ordered = tuple(sorted(params))

    def run(leaves, values):
        values_of = {**single.known, **dict(zip(ordered, leaves, strict=True))}
        given = dict(zip(slots, values, strict=True))
        results = one(
            *(
                given[i] if i in given else single.value(number, values_of)
                for i, number in enumerate(one.takes)
            )
        )
        return [results[i] for i in gives]

    return Tap(
        ordered,
        whole,
        tuple(takes),
        tuple(axes),
        tuple(gives),
        tuple(given_axes),
        run,
        _is_product(whole, ordered, tuple(takes), tuple(axes)),
    )


def _example_axis(shape: tuple[int, ...], single: tuple[int, ...]) -> int | None:
    """The one axis along which the examples of the batch lie."""
    if len(shape) != len(single):
        return None
    differing = [
        a for a, (n, m) in enumerate(zip(shape, single, strict=True)) if n != m
    ]
    if len(differing) != 1 or single[differing[0]] != 1:
        return None
    return differing[0]


def _is_product(step: Step, params, takes, axes) -> bool:
    equation = step.equation
    return (
        equation.primitive.name == "dot_general"
        and equation.params["dimension_numbers"] == (((1,), (0,)), ((), ()))
        and step.takes == (*takes, *params)
        and axes == (0,)
        and [len(v.aval.shape) for v in step.alone.invars] == [2, 2]
    )
