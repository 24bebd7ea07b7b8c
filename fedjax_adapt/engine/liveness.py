"""How many bytes a traced function holds at once, without compiling it.

The equations of a jaxpr are walked in order: what an equation makes is held until its
last use. XLA fuses elementwise work into what reads it, so a value that only such
equations and sums read takes nothing: it is made where it is read, of values that are
held until then. An accelerator fuses copies as well. XLA moves equations about and shares
buffers too, so this is an estimate, held against what runs take in benchmarks/README.md.
"""

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

# what they return lies where what they take lay, if nobody reads that any more
IN_PLACE = frozenset(
    """cond device_put dynamic_update_slice scan scatter scatter-add shard_map
    sharding_constraint while""".split()
)


class _Value:
    """What an equation makes, or a function is given."""

    def __init__(self, aval: Any):
        self.aval = aval


class _Work(NamedTuple):
    """An equation, those of functions that it would merely call in its place."""

    name: str
    reads: list[_Value]
    makes: list[_Value]
    inside: list[Jaxpr]


def bytes_held(jaxpr: Jaxpr, parts: int = 1, in_loop: bool = False) -> int:
    """The most bytes held at once beside the arguments, which may be written over.

    Args:
      jaxpr: of a function whose arguments are donated, where it returns their like.
      parts: devices that share one memory; each holds what a `shard_map` makes.
      in_loop: what it returns is written over its arguments.
    """
    env = {var: _Value(var.aval) for var in (*jaxpr.invars, *jaxpr.constvars)}
    works, returned = _flat(jaxpr, env)
    written = _written(works, returned)
    ends: dict[int, list[_Value]] = {}
    for value, at in _last_uses(works, returned, written).items():
        ends.setdefault(at, []).append(value)
    if in_loop:
        written -= set(returned)
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
                taken[value] = num_bytes(value.aval) if value in written else 0
            else:
                before.remove(old)
                taken[value] = taken.pop(old, 0)
        # what an inner program returns is counted inside, but for what loops carry
        made = 0 if loop else sum(taken[value] for value in work.makes)
        held = sum(taken.values())
        most = max(most, held, held - made + max(inside, default=0))
        for value in ending:
            taken.pop(value, None)
    return most


def _flat(jaxpr: Jaxpr, env: dict[Var, _Value | None]) -> tuple[list, list]:
    """The equations, and what is returned."""
    of = lambda atoms: [None if isinstance(a, Literal) else env[a] for a in atoms]
    works: list[_Work] = []
    for equation in jaxpr.eqns:
        name, reads = equation.primitive.name, of(equation.invars)
        inside = inner(equation)
        if name in CALLS and len(inside) == 1:
            (called,) = inside
            own = dict(zip(called.invars, reads, strict=True))
            own |= {var: _Value(var.aval) for var in called.constvars}
            more, makes = _flat(called, own)
            works += more
        elif name in VIEWS and reads[0] is not None:
            makes = reads[:1]
        else:
            makes = [_Value(var.aval) for var in equation.outvars]
            reads = [value for value in reads if value is not None]
            works.append(_Work(name, reads, makes, inside))
        env.update(zip(equation.outvars, makes, strict=True))
    return works, [value for value in of(jaxpr.outvars)]


def _like(value: _Value, others: list[_Value]) -> _Value | None:
    """Another of the same shape and dtype in the same memory."""
    kind = lambda v: (v.aval.shape, v.aval.dtype, v.aval.memory_space)
    return next((other for other in others if kind(other) == kind(value)), None)


def num_bytes(aval: Any) -> int:
    """What an array of this shape and dtype takes; a key as the numbers it is made of."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return aval.size * 8
    return aval.size * np.dtype(aval.dtype).itemsize


def _last_uses(works: list[_Work], returned: list, written: set) -> dict[_Value, int]:
    """The last equation that reads each value; those returned are held to the end.

    What takes nothing is made where it is read, of values that are held until then.
    """
    last = {value: len(works) for value in returned}
    made = {value for work in works for value in work.makes}
    for at, work in reversed([*enumerate(works)]):
        until = max(last.setdefault(value, at) for value in work.makes)
        made_later = [v for v in work.makes if v not in written]
        if made_later and until > at:
            longer = {v for v in work.reads if v in made and last.get(v, at) < until}
            size = lambda values: sum(num_bytes(value.aval) for value in values)
            if work.makes[0].aval.dtype == bool and size(work.makes) < size(longer):
                written.update(work.makes)
                made_later = []
        until = until if made_later else at
        for value in work.reads:
            last[value] = max(last.get(value, at), until)
    return last


def _written(works: list[_Work], returned: list) -> set[_Value]:
    """What is written to memory of all that the equations make."""
    fused, reads_fused = FUSED, FUSED | SUMS | MOVES
    if jax.default_backend() != "cpu":
        fused = FUSED | MOVES
    elsewhere = {*returned}
    for work in works:
        if work.name not in reads_fused:
            elsewhere.update(work.reads)
    return {
        value
        for work in works
        for value in work.makes
        if work.name not in fused or value in elsewhere
    }


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
