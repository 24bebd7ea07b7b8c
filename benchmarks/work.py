"""The work that simulators are timed at: data, initial parameters, and what to compare.

w1: 10 of 100 clients, 10 steps of batch 50 each: the CIFAR network, 797,962 parameters.
w1-100, w1-500: the same with 100 and 500 clients, all of them in every round, for a GPU.
w2: 50 of 500 clients, 10 steps of batch 10 each: 784-200-200-10, 199,210 parameters.

All: SGD at 0.1 with weight decay 1e-3 (g + 1e-3 w), one shuffled epoch per client and
round, plain average. NumPy alone, so that a simulator in an environment without JAX or
this package does the same work: rounds.py does ours, peers/ that of the others.
"""

import argparse
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

LR, WEIGHT_DECAY = 0.1, 1e-3
CLASSES = 10


class Workload(NamedTuple):
    model: str
    shape: tuple[int, ...]  # of an example, channels last
    clients: int
    examples: int  # of each client
    cohort: int
    batch: int
    layers: dict  # name of the layer in our model -> weight shape, [out, in, ...]

    @property
    def steps(self) -> int:
        """Local steps in a round, over all clients."""
        return self.cohort * self.examples // self.batch

    @property
    def flops(self) -> int:
        """Additions and multiplications of a round, as the layers are defined.

        Of products alone, each done forwards and for two gradients, but for that of the
        pixels, which is not used.
        """
        shape, forward, first = self.shape, 0, 0
        for size in self.layers.values():
            if len(size) == 4:
                height, width = shape[0] - size[2] + 1, shape[1] - size[3] + 1
                once = 2 * math.prod(size) * height * width
                shape = height // 2, width // 2, size[0]
            else:
                once = 2 * math.prod(size)
            forward, first = forward + once, first or once
        return (3 * forward - first) * self.steps * self.batch

    @property
    def training(self) -> dict[str, Any]:
        """How its clients train, by the names of `fedjax_adapt.Plan`."""
        how = {"cohort_size": self.cohort, "batch_size": self.batch}
        return how | {"lr": LR, "weight_decay": WEIGHT_DECAY}


W1 = Workload(
    "cnn", (32, 32, 3), 100, 500, 10, 50,
    {"conv1": (64, 3, 5, 5), "conv2": (64, 64, 5, 5), "fc1": (384, 1600),
     "fc2": (192, 384), "out": (10, 192)},
)  # fmt: skip
WORKLOADS = {
    "w1": W1,
    "w1-100": W1._replace(clients=100, cohort=100),
    "w1-500": W1._replace(clients=500, cohort=500),
    "w2": Workload(
        "mlp", (784,), 500, 100, 50, 10,
        {"hidden.0": (200, 784), "hidden.1": (200, 200), "out": (10, 200)},
    ),
}  # fmt: skip


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every script that does this work."""
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds")
    parser.add_argument("--warmup", type=int, default=2, help="untimed rounds before")
    parser.add_argument(
        "--check",
        action="store_true",
        help="one round of clients 0, 1, ... in order; prints a fingerprint of the update",
    )


def check_rounds(
    parser: argparse.ArgumentParser, arguments: argparse.Namespace
) -> None:
    """Ends with a sentence where there is no round to be timed."""
    if arguments.rounds < 1 or arguments.warmup < 0:
        parser.error(
            f"--rounds {arguments.rounds} --warmup {arguments.warmup}: "
            "write --rounds 1 or more and --warmup 0 or more."
        )


def client(workload: Workload, i: int) -> tuple[np.ndarray, np.ndarray]:
    """Client i: normal pixels [examples, *shape] float32, uniform labels [examples]."""
    rng = np.random.default_rng([7, i])
    size = (workload.examples, *workload.shape)
    x = rng.standard_normal(size, dtype=np.float32)
    return x, rng.integers(0, CLASSES, workload.examples)


def parameters(workload: Workload) -> dict[str, np.ndarray]:
    """U(+-1/sqrt(fan_in)), by name: "conv1.kernel" [out, in, ...], "conv1.bias" [out].

    The first dense layer after a convolution has its inputs in the order channels,
    height, width.
    """
    rng = np.random.default_rng(1234)
    named = {}
    for name, shape in workload.layers.items():
        bound = np.float32(np.sqrt(math.prod(shape[1:])))
        for part, size in (("kernel", shape), ("bias", shape[:1])):
            draw = rng.uniform(-1, 1, size).astype(np.float32)
            named[f"{name}.{part}"] = draw / bound
    return named


def inputs_before_outputs(value: np.ndarray) -> np.ndarray:
    """A kernel [out, in, ...] as [..., in, out]; a bias as it is."""
    if value.ndim == 1:
        return value
    return value.transpose(*range(2, value.ndim), 1, 0).copy()


def fingerprint(
    before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray]
) -> dict[str, list[float]]:
    """What a round did, in figures that do not depend on the layout of a tensor.

    Args:
      before: initial parameters by name.
      after: those after the round, each in the layout it has in `before`.

    Returns:
      Per tensor the norm and the largest entry of the update, and the projection of the
      update on the initial weights.
    """

    def of(old, new):
        old, new = np.asarray(old, np.float64), np.asarray(new, np.float64)
        if old.shape != new.shape:
            raise ValueError(f"a tensor was {old.shape} and is {new.shape}")
        step = new - old
        projection = (step * old).sum() / (old * old).sum()
        return [float(np.linalg.norm(step)), float(abs(step).max()), float(projection)]

    return {name: of(old, after[name]) for name, old in before.items()}
