"""What the kernels of a program cost on a GPU, and what the host waits for.

    counts(read(text), ...) -> a line of numbers

The step loop is the one whose own products are most work, its trips counted. A loop whose
trips the compiler does not know is waited for at every trip, a conditional once: the host
reads what the device has decided before it launches anything else.

A kernel takes max(LAUNCH, bytes / bandwidth, operations / peak), a wait WAIT, and all
follow one another. **These constants are assumptions until a GPU has measured them**: the
bandwidths and peaks are those of the data sheets (SXM, dense), which no kernel reaches.
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
    whole: Part, num_rounds: int, num_steps: int, tables: Sequence[Array] = ()
) -> dict[str, Any]:
    """What a program runs.

    Args:
      whole: of its text.
      num_rounds: in the program.
      num_steps: local steps of a round, one after the other: those of the longest client,
        by the groups of lanes. Tells how often a loop of unknown trips runs.
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
    program = _program(whole, num_rounds * num_steps)
    if program.path:
        body, trips = program.path[-1].body, _executed(program)
    else:
        body, trips = Part((), (), ()), 0
    steps = max(trips * program.steps_of_a_trip, 1)
    waits = trips * _waits(body, program)
    for i, loop in enumerate(program.path):
        if not loop.known:
            waits += math.prod(program.trips[id(one)] for one in program.path[: i + 1])
    launched = _launches(whole, program)
    in_steps = trips * _launches(body, program)
    outside = [
        one for one in _loops(whole) if not any(one is own for own in program.path)
    ]
    outside = [one for one in outside if not any(one is own for own in _loops(body))]
    everything = list(_kernels(whole, program))
    collectives: dict[str, list[int]] = {}
    for kernel, times in everything:
        if kernel.collective:
            number, size = collectives.get(kernel.collective, (0, 0))
            grown = number + times, size + times * sum(a.bytes for a in kernel.writes)
            collectives[kernel.collective] = list(grown)
    flops: dict[str, float] = {}
    for kernel, times in everything:
        for kind, number in kernel.operations.items():
            flops[kind] = flops.get(kind, 0) + times * number / 1e9 / num_rounds
    moved = sum(times * kernel.bytes for kernel, times in everything)
    return {
        "launches_per_step": _short(trips * _launches(body, program) / steps),
        "nested_loops": len(body.loops),
        "step_trips": [loop.trips if loop.known else None for loop in program.path],
        "waits_per_step": _short(waits / steps),
        "launches_outside": _short((launched - in_steps) / num_rounds),
        "dynamic_loops_outside": sum(not loop.known for loop in outside),
        "conditionals_outside": _conditionals(whole) - _conditionals(body),
        "table_copies": sum(_is_copy(kernel, tables) for kernel, _ in everything),
        "transfers": sum(kernel.transfer for kernel, _ in everything),
        "collectives": {
            kind: [_short(number / num_rounds), _short(size / num_rounds)]
            for kind, (number, size) in collectives.items()
        },
        "gigabytes": _short(moved / 1e9 / num_rounds),
        "gflop": {kind: _short(number) for kind, number in flops.items()},
        **{
            f"{name}_ms": _short(1e3 * _seconds(whole, program, name) / num_rounds)
            for name in BANDWIDTH
        },
    }


def _short(value: float) -> float:
    """Four digits; a whole number as one."""
    value = float(f"{value:.4g}")
    return int(value) if value.is_integer() else value


def _program(whole: Part, num_steps: int) -> Program:
    """Finds the step loop, and gives every loop a number of trips."""
    best, path = (0.0, 0), ()
    for candidate in _paths(whole):
        own = _own(candidate[-1].body)
        known = math.prod(loop.trips for loop in candidate)
        unknown = any(not loop.known for loop in candidate)
        runs = max(num_steps, known) if unknown else known
        work = sum(sum(kernel.operations.values()) for kernel in own)
        if (score := (float(work * runs), len(own))) > best:
            best, path = score, candidate
    trips = {id(loop): loop.trips for loop in _loops(whole)}
    known = math.prod(loop.trips for loop in path)
    for loop in reversed(path):
        if not loop.known:  # the innermost of them takes as many as are left
            trips[id(loop)] = -(-num_steps // known)
            return Program(whole, path, trips, 1.0)
    # a compiler may put several steps into a trip
    return Program(whole, path, trips, max(num_steps / known, 1.0))


def _executed(program: Program) -> int:
    """How often the body of the step loop runs."""
    return math.prod(program.trips[id(loop)] for loop in program.path)


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
