"""Whether an accelerator does what the processor does: a few rounds of the engine on both.

    python benchmarks/same_numbers.py            # a table; exit code 1 where they differ
    python benchmarks/same_numbers.py --backends cuda cpu

Each way of the engine is run in a process of its own per backend: clients side by side, on
few lanes, with unequal steps packed on them, and with the clients' state in the host's
memory, for a dense and for a convolutional network, all products in float32. What a
model has moved by must be that of the plainest way on the processor, but for `LIMIT` of it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

ROUNDS, CLIENTS, COHORT = 3, 8, 6
LIMIT = 2e-3  # of the length of a model's way; float32 summed up in another order

# name -> model, what is written into the plan, whether clients take unequal steps
CASES = {
    "one after the other": ("mlp", {"lanes": 1}, False),
    "side by side": ("mlp", {"lanes": COHORT}, False),
    "auto": ("mlp", {"lanes": "auto"}, False),
    "host's memory": ("mlp", {"lanes": COHORT, "client_memory": "host"}, False),
    "unequal, one after the other": ("mlp", {"lanes": 1}, True),
    "unequal, packed on 2 lanes": ("mlp", {"lanes": 2}, True),
    "unequal, side by side": ("mlp", {"lanes": COHORT}, True),
    "pictures, one after the other": ("cnn", {"lanes": 1}, False),
    "pictures, side by side": ("cnn", {"lanes": COHORT}, False),
    "pictures, unequal, packed on 2 lanes": ("cnn", {"lanes": 2}, True),
    "pictures, unequal, one after the other": ("cnn", {"lanes": 1}, True),
}


def plainest(name: str) -> str:
    """The case that a case must equal: one client after the other."""
    model, _, unequal = CASES[name]
    ways = (n for n, (m, plan, u) in CASES.items() if (m, u) == (model, unequal))
    return next(n for n in ways if CASES[n][1] == {"lanes": 1})


def moved(name: str) -> np.ndarray:
    """What SCAFFOLD's model has moved by in a case, on the backend of this process."""
    import jax
    import jax.numpy as jnp

    import fedjax_adapt as fa
    from fedjax_adapt.models import cnn, mlp

    model, options, unequal = CASES[name]
    shape = (16, 16, 3) if model == "cnn" else (12,)
    build = cnn(shape, 4) if model == "cnn" else mlp(shape, 4, widths=(16,))
    rng = np.random.default_rng(0)
    clients = [
        (rng.standard_normal((8, *shape), dtype=np.float32), rng.integers(0, 4, 8))
        for _ in range(CLIENTS)
    ]
    data = fa.FederatedDataset.from_clients(clients, num_classes=4)
    task = fa.classification(build, shape)
    plan = fa.Plan(cohort_size=COHORT, batch_size=4, lr=0.02, **options)
    steps = jnp.asarray([1, 5, 2, 2, 3, 1, 4, 2])
    policy = fa.StepPolicy(lambda state, cohort, measured: steps[cohort.ids])
    algorithm = fa.algorithms.scaffold()
    if unequal:
        algorithm = fa.with_steps(algorithm, policy)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    begun = state.params
    keys = jax.random.split(jax.random.key(1), ROUNDS)
    ended, _ = fa.train(fa.make_round(algorithm, task, data, plan), state, keys)
    way = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), ended.params, begun)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(way)])


def with_plainest(names: Sequence[str]) -> list[str]:
    """These cases, and those that they are compared with."""
    return list(dict.fromkeys([*map(plainest, names), *names]))


def on_backend(backend: str, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Cases on a backend, by a process of its own.

    Raises:
      RuntimeError: the process failed; one sentence.
    """
    own = {"JAX_PLATFORMS": backend}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "moved.npz"
        command = [sys.executable, __file__, "--write", str(file), "--cases", *names]
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True
        )
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["no message"]
            raise RuntimeError(f"on {backend} it failed: {said[-1]}")
        with np.load(file) as arrays:
            return dict(arrays)


def compared(
    found: Mapping[str, np.ndarray], right: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """By case how far it is from the plainest way, as a share of the way's length.

    Args:
      found: of a backend.
      right: of the backend that is believed, whose plainest ways are compared with.
    """
    return {
        name: float(np.linalg.norm(way - base) / np.linalg.norm(base))
        for name, way in found.items()
        for base in (right[plainest(name)],)
    }


def options() -> argparse.ArgumentParser:
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--backends",
        nargs="+",
        default=["cuda", "cpu"],
        help="of JAX; the last is right",
    )
    every = list(CASES)
    parser.add_argument("--cases", nargs="+", default=every, choices=every)
    parser.add_argument("--results", type=Path, help="file that the line is added to")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    return parser


def main() -> int:
    arguments = options().parse_args()
    if arguments.write:
        np.savez(arguments.write, **{name: moved(name) for name in arguments.cases})
        return 0
    names = with_plainest(arguments.cases)
    try:
        ways = {backend: on_backend(backend, names) for backend in arguments.backends}
    except RuntimeError as error:
        print(f"same_numbers.py: {error}", file=sys.stderr)
        return 2
    right = ways[arguments.backends[-1]]
    off = {backend: compared(found, right) for backend, found in ways.items()}
    print(f"| case | {' | '.join(ways)} |\n|{'---|' * (1 + len(ways))}")
    for name in names:
        print(
            f"| {name} | {' | '.join(f'{some[name]:.1e}' for some in off.values())} |"
        )
    agree = all(value < LIMIT for some in off.values() for value in some.values())
    print("\nall agree" if agree else f"\nnot all agree to {LIMIT}")
    if arguments.results:
        line = {"limit": LIMIT, "agree": agree, "off": off}
        with arguments.results.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
