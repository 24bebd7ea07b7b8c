"""What folders say: of runs, of sweeps and their trials, of shards and of searches.

What one run's folder has is written and read by store.py, that of a sweep by sweeps/.
"""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import check
from ..errors import SettingError
from . import files, store, toml
from .config import setting_of
from .spelling import canonical

if TYPE_CHECKING:
    import pyarrow

RUNG = "trials-*/rounds-*"  # a folder below that of a search: a sweep of so many rounds
SHARDS = "shard-*-of-*"  # folders below that of a sweep, see sweeps/shards.py
DEEPEST = 4  # levels in which runs are looked for, as ITEM/SCALE/ROW/METHOD has


class Record(NamedTuple):
    """What a run folder says.

    `metrics` has one row per evaluation: round (rounds done), accuracy and loss on the
    test set, train_loss (mean local objective of the rounds since the last row, over
    clients that trained, without those left out; NaN if one of theirs is, or none did),
    cohort (clients that trained, mean per round), local_steps, public_steps,
    bytes_down, bytes_up and simulated_seconds (of all since the start: steps on a
    public set are those of clients and server, bytes down begin with a public set that
    clients are sent, seconds are 0 without a clock), wasted_bytes and wasted_steps
    (likewise, of clients that trained and were not waited for, in no other column;
    without them in a run of an earlier version), left_out (likewise, client updates
    that were not finite, under nonfinite_updates=leave_out), clipped (share of the
    local steps whose gradient was clipped), cut (local steps a policy asked for beyond
    max_steps), delta_norm and the scalars of step policy, refinement and server rule
    (of the last round), class_accuracy (a list: on the test examples of each label) and
    seconds (of training since the start, compilation apart). With `evaluate_also` there
    are also accuracy_sel and loss_sel (the cohort's mean), accuracy_all and loss_all
    (the mean of every client's last model); with AFL accuracy_result and loss_result
    (the model with the least estimated loss). Where they are asked for, ideal_distance
    (`ideal_steps`) and parameter_0 and so on (`watch`) are of the last round, and
    `clients` has gradient_0 and so on. Each of the `metrics` of a task that was given has
    a column of its name.
    Where the run trained on its test set (public=published), every name has
    training_accuracy_on_the_public_set in place of accuracy, and loss is of that set; with
    evaluate_on=validation it is validation_accuracy.

    `clients` has one row per client and round: round (1 is the first), client,
    num_steps, loss, clipped, left_out (under nonfinite_updates=leave_out), and what the
    parts of the algorithm show of it.
    """

    folder: Path
    config: dict[str, Any]  # by full names, options as algorithm.mu
    metrics: "pyarrow.Table"
    clients: "pyarrow.Table"
    summary: dict[str, Any] | None  # None: not finished

    def __repr__(self) -> str:
        """One line: its tables are long."""
        last = self.metrics["round"][-1] if len(self.metrics) else 0
        done = f"{last} rounds" + (", not finished" if self.summary is None else "")
        return f"Record({self.folder}: {self.config.get('algorithm')}, {done})"

    @property
    def accuracy(self) -> str:
        """What its accuracy is called: `ACCURACY`, `TRAINED` or `VALIDATED`."""
        return store.accuracy_in(self.metrics.column_names)


