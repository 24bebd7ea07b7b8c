"""Runs an algorithm beside its NumPy oracle, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
from helpers import (
    WIDTH,
    keys,
    make_clients,
    make_data,
    make_task,
    quadratic_task,
    start,
)
from oracle import flat, num_batches

from fedjax_adapt import (
    FederatedDataset,
    Plan,
    bernoulli,
    constant_steps,
    epochs,
    train,
    with_steps,
)

ROUNDS = 4
PLAN = Plan(
    cohort_size=4,
    batch_size=3,  # the mean size, 8, is no multiple of it
    lr=0.3,
    lr_decay=0.9,
    weight_decay=0.05,
    clip_norm=0.7,  # about half of the steps are clipped
    shuffle="none",
    lanes=2,
)


def run(algorithm, plan=PLAN, sizes=None, rounds=ROUNDS):
    """[(state, info)] after each round, states as float64; and the start params."""
    sizes = {} if sizes is None else {"sizes": sizes}
    data = make_data(dtype=np.float64, **sizes)
    algorithm = with_steps(algorithm, epochs(2))
    round_fn, state = start(algorithm, make_task(jnp.float64), data, plan)
    begin, history = flat(state.params), []
    step = jax.jit(round_fn)
    for key in keys(rounds):
        state, info = step(state, key)
        history.append((state, info))
    return make_clients(dtype=np.float64, **sizes), begin, history


def assert_follows(history, oracle, atol=1e-12):
    """`oracle` yields theta after each round, given each round's cohort."""
    for round, (state, info) in enumerate(history):
        cohort = np.asarray(info.cohort)[np.asarray(info.num_steps) > 0]
        expected = oracle(round, cohort)
        np.testing.assert_allclose(flat(state.params), expected, atol=atol, rtol=1e-10)


def distance_to_optimum(algorithm, rounds=600, momentum=0.0):
    """Largest error after many rounds of half participation on unequal quadratics."""
    rng = np.random.default_rng(3)
    sizes, curvatures = (2, 6, 4, 8, 3), (0.5, 2.0, 1.0, 0.3, 1.5)
    clients = [
        (np.tile(rng.normal(size=WIDTH), (n, 1)), np.full(n, c))
        for n, c in zip(sizes, curvatures, strict=True)
    ]
    weight = np.array(sizes) * np.array(curvatures)
    optimum = np.average([x[0] for x, _ in clients], 0, weight)
    data = FederatedDataset.from_clients(clients)
    plan = Plan(
        participation=bernoulli(0.5),
        batch_size=None,
        lr=0.1 * (1 - momentum),
        momentum=momentum,
    )
    algorithm = with_steps(algorithm, constant_steps(5))
    round_fn, state = start(algorithm, quadratic_task(jnp.float64), data, plan)
    state, _ = train(round_fn, state, keys(rounds), chunk_size=rounds)
    return np.abs(np.asarray(state.params) - optimum).max()


KBAR = num_batches(8, PLAN.batch_size, 2)  # 48 examples, 6 clients: mean size 8
