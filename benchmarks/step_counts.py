"""Draws how many local steps FedGSNR gives each client, round by round.

    python benchmarks/step_counts.py     # digits, half a minute on two cores

Ten clients hold scikit-learn's digits, the first all labels, the last only a few
(NonBalance). Under FedAvg everyone would take the same number of steps.
"""

from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import fedjax_adapt as fa
from fedjax_adapt.algorithms import fedgsnr
from fedjax_adapt.data import load, split

PICTURE = Path(__file__).parent / "results" / "step-counts.png"
ROUNDS, STEPS, CLIENTS = 40, 20, 10


def step_counts() -> np.ndarray:
    """Local steps of each client in each round, [rounds, clients]."""
    source = load("digits")
    rows = split("nonbalance", source.y_train, num_clients=CLIENTS)
    data, shape = source.federated(rows), source.shape
    model = fa.models.mlp(shape, source.num_classes)
    task = fa.classification(model, shape, source.mean, source.std)
    plan = fa.Plan(batch_size=20, lr=0.05, clip_norm=10.0)
    algorithm = fedgsnr(num_steps=STEPS)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    round_fn = fa.make_round(algorithm, task, data, plan)
    keys = jax.random.split(jax.random.key(1), ROUNDS)
    _, infos = fa.train(round_fn, state, keys)
    assert (np.sort(infos.cohort) == np.arange(CLIENTS)).all()
    return np.take_along_axis(
        np.asarray(infos.num_steps), np.argsort(np.asarray(infos.cohort), 1), 1
    )


def main() -> None:
    steps = step_counts()
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    sides = (0.5, ROUNDS + 0.5, CLIENTS - 0.5, -0.5)  # rounds count from 1
    image = axes.imshow(steps.T, aspect="auto", interpolation="none", extent=sides)
    axes.set_xlabel("round")
    axes.set_ylabel("client")
    axes.set_yticks(range(CLIENTS))
    figure.colorbar(image, label="local steps")
    figure.savefig(PICTURE, dpi=150)
    print(f"{PICTURE}: {steps.min()} to {steps.max()} steps, mean {steps.mean():.1f}")


if __name__ == "__main__":
    main()
