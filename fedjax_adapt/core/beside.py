"""How many models are trained side by side where a model is being traced.

Under `vmap` a layer sees the shapes of one model alone, and the fastest way to compute it
may hang on how many there are. Whoever puts models side by side says so while it traces.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_BESIDE = ContextVar("models side by side", default=1)


@contextmanager
def side_by_side(number: int) -> Iterator[None]:
    """What is traced in the block is computed for `number` models at once.

    Blocks in each other multiply: trials side by side, each with clients side by side.
    """
    token = _BESIDE.set(_BESIDE.get() * number)
    try:
        yield
    finally:
        _BESIDE.reset(token)


def num_side_by_side() -> int:
    """How many models what is being traced is computed for; 1 unless somebody said."""
    return _BESIDE.get()
