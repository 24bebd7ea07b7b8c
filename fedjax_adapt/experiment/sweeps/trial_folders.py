"""A folder for each trial of a sweep, as a run with its settings leaves it behind.

It lacks the checkpoints of a run: a sweep keeps no states once it is done. A trial that
diverged has the rows before that, and no summary, as such a run.
"""

from collections.abc import Sequence
from pathlib import Path

import jax

from ...core import State
from ...data import Skew, skew
from ...engine import mesh
from ...engine.personal import evaluate_clients
from .. import store
from ..config import Config, to_toml
from ..federation import Federation
from ..figures import spread_over_clients
from ..provenance import origins
from ..rows import ENDS
from ..run import summarise
from .compiled_group import CompiledGroup
from .grid import Trial


def write_trials(
    folder: Path,
    group: Path,
    trials: Sequence[Trial],
    federation: Federation,
    compiled: CompiledGroup,
    commit: str | None,
) -> None:
    """Writes the folders of the trials of a group all of whose rounds are done.

    Args:
      folder: of the sweep.
      group: the folder of the group, which has the rows of all its trials.
      trials: of the group.
      federation: of the first of them.
      compiled: what they were trained with.
      commit: of the checkout.
    """
    import pyarrow.compute as pc

    tables = {name: store.read_table(group, name) for name in store.TABLES}
    program, known = compiled.program_of([0]), {}
    for i, (number, _, config) in enumerate(trials):
        path = folder / store.trial_folder(number)
        if (path / store.SUMMARY).exists():
            continue
        own = {
            name: table.filter(pc.equal(table["trial"], number)).drop_columns("trial")
            for name, table in tables.items()
            if "trial" in table.column_names
        }
        diverged = own["metrics"]["diverged_round"][-1].as_py()
        own["metrics"] = own["metrics"].drop_columns(
            [name for name in ENDS if name in own["metrics"].column_names]
        )
        if diverged:
            own["metrics"] = own["metrics"].slice(0, len(own["metrics"]) - 1)
        path.mkdir(parents=True, exist_ok=True)
        store.write_own(path, origins([config]))
        store.write_text(path / store.CONFIG, to_toml(config))
        for name in ("metrics", "clients"):
            if name in own and len(own[name]):
                last = own[name]["round"][-1].as_py()
                columns = {n: own[name][n] for n in own[name].column_names}
                store.append(path, name, columns, last)
        if not diverged:
            which = int(compiled.partitions.which[i])
            if which not in known:
                known[which] = _skew(federation, compiled, i)
            ended = own["trials"].to_pylist() if "trials" in own else []
            accuracy = (ended[0] if ended else {}, {})
            mine = federation._replace(skew=known[which])
            summary = summarise(
                config, mine, program, path, commit, accuracy, trials=compiled.width
            )
            store.finish(path, summary.to_dict())


def _skew(federation: Federation, compiled: CompiledGroup, trial: int) -> Skew:
    """How skewed the clients of a trial are, the first of which has the federation's."""
    data = compiled.partitions.put_into(federation.data, trial)
    if data is federation.data:
        return federation.skew
    assert federation.labels is not None
    return skew(data.rows(), federation.labels, federation.skew.label_counts.shape[1])


def client_figures(
    config: Config,
    federation: Federation,
    compiled: CompiledGroup,
    state: State,
    some: Sequence[int],
) -> list[dict[str, float]]:
    """`client_accuracy` of a run's summary, of some trials; empty: not asked for.

    Args:
      config: of any trial of the group.
      federation: of the first.
      compiled: the compiled group.
      state: of these trials, as its programs return it.
      some: these trials, of the group.
    """
    if not config.evaluate_clients:
        return [{} for _ in some]
    shared = mesh.to_read(federation.data, compiled.num_devices)
    every, found = jax.device_get(compiled.params_of(state)), []
    for row, trial in enumerate(some):
        data = compiled.partitions.put_into(shared, trial)
        params = jax.tree.map(lambda leaf, row=row: leaf[row], every)
        accuracy = evaluate_clients(
            federation.task, params, data, devices=compiled.num_devices
        ).accuracy
        found.append(spread_over_clients(accuracy, data.size))
    return found
