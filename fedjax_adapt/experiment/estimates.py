"""About how long the rounds of a run take, from the operations of its local steps.

Nothing is compiled or run.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from ..core import Algorithm, Task, Traffic, as_refinement, tree_bytes
from ..costs import messages, refined_traffic, round_bytes
from ..engine import step_time
from ..engine.batches import batch_size
from ..engine.cohort import (
    eligible_clients,
    expected_share,
    gather_cohort,
    most_steps,
    num_slots,
    participation_of,
    rows_of,
)
from ..engine.lanes import client_steps
from ..engine.mesh import num_cores
from .build import Federation, broadcast_bytes
from .config import Config

# operations a second of a core: the rounds of benchmarks/rounds.py on two cores of an AMD
# EPYC without AVX-512, commit 0928c17, 2026-11-23, n = 1 (W1 75e9, W2 55e9)
CORE = 6e10
STEP = 1e-4  # seconds that a local step takes there at the least, all clients at once
# of the peak of a GPU in float32: a round of W1, which is work, took 24 ms on an H200. One
# of W2, which moves models, took the 1.3 ms that follow from step_time.py alone
REACHED = 0.28


@dataclass(frozen=True)
class Rounds:
    """What the rounds of a run come to, as far as its settings and its data say."""

    rounds: int
    clients: int  # in all
    cohort: float  # clients that are expected in a round
    # local steps of a client in the first round, a mean over those that hold examples, and
    # of the client that takes most; None: they follow from what clients measure or lose
    mean_steps: float | None
    most_steps: int | None
    steps_cap: int | None  # that a client takes at most; None: there is no cap
    # of all clients in the first round, expected: one on a batch for each local step;
    # None: as `mean_steps`, or they hang on who ends first
    gradients: float | None
    # expected of the clients of a round, but for `bytes_refined`
    bytes_down: float
    bytes_up: float
    bytes_refined: int  # that each client moves besides which refines on a public set
    broadcast_bytes: int  # of a public set, that clients receive before the first round


def seconds_of(
    config: Config, federation: Federation, rounds: Rounds, at_once: int, done: int = 0
) -> float | None:
    """About how long the rounds after `done` take here; None: their steps are not known.

    So many clients train at once. Compiling, steps on a public set, and what a method
    computes besides gradients on batches, are in no estimate.
    """
    if rounds.gradients is None or rounds.most_steps is None:
        return None
    task, data, plan = federation[1:4]
    left = rounds.rounds - done
    gradients = float(left * rounds.gradients)  # of all clients, each on a batch
    tests = 0 if data.test is None else len(data.test[1])
    evaluated = tested_examples(config, left, tests)
    # that follow one another
    steps = left * math.ceil(rounds.cohort / at_once) * rounds.most_steps
    x = jax.ShapeDtypeStruct((1, *data.x.shape[1:]), data.x.dtype)
    forward, size = sizes_of(task, x)
    work = (3 * gradients * batch_size(data, plan) + evaluated) * forward
    if jax.default_backend() == "cpu":
        return max(work / (CORE * num_cores()), steps * STEP)
    return gpu_seconds(work, gradients * size, steps)


def tested_examples(config: Config, rounds: int, tests: int) -> float:
    """The examples that the tests of so many rounds see, once for each model."""
    models = 1 + len(config.evaluate_also)
    return rounds / config.evaluate_every * models * tests


def rounds_of(config: Config, federation: Federation, algorithm: Algorithm) -> Rounds:
    """What the rounds of a run come to; `algorithm` is `checked`."""
    task, data, plan = federation[1:4]
    ids, who = np.asarray(eligible_clients(data, plan)), participation_of(plan)
    share = expected_share(data, plan)
    batch = batch_size(data, plan)
    everyone = gather_cohort(data, jnp.asarray(ids), jnp.int32(0), batch)
    steps = client_steps(federation.setup)
    if steps is not None:
        everyone = everyone._replace(active=jnp.asarray(steps[ids] > 0))
    holders = np.asarray(everyone.num_examples) > 0
    params = jax.eval_shape(task.init, jax.random.key(0))
    cohort, drawn = everyone, share
    if who.first_to_end:  # all begin, and these are waited for
        cohort, drawn = rows_of(everyone, slice(num_slots(data, plan))), 1.0
    down, up = round_bytes(algorithm, params, cohort, everyone)
    refine = as_refinement(algorithm.refine)
    more = Traffic() if refine is None else refined_traffic(algorithm)
    mean = most = gradients = None
    if steps is not None:
        mean, most = float(steps[ids][holders].mean()), int(steps.max())
        gradients = None if who.first_to_end else share * float(steps[ids].sum())
    return Rounds(
        rounds=config.rounds,
        clients=data.num_clients,
        cohort=share * len(ids),
        mean_steps=mean,
        most_steps=most,
        steps_cap=most_steps(plan, algorithm.policy),
        gradients=gradients,
        bytes_down=drawn * float(down),
        bytes_up=drawn * float(up),
        bytes_refined=sum(messages(more, params)),
        broadcast_bytes=broadcast_bytes(federation),
    )


def gpu_seconds(work: float, trained: float, steps: float) -> float:
    """What rounds of `work` operations take on a GPU, by the rule of step_time.py.

    The models that take a step are `trained` bytes over all steps, of which `steps` follow
    one another.
    """
    moving = step_time.MOVED * trained / step_time.BANDWIDTH
    return steps * step_time.STEP + max(work / (REACHED * step_time.PEAK), moving)


def sizes_of(task: Task, x: jax.ShapeDtypeStruct) -> tuple[float, int]:
    """Operations of a forward pass of one example [1, ...], and bytes of the model."""
    params = jax.eval_shape(task.init, jax.random.key(0))
    forward = step_time.operations(jax.make_jaxpr(task.apply)(params, x).jaxpr)
    return forward, tree_bytes(params)
