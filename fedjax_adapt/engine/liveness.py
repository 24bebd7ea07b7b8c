"""How many bytes a traced function holds at once, without compiling it.

The equations of a jaxpr are gone through in order: what an equation makes is held until
its last use. XLA fuses elementwise work into what reads it, so a value that only such
equations and sums read takes nothing: it is made where it is read, from values that are
held until then, or from a mask of them, which is smaller. An accelerator fuses copies as
well. XLA moves equations about and shares buffers too, and libraries of an accelerator
take room of their own, so this is an estimate, compared in benchmarks/README.md with what
runs take and with what XLA compiles for an H100.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var

# of one element at a time, or of none: XLA makes them where they are read
FUSED = frozenset(
    """abs add add_any and broadcast_in_dim ceil clamp convert_element_type copy cos div
    eq erf exp exp2 expm1 floor ge gt integer_pow iota is_finite le log log1p logistic lt
    max min mul ne neg not or pow random_bits random_wrap random_unwrap rem
    reshape round rsqrt select_n shift_left shift_right_arithmetic shift_right_logical
    sign sin sqrt square squeeze stop_gradient sub tanh threefry2x32 xor
    expand_dims rev slice""".split()
)
# what moves elements about, which accelerators fuse as well
MOVES = frozenset("concatenate dynamic_slice gather pad stack transpose".split())
SUMS = frozenset(
    """argmax argmin reduce_and reduce_max reduce_min reduce_or reduce_prod
    reduce_sum""".split()
)
# the same elements in the same order
VIEWS = frozenset("copy expand_dims reshape squeeze".split())
CALLS = frozenset("closed_call custom_jvp_call custom_vjp_call jit pjit".split())
LOOPS = frozenset(("scan", "while"))

# what they return lies where what they take lay, if that is not read any more
IN_PLACE = frozenset(
    """cond device_put dynamic_update_slice scan scatter scatter-add shard_map
    sharding_constraint while""".split()
)


class _Value:
    """What an equation makes, or a function is given.

    Attributes:
      aval: its shape and dtype.
      devices: how many hold a part of it each.
    """

    def __init__(self, aval: Any, devices: int = 1):
        self.aval, self.devices = aval, devices

    def num_bytes(self, parts: int) -> int:
        """What it takes of a memory that so many devices share."""
        return num_bytes(self.aval) // max(self.devices // parts, 1)


class _Work(NamedTuple):
    """An equation that is no mere call and changes more than a shape."""

    name: str
    reads: list[_Value]
    makes: list[_Value]
    inside: list[Jaxpr]


def bytes_held(jaxpr: Jaxpr, parts: int = 1, in_loop: bool = False) -> int:
    """The most bytes held at once besides the arguments, which may be written over.

    Args:
      jaxpr: of a function whose arguments are donated, where it returns their like.
      parts: devices that share one memory; each holds what a `shard_map` makes.
      in_loop: what it returns is written over what it is given.
    """
    works, returned = _flat(jaxpr, _arguments(jaxpr))
    returned = _some(returned)
    stored, last = _lives(works, returned)
    ends: dict[int, list[_Value]] = {}
    for value, at in last.items():
        ends.setdefault(at, []).append(value)
    if in_loop:
        stored.difference_update(returned)
    taken, most = {}, 0
    for at, work in enumerate(works):
        each = parts if work.name == "shard_map" else 1
        loop = work.name in LOOPS
        inside = [each * bytes_held(one, parts, loop) for one in work.inside]
        ending = ends.get(at, [])
        before = [value for value in ending if value in work.reads]
        for value in work.makes:
            old = _like(value, before) if work.name in IN_PLACE else None
            if old is None:
                taken[value] = value.num_bytes(parts) if value in stored else 0
            else:
                before.remove(old)
                taken[value] = taken.pop(old, 0)
        # what an inner program returns is counted inside, but for what a loop carries
        made = 0 if loop else sum(taken[value] for value in work.makes)
        held = sum(taken.values())
        most = max(most, held, held - made + max(inside, default=0))
        for value in ending:
            taken.pop(value, None)
    return most


def _arguments(jaxpr: Jaxpr) -> dict[Var, _Value | None]:
    return {var: _Value(var.aval) for var in (*jaxpr.constvars, *jaxpr.invars)}


def _flat(
    jaxpr: Jaxpr, known: dict[Var, _Value | None]
) -> tuple[list[_Work], list[_Value | None]]:
    """The equations, those of functions that are called among them, and what is returned.

    Args:
      jaxpr: of the function.
      known: its arguments; None: a number in the program. What it makes is added.
    """
    of = lambda atoms: [None if isinstance(a, Literal) else known[a] for a in atoms]
    works = []
    for equation in jaxpr.eqns:
        name, inside = equation.primitive.name, inner(equation)
        reads = of(equation.invars)
        if name in CALLS and len(inside) == 1:
            called = inside[0]
            own = zip(called.invars, reads, strict=True)
            more, makes = _flat(called, _arguments(called) | dict(own))
            works += more
        elif name in VIEWS and reads[0] is not None:
            makes = reads[:1]
        else:
            devices = _devices_of(equation)
            makes = [
                _Value(var.aval, number)
                for var, number in zip(equation.outvars, devices, strict=True)
            ]
            works.append(_Work(name, _some(reads), makes, inside))
        known.update(zip(equation.outvars, makes, strict=True))
    return works, of(jaxpr.outvars)


def _devices_of(equation: Any) -> list[int]:
    """How many devices hold a part of each value that an equation makes."""
    if equation.primitive.name != "shard_map":
        return [1] * len(equation.outvars)
    size, specs = equation.params["mesh"].size, equation.params["out_specs"]
    return [size if any(spec) else 1 for spec in specs]


def _some(values: list[_Value | None]) -> list[_Value]:
    return [value for value in values if value is not None]


def _like(value: _Value, others: list[_Value]) -> _Value | None:
    """Another of the same shape and dtype in the same memory."""
    kind = lambda v: (v.aval.shape, v.aval.dtype, v.aval.memory_space)
    return next((other for other in others if kind(other) == kind(value)), None)


def num_bytes(aval: Any) -> int:
    """What an array of this shape and dtype takes; a key as the numbers it is made of."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return aval.size * 8
    return aval.size * np.dtype(aval.dtype).itemsize


