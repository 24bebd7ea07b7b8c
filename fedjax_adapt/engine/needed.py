"""What a round needs, asked before it is made."""

from functools import partial

import jax

from .. import check
from ..core import Algorithm, Task
from ..data.dataset import FederatedDataset
from ..plan import Plan
from .footprint import Footprint, footprint
from .home import home_of
from .initial import federation_kinds, init_state
from .round import make_round


def memory_needed(
    algorithm: Algorithm, task: Task, data: FederatedDataset, plan: Plan
) -> Footprint:
    """What a round holds in memory, from its trace: nothing is compiled or allocated.

    Args:
      algorithm: as for `make_round`, like the rest.
      task: what is learnt.
      data: the federation.
      plan: how clients train.

    Raises:
      ValueError: as `make_round`.
    """
    check.kinds(
        "memory_needed(algorithm, task, data, plan)",
        **federation_kinds(algorithm, task, data, plan),
    )
    round_fn = make_round(algorithm, task, data, plan)
    init = partial(init_state, algorithm, task, data, plan)
    key = jax.random.key(0)
    state = home_of(plan).placed(jax.eval_shape(init, key), round_fn.num_devices)
    # the caller's own round may donate its state, and so does this
    step = jax.jit(lambda state, round_fn, key: round_fn(state, key), donate_argnums=0)
    traced = step.trace(state, round_fn, key)
    return footprint(traced.jaxpr.jaxpr, state, round_fn.data, round_fn.num_devices)
