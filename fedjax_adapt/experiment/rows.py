"""What the device hands back, as the rows of the two tables of a run.

A group is the rounds from one evaluation to the next: `infos` [rounds, cohort, ...] and
what was `Measured` after the last of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..core import Array, Info, Metrics
from ..engine.train import (
    FIGURES,
    TOTALS,
    Callback,
    asks_to_stop,
    check_names,
    counted,
    each_round,
    named,
    reports,
)
from ..errors import RunError, SettingError
from . import store
from .tracking import Trackers

ENDS = ("diverged_round", "stopped_round")  # of a trial; 0: it did not
OF_TRIALS = ("trial", *ENDS)  # columns that the rows of a run have not
# of all runs, of which no setting may have the name
COLUMNS = (
    *(*FIGURES, "accuracy", "loss", "class_accuracy", "seconds"),
    *(*OF_TRIALS, "client"),
)
MODELS = ("sel", "all", "result")  # measured besides the server's, see `Measured`
TESTED = (*store.ACCURACIES, "loss")
OF_CLASSES = tuple(f"class_{name}" for name in store.ACCURACIES)
# the columns of `metrics` that are not an algorithm's own
OF_ALL = frozenset(
    (
        *COLUMNS,
        *TESTED,
        *(f"{name}_{model}" for name in TESTED for model in MODELS),
        *OF_CLASSES,
    )
)


class Measured(NamedTuple):
    """What is measured on the test set after a group of rounds."""

    server: Metrics  # of the server's model
    classes: Array  # [classes], its accuracy on the examples of each label
    also: dict[str, Metrics]  # of "sel", "all" and "result", where there are such
    named: Mapping[str, Array] = {}  # the task's metrics, of the server's model


class Diverged(RunError):
    """The server's model is no longer finite; the message names the round."""


class Tally:
    """What a run has counted since its start, row after row."""

    def __init__(
        self,
        last: Mapping[str, Any],  # of `metrics` that is written; empty: there is none
        accuracy: str = store.ACCURACY,  # what accuracies are called in the rows
        broadcast: int = 0,  # bytes that clients have received before the first round
        seconds: float = 0.0,  # simulated, that this took
    ):
        """Goes on from the last row."""
        begin = {"bytes_down": broadcast, "simulated_seconds": seconds}
        self.accuracy, self.broadcast = accuracy, broadcast
        self.totals = {name: last.get(name) or begin.get(name, 0) for name in TOTALS}
        self.cut = self.asked = 0  # local steps of policies, by this process
        self.broken = 0  # the last round in which a client's loss was not finite
        self.idle = 0  # the first round in which no client trained
        # the first round in which an update was left out, and whose: by this process
        self.left_out: tuple[int, list[int]] | None = None

    def row(
        self, done: int, infos: Info, measured: Measured, seconds: float
    ) -> dict[str, Any]:
        """The next row of `metrics`, of a group after `done` rounds.

        `infos` are NumPy arrays [rounds, cohort, ...], and `seconds` those of training
        since the start.
        """
        if not self.idle and not infos.num_active.all():
            self.idle = done + 1 + int(np.argmin(infos.num_active))
        if self.left_out is None and not isinstance(infos.left_out, tuple):
            self.left_out = first_of(infos.left_out, infos, done + 1)
        done += len(infos.delta_norm)
        row = metrics_row(infos, measured, done, self.totals, self.accuracy)
        self.cut += row["cut"]
        if row["cohort"] and not np.isfinite(row["train_loss"]):
            self.broken = done
        self.asked += row["local_steps"] - self.totals["local_steps"] + row["cut"]
        self.totals = {name: row[name] for name in TOTALS}
        return {**row, "seconds": seconds}


