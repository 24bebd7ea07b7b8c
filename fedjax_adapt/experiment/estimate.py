"""About how long runs take, from the operations of their local steps."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..core import Task, tree_bytes
from ..data import FederatedDataset
from ..engine import step_time
from ..engine.batches import batch_size
from ..engine.mesh import num_cores
from ..models import MODELS, classification
from ..plan import Plan
from .config import to_settings
from .reproduce import Cell

DATA = {  # inputs, training examples, classes
    "digits": ((8, 8, 1), 1437, 10),
    "mnist": ((28, 28, 1), 60_000, 10),
    "emnist_letters": ((28, 28, 1), 48_000, 10),
    "fashion_mnist": ((28, 28, 1), 60_000, 10),
    "cifar10": ((32, 32, 3), 50_000, 10),
    "cifar100": ((32, 32, 3), 50_000, 100),
    "speech_commands": ((49, 40), 30_769, 10),
    "gaussian_images": ((4, 4, 1), 50_000, 2),  # as GIFT's Fig. 2 has them
}
# operations a second of a core: the rounds of benchmarks/rounds.py on two cores of an AMD
# EPYC without AVX-512, commit 0928c17, 2026-11-23, n = 1 (W1 75e9, W2 55e9)
CORE = 6e10
STEP = 1e-4  # seconds that a local step takes there at the least, all clients at once
# of the peak of a GPU in float32: a round of W1, which is work, took 24 ms on an H200. One
# of W2, which moves models, took the 1.3 ms that follow from step_time.py alone
REACHED = 0.28


class Cost(NamedTuple):
    """About how long the runs of some cells take, each seed counted."""

    core_hours: float
    gpu_minutes: float


def cost(
    cells: Sequence[Cell], runs: Callable[[Cell], int] = lambda cell: len(cell.configs)
) -> Cost | None:
    """An estimate from the operations of the local steps; None: the data are not known.

    Methods that choose their steps count as if they stayed at the first number. The cells
    of an item come with those whose steps others take; `runs` is how many of one count.
    """
    core = gpu = 0.0
    at = {(cell.row, cell.method): cell.config for cell in cells}
    for cell in cells:
        config = cell.config
        if config.dataset not in DATA or config.num_clients is None:
            return None
        shape, examples, classes = DATA[config.dataset]
        examples = min(config.train_examples or examples, examples)
        mine = examples / config.num_clients
        batch = min(config.batch_size or mine, mine)
        other = config
        if cell.takes is not None and cell.takes[0] == "steps_of":
            other = at[cell.row, cell.takes[1]]
        given = to_settings(other)
        names = ("algorithm.num_steps", "algorithm.initial_steps", "num_steps")
        fixed = [given[n] for n in names if isinstance(given.get(n), int)]
        steps = config.rounds * (fixed[0] if fixed else config.epochs * mine / batch)
        cohort = max(config.participation * config.num_clients, 1)
        model = (config.model, tuple(config.model_options.items()), shape, classes)
        ideal = config.rounds * (config.ideal_steps or 0) * examples
        seen = steps * cohort * batch + ideal
        forward, size = _sizes(*model)
        work = 3 * seen * forward  # forward, twice back
        core += runs(cell) * max(work / CORE, steps * STEP) / 3600
        gpu += runs(cell) * _gpu_seconds(work, steps * cohort * size, steps) / 60
    return Cost(core, gpu)


def _gpu_seconds(work: float, trained: float, steps: float) -> float:
    """What rounds of `work` operations take on a GPU, by the rule of step_time.py.

    The models that take a step are `trained` bytes over all steps, of which `steps` follow
    one another.
    """
    moving = step_time.MOVED * trained / step_time.BANDWIDTH
    return steps * step_time.STEP + max(work / (REACHED * step_time.PEAK), moving)


@cache
def _sizes(
    model: str, options: tuple, shape: tuple[int, ...], classes: int
) -> tuple[float, int]:
    """As `_sizes_of`, of a model by its name."""
    network = MODELS[model](shape, 2 if model == "svm" else classes, **dict(options))
    x = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
    return _sizes_of(classification(network, shape), x)


def _sizes_of(task: Task, x: jax.ShapeDtypeStruct) -> tuple[float, int]:
    """Operations of a forward pass of one example [1, ...], and bytes of the model."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    forward = step_time.operations(jax.make_jaxpr(task.apply)(params, x).jaxpr)
    return forward, tree_bytes(params)


def train_seconds(
    task: Task,
    data: FederatedDataset,
    plan: Plan,
    gradients: float,
    evaluated: float,
    steps: float,
) -> float:
    """About how long rounds take on the devices here, once they are compiled.

    `gradients` are those of all clients, each on a batch, `evaluated` the examples that the
    server's model is evaluated on, and `steps` the local ones that follow one another.
    """
    x = jax.ShapeDtypeStruct((1, *data.x.shape[1:]), data.x.dtype)
    forward, size = _sizes_of(task, x)
    work = (3 * gradients * batch_size(data, plan) + evaluated) * forward
    if jax.default_backend() == "cpu":
        return max(work / (CORE * num_cores()), steps * STEP)
    return _gpu_seconds(work, gradients * size, steps)