def read_run(folder: str | Path) -> Record:
    """Reads a run folder, finished or not, at any moment of the run.

    Raises:
      SettingError: the folder holds no run, or a file in it is broken.
    """
    check.kinds('read_run("runs/mine")', folder=(folder, check.path))
    folder = check.expanded("", folder)
    has_config = os.path.lexists(folder / store.CONFIG)
    is_run = _holds_run(folder)
    if (sweep := sweep_of(folder)) is not None:
        _check_trial(sweep, folder)
        is_run = has_config  # alone, of a trial of an earlier version that diverged
    if not has_config:
        files.check(folder, folder / store.CONFIG)
    if not is_run:
        if _holds_sweep(folder):
            raise SettingError(
                f"{folder} holds a sweep, no run; its trials are the rows of "
                f"{store.RESULTS}, and each is a run in {folder / store.TRIALS}."
            )
        if (sweep := sweep_of_group(folder)) is not None:
            raise SettingError(
                f"{folder} holds a group of a sweep, no run; each of its trials is a run "
                f"in {sweep / store.TRIALS}."
            )
        lacks = f"{'nothing of one but its' if has_config else 'no'} {store.CONFIG}"
        raise SettingError(
            f"{folder} holds no run: it has {lacks}; write the folder that "
            "fedjax-adapt run has printed, as in runs/digits-fedssg-0123abcd."
        )
    metrics = store.read_table(folder, "metrics")
    if len(metrics) and files.listed(folder) is None:
        files.warn_once(files.unlisted(folder))
    return Record(
        folder=folder,
        config=canonical(toml.read(folder / store.CONFIG)),
        metrics=metrics,
        clients=store.read_table(folder, "clients"),
        summary=store.read_summary(folder),
    )


def read_finished(folder: str | Path, where: str = "") -> tuple[Record, dict[str, Any]]:
    """Reads the folder of a finished run; returns it and its summary.

    Raises:
      SettingError: as `read_run`, or the run is not finished; the sentence begins with
        `where` it is, in place of the folder.
    """
    record = read_run(folder)
    if record.summary is not None:
        return record, record.summary
    if (sweep := sweep_of(folder)) is not None:
        trials_in(sweep)  # or it says what is missing
        raise SettingError(
            f"{where or folder} is a trial of a sweep that diverged or is not finished; "
            "leave it out, or resume the sweep."
        )
    if damage := files.damaged(record.folder, record.folder / store.SUMMARY):
        raise SettingError(
            f"{damage}; put it back as it was, or resume the run, which writes it again."
        )
    raise SettingError(
        f"{where or folder} holds a run that is not finished; resume it first, or "
        "leave it out if it diverged."
    )


def trial_folder(number: int) -> Path:
    """Where a trial lies in the folder of its sweep."""
    return Path(store.TRIALS) / f"{number:04d}"


def sweep_of(folder: str | Path) -> Path | None:
    """The folder of the sweep that a folder is a trial of; None: it is of none."""
    return _above(folder, store.TRIALS)


def sweep_of_group(folder: str | Path) -> Path | None:
    """The folder of the sweep that a folder is a group of; None: it is of none."""
    return _above(folder, store.GROUPS)


def _above(folder: str | Path, kind: str) -> Path | None:
    above = Path(os.path.abspath(folder)).parent
    sweep = above.parent
    # a user may have a sweep.toml of their own next to a folder of that name
    is_one = _has(sweep, store.SWEEP, (store.GROUPS, files.SUMS))
    return sweep if above.name == kind and is_one else None


def trials_of_group(folder: Path) -> list[int]:
    """The numbers of the trials of a group; none of one that is not done."""
    return (store.read_summary(folder) or {"trials": []})["trials"]


def trials_in(sweep: Path) -> dict[Path, bool]:
    """The folders of the trials of a sweep that are done; False: it diverged."""
    known, finished = files.listed(sweep) or {}, store.read_summary(sweep) is not None
    listed = _listed_trials(sweep, known)
    if not listed:  # of an earlier version, or none is done
        if finished:
            files.warn_once(
                f"{sweep} lists none of its trials, as earlier versions left theirs; one "
                "that is missing or exchanged is not noticed."
            )
        there = sorted(sweep.glob(f"{store.TRIALS}/*/{store.CONFIG}"))
        return {path.parent: path.with_name(store.SUMMARY).exists() for path in there}
    for path in listed:
        files.check(sweep, path, known)
    trials = sorted(path.parent for path in listed)
    if finished:
        check_no_others(sweep, trials)
    found = {path: store.SUMMARY in (files.listed(path) or {}) for path in trials}
    for path, has_summary in found.items():
        if has_summary and not os.path.lexists(path / store.SUMMARY):
            files.check(path, path / store.SUMMARY)
    return found


