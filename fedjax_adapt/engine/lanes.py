"""How many clients run side by side, and the walk over a cohort in such groups."""

from collections.abc import Callable

import jax

from ..core import Params, PyTree

# On a CPU the models of a group should stay in the cache; on an accelerator the more
# clients at once the better. Measured: see benchmarks/README.md.
CPU_BYTES = 4 * 2**20


def choose(lanes: int | str, cohort_size: int, params: Params) -> int:
    """The number of clients trained side by side under `vmap`.

    "auto" takes the whole cohort on an accelerator, and on a CPU as many models as stay
    in the cache: stacked weights otherwise stream through memory at every step.
    """
    if lanes != "auto":
        return min(int(lanes), cohort_size)
    if jax.default_backend() != "cpu":
        return cohort_size
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(params))
    return max(1, min(cohort_size, CPU_BYTES // max(size, 1)))


def fold(
    train: Callable, combine: Callable, carry: PyTree, clients: PyTree, lanes: int
) -> tuple[PyTree, PyTree]:
    """Walks over a cohort `lanes` clients at a time, summing up as clients end.

    Args:
      train: client -> its result; no client axis.
      combine: (carry, clients, results) -> (carry, kept), all but the carry with a
        leading axis `lanes`.
      carry: what `combine` sums up.
      clients: leading axis cohort, a multiple of `lanes`.
      lanes: how many clients at a time.

    Returns:
      The last carry, and what was kept of every client, with leading axis cohort.
    """

    def group(carry, some):
        if lanes == 1:  # no vmap: a plain matmul beats a batched one of batch 1
            result = train(jax.tree.map(lambda leaf: leaf[0], some))
            results = jax.tree.map(lambda leaf: leaf[None], result)
        else:
            results = jax.vmap(train)(some)
        return combine(carry, some, results)

    split = lambda leaf: leaf.reshape(-1, lanes, *leaf.shape[1:])
    join = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])
    carry, kept = jax.lax.scan(group, carry, jax.tree.map(split, clients))
    return carry, jax.tree.map(join, kept)
