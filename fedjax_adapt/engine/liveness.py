"""How many bytes a traced function holds at once, without compiling it.

The equations of a jaxpr are walked in order: what an equation makes is held until its
last use. XLA fuses elementwise work into what reads it, so a value that only such
equations and sums read takes nothing. It moves equations about and shares
buffers too, so this is an estimate, held against what runs take in benchmarks/README.md.
"""

from typing import Any

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
READS_FUSED = FUSED | {
    *("argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or"),
    *("reduce_prod", "reduce_sum", "concatenate", "pad", "transpose"),
}


# what they return lies where what they take lay, if nobody reads that any more
IN_PLACE = frozenset(
    """closed_call cond copy custom_jvp_call custom_vjp_call device_put
    dynamic_update_slice jit pjit scan scatter scatter-add shard_map sharding_constraint
    while""".split()
)


def bytes_held(jaxpr: Jaxpr, parts: int = 1) -> int:
    """The most bytes held at once beside the arguments, which may be written over.

    Args:
      jaxpr: of a function whose arguments are donated, where it returns their like.
      parts: devices that share one memory; each holds what a `shard_map` makes.
    """
    ends: dict[int, list[Var]] = {}
    for var, at in _last_uses(jaxpr).items():
        ends.setdefault(at, []).append(var)
    written, taken, most = _written(jaxpr), {}, 0
    for at, equation in enumerate(jaxpr.eqns):
        primitive = equation.primitive.name
        each = parts if primitive == "shard_map" else 1
        inside = [each * bytes_held(one, parts) for one in inner(equation)]
        ending = ends.get(at, [])
        before = [var for var in ending if var in equation.invars]
        for var in equation.outvars:
            old = _like(var, before) if primitive in IN_PLACE else None
            if old is None:
                taken[var] = num_bytes(var.aval) if var in written else 0
            else:
                before.remove(old)
                taken[var] = taken.pop(old, 0)
        # what an inner program returns is counted inside
        made = sum(taken[var] for var in equation.outvars)
        held = sum(taken.values())
        most = max(most, held, held - made + max(inside, default=0))
        for var in ending:
            taken.pop(var, None)
    return most


def _like(var: Var, others: list[Var]) -> Var | None:
    """Another of the same shape and dtype in the same memory."""
    kind = lambda var: (var.aval.shape, var.aval.dtype, var.aval.memory_space)
    return next((other for other in others if kind(other) == kind(var)), None)


def num_bytes(aval: Any) -> int:
    """What an array of this shape and dtype takes; a key as the numbers it is made of."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return aval.size * 8
    return aval.size * np.dtype(aval.dtype).itemsize


def _last_uses(jaxpr: Jaxpr) -> dict[Var, int]:
    """The last equation that reads each value; those returned are held to the end."""
    last = {}
    for at, equation in enumerate(jaxpr.eqns):
        for var in equation.outvars:
            last[var] = at
        for var in equation.invars:
            if not isinstance(var, Literal):
                last[var] = at
    for var in jaxpr.outvars:
        if not isinstance(var, Literal):
            last[var] = len(jaxpr.eqns)
    return last


def _written(jaxpr: Jaxpr) -> set[Var]:
    """What is written to memory of all that the equations make."""
    elsewhere = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    for equation in jaxpr.eqns:
        if equation.primitive.name not in READS_FUSED:
            elsewhere |= {v for v in equation.invars if not isinstance(v, Literal)}
    return {
        var
        for equation in jaxpr.eqns
        for var in equation.outvars
        if equation.primitive.name not in FUSED or var in elsewhere
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
