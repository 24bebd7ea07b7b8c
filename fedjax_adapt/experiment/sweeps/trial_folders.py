"""A folder for each trial of a sweep, as a run with its settings leaves it behind.

Of the states it has the last alone. A trial that diverged has the rows before that, and
neither state nor summary. One that a callback stopped has the rows up to there and a
summary that says so; its state, `client_accuracy` and `personal_accuracy` only where no
other trial that ran with it went on.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from ...core import Algorithm, State
from ...data import Skew, skew
from ...engine import mesh
from ...engine.personal import client_examples, evaluate_clients, evaluate_personal
from .. import files, records, store
from ..algorithm import build_algorithm
from ..build import completed
from ..config import Config, to_toml
from ..federation import Federation
from ..rows import ENDS
from ..run import labels_by_client, summarise
from ..summary import spread_over_clients
from ..user_functions import origins
from .compiled_group import CompiledGroup
from .grid import Trial
from .results import PERSONAL, by_model


def write_trials(
    folder: Path,
    group: Path,
    trials: Sequence[Trial],
    federation: Federation,
    compiled: CompiledGroup,
    commit: str | None,
) -> None:
    """Writes the folders of the trials of a group all of whose rounds are done.

    They lie in the folder of the sweep; the folder `group` has the rows of all of them. The
    federation is that of the first.
    """
    import pyarrow.compute as pc

    tables = {name: store.read_table(group, name) for name in store.TABLES}
    program, known = compiled.program_of([0]), {}
    for i, trial in enumerate(trials):
        number, config = trial.number, trial.config
        path = folder / records.trial_folder(number)
        if (path / store.SUMMARY).exists():
            continue
        rows = {
            name: table.filter(pc.equal(table["trial"], number)).drop_columns("trial")
            for name, table in tables.items()
            if "trial" in table.column_names
        }
        diverged = rows["metrics"]["diverged_round"][-1].as_py()
        ends = [name for name in ENDS if name in rows["metrics"].column_names]
        rows["metrics"] = rows["metrics"].drop_columns(ends)
        if diverged:
            rows["metrics"] = rows["metrics"].slice(0, len(rows["metrics"]) - 1)
        files.make(path)
        store.write_origins(path, origins([config]))
        files.write_listed(path / store.CONFIG, to_toml(config))
        for name in ("metrics", "clients"):
            if name in rows and len(rows[name]):
                last = rows[name]["round"][-1].as_py()
                columns = {n: rows[name][n] for n in rows[name].column_names}
                store.append(path, name, columns, last)
        if not diverged:
            which = int(compiled.partitions.which[i])
            if which not in known:
                known[which] = _skew(federation, compiled, i)
            ended = rows["trials"].to_pylist() if "trials" in rows else []
            accuracy = by_model(ended[0] if ended else {})
            with_skew = federation._replace(skew=known[which])
            about = config, with_skew, program, path, commit, accuracy
            summary = summarise(*about, trials=compiled.width)
            store.append(path, store.PARTITION, labels_by_client(known[which]), 0)
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
    trials: Sequence[Trial],
    federation: Federation,
    compiled: CompiledGroup,
    states: Iterable[State],
    rows: Sequence[int],
) -> list[dict[str, float]]:
    """`client_accuracy` of the summaries of some trials; empty: not asked for.

    And their `personal_accuracy`, by names that `by_model` knows, where clients have
    models of their own. Config and federation are those of the first trial of the group, in
    which these have the numbers `rows`; of a state the model and what clients keep is read.
    """
    if not config.evaluate_clients:
        return [{} for _ in rows]
    devices = compiled.num_devices
    task, shared = federation.task, mesh.to_read(federation.data, devices)
    found = []
    for trial, state, row in zip(trials, states, rows, strict=True):
        data = compiled.partitions.put_into(shared, row)
        sizes = client_examples(data).size
        server = evaluate_clients(task, state.params, data, devices=devices)
        figures = spread_over_clients(server.accuracy, sizes)
        if federation.algorithm.local.personal is not None:
            algorithm = _algorithm_of(trial.config, config, federation)
            own = evaluate_personal(algorithm, task, state, data, devices=devices)
            spread = spread_over_clients(own.accuracy, sizes)
            figures |= {f"{PERSONAL}{name}": share for name, share in spread.items()}
        found.append(figures)
    return found


def _algorithm_of(config: Config, first: Config, federation: Federation) -> Algorithm:
    """The algorithm of a trial, which may have other numbers than the federation's."""
    if config.algorithm_options == first.algorithm_options:
        return federation.algorithm
    return completed(config, build_algorithm(config), federation)
