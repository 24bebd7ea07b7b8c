"""What a run holds in memory, known before anything is compiled or allocated."""

from typing import NamedTuple

import jax
from jax.extend.core import Jaxpr
from jax.interpreters.partial_eval import dce_jaxpr

from ..core import PyTree, State
from . import mesh
from .liveness import bytes_held, inner, num_bytes

# Measured, see benchmarks/README.md.
PROCESS = 2**28  # Python with JAX and this package
# what XLA takes to compile a round, and the program: so much, and so much an equation
COMPILER, OF_EQUATION = 2**27, 2**17


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
        """Of the device."""
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
        """What there is of each."""
        parts = {
            "data": self.data,
            "client state": self.clients,
            "models": self.models,
            "work": self.work,
        }
        shown = [f"{name} {readable(size)}" for name, size in parts.items() if size]
        if self.host:
            shown.append(f"in the host's memory {readable(self.host)}")
        return ", ".join(shown)


def footprint(
    jaxpr: Jaxpr, state: State, others: PyTree, num_devices: int
) -> Footprint:
    """What a program of rounds holds.

    Args:
      jaxpr: of the program, which takes and returns a state, and gives up its memory.
      state: with shardings; shapes are enough.
      others: what else it takes: the data.
      num_devices: that share a round.
    """
    # one memory for all that are of this process
    shared = mesh.devices_here(num_devices) if jax.default_backend() == "cpu" else 1
    kept, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
    tables = [of_table(leaf, shared) for leaf in jax.tree.leaves(state.clients)]
    on_host = [
        leaf.sharding.memory_kind == mesh.HOST_MEMORY
        for leaf in jax.tree.leaves(state.clients)
    ]
    clients = sum(tables)
    aside = clients if any(on_host) and jax.default_backend() != "cpu" else 0
    return Footprint(
        data=sum(map(num_bytes, jax.tree.leaves(others))),
        clients=clients - aside,
        models=shared
        * sum(map(num_bytes, jax.tree.leaves(state._replace(clients=())))),
        work=bytes_held(kept, shared),
        host=aside,
        compiler=COMPILER + OF_EQUATION * _num_equations(kept),
    )


def _num_equations(jaxpr: Jaxpr) -> int:
    """Those of inner programs included."""
    return sum(1 + sum(map(_num_equations, inner(eqn))) for eqn in jaxpr.eqns)


def of_table(leaf: jax.ShapeDtypeStruct | jax.Array, num_devices: int) -> int:
    """The part on one device, times the devices that share its memory."""
    part = jax.ShapeDtypeStruct(leaf.sharding.shard_shape(leaf.shape), leaf.dtype)
    return num_bytes(part) * num_devices


def readable(size: int) -> str:
    """For people: in MiB where it is small."""
    if size < 2**30 / 10:
        return f"{size / 2**20:.2f} MiB"
    return f"{size / 2**30:.2f} GiB"