def check_no_others(sweep: Path, trials: Collection[Path]) -> None:
    """Raises SettingError if something lies among the trials of a sweep that is none."""
    for path in store.contents(sweep / store.TRIALS):
        if path not in trials and not path.name.startswith("."):
            raise _no_trial(sweep, path)


def _check_trial(sweep: Path, path: Path) -> None:
    """Raises SettingError unless a trial is as a sweep has left it, or not done."""
    known = files.listed(sweep) or {}
    files.check(sweep, path / files.SUMS, known)
    numbers = [trial.parent.name for trial in _listed_trials(sweep, known)]
    finished = os.path.lexists(sweep / store.SUMMARY)
    if finished and numbers and path.absolute().name not in numbers:
        raise _no_trial(sweep, path)


def _listed_trials(sweep: Path, known: Mapping[str, str]) -> list[Path]:
    """The lists of the trials of a sweep that are done, which it has in its own."""
    return [sweep / name for name in known if name.startswith(f"{store.TRIALS}/")]


def _no_trial(sweep: Path, path: Path) -> SettingError:
    remedy = "move it away" if os.path.lexists(path) else "write one that is"
    return SettingError(
        f"{path} is not in {sweep / files.SUMS}, so it is not a trial of this "
        f"sweep; {remedy}."
    )


def runs_in(folder: str | Path) -> list[Path]:
    """The folder of a run, or of each finished trial of a sweep that did not diverge.

    Of a group of a sweep, those of its trials. Of a folder that is none of these, those
    of the runs, sweeps and finished shards below it; of a search its trials of all rounds.

    Raises:
      SettingError: none of a sweep's trials is to be had, or one is not as it was left.
    """
    folder = check.expanded("", folder)
    if _holds_run(folder):
        return [folder]
    if (sweep := sweep_of_group(folder)) is not None:
        return _runs_in_group(sweep, folder)
    if not _holds_sweep(folder):
        known = files.listed(folder) or {}
        for path in (folder / name for name in known if name.endswith(files.SUMS)):
            files.check(folder, path, known)  # of a search, its sweeps
        found = _runs_below(folder)
        pruned = list(filter(_is_pruned, found))
        there = [path for path in found if path not in pruned]
        if pruned and not there:
            raise SettingError(
                f"{folder} holds a search with no trial of all rounds; resume it first, or "
                f"give one of its sweeps, as {pruned[0]}."
            )
        is_done = lambda path: (path / store.SUMMARY).is_file()
        below = [path for path in there if not path.match(SHARDS) or is_done(path)]
        if there and not below:
            raise SettingError(
                f"{folder} holds shards of a sweep, none of which is finished; run or "
                "resume them first."
            )
        done = [path for path in below if not _is_unfinished(path)]
        return [run for path in done or below for run in runs_in(path)] or [folder]
    found = [trial for trial, finished in trials_in(folder).items() if finished]
    if not found and not (folder / store.SUMMARY).is_file():
        raise SettingError(
            f"{folder} holds a sweep with no finished trial; resume it first."
        )
    if not found:
        raise SettingError(
            f"{folder} holds a sweep with no trial to show: all diverged, or an earlier "
            f"version made it; read its {store.RESULTS}."
        )
    return found


def _runs_in_group(sweep: Path, folder: Path) -> list[Path]:
    """The folder of each finished trial of a group that did not diverge."""
    given = folder.parent.parent
    if os.path.abspath(given) == os.fspath(sweep):  # it is named as the group was
        sweep = given
    files.check(sweep, sweep / store.GROUPS / folder.absolute().name / files.SUMS)
    if not os.path.lexists(folder):
        groups = filter(Path.is_dir, store.contents(sweep / store.GROUPS))
        names = sorted(path.name for path in groups)
        there = f"its groups are {', '.join(names)}" if names else "it has none yet"
        raise SettingError(f"{folder} is not a group of the sweep {sweep}: {there}.")
    known = trials_in(sweep)
    numbers = trials_of_group(folder)
    folders = [sweep / trial_folder(number) for number in numbers]
    if found := list(filter(known.get, folders)):
        return found
    why = "all of them diverged" if numbers else "resume the sweep first"
    raise SettingError(
        f"{folder} holds a group of a sweep with no finished trial; {why}."
    )


