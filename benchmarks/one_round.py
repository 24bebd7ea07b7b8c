"""A round of ours, ready to be timed: compiled, and its state handed on call by call."""

import itertools
import time
from typing import Any

import jax
import jax.numpy as jnp
from readings import Ready

import fedjax_adapt as fa
from fedjax_adapt.engine.xla import compiler_options

KEYS = 100  # of rounds; then they come again, and with them the cohorts


def one_round(
    algorithm: Any,
    task: fa.Task,
    data: fa.FederatedDataset,
    plan: fa.Plan,
    params: Any = None,
) -> Ready:
    """One round per call, as `fedjax-adapt run` compiles it.

    Args:
      algorithm: what is trained by.
      task: what is learnt.
      data: an argument of the program, not a constant in it.
      plan: how clients train.
      params: to begin with; None: the task's own.

    Raises:
      ValueError: the plan does not fit the data, or the client table into memory.
    """
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    if params is not None:  # a copy, as the rounds are given the state for good
        state = round_fn.placed(state._replace(params=jax.tree.map(jnp.copy, params)))
    keys = itertools.cycle(list(jax.random.split(jax.random.key(1), KEYS)))

    step = jax.jit(lambda f, state, key: f(state, key), donate_argnums=1)
    begin = time.perf_counter()
    step = step.lower(round_fn, state, next(keys))
    step = step.compile(compiler_options(round_fn.num_lanes))
    about = {
        "compile_seconds": round(time.perf_counter() - begin, 2),
        "num_lanes": round_fn.num_lanes,
        "num_devices": round_fn.num_devices,
        "parameters": fa.num_parameters(state.params),
    }

    def call():
        nonlocal state
        state, info = step(round_fn, state, next(keys))
        return state, info

    return Ready(call, about)
