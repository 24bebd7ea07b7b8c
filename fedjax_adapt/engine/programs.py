"""Compiled programs that are let go.

`jax.jit` keeps what it compiled as long as the function lives, and a function of a module
lives as long as the process. Every algorithm, task and data set makes a program of its
own, each with hundreds of mappings of memory, of which Linux grants a process 65,530: XLA
would abort in a process that trains some seventy runs. So only the newest are kept.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import jax

MOST = 32  # programs kept of a function: as many algorithms may train in turn


def jit_newest(static: int, **options: Any) -> Callable[[Callable], Callable]:
    """`jax.jit` that forgets the program used longest ago where there are more than `MOST`.

    Args:
      static: the first so many arguments are static, and make a program of their own.
      **options: of `jax.jit`; arguments are counted from the first that is not static.

    Returns:
      A decorator. What it makes takes `compiler_options` as well, which only a call that
      is not inside another `jax.jit` may have.
    """

    def decorate(function: Callable) -> Callable:
        @lru_cache(MOST)
        def program(compiler: tuple[tuple[str, str], ...], *given: Any) -> Callable:
            compiler_options = dict(compiler) or None
            return jax.jit(
                partial(function, *given), compiler_options=compiler_options, **options
            )

        def call(*arguments: Any, compiler_options: dict | None = None) -> Any:
            compiler = tuple((compiler_options or {}).items())
            return program(compiler, *arguments[:static])(*arguments[static:])

        return call

    return decorate
