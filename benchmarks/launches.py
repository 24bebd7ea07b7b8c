"""What the kernels of a program cost on a GPU, and what the host waits for.

    counts(read(text), ...) -> a line of numbers

The step loop is the one whose own products are most work, its trips counted. A loop whose
trips the compiler does not know is waited for at every trip, a conditional once: the host
reads what the device has decided before it launches anything else.

A kernel takes max(LAUNCH, bytes / bandwidth, operations / peak), a wait WAIT, and all
follow one another. The constants are assumptions: the bandwidths and peaks are those of the
data sheets (SXM, dense), which no kernel reaches. On an H200 the kernels of W2 took 1.2
times what they say and those of W1 2.3 times; the smallest took 1.9 microseconds, with 0.1
before the next. No loop that is waited for was measured.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hlo import Array, Kernel, Loop, Part

LAUNCH = 3e-6  # seconds, of a kernel whatever its size
WAIT = 15e-6  # seconds until the host knows, the kernel that decides included
BANDWIDTH = {"h100": 3.35e12, "h200": 4.8e12}  # bytes a second
# operations a second, of both; float32 without tensor cores
PEAK = {"float32": 67e12, "tf32": 495e12, "bf16": 989e12}


class Program(NamedTuple):
    """A program's loops with trips for all of them, and which of them is the step loop."""

    whole: Part
    path: tuple[Loop, ...]  # from the outermost loop to the step loop
    trips: dict[int, int]  # by the id of a loop
    steps_of_a_trip: float  # local steps in the body of the step loop


def counts(
    whole: Part,
    num_rounds: int,
    num_steps: int,
    inner_loops: int = 0,
    tables: Sequence[Array] = (),
) -> dict[str, Any]:
    """What a program runs.

    Args:
      whole: of its text.
      num_rounds: in the program.
      num_steps: local steps of a round, one after the other: those of the longest client,
        by the groups of lanes. Tells how often a loop of unknown trips runs.
      inner_loops: of a local step, that its products are in.
      tables: what clients keep, as it lies on a device: arrays [clients, ...].

    Returns:
      launches_per_step: kernels of the step loop's body, those of nested loops by trips.
      nested_loops: how many there are in it.
      step_trips: of the loops from the outermost to the step loop; None: not known.
      waits_per_step: how often the host waits, per step.
      launches_outside: of a round, all other kernels, by trips.
      dynamic_loops_outside, conditionals_outside: that the host waits for.
      table_copies: results of a table's shape that are written whole.
      transfers: between host and device, and calls of the host.
      collectives: of a round, by kind [number, bytes of the results on a device].
      gigabytes, gflop: moved and of products, of a round; gflop by precision.
      h100_ms, h200_ms: of a round.
    """
    program = _program(whole, num_rounds * num_steps, inner_loops)
    runs = math.prod(program.trips[id(loop)] for loop in program.path)
    body = program.path[-1].body if program.path else Part((), (), ())
    steps = max(runs * program.steps_of_a_trip, 1)
    in_steps = runs * _launches(body, program)
    inner = [id(loop) for loop in (*program.path, *_loops(body))]
    outside = [loop for loop in _loops(whole) if id(loop) not in inner]
    kernels = [*_kernels(whole, program)]
    a_round = lambda number: _short(number / num_rounds)
    products, sent = _sums(kernels)
    return {
        "launches_per_step": _short(in_steps / steps),
        "nested_loops": len(body.loops),
        "step_trips": [loop.trips if loop.known else None for loop in program.path],
        "waits_per_step": _short(_waits_for_steps(body, program) / steps),
        "launches_outside": a_round(_launches(whole, program) - in_steps),
        "dynamic_loops_outside": sum(not loop.known for loop in outside),
        "conditionals_outside": _conditionals(whole) - _conditionals(body),
        "table_copies": sum(_is_copy(kernel, tables) for kernel, _ in kernels),
        "transfers": sum(kernel.transfer for kernel, _ in kernels),
        "collectives": {kind: [*map(a_round, some)] for kind, some in sent.items()},
        "gigabytes": a_round(sum(n * kernel.bytes for kernel, n in kernels) / 1e9),
        "gflop": {kind: a_round(n / 1e9) for kind, n in products.items()},
        "h100_ms": a_round(1e3 * _seconds(whole, program, "h100")),
        "h200_ms": a_round(1e3 * _seconds(whole, program, "h200")),
    }


def _sums(
    kernels: Sequence[tuple[Kernel, int]],
) -> tuple[dict[str, int], dict[str, list[int]]]:
    """Operations by precision, and number and bytes of collectives by kind."""
    products, sent = {}, {}
    for kernel, times in kernels:
        for kind, number in kernel.operations.items():
            products[kind] = products.get(kind, 0) + times * number
        if kernel.collective:
            number, size = sent.get(kernel.collective, (0, 0))
            size += times * sum(array.bytes for array in kernel.writes)
            sent[kernel.collective] = [number + times, size]
    return products, sent


