"""The round after a run's newest checkpoint, run again to see what its clients did.

Settings and checkpoint decide that round, its cohort included. It runs twice: as part of
the very program of the run, whose figures are to the bit those the run would write, and
in one that also shows the clients' displacements. Nothing is written.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax

from ..core import Info, Params, State
from ..engine.build import make_round
from ..engine.xla import compiler_options
from ..errors import SettingError
from ..valuation import show_deltas
from . import checkpoint, store
from .config import Config, from_settings
from .federation import Federation
from .folder import check_own
from .program import compile_program, run_keys
from .reading import read_settings
from .rows import client_rows


class Replayed(NamedTuple):
    """A round, on the host."""

    number: int  # as the run's tables count: 1 is the first
    params: Params  # that its clients started from
    info: Info  # `clients` are their displacements, [cohort, ...]
    rows: dict[str, Any]  # of the table `clients`, as the run would write them


def config_of(
    folder: Path,
    data_dir: str | Path | None = None,
    devices: int | Literal["auto"] | None = None,
) -> Config:
    """The settings of the run in `folder`, with what may differ on this machine.

    Raises:
      ValueError: the folder holds no run, or none that has been saved.
    """
    if not (folder / store.CONFIG).is_file():
        raise SettingError(f"{folder} holds no run: it has no {store.CONFIG}.")
    if not checkpoint.rounds(folder / "checkpoints"):
        if folder.absolute().parent.name == store.TRIALS:
            raise SettingError(
                f"{folder} has no checkpoint, for a sweep keeps no states; train it by "
                f"itself with fedjax-adapt run --config {folder / store.CONFIG} --folder "
                "NEW."
            )
        raise SettingError(
            f"{folder} has no checkpoint to go on from; write fedjax-adapt run --folder "
            f"{folder} --resume to get one."
        )
    here = {"data_dir": data_dir, "devices": devices or _present(folder)}
    given = {name: value for name, value in here.items() if value is not None}
    config = from_settings(read_settings(folder / store.CONFIG) | given)
    check_own(folder, [config])
    return config


def _present(folder: Path) -> int | None:
    """How many devices there are, where they are fewer than the run had."""
    had = read_settings(folder / store.CONFIG).get("devices", "auto")
    present = len(jax.devices())
    return present if isinstance(had, int) and had > present else None


def replay(folder: Path, config: Config, federation: Federation) -> Replayed:
    """Runs the next round of the run in `folder`, whose settings are `config`.

    Raises:
      ValueError: no checkpoint can be read, or there are not as many devices.
    """
    saved = folder / "checkpoints"
    left = config.rounds - checkpoint.rounds(saved)[-1]
    # rounds to an evaluation, which make a program; a run at its end would go on as before
    group = min(config.evaluate_every, left or config.rounds)
    program = compile_program(replace(config, rounds=group), federation)
    restored = checkpoint.restore(saved, program.abstract)
    assert restored is not None
    state, done = restored
    params = jax.device_get(state.params)
    info = jax.device_get(_shown(config, federation, state))
    run = program.group or program.last
    assert run is not None
    infos = jax.device_get(run(state)[1])  # last: it gives up the memory of the state
    first = jax.tree.map(lambda leaf: leaf[:1], infos)
    rows = client_rows(first, done + 1, federation.data.num_clients)
    return Replayed(done + 1, params, info, rows)


def _shown(config: Config, federation: Federation, state: State) -> Info:
    """The round after `state`, its clients' displacements in `Info.clients`."""
    algorithm, task, data, plan = federation[:4]
    round_fn = make_round(show_deltas(algorithm), task, data, plan)
    options = compiler_options(round_fn.num_lanes)
    _, key_train = run_keys(config.seed)
    key = jax.random.fold_in(key_train, state.round)
    # a Round's data and numbers are arguments of the program, not constants in it
    only_info = lambda round_fn, state, key: round_fn(state, key)[1]
    return jax.jit(only_info, compiler_options=options)(round_fn, state, key)
