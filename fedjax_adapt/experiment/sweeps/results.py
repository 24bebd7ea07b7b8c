"""What lies in the folder of a sweep.

sweep.toml                       the sweep, resolved
results.parquet                  one row per trial, of the groups that are done
trials/NNNN/                     a run folder for each of them, with its last state, if it
                                 neither diverged nor was stopped before its program's end
groups/NNN-ALGORITHM/group.toml  which trials, and how many of them at once
groups/.../metrics/              as of a run, and trial, diverged_round and stopped_round
groups/.../clients/              as of a run, and trial; gone when it is done
groups/.../last/N/               of trial N the accuracy on each client at its end; likewise
groups/.../checkpoints/          the states of all its trials; gone when it is done
groups/.../summary.json          a group that has one is done
own.json                         what was a user's own, or revised, if anything was
summary.json                     a sweep that has one is done

A trial that diverged has the rows before that. One that a callback stopped has the rows up
to there and a summary that says so; its state, `client_accuracy` and `personal_accuracy`
only where no other trial that ran with it went on.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from ... import check
from ...core import State
from ...data import FederatedDataset, skew
from ...errors import SettingError
from .. import checkpoint, files, records, store, toml
from ..algorithm import build_algorithm
from ..build import Federation, completed
from ..config import (
    Config,
    all_options,
    choices_of,
    config_hash,
    first_difference,
    hashed,
    identity,
    method_of,
    to_settings,
)
from ..config import to_toml as run_to_toml
from ..folder import check_may_begin, check_origins, holds_finished
from ..rows import COLUMNS, ENDS, TOTALS
from ..run import accuracy_by_client, finish_run
from ..schema import check_path
from ..spelling import flat_name, nested
from ..summary import FIGURES, Summary
from ..user_functions import origins
from .compiled_group import CompiledGroup
from .grid import FIRST, Sweep, Trial, read_sweep

if TYPE_CHECKING:
    import pyarrow

# of the summary of a trial: accuracies by client, and all that is in a row
BY_CLIENT = ("client_accuracy", "personal_accuracy")
LAST = "last"  # of a group that is not done, a table for each trial, see `write_last`
TOLD = (
    *("class_accuracy", "rounds", "accuracy", "loss", "best_accuracy", "best_round"),
    *("last_mean", "last_std", "last_count", "rounds_to", "area_under_curve"),
    *("models", *TOTALS, "kappa", "rho", *BY_CLIENT),
)
# columns of integers or nothing
WHOLE = ("diverged_round", "stopped_round", "rounds_to_", "best_round")


def sweep_folder(sweep: Sweep, folder: str | Path | None = None) -> Path:
    """Where a sweep lies: as given, or runs/sweep-HASH."""
    if folder is None:
        folder = sweep.folder
    check_path("folder", folder)
    if folder is not None:
        return check.expanded("folder=", folder)
    text = json.dumps([hashed(trial.config) for trial in sweep.trials])
    name = f"sweep-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return check.expanded("folder=", Path("runs") / name)


def check_folder(folder: Path, sweep: Sweep, resume: bool) -> None:
    """Raises SettingError unless this sweep may start, or go on, in `folder`."""
    if not (folder / store.SWEEP).exists():
        check_holds_no_shards(folder)

    def changed() -> str | None:
        change = first_change(read_sweep(folder / store.SWEEP), sweep)
        return change and f"another sweep ({change}); give another folder."

    configs = (trial.config for trial in sweep.trials)
    check_may_begin(folder, store.SWEEP, changed, configs, resume)


def check_holds_no_shards(folder: Path) -> None:
    """Raises SettingError if the folder holds shards, which says how to go on with them."""
    for sweep in records.shards_in(folder):
        if sweep.left:
            goes_on = f"{sweep.lacking()}; write --shard {sweep.left[0]}/{sweep.count}."
        else:
            again = f"fedjax-adapt sweep merge {quote(str(folder))}"
            goes_on = f"all are finished; write {again}."
        raise SettingError(
            f"folder={folder} holds a sweep in {sweep.count} shards, and {goes_on}",
            setting="folder",
        )


def is_finished(folder: Path, sweep: Sweep) -> bool:
    """Whether `folder` holds this sweep, finished; SettingError if a file is damaged."""
    if not holds_finished(folder, store.SWEEP):
        return False
    if first_change(read_sweep(folder / store.SWEEP), sweep) is not None:
        return False
    check_origins(folder, (trial.config for trial in sweep.trials))
    files.check_all(folder)
    records.trials_in(folder)  # which knows of those that are too many
    return True


def first_change(old: Sweep, new: Sweep) -> str | None:
    """In what `new` is another sweep than `old`, in words; None: in nothing."""
    for before, now in zip(old.trials, new.trials, strict=False):
        if change := first_difference(identity(before.config), identity(now.config)):
            name, then, here = change
            return f"its trial {now.number} has {name}={then}, here {name}={here}"
    if len(old.trials) != len(new.trials):
        return f"it has {len(old.trials)} trials, here {len(new.trials)}"
    return None


def to_toml(sweep: Sweep) -> str:
    """The resolved sweep as a file that `read_sweep` reads back.

    Left out are what varies, and the options of choices that vary, unless they are given.
    """
    config = sweep.trials[0].config
    settings = to_settings(config) | {"partition_seed": config.partition_seed}
    known = {
        name: option
        for name, option in all_options(choices_of(config)).items()
        if "." not in name or name.partition(".")[0] not in sweep.names
    }
    resolved = {name: v for name, v in settings.items() if name not in sweep.names}
    resolved = {name: v for name, v in resolved.items() if name in known} | sweep.run
    for name in ("folder", "data_dir"):
        resolved.pop(name, None)
    for name, value in resolved.items():
        if value is None and name in known and known[name].default is not None:
            resolved[name] = "none"
    first = sweep.trials[0].number
    given = {FIRST: first} if first else {}
    # full names in quotes, for tables would change the order of trials
    return toml.dumps({**given, "run": nested(resolved), "grid": sweep.grids})


def rows_of(
    folder: Path, group: Path, trials: Sequence[Trial], names: Sequence[str]
) -> list[dict[str, Any]]:
    """The rows of results.parquet of a group that is done; `names`: what varies.

    `folder` is that of the sweep, and `group` that of the group.
    """
    import pyarrow.compute as pc

    metrics, said = store.read_table(group, "metrics"), store.read_summary(group) or {}
    named, found = store.accuracy_in(metrics.column_names), []
    for trial in trials:
        row = {
            **named_trial(trial, names),
            "method": method_of(trial.config),
            "config_hash": config_hash(trial.config),
            "group": group.name,
            "dataset": trial.config.dataset,
            "test_examples": said.get("test_examples"),
            "also_given": ", ".join(said.get("auxiliary", ())) or store.NOTHING,
            "accuracy_name": store.shown_accuracy(named),
        }
        curve = metrics.filter(pc.equal(metrics["trial"], trial.number))
        for end in ENDS:
            known = end in curve.column_names  # an earlier version stopped no trial
            row[end] = (curve[end][-1].as_py() or None) if known else None
        if row["diverged_round"] is None:
            path = folder / records.trial_folder(trial.number)
            files.check(path, path / store.SUMMARY)  # it may be gone
            row |= flat(store.read_summary(path) or {})
        found.append(row)
    return found


def named_trial(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    """The first columns of a row: the number of a trial, and of settings those named."""
    settings = to_settings(trial.config)
    columns = setting_columns(names)
    return {"trial": trial.number, **{c: settings.get(n) for n, c in columns.items()}}


def flat(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a summary tells, as columns.

    Where its accuracy is no test accuracy, the columns of what is measured with it begin
    with its name, as in summary.json.
    """
    named, columns = store.accuracy_in(summary), {}
    figures = {**summary, **store.figures_of(summary)}
    for name in TOLD:
        values = _columns(name, figures[name]) if name in figures else {}
        if name in FIGURES and named != store.ACCURACY:
            of = lambda n: named if n == store.ACCURACY else f"{named}.{n}"
            values = {of(n): v for n, v in values.items()}
        columns |= values
    return columns


