"""Local steps of baselines: as many in all as a run with adaptive steps took."""

import jax.numpy as jnp
import numpy as np

from . import check
from .core import StepPolicy


def matched_steps(average_epochs: float) -> StepPolicy:
    """Every client takes floor(average_epochs n_i / B) local steps, at least 1.

    It gives a baseline the total of a run with adaptive steps: that run's steps, times B,
    over the examples of the clients of all its rounds. So are FedVeca's baselines run.

    Args:
      average_epochs: E_avg, passes over a client's data; a partial batch does not count.
    """
    check.positive("average_epochs", average_epochs)

    def steps(state, cohort, measurement):
        del state, measurement
        # in float32 the product may fall short of the whole number it is
        wanted = average_epochs * cohort.num_examples / cohort.batch_size + 1e-4
        return jnp.maximum(jnp.floor(wanted), 1).astype(jnp.int32)

    return StepPolicy(steps)


def scheduled_steps(num_steps: np.ndarray) -> StepPolicy:
    """Every client takes `num_steps[round]` local steps, whatever it holds."""
    table = jnp.asarray(num_steps)

    def steps(state, cohort, measurement):
        del state, measurement
        now = table[jnp.minimum(cohort.round, len(table) - 1)]
        return jnp.broadcast_to(now, cohort.ids.shape)

    return StepPolicy(steps)
