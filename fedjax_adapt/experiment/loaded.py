"""A run folder as what it was made of: to evaluate, to go on from, to draw, to replay.

The round after the newest checkpoint, its cohort included, is decided by settings and
checkpoint. `replay` runs it twice: as part of the very program of the run, whose figures
are to the bit those the run would write, and in one that also shows the clients'
displacements. Nothing is written.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from ..core import Algorithm, Info, Params, State, Task
from ..data import FederatedDataset
from ..engine.build import make_round
from ..engine.initial import init_state
from ..engine.lanes import compiler_options
from ..engine.valuation import show_deltas
from ..errors import SettingError
from . import checkpoint, objects, store
from .build import build
from .config import Config, from_settings
from .federation import Federation
from .folder import check_own
from .program import abstract_state, compile_program, run_keys
from .reading import read_settings
from .rows import client_rows
from .store import read_run

if TYPE_CHECKING:
    import pyarrow


class Loaded(NamedTuple):
    """A run, finished or not.

    Attributes:
      config: its settings.
      federation: its algorithm, task, data and plan, and what they were made of, as
        `build` returns it: `fa.make_round(*loaded.federation[:4])` is its round.
      state: its newest checkpoint; the rounds done are `state.round`.
      metrics: a row per evaluation, those after the checkpoint too, see `Record`.
      clients: a row per client and round, likewise.
      summary: what summary.json holds; None: the run is not finished.
    """

    config: Config
    federation: Federation
    state: State
    metrics: "pyarrow.Table"
    clients: "pyarrow.Table"
    summary: dict[str, Any] | None

    def keys(self, num_rounds: int) -> jax.Array:
        """The keys of the next rounds, as the run would have them, [num_rounds]."""
        numbers = self.state.round + jax.numpy.arange(num_rounds)
        _, key_train = run_keys(self.config.seed)
        return jax.vmap(partial(jax.random.fold_in, key_train))(numbers)


def load_run(
    folder: str | Path,
    data_dir: str | Path | None = None,
    devices: int | Literal["auto"] | None = None,
    *,
    algorithm: Algorithm | None = None,
    task: Task | None = None,
    data: FederatedDataset | None = None,
) -> Loaded:
    """Loads a run: its data, its algorithm, its newest state and its tables.

        loaded = fa.load_run("runs/mine")
        algorithm, task, data, plan = loaded.federation[:4]
        fa.evaluate(task, loaded.state.params, data.test)
        round_fn = fa.make_round(algorithm, task, data, plan)
        state, infos = fa.train(round_fn, loaded.state, loaded.keys(10))

    Nothing is written: rounds that are trained so are no part of the run.

    Args:
      folder: of the run, finished or not, or of a trial of a sweep.
      data_dir: where data files lie; None: the variable FEDJAX_ADAPT_DATA.
      devices: that share the clients of a round; None: as many as the run had.
      algorithm: that it was given, if it was an object; likewise the next two.
      task: see there.
      data: see there.

    Raises:
      ValueError: the folder holds no run or no checkpoint, the run's data, devices or
        file of a user's own are not there, or an object was given to the run.
    """
    folder = Path(folder).expanduser()
    record = read_run(folder)
    with objects.given(algorithm, task, data):
        config = config_of(folder, data_dir, devices)
        federation = build(config)
        key_init, _ = run_keys(config.seed)
        init = partial(init_state, *federation[:4], key_init)
        abstract = abstract_state(init, federation)
        restored = checkpoint.restore(folder / store.CHECKPOINTS, abstract)
    assert restored is not None  # or `config_of` has said so
    return Loaded(
        config, federation, restored[0], record.metrics, record.clients, record.summary
    )


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
    if not checkpoint.rounds(folder / store.CHECKPOINTS):
        if folder.absolute().parent.name == store.TRIALS:
            raise SettingError(
                f"{folder} has no checkpoint: it diverged, was stopped before the others "
                "of its program, or is of an earlier version; train it by itself with "
                f"fedjax-adapt run --config {folder / store.CONFIG} --folder NEW."
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
    saved = folder / store.CHECKPOINTS
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