def _columns(name: str, value: Any) -> dict[str, Any]:
    if name == "rounds_to":
        return {f"rounds_to_{target}": first for target, first in value.items()}
    if name in BY_CLIENT:
        return {f"{name}_{figure}": share for figure, share in value.items()}
    if name == "models":
        return {
            f"{column}_{model}": v
            for model, figures in value.items()
            for figure, inner in figures.items()
            for column, v in _columns(figure, inner).items()
        }
    return {name: value}


def table_of(
    rows: Sequence[Mapping[str, Any]], settings: Sequence[str] = ()
) -> "pyarrow.Table":
    """Rows as a table; a column of numbers and texts becomes one of texts.

    A figure that no row has is of the type that it has elsewhere, and a setting, of those
    named, has none, so that tables can be joined.
    """
    settings = list(setting_columns(settings).values())
    import pyarrow as pa

    def column(name: str) -> pa.Array:
        values = [row.get(name) for row in rows]
        try:
            found = pa.array(values)
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return pa.array([None if v is None else str(v) for v in values])
        empty = pa.types.is_null(found.type) and name not in settings
        return pa.nulls(len(found), _usual(name)) if empty else found

    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: column(name) for name in names})


def _usual(name: str) -> "pyarrow.DataType":
    """The type of a figure."""
    import pyarrow as pa

    if "class_accuracy" in name:
        return pa.list_(pa.float64())
    return pa.int64() if any(whole in name for whole in WHOLE) else pa.float64()