def _waits_for_steps(body: Part, program: Program) -> int:
    """How often the host waits for the step loop, for those around it, and in it."""
    waits, runs = 0, 1
    for loop in program.path:
        runs *= program.trips[id(loop)]
        waits += 0 if loop.known else runs
    return waits + runs * _waits(body, program)


def _short(value: float) -> float:
    """Four digits; a whole number as one."""
    value = float(f"{value:.4g}")
    return int(value) if value.is_integer() else value


def _program(whole: Part, num_steps: int, inner_loops: int) -> Program:
    """Finds the step loop, and gives every loop a number of trips."""
    best, path = (0.0, 0), ()
    for candidate in _paths(whole):
        own = _own(candidate[-1].body)
        known = math.prod(loop.trips for loop in candidate)
        unknown = any(not loop.known for loop in candidate)
        runs = max(num_steps, known) if unknown else known
        work = sum(sum(kernel.operations.values()) for kernel in own)
        if (score := (float(work * runs), len(own))) > best:
            best, path = score, candidate[: len(candidate) - inner_loops]
    trips = {id(loop): loop.trips for loop in _loops(whole)}
    known = math.prod(loop.trips for loop in path)
    for loop in reversed(path):
        if not loop.known:  # the innermost of them takes as many as are left
            trips[id(loop)] = -(-num_steps // known)
            return Program(whole, path, trips, 1.0)
    # a compiler may put several steps into a trip
    return Program(whole, path, trips, max(num_steps / known, 1.0))


def _paths(part: Part) -> Iterator[tuple[Loop, ...]]:
    """Every loop, with those around it."""
    inner = [
        loop for branches in part.conditionals for one in branches for loop in one.loops
    ]
    for loop in (*part.loops, *inner):
        yield (loop,)
        for path in _paths(loop.body):
            yield (loop, *path)


def _loops(part: Part) -> list[Loop]:
    return [path[-1] for path in _paths(part)]


def _own(part: Part) -> list[Kernel]:
    """Kernels outside of the loops in it; of a conditional those of all branches."""
    branches = [one for some in part.conditionals for one in some]
    return [*part.kernels, *(kernel for one in branches for kernel in _own(one))]


def _kernels(
    part: Part, program: Program, times: int = 1
) -> Iterator[tuple[Kernel, int]]:
    """Every kernel, and how often it runs; all branches of a conditional are taken."""
    for kernel in _own(part):
        yield kernel, times
    for loop in (path[0] for path in _paths(part) if len(path) == 1):
        yield from _kernels(loop.body, program, times * program.trips[id(loop)])


def _launches(part: Part, program: Program) -> int:
    """Kernels of one pass; of a conditional those of its longest branch."""
    return (
        len(part.kernels)
        + sum(
            program.trips[id(loop)] * _launches(loop.body, program)
            for loop in part.loops
        )
        + sum(
            max((_launches(one, program) for one in branches), default=0)
            for branches in part.conditionals
        )
    )


def _waits(part: Part, program: Program) -> int:
    """How often the host waits in one pass."""
    return sum(
        program.trips[id(loop)] * (_waits(loop.body, program) + (not loop.known))
        for loop in part.loops
    ) + sum(
        1 + max((_waits(one, program) for one in branches), default=0)
        for branches in part.conditionals
    )


def _conditionals(part: Part) -> int:
    """How many are written in it."""
    return sum(
        1 + sum(map(_conditionals, branches)) for branches in part.conditionals
    ) + sum(_conditionals(loop.body) for loop in part.loops)


def _is_copy(kernel: Kernel, tables: Sequence[Array]) -> bool:
    """Whether it writes an array that is as large as a table, and as long."""
    alike = lambda one, table: (
        one.dtype == table.dtype
        and one.bytes == table.bytes
        and one.dims[:1] == table.dims[:1]
    )
    return any(alike(one, table) for one in kernel.writes for table in tables)


def _seconds(part: Part, program: Program, name: str) -> float:
    """Of one pass on a GPU."""
    kernel = lambda one: max(
        LAUNCH,
        one.bytes / BANDWIDTH[name],
        sum(number / PEAK[kind] for kind, number in one.operations.items()),
    )
    longest = lambda branches: max(
        (_seconds(one, program, name) for one in branches), default=0.0
    )
    loops = (
        program.trips[id(loop)]
        * (_seconds(loop.body, program, name) + (0 if loop.known else WAIT))
        for loop in part.loops
    )
    branches = (WAIT + longest(some) for some in part.conditionals)
    return sum(map(kernel, part.kernels)) + sum(loops) + sum(branches)