def _holds_run(folder: Path) -> bool:
    """Whether a folder is that of a run; users have files called config.toml, too."""
    # the last three without a list
    left = (files.SUMS, store.SUMMARY, store.CHECKPOINTS, "metrics")
    return _has(folder, store.CONFIG, left) or _lists(folder, store.CONFIG)


def _holds_sweep(folder: Path) -> bool:
    """Whether a folder is that of a sweep; users have files called sweep.toml, too."""
    left = (files.SUMS, store.SUMMARY, store.GROUPS, store.TRIALS, store.RESULTS)
    return _has(folder, store.SWEEP, left)


def _has(folder: Path, name: str, one_of: Sequence[str]) -> bool:
    there = lambda other: os.path.lexists(folder / other)
    return there(name) and any(map(there, one_of))


def _lists(folder: Path, name: str) -> bool:
    """Whether the list of a folder has a file; users have files of that name, too."""
    try:
        return name in (files.listed(folder) or {})
    except SettingError:
        return False


def _runs_below(folder: Path) -> list[Path]:
    """The folders of runs and sweeps below one, not those of a sweep's trials."""
    found = []
    for root, folders, _ in os.walk(folder):
        path = Path(root)
        if _holds_run(path) or _holds_sweep(path):
            found.append(path)
            folders.clear()
        elif len(path.relative_to(folder).parts) >= DEEPEST:
            folders.clear()
        folders.sort()
    return found


def _is_pruned(path: Path) -> bool:
    """Whether a sweep is of trials of a search that have only some of its rounds."""
    path = path.absolute()
    search = path.parents[1] / store.TUNE if len(path.parts) > 2 else path
    if not path.match(RUNG) or not search.is_file():
        return False
    run = toml.read(search).get("run")
    if not isinstance(run, Mapping):
        raise SettingError(
            f"{search} is damaged: it has no [run]; put back what was there, or move it "
            "away if it is of no search."
        )
    return path.name != f"rounds-{setting_of(run, 'rounds')}"


def _is_unfinished(path: Path) -> bool:
    """Whether a run has no summary, and none was lost: it goes on, or diverged."""
    if not _holds_run(path) or (path / store.SUMMARY).is_file():
        return False
    return not files.damaged(path, path / store.SUMMARY)


class Shards(NamedTuple):
    """A sweep that lies in shards in its folder."""

    folder: Path
    count: int
    left: list[int]  # the numbers of those that are missing or not finished

    def lacking(self) -> str:
        """Those that are left, in words; "" if all are finished."""
        if not self.left:
            return ""
        many = len(self.left) > 1
        return (
            f"shard{'s' * many} {', '.join(map(str, self.left))} of {self.count} "
            f"{'are' if many else 'is'} missing or not finished"
        )


def shards_in(folder: Path) -> list[Shards]:
    """The sweep that lies in shards in a folder; several if its shards are of several."""
    names = (re.fullmatch(r"shard-\d+-of-(\d+)", x.name) for x in folder.glob(SHARDS))
    counts = sorted({int(name[1]) for name in names if name})
    done = lambda i, count: (folder / f"shard-{i}-of-{count}" / store.SUMMARY).is_file()
    return [
        Shards(folder, count, [i for i in range(1, count + 1) if not done(i, count)])
        for count in counts
    ]