def setting_columns(names: Iterable[str]) -> dict[str, str]:
    """The columns of settings in the results of a sweep, by full name.

    The short name; with the kind before it where it is called like a figure; the full
    one where two would be the same.
    """
    figures = {*COLUMNS, *FIGURES, *(field.name for field in fields(Summary))}
    found = {}
    for full in names:
        taken = "." in full and flat_name(full) in figures
        found[full] = full.replace(".", "_") if taken else flat_name(full)
    seen = list(found.values())
    return {n: n if seen.count(column) > 1 else column for n, column in found.items()}


def write_trials(
    folder: Path,
    group: Path,
    trials: Sequence[Trial],
    federation: Federation,
    compiled: CompiledGroup,
    commit: str | None,
) -> None:
    """Writes the folders of the trials of a group all of whose rounds are done.

    They lie in the folder of the sweep; `group` is the folder that has their rows. The
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
        files.write_listed(path / store.CONFIG, run_to_toml(config))
        for name in ("metrics", "clients"):
            if name in rows and len(rows[name]):
                last = rows[name]["round"][-1].as_py()
                columns = {n: rows[name][n] for n in rows[name].column_names}
                store.append(path, name, columns, last)
        if not diverged:
            which = int(compiled.partitions.which[i])
            if which not in known:
                data = compiled.partitions.put_into(federation.data, i)
                known[which] = federation.skew
                if data is not federation.data:  # not the partition of the first
                    classes = federation.skew.label_counts.shape[1]
                    known[which] = skew(data.rows(), federation.labels, classes)
            with_skew = federation._replace(skew=known[which])
            # not of the trial's own folder, where a kill could lose it: see `files.strike`
            last = store.read_table(group, f"{LAST}/{number}")
            names = [name for name in BY_CLIENT if name in last.column_names]
            each = {name: last[name].to_pylist() for name in names}
            about = config, with_skew, program, commit, each
            finish_run(path, *about, trials=compiled.width)


def write_last(
    folder: Path,
    by_client: tuple[Path, str],
    state: State,
    config: Config,
    first: Config,
    federation: Federation,
    data: FederatedDataset,
    devices: int,
) -> None:
    """Writes the last state of a trial into its folder, and its accuracy on each client.

    The latter goes into the table `by_client` of the group, from where `write_trials` takes
    it. Config and `data` are those of the trial, `first` and the federation those of the
    first of its group.
    """
    files.make(folder)
    store.begin_list(folder)  # before its state, which is of it
    if config.evaluate_clients:
        algorithm = federation.algorithm
        # which may have other numbers than the federation's
        others = config.algorithm_options != first.algorithm_options
        if others and algorithm.local.personal is not None:
            algorithm = completed(config, build_algorithm(config), federation)
        each = accuracy_by_client(algorithm, federation.task, data, state, devices)
        store.append(*by_client, each, 0)
    checkpoint.save(folder / store.CHECKPOINTS, state, int(state.round))
