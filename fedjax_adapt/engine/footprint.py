"""The memory of a run, known before anything is compiled or allocated.

The equations of a jaxpr are gone through in order: what an equation makes is held until
its last use. XLA fuses elementwise work into what reads it, so a value that only such
equations and sums read takes nothing: it is made where it is read, from values that are
held until then, or from a mask of them, which is smaller. An accelerator fuses copies as
well. XLA moves equations about and shares buffers too, and libraries of an accelerator
take room of their own, so this is an estimate, compared in benchmarks/README.md with what
runs take and with what XLA compiles for an H100.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.interpreters.partial_eval import dce_jaxpr

from ..core import PyTree, State
from . import mesh

# Measured, see benchmarks/README.md.
PROCESS = 2**28  # Python with JAX and this package
# what XLA takes to compile a round, and the program: so much, and so much an equation
COMPILER, OF_EQUATION = 3 * 2**26, 2**17

# of one element at a time, or of none: XLA makes them where they are read
FUSED = frozenset(
    """abs add add_any and broadcast_in_dim ceil clamp convert_element_type copy cos
    div eq erf exp exp2 expm1 floor ge gt integer_pow iota is_finite le log log1p
    logistic lt max min mul ne neg not or pow random_bits random_wrap random_unwrap
    rem reshape round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sqrt square squeeze stop_gradient sub tanh
    threefry2x32 xor expand_dims rev slice""".split()
)
# what moves elements about, which accelerators fuse as well
MOVES = frozenset("concatenate dynamic_slice gather pad stack transpose".split())
SUMS = frozenset(
    """argmax argmin reduce reduce_and reduce_max reduce_min reduce_or reduce_prod
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


class Footprint(NamedTuple):
    """Bytes in the memory of a device, or of the machine where cores are devices."""

    data: int  # examples, who holds them, test and public sets
    clients: int  # the state of all clients
    models: int  # the server's model, and all else of the state
    work: int  # what a round makes and forgets: lanes, sums, an evaluation
    host: int = 0  # the state of all clients where the host keeps it for the device
    compiler: int = COMPILER  # of the machine, and only while it compiles

    @property
    def total(self) -> int:
        """The bytes on the device."""
        return self.data + self.clients + self.models + self.work

    @property
    def peak(self) -> int:
        """The most there will be: of the device, or of the whole process on a CPU.

        There Python, JAX and its compiler come on top, and examples are held twice while
        they are loaded.
        """
        if jax.default_backend() != "cpu":
            return self.total
        return PROCESS + max(2 * self.data, self.total + self.compiler)

    def __str__(self) -> str:
        return f"{readable(self.total)}: {self.parts}"

    @property
    def parts(self) -> str:
        """The bytes of each kind, in words."""
        names = "data", "client state", "models", "work", "in the host's memory"
        sizes = zip(names, self[:5], strict=True)
        return ", ".join(f"{name} {readable(size)}" for name, size in sizes if size)


def footprint(
    jaxpr: Jaxpr, state: State, others: PyTree, num_devices: int
) -> Footprint:
    """The memory of a program of rounds.

    Args:
      jaxpr: of the program, which takes and returns a state, and gives up its memory.
      state: with shardings; shapes are enough.
      others: what else it takes: the data.
      num_devices: that share a round.
    """
    shared = mesh.sharing_memory(num_devices)
    kept, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    tables = jax.tree.leaves(state.clients)
    clients = sum(table_bytes(leaf, shared) for leaf in tables)
    on_host = any(leaf.sharding.memory_kind == mesh.HOST_MEMORY for leaf in tables)
    aside = clients if on_host and jax.default_backend() != "cpu" else 0
    return Footprint(
        data=sum(map(num_bytes, jax.tree.leaves(others))),
        clients=clients - aside,
        models=shared
        * sum(map(num_bytes, jax.tree.leaves(state._replace(clients=())))),
        work=bytes_held(kept, shared),
        host=aside,
        compiler=COMPILER + OF_EQUATION * num_equations(kept),
    )


def num_equations(jaxpr: Jaxpr) -> int:
    """Those of a program and of its inner ones, of a loop as often as it is unrolled."""

    def within(equation: Any) -> int:
        inside = sum(map(num_equations, inner_jaxprs(equation)))
        return inside * equation.params.get("unroll", 1)

    return sum(1 + within(equation) for equation in jaxpr.eqns)


def table_bytes(leaf: jax.ShapeDtypeStruct | jax.Array, num_devices: int) -> int:
    """The part on one device, times the devices that share its memory."""
    part = jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
    return num_bytes(part) * num_devices