@dataclass
class Log:
    """The rows since the last checkpoint, waiting to be written with the next.

    Of a run, or of trials of a sweep that run at once, whose rows say which trial they
    are of. A run that diverges raises. A trial that does has one more row, which says so,
    and so has one that a callback stops its last; the others go on. It goes on from the
    rows that the folder already has.
    """

    folder: Path | None  # of the run, or of the group; None: another process writes it
    num_clients: int  # of the federation
    accuracy: str = store.ACCURACY  # what accuracies are called in the rows
    broadcast: int = 0  # bytes that clients have received before the first round
    callback: Callback | None = None  # which the process that writes calls
    trials: Mapping[int, Mapping[str, Any]] | None = None  # what varies; None: a run
    base: int = 0  # what rounds are counted from in the names of files
    # simulated, that the broadcast took, by trial; of a run under None
    took: Mapping[int | None, float] = field(default_factory=dict)
    trackers: Trackers = field(default_factory=Trackers)  # given the rows, too
    advice: str = "lower lr or clip_norm"  # to a run that diverges

    def __post_init__(self):
        rows = []
        if self.folder is not None:
            table = store.read_table(self.folder, "metrics")
            wanted = {*TOTALS, "seconds", *OF_TRIALS} & {*table.column_names}
            rows = table.select(sorted(wanted)).to_pylist()
        last = {row.get("trial"): row for row in rows}
        self.callback = None if self.folder is None else self.callback
        self.settings = {None: {}} if self.trials is None else dict(self.trials)
        usual = self.accuracy, self.broadcast
        self.tallies = {
            trial: Tally(last.get(trial, {}), *usual, self.took.get(trial, 0.0))
            for trial in self.settings
        }
        # trials that ended: after which round a callback stopped them; 0: they diverged
        self.over: dict[int | None, int] = {
            trial: row.get("stopped_round") or 0
            for trial, row in last.items()
            if any(row.get(end) for end in ENDS)
        }
        self.seconds = rows[-1]["seconds"] if rows else 0.0
        # what the callback was not yet called for: a row, and its rounds
        self.figures: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self.metrics: list[dict[str, Any]] = []
        self.clients: list[dict[str, Any]] = []

    def add(
        self, done: int, parts: list[tuple[Info, Measured]], spent: float
    ) -> tuple[int, tuple[float, float]]:
        """Takes the results of groups that ran for `spent` seconds after `done` rounds.

        They are infos [rounds, ...] and what was measured [1, ...]; of trials with a
        leading axis, of which the first count where there are fewer trials.

        Returns:
          The rounds done now, and the accuracy and loss of the last evaluation, means
          over the trials that go on.

        Raises:
          Diverged: a number of a run is not finite; the rows before it have been written.
        """
        latest = []
        for part in parts:
            if part[0].delta_norm.ndim == 1:
                part = jax.tree.map(lambda leaf: leaf[None], part)
            self.seconds += spent / len(parts)
            latest = [
                self._add(trial, done, *jax.tree.map(lambda leaf, i=i: leaf[i], part))
                for i, trial in enumerate(self.tallies)
                if trial not in self.over
            ]
            done += part[0].delta_norm.shape[1]
        latest = [row for row in latest if row["trial"] not in self.over]
        means = [[row[self.accuracy], row["loss"]] for row in latest]
        accuracy, loss = np.mean(means or [[np.nan, np.nan]], axis=0)
        return done, (float(accuracy), float(loss))

    def _add(
        self, trial: int | None, done: int, infos: Info, measured: Measured
    ) -> dict[str, Any]:
        """Takes the results of a group of rounds of one trial; returns its row."""
        measured = jax.tree.map(lambda leaf: leaf[0], measured)
        diverged = first_diverged(infos, measured.server, done + 1)
        if trial is None and diverged is not None:
            self.write(done)
            kept = f" (earlier rows are in {self.folder})"
            kept = kept if done and self.folder is not None else ""
            raise Diverged(
                f"training diverged in round {diverged}: the model is not finite"
                f"{after_whom(infos, done + 1, diverged)}; {self.advice} and give another "
                f"folder{kept}."
            )
        tally = self.tallies[trial]
        before = tally.totals
        row = {"trial": trial, **tally.row(done, infos, measured, self.seconds)}
        row |= {"diverged_round": diverged or 0, "stopped_round": 0}
        self.metrics.append(row)
        if diverged is not None:
            self.over[trial] = 0
            return row
        clients = client_rows(infos, done + 1, self.num_clients)
        mine = {} if trial is None else {"trial": np.full(len(clients["round"]), trial)}
        self.clients.append(mine | clients)
        if self.callback is not None:
            self.figures.append((row, of_rounds(done, infos, before, row)))
        return row

    def ends(self) -> bool:
        """Calls the callback for what was added; returns whether no trial is left.

        A trial for which it returns True is over.
        """
        added, self.figures = self.figures, []
        for row, rounds in added:
            trial = row["trial"]
            who = {"trial": trial, "settings": dict(self.settings[trial])}
            who = {} if trial is None else who
            for figures in rounds:
                if self.callback and asks_to_stop(self.callback, who | figures):
                    row["stopped_round"] = self.over[trial] = row["round"]
                    break
        return self.callback is not None and self.all_over

    @property
    def all_over(self) -> bool:
        """Whether every trial has diverged or been stopped."""
        return self.over.keys() >= self.tallies.keys()

    def has_state(self, trial: int, done: int) -> bool:
        """Whether the state after `done` rounds is a trial's last, and is finite."""
        return self.over.get(trial, done) == done

    def write(self, done: int) -> None:
        """Appends the rows to the tables of the folder, and then to those of trackers."""
        written = self.metrics
        tables = zip(store.TABLES, (written, self.clients), strict=True)
        self.metrics, self.clients = [], []
        for name, rows in tables:
            if rows and self.folder is not None:
                columns = concatenate(rows)
                if None in self.tallies:
                    columns = {n: v for n, v in columns.items() if n not in OF_TRIALS}
                store.append(self.folder, name, columns, self.base + done)
        self.trackers.log(written)