def parts_below(
    folder: str | Path,
) -> tuple[list[Path], list[Shards], list[Path]]:
    """What is not whole below a folder, which is neither a run's nor a sweep's itself.

    The runs that are not finished, or diverged; the sweeps in shards; and those sweeps of
    searches whose trials have only some of the rounds.
    """
    folder = check.expanded("", folder)
    if _holds_run(folder) or _holds_sweep(folder):
        return [], [], []
    below = _runs_below(folder)
    places = dict.fromkeys(path.parent for path in below if path.match(SHARDS))
    shards = [sweep for place in places for sweep in shards_in(place)]
    return [*filter(_is_unfinished, below)], shards, [*filter(_is_pruned, below)]


class Swept(NamedTuple):
    """What a sweep folder says.

    `results` has one row per trial of the groups that are done: trial, the settings that
    vary (see `results.setting_columns`), method, config_hash, group,
    dataset, test_examples (how many it was tested on), also_given (what the method was
    given besides the clients' own training), accuracy_name (as in a summary),
    diverged_round (null unless it diverged; then there are no figures), stopped_round (null
    unless a callback stopped it; then its figures are those up to there) and the figures of
    a run's summary, `rounds_to`, `client_accuracy` and `personal_accuracy` as columns for
    each target and each of their figures, `class_accuracy` as a list, figures of other
    models with their name at the end. Columns of a run that trained on its test set
    (public=published) begin with training_accuracy_on_the_public_set, those of a run with
    evaluate_on=validation with validation_accuracy.
    """

    folder: Path
    sweep: dict[str, Any]  # sweep.toml
    results: "pyarrow.Table"

    def __repr__(self) -> str:
        """One line: its table is long."""
        over = f" over {', '.join(self.settings)}" if self.settings else ""
        return f"Swept({self.folder}: {len(self.results)} trials{over})"

    @property
    def metrics(self) -> "pyarrow.Table":
        """The rounds of the trials in `results`, as one table, read when it is asked for.

        Its columns are trial, the settings that vary, as in `results`, and those of
        `load_run(folder).metrics`, with diverged_round and stopped_round, 0 but in a
        trial's last row. A setting that is called like one of these has "algorithm_"
        before its name.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        tables = []
        for group in dict.fromkeys(self.results["group"].to_pylist()):
            place = self.folder / store.GROUPS / group
            files.check(self.folder, place / files.SUMS)
            rows = store.read_table(place, "metrics")
            at = pc.index_in(rows["trial"], value_set=self.results["trial"])
            columns: dict[str, Any] = {"trial": rows["trial"]}
            for name in self.settings:
                column = f"algorithm_{name}" if name in rows.column_names else name
                columns[column] = self.results[name].take(at)
            others = {n: rows[n] for n in rows.column_names if n != "trial"}
            tables.append(pa.table(columns | others))
        table = pa.concat_tables(tables, promote_options="default")
        return table.sort_by([("trial", "ascending"), ("round", "ascending")])

    @property
    def settings(self) -> list[str]:
        """The columns of `results` that are settings."""
        names = self.results.column_names
        return names[1 : names.index("method")]

    @property
    def diverged(self) -> list[int]:
        """The trials that diverged."""
        rows = self.results.select(["trial", "diverged_round"]).to_pylist()
        return [row["trial"] for row in rows if row["diverged_round"] is not None]


def read_swept(folder: str | Path) -> Swept:
    """Reads a sweep folder, as soon as a group of it is done.

    Raises:
      SettingError: the folder holds no sweep, none of whose results are there, or a file in
        it is broken.
    """
    check.kinds('read_swept("runs/mine")', folder=(folder, check.path))
    folder = check.expanded("", folder)
    for name in (store.SWEEP, store.RESULTS):
        if not os.path.lexists(folder / name):
            files.check(folder, folder / name)
            raise SettingError(
                f"{folder} holds no results of a sweep: it has no {name}."
            )
    if files.listed(folder) is None:
        files.warn_once(files.unlisted(folder))
    files.check(folder, folder / store.RESULTS)
    table = store.read_parquet(folder / store.RESULTS)
    return Swept(folder, toml.read(folder / store.SWEEP), table)
