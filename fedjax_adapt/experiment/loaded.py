"""A run folder as what it was made of, to evaluate it, to go on, or to draw."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax

from ..core import Algorithm, State, Task
from ..data import FederatedDataset
from ..engine.initial import init_state
from . import checkpoint, objects
from .build import build
from .config import Config
from .federation import Federation
from .program import abstract_state, run_keys
from .replay import config_of
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
      folder: of the run, finished or not.
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
        restored = checkpoint.restore(folder / "checkpoints", abstract)
    assert restored is not None  # or `config_of` has said so
    return Loaded(
        config, federation, restored[0], record.metrics, record.clients, record.summary
    )