def of_rounds(
    done: int, infos: Info, before: Mapping[str, float], row: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What a callback is given of the rounds of a group, see `run`.

    `before` are the `TOTALS` before it, and `row` is its row in `metrics`.
    """
    found = list(each_round(infos._replace(clients=()), done, before))
    shown = lambda name: name not in {*OF_TRIALS, *OF_CLASSES}
    measured = {name: value for name, value in row.items() if shown(name)}
    found[-1] = measured | found[-1]
    return found


def metrics_row(
    infos: Info,
    measured: Measured,
    last_round: int,
    before: Mapping[str, float],
    accuracy: str = store.ACCURACY,
) -> dict[str, Any]:
    """The row of a group in `metrics`, without its seconds; see `records.Record`.

    `before` are the `TOTALS` before the group, `last_round` the rounds done after it, and
    `accuracy` is what accuracies are called.
    """
    return {
        "round": last_round,
        accuracy: float(measured.server.accuracy),
        "loss": float(measured.server.loss),
        **{name: float(value) for name, value in measured.named.items()},
        **{
            f"{figure}_{name}": float(value)
            for name, of in measured.also.items()
            for figure, value in ((accuracy, of.accuracy), ("loss", of.loss))
        },
        **counted(infos, before),
        f"class_{accuracy}": [np.asarray(measured.classes)],  # a list per row
    }


def check_columns(infos: Info, metrics: Iterable[str] = ()) -> None:
    """Raises SettingError if what is shown has a column's name.

    Args:
      infos: what the parts of the algorithm show.
      metrics: names of the task's.
    """
    taken = ("trial", "round", "client", "num_steps", "loss", "clipped", "left_out")
    # a callback of a sweep is given the settings of a trial as well
    of_all = OF_ALL | {"settings"}
    for name in of_all.intersection(metrics):
        raise SettingError(
            f"Task.metrics has {name!r}, which is a column of every run's table; give the "
            "metric another name."
        )
    check_names(infos, of_all.union(metrics), taken)


def client_rows(infos: Info, first_round: int, num_clients: int) -> dict[str, Any]:
    """The group's rows of the table `clients`, as columns; see `records.Record`.

    A run's first round is 1. The id of an empty slot is `num_clients`; it gives no row.
    """
    present = infos.cohort < num_clients
    rounds = np.arange(first_round, first_round + len(present))
    columns = {
        "round": np.broadcast_to(rounds[:, None], present.shape)[present],
        "client": infos.cohort[present],
        "num_steps": infos.num_steps[present],
        "loss": infos.loss[present],
        "clipped": infos.clipped[present],
    }
    if not isinstance(infos.left_out, tuple):
        columns["left_out"] = infos.left_out[present]
    of_clients = [pair for pair in reports(infos) if pair[1].ndim > 1]
    for name, leaf in [*named(infos.clients), *of_clients]:
        values = leaf[present]
        # a vector per client becomes a list per row
        vectors = values.reshape(len(values), -1)
        columns[name] = values if values.ndim == 1 else list(vectors)
    return columns


def first_diverged(infos: Info, metrics: Metrics, first_round: int) -> int | None:
    """The round in which the server's model stopped being finite, or None.

    Its move says so, or its loss on the test set afterwards. A client whose loss is not
    finite says nothing yet: some servers refuse what it sends, and go on.
    """
    finite = np.isfinite(infos.delta_norm)
    if not finite.all():
        return first_round + int(np.argmin(finite))
    return None if np.isfinite(metrics.loss) else first_round + len(finite) - 1


def first_of(
    which: Array, infos: Info, first_round: int
) -> tuple[int, list[int]] | None:
    """The first round of which clients are marked, [rounds, cohort], and their ids."""
    rounds = np.flatnonzero(np.asarray(which).any(1))
    if not len(rounds):
        return None
    ids = infos.cohort[rounds[0]][which[rounds[0]]]
    return first_round + int(rounds[0]), ids.tolist()


def after_whom(infos: Info, first_round: int, diverged: int) -> str:
    """Whose loss was not finite before the model, in words; "" where that is unknown."""
    trained = infos.num_steps > 0
    broken = first_of(trained & ~np.isfinite(infos.loss), infos, first_round)
    if broken is None or broken[0] > diverged:
        return ""
    round, clients = broken
    if len(clients) == 1:
        return f" after the loss of client {clients[0]} was not in round {round}"
    whose = f"{len(clients)} of {infos.num_active[round - first_round]} clients"
    return f" after the losses of {whose} were not in round {round}"


def concatenate(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of several groups below one another; a number counts as one row."""
    return {
        name: [item for part in parts for item in np.atleast_1d(part[name])]
        if isinstance(parts[0][name], list)
        else np.concatenate([np.atleast_1d(part[name]) for part in parts])
        for name in parts[0]
    }
