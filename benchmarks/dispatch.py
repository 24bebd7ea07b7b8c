"""What it takes to send rounds to the device: rounds that have next to nothing to do.

One client on each device takes one step of batch 1 on a model of ten numbers. As many
rounds in one program, sent once, are the limit: what a round takes by itself. Sent in
chunks they take more, and what they take more is for sending.
"""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from readings import Case, Ready, scratch

import fedjax_adapt as fa
from fedjax_adapt.experiment.build import Federation
from fedjax_adapt.experiment.config import from_settings
from fedjax_adapt.experiment.loop import train
from fedjax_adapt.experiment.program import compile_program
from fedjax_adapt.experiment.rows import Log

INPUTS, CLASSES = 5, 2
# `run` evaluates after each chunk, on one example, and makes rows of what comes back
PATHS = {
    "train": "`fa.train`",
    "loop": "the loop of `fedjax-adapt run`, rows thrown away",
    "run": "the loop of `fedjax-adapt run`, rows taken down",
}


def tiny(num_devices: int) -> tuple[fa.Task, fa.FederatedDataset, fa.Plan]:
    """A federation of one client per device, with one example each."""
    x, y = np.ones((num_devices, INPUTS), np.float32), np.zeros(num_devices, np.int32)
    clients = [(x[i : i + 1], y[i : i + 1]) for i in range(num_devices)]
    test = (x[:1] + 1, y[:1])
    data = fa.FederatedDataset.from_clients(clients, test=test, num_classes=CLASSES)
    task = fa.Task(
        init=lambda key: jnp.zeros((INPUTS, CLASSES)),
        apply=lambda params, x: fa.Outputs(x @ params),
        loss=optax.softmax_cross_entropy_with_integer_labels,
    )
    return task, data, fa.Plan(batch_size=1, lr=0.1, devices=num_devices)


def through_train(chunk: int, num_rounds: int, num_devices: int) -> Ready:
    """`fa.train` with chunks of so many rounds."""
    task, data, plan = tiny(num_devices)
    algorithm = fa.algorithms.fedavg()
    round_fn = fa.make_round(algorithm, task, data, plan)
    state = fa.init_state(algorithm, task, data, plan, jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), num_rounds)
    call = lambda: fa.train(round_fn, state, keys, chunk_size=chunk)
    return Ready(call, units=num_rounds)


class NoRows:
    """Counts rounds, and keeps nothing; see `experiment.rows.Log`."""

    callback = None

    def add(self, done: int, parts: list, spent: float):
        del spent
        rounds = sum(len(infos.delta_norm) for infos, _ in parts)
        return done + rounds, (0.0, 0.0)

    def ends(self) -> bool:
        return False


def through_run(chunk: int, num_rounds: int, num_devices: int, rows: bool) -> Ready:
    """The loop of `fedjax-adapt run` that evaluates every `chunk` rounds; no files."""
    task, data, plan = tiny(num_devices)
    settings = {"rounds": num_rounds, "evaluate_every": chunk}
    config = from_settings(settings | {"checkpoint_every": num_rounds})
    # what the data came from is not read here
    federation = Federation(fa.algorithms.fedavg(), task, data, plan, None, None)
    program = compile_program(config, federation)
    folder = scratch()

    def call():
        log = Log(folder, data.num_clients) if rows else NoRows()
        save, report = (lambda *unused: 0.0), (lambda *unused: None)
        return train(config, program, program.init(), 0, log, save, report)

    return Ready(call, {"compile_seconds": round(program.seconds, 2)}, num_rounds)


def cases(
    chunks: Sequence[int], num_rounds: int, devices: Sequence[int]
) -> dict[tuple[int, str, int], Case]:
    """(devices, path, chunk) -> the case; the last chunk of each is the limit.

    Raises:
      ValueError: a chunk does not divide the rounds.
    """
    found = {}
    for chunk in chunks:
        if chunk < 1 or num_rounds % chunk:
            raise ValueError(
                f"chunks of {chunk} do not divide {num_rounds} rounds; give --chunks "
                "that do, or other --empty-rounds."
            )
    for num_devices in devices:
        for path in PATHS:
            for chunk in sorted({*chunks, num_rounds}):
                size = (chunk, num_rounds, num_devices)
                names = ("chunk", "rounds", "devices")
                setting = {"part": "dispatch", "path": path} | dict(
                    zip(names, size, strict=True)
                )
                build = (
                    partial(through_train, *size)
                    if path == "train"
                    else partial(through_run, *size, rows=path == "run")
                )
                found[num_devices, path, chunk] = Case(setting, build)
    return found