def readable(size: int) -> str:
    """For people: in MiB where it is small."""
    if size < 2**30 / 10:
        return f"{size / 2**20:.2f} MiB"
    return f"{size / 2**30:.2f} GiB"


@dataclass(eq=False)
class _Value:
    """A value that an equation makes, or that a function is given."""

    aval: Any  # its shape and dtype
    devices: int = 1  # that hold a part of it each

    def num_bytes(self, parts: int) -> int:
        """The bytes in a memory that so many devices share."""
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
    works, returned = _flattened(jaxpr, _arguments(jaxpr))
    returned = [value for value in returned if value is not None]
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


def _flattened(
    jaxpr: Jaxpr, known: dict[Var, _Value | None]
) -> tuple[list[_Work], list[_Value | None]]:
    """The equations, those of functions that are called among them, and what is returned.

    Args:
      jaxpr: of the function.
      known: its arguments; None: a number in the program. What it makes is added.
    """
    values_of = lambda atoms: [
        None if isinstance(a, Literal) else known[a] for a in atoms
    ]
    works = []
    for equation in jaxpr.eqns:
        name, inside = equation.primitive.name, inner_jaxprs(equation)
        reads = values_of(equation.invars)
        if name in CALLS and len(inside) == 1:
            called = inside[0]
            given = zip(called.invars, reads, strict=True)
            more, makes = _flattened(called, _arguments(called) | dict(given))
            works += more
        elif name in VIEWS and reads[0] is not None:
            makes = reads[:1]
        else:
            devices = _devices_of(equation)
            makes = [
                _Value(var.aval, number)
                for var, number in zip(equation.outvars, devices, strict=True)
            ]
            reads = [value for value in reads if value is not None]
            works.append(_Work(name, reads, makes, inside))
        known.update(zip(equation.outvars, makes, strict=True))
    return works, values_of(jaxpr.outvars)


def _devices_of(equation: Any) -> list[int]:
    """The number of devices that hold a part of each value of an equation."""
    if equation.primitive.name != "shard_map":
        return [1] * len(equation.outvars)
    size, specs = equation.params["mesh"].size, equation.params["out_specs"]
    return [size if any(spec) else 1 for spec in specs]


def _like(value: _Value, others: list[_Value]) -> _Value | None:
    """Another of the same shape and dtype in the same memory."""
    kind = lambda v: (v.aval.shape, v.aval.dtype, v.aval.memory_space)
    return next((other for other in others if kind(other) == kind(value)), None)


def num_bytes(aval: Any) -> int:
    """The bytes of an array of this shape and dtype; of a key, of its numbers."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return aval.size * 8
    return aval.size * np.dtype(aval.dtype).itemsize


def _lives(
    works: list[_Work], returned: list[_Value]
) -> tuple[set[_Value], dict[_Value, int]]:
    """The values that are written to memory, each with the last equation that reads it."""
    stored = _stored(works, returned)
    made = {value for work in works for value in work.makes}
    last = {value: len(works) for value in returned}  # held to the end
    for at, work in reversed([*enumerate(works)]):
        until = max((last.setdefault(value, at) for value in work.makes), default=at)
        longer = {v for v in work.reads if v in made and last.get(v, at) < until}
        mask = work.name in FUSED and work.makes[0].aval.dtype == bool
        if mask and _sum(work.makes) < _sum(longer):
            stored.update(work.makes)
        if any(value in stored for value in work.makes):
            until = at
        for value in work.reads:
            last[value] = max(last.get(value, at), until)
    return stored, last


def _sum(values: Iterable[_Value]) -> int:
    return sum(num_bytes(value.aval) for value in values)


def _stored(works: list[_Work], returned: list[_Value]) -> set[_Value]:
    """The values that XLA must write to memory, not make where they are read."""
    fused = FUSED if jax.default_backend() == "cpu" else FUSED | MOVES
    read = {*returned}
    for work in works:
        if work.name not in FUSED | MOVES | SUMS:
            read.update(work.reads)
    made = {value for work in works if work.name not in fused for value in work.makes}
    return made | read


def inner_jaxprs(equation: Any) -> list[Jaxpr]:
    """The programs an equation runs."""
    values = []
    for value in equation.params.values():
        values += value if isinstance(value, tuple | list) else [value]
    opened = [one.jaxpr if isinstance(one, ClosedJaxpr) else one for one in values]
    return [one for one in opened if isinstance(one, Jaxpr)]
