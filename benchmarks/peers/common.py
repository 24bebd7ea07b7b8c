"""What the peers' scripts share: command line, data, cohorts, and the line they print.

A script runs in the environment of its peer, made from locks/. What is done is defined in
benchmarks/work.py, how it is timed in benchmarks/stopwatch.py.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1]  # benchmarks/
sys.path.append(str(FOLDER))
import stopwatch  # noqa: E402  # pyright: ignore[reportMissingImports]
import work  # noqa: E402  # pyright: ignore[reportMissingImports]


def parser(doc: str) -> argparse.ArgumentParser:
    """The options that all scripts have; `doc` is the script's docstring."""
    options = argparse.ArgumentParser(description=doc.partition("\n")[0])
    work.add_options(options)
    return options


def parse(options: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line, with `work`, `num_clients` and `num_rounds` (warm-up included)."""
    arguments = options.parse_args()
    work.check_rounds(options, arguments)
    arguments.work = work.WORKLOADS[arguments.workload]
    pictures = len(arguments.work.shape) == 3
    if getattr(arguments, "channels_last", False) and not pictures:
        options.error(
            f"--channels-last: {arguments.workload} has no pictures; leave out."
        )
    if getattr(arguments, "threads", 0) < 0:
        options.error(
            f"--threads {arguments.threads}: write 1 or more, or leave it out."
        )
    arguments.num_clients = arguments.work.clients
    arguments.num_rounds = arguments.warmup + arguments.rounds
    if arguments.check:
        arguments.num_clients, arguments.num_rounds = arguments.work.cohort, 1
    return arguments


def cohorts(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    """Client ids [cohort] of every round; with --check all clients there are, in order."""
    for round in range(arguments.num_rounds):
        if arguments.check:
            yield np.arange(arguments.num_clients)
        else:
            rng = np.random.default_rng([99, round])
            yield rng.choice(arguments.num_clients, arguments.work.cohort, False)


def data(
    arguments: argparse.Namespace, channels_first: bool
) -> tuple[np.ndarray, np.ndarray]:
    """All clients: x [clients, examples, *shape] float32, y [clients, examples] int64."""
    workload, clients = arguments.work, range(arguments.num_clients)
    shape = workload.shape
    pictures = channels_first and len(shape) == 3
    if pictures:
        shape = (shape[2], *shape[:2])
    x = np.empty((len(clients), workload.examples, *shape), np.float32)
    y = np.empty((len(clients), workload.examples), np.int64)
    for i in clients:
        mine, y[i] = work.client(workload, i)
        x[i] = mine.transpose(0, 3, 1, 2) if pictures else mine
    return x, y


def data_files(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """`data`, channels first, as .npy files, for processes that share the pages of them.

    They lie in the folder for temporary files (TMPDIR) and are written once: 614 MB for
    w1, 157 MB for w2.
    """
    folder = Path(tempfile.gettempdir()) / "fedjax-adapt-peers"
    folder.mkdir(exist_ok=True)
    name = f"{arguments.workload}-{arguments.num_clients}"
    files = folder / f"{name}-x.npy", folder / f"{name}-y.npy"
    if not all(file.exists() for file in files):
        for file, values in zip(files, data(arguments, True), strict=True):
            half = file.with_suffix(f".{os.getpid()}.npy")
            np.save(half, values)
            half.replace(file)  # a file under its name is whole
    return files


def report(
    arguments: argparse.Namespace,
    peer: str,
    watch: stopwatch.Stopwatch,
    before: Mapping[str, np.ndarray],
    after: Mapping[str, np.ndarray],
    packages: tuple[str, ...],
    **more: object,
) -> None:
    """Prints the line of a run, or its fingerprint.

    Args:
      arguments: what `parse` gave.
      peer: which simulator.
      watch: has timed every round.
      before: initial parameters by name, in the peer's layout.
      after: those after the last round, likewise.
      packages: whose versions count.
      **more: the peer's own options and figures, which win.
    """
    which = {"workload": arguments.workload, "peer": peer}
    assert len(watch.seconds) == arguments.num_rounds, watch.seconds
    assert all(np.isfinite(value).all() for value in after.values()), "not finite"
    update = work.fingerprint(before, after)
    if arguments.check:
        print(json.dumps(which | more | {"fingerprint": update}))
        return
    line = watch.figures(
        arguments.warmup, [arguments.work.steps] * arguments.num_rounds
    )
    line |= {
        "first_round_seconds": round(watch.seconds[0], 2),
        "peak_memory_mb": stopwatch.peak_memory_mb(watch.root),
        "tuned_allocator": stopwatch.allocator_is_tuned(),
        "parameters": sum(value.size for value in before.values()),
        "versions": {name: version(name) for name in (*packages, "numpy")},
        "hardware": stopwatch.processor(),
    }
    print(json.dumps(which | line | more), flush=True)