def _lives(
    works: list[_Work], returned: list[_Value]
) -> tuple[set[_Value], dict[_Value, int]]:
    """What is written to memory, and the last equation that reads each value."""
    stored = _stored(works, returned)
    made = {value for work in works for value in work.makes}
    last = {value: len(works) for value in returned}  # held to the end
    for at, work in reversed([*enumerate(works)]):
        until = max((last.setdefault(value, at) for value in work.makes), default=at)
        longer = {v for v in work.reads if v in made and last.get(v, at) < until}
        if _is_mask(work) and _sum(work.makes) < _sum(longer):
            stored.update(work.makes)
        if any(value in stored for value in work.makes):
            until = at
        for value in work.reads:
            last[value] = max(last.get(value, at), until)
    return stored, last


def _is_mask(work: _Work) -> bool:
    return work.name in FUSED and work.makes[0].aval.dtype == bool


def _sum(values: Iterable[_Value]) -> int:
    return sum(num_bytes(value.aval) for value in values)


def _stored(works: list[_Work], returned: list[_Value]) -> set[_Value]:
    """What XLA cannot make where it is read."""
    fused = FUSED if jax.default_backend() == "cpu" else FUSED | MOVES
    read = {*returned}
    for work in works:
        if work.name not in FUSED | MOVES | SUMS:
            read.update(work.reads)
    made = {value for work in works if work.name not in fused for value in work.makes}
    return made | read


def inner(equation: Any) -> list[Jaxpr]:
    """The programs an equation runs."""
    found = []
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr):
                found.append(one.jaxpr)
            elif isinstance(one, Jaxpr):
                found.append(one)
    return found
