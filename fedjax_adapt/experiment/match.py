"""A comparison at equal work: as many local steps in all as another run took."""

from pathlib import Path

import numpy as np

from ..core import StepPolicy, constant_steps
from ..steps import matched_steps
from . import store
from .config import Config, from_settings, kind_options, read_settings, to_settings

# what two runs must share for their totals to be comparable
SHARED = (
    *("rounds", "num_clients", "participation", "sampler"),
    *("dataset", "train_examples", "partition", "partition_seed"),
    *("corrupt", "corrupt_clients"),
)


def matching_steps(config: Config, sizes: np.ndarray) -> StepPolicy:
    """The policy that gives this run the total of the run in `config.match`.

    By "epochs" every client takes floor(E_avg n_i / B) local steps, E_avg = tau_all B
    over the examples of the clients of all rounds of that run (with full participation
    K n): FedVeca's protocol. By "steps" every client takes the mean number of them.

    Args:
      config: of this run.
      sizes: how many examples each client holds, [clients].

    Raises:
      ValueError: there is no finished run of the same federation and rounds.
    """
    clients = _record(config).clients
    visits = sizes[clients["client"].to_numpy()]
    total = int(clients["num_steps"].to_numpy().sum(dtype=np.int64))
    if total == 0:
        raise ValueError(f"match={config.match} holds a run that took no local step.")
    if config.match_by == "steps":
        return constant_steps(max(round(total / np.count_nonzero(visits)), 1))
    longest = int(sizes.max())
    batch = longest if config.batch_size is None else min(config.batch_size, longest)
    return matched_steps(total * batch / int(visits.sum(dtype=np.int64)))


def _record(config: Config) -> store.Record:
    """The finished run to be matched."""
    folder = Path(str(config.match)).expanduser()
    if not (folder / store.CONFIG).is_file():
        raise ValueError(
            f"match={config.match} holds no run; write the folder of a finished one."
        )
    record = store.read_run(folder)
    if record.summary is None:
        raise ValueError(
            f"match={config.match} holds a run that is not finished; resume it first."
        )
    theirs = to_settings(from_settings(read_settings(folder / store.CONFIG)))
    ours = to_settings(config)
    options = [
        flat
        for kind in ("partition", "dataset")
        for flat, _ in kind_options(kind, getattr(config, kind)).values()
    ]
    for name in (*SHARED, *options):
        if ours[name] != theirs.get(name):
            raise ValueError(
                f"match={config.match} holds a run with {name}={theirs.get(name)}, not "
                f"{name}={ours[name]}; only runs of one federation can be matched."
            )
    return record
