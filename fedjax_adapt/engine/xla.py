"""The functions that only XLA needs, each with its reason.

Nothing here changes a number. `test_accelerators.py` and `test_efficiency.py` count the
kernels, copies and bytes that it saves.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from .. import check
from ..core import Array, PyTree

# `jit_newest` keeps so many programs of a function: as many algorithms may train in turn
MOST_PROGRAMS = 32
MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
MOST_KEPT = 2**31 - 1  # bytes; what glibc accepts
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # names of its settings, from malloc.h

_keeps_memory = False


def keep_memory() -> bool:
    """Makes glibc keep freed memory for the next round, in place of giving it back.

    XLA asks it for large blocks in every round. By default it gets them from Linux, which
    clears every page: on a CPU that is a good part of a round. `fedjax-adapt` calls this
    itself; a program of your own may, before its first round. It does nothing where there
    is no glibc, or one of the variables MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_
    is set.

    Returns:
      Whether freed memory is kept now, by this or by those variables.
    """
    global _keeps_memory
    if keeps_memory() or sys.platform != "linux":
        return keeps_memory()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):  # another C library
        return False
    thresholds = TRIM_THRESHOLD, MMAP_THRESHOLD
    _keeps_memory = all(mallopt(name, MOST_KEPT) for name in thresholds)
    return _keeps_memory


def keeps_memory() -> bool:
    """Whether freed memory is kept, as far as this process knows."""
    return _keeps_memory or any(name in os.environ for name in MALLOC_VARIABLES)


def wait_for_shared_cpu_state(state: PyTree) -> None:
    """Waits for a state that several devices of a CPU share; does nothing elsewhere.

    With many calls under way at once the devices of a CPU may wait for each other for
    ever: one meets in a sum of call k, the other has no room left to begin it (jax 0.10.2;
    20 lines of plain JAX with 64 sums under way stop within a minute on two busy cores,
    and 296,005 calls, each waited for, did not). So loops that do not wait call this.
    """
    for leaf in jax.tree.leaves(state):
        if isinstance(leaf, jax.Array) and not check.is_tracer(leaf):
            devices = leaf.devices()
            if len(devices) > 1 and next(iter(devices)).platform == "cpu":
                jax.block_until_ready(state)
            return


def arrays_of(tree: PyTree) -> tuple[list[Array], Callable[[Sequence[Array]], PyTree]]:
    """The arrays of a tree, for `jax.jit` to take, and what makes the tree of them again.

    JAX keeps the structures of arguments for good. That of a `Round` holds all functions
    of its run, so a Round that is an argument would stay in memory after its run.
    """
    arrays, structure = jax.tree.flatten(tree)
    return arrays, functools.partial(jax.tree.unflatten, structure)


def jit_newest(static: int, **options: Any) -> Callable[[Callable], Callable]:
    """`jax.jit` that forgets the program used longest ago beyond `MOST_PROGRAMS`.

    `jax.jit` keeps what it compiled as long as the function lives, and a function of a
    module lives as long as the process. Every algorithm, task and data set makes a program
    of its own, each with hundreds of mappings of memory, of which Linux grants a process
    65,530: XLA would abort in a process that trains some seventy runs.

    Args:
      static: the first so many arguments are static, and make a program of their own.
      **options: of `jax.jit`; arguments are counted from the first that is not static.

    Returns:
      A decorator. What it makes takes `compiler_options` as well, which only a call that
      is not inside another `jax.jit` may have.
    """

    def decorate(function: Callable) -> Callable:
        @functools.lru_cache(MOST_PROGRAMS)
        def program(compiler: tuple[tuple[str, str], ...], *given: Any) -> Callable:
            function_of_rest = functools.partial(function, *given)
            compiler_options = dict(compiler) or None
            return jax.jit(
                function_of_rest, compiler_options=compiler_options, **options
            )

        def call(*arguments: Any, compiler_options: dict | None = None) -> Any:
            compiler = tuple((compiler_options or {}).items())
            return program(compiler, *arguments[:static])(*arguments[static:])

        return call

    return decorate


def compiler_options(num_lanes: int) -> dict[str, str] | None:
    """XLA options under which rounds run fastest on this backend; None: the defaults.

    XLA's CPU backend gives matrix products and reductions to its YNN library, whose
    batched forms are slower than XLA's own: without it W2 at 10 lanes takes 0.7 of the
    time. Only a jit at the top level takes compiler options, so this is for programs that
    own theirs.
    """
    return None if num_lanes == 1 else _without_ynn()


@functools.cache
def _without_ynn() -> dict[str, str] | None:
    options = {"xla_cpu_experimental_ynn_fusion_type": ""}
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except jax.errors.JaxRuntimeError:  # a jaxlib that has no such option
        return None
    return options


@custom_vmap
def largest(number: Array) -> Array:
    """The largest of all clients and trials that are traced side by side, unbatched.

    So a loop has one end for all of them, and `vmap` chooses nothing after every trip.
    """
    return number.max()


@largest.def_vmap
def _largest(axis_size: int, batched: list[bool], number: Array) -> tuple[Array, bool]:
    return largest(number), False


def known_after(index: Array, made: PyTree) -> Array:
    """`index`, known no sooner than `made`.

    Rows of an array are read for `made`, and then written by steps that `index` counts.
    Unless XLA sees that one comes after the other, it copies the array:
    a round of AFL, an MLP and 200 clients has 247 MB of work on 2 CPU devices, not 209.
    """
    for leaf in jax.tree.leaves(made):
        if leaf.size and jnp.issubdtype(leaf.dtype, jnp.number):
            first = leaf.reshape(-1)[0]
            number = first.astype(jnp.result_type(first, float))
            # 0 >> 1 or 1 >> 1, which XLA does not work out
            index += jnp.isnan(number).astype(index.dtype) >> 1
    return index


def written_once(progress: PyTree, num_steps: Array) -> PyTree:
    """`progress`, as a choice that is always the same, which XLA does not see.

    On an accelerator XLA would write the broadcast model to memory twice, once for all
    clients and once for the loop over their steps: 107 MB of work and 52 kernels outside
    the steps of W2 on an H100, not 69 and 47.
    """
    if jax.default_backend() == "cpu":
        return progress
    always = jax.lax.optimization_barrier(num_steps >= 0)
    keep = lambda leaf: jnp.where(always, leaf, jnp.zeros_like(leaf))
    return jax.tree.map(keep, progress)


def apart_on_tpu(progress: PyTree) -> PyTree:
    """`progress`, behind a barrier: W1 compiles in 43 s, else in 65 s; 5 % more bytes."""
    if jax.default_backend() != "tpu":
        return progress
    return jax.lax.optimization_barrier(progress)


def read_apart(times: Array, read: Callable[[], PyTree], otherwise: PyTree) -> PyTree:
    """`read()`, or `otherwise` if `times` is 0, in a loop by itself.

    A read that XLA fuses into something after the write makes it copy the whole table for
    every client: a round of SCAFFOLD on W2 takes 3.9 s then, not 0.24. No fusion reaches
    into a loop, so each read is one, of length 1.
    """
    return jax.lax.fori_loop(0, times.astype(int), lambda _, rows: read(), otherwise)
