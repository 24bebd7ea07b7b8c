"""What the last models of trials are worth to their clients, each trial to its own."""

from collections.abc import Sequence

import jax

from ...core import State
from ...engine import mesh
from ...engine.evaluate import evaluate_clients
from ..config import Config
from ..federation import Federation
from ..figures import spread_over_clients
from .compiled_group import CompiledGroup


def client_figures(
    config: Config,
    federation: Federation,
    compiled: CompiledGroup,
    state: State,
    some: Sequence[int],
) -> list[dict[str, float]]:
    """`client_accuracy` of a run's summary, of some trials; empty: not asked for.

    Args:
      config: of any trial of the group.
      federation: of the first.
      compiled: the compiled group.
      state: of these trials, as its programs return it.
      some: these trials, of the group.
    """
    if not config.evaluate_clients:
        return [{} for _ in some]
    shared = mesh.shown(federation.data, compiled.num_devices)
    every, found = jax.device_get(compiled.params_of(state)), []
    for row, trial in enumerate(some):
        data = compiled.partitions.put_into(shared, trial)
        params = jax.tree.map(lambda leaf, row=row: leaf[row], every)
        accuracy = evaluate_clients(
            federation.task, params, data, devices=compiled.num_devices
        ).accuracy
        found.append(spread_over_clients(accuracy, data.size))
    return found
