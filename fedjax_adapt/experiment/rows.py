"""What the device hands back, as the rows of the two tables of a run.

A group is the rounds from one evaluation to the next: `infos` [rounds, cohort, ...] and
what was `Measured` after the last of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from ..core import Array, Info, Metrics
from ..engine.tally import (
    TOTALS,
    Callback,
    asks_to_stop,
    counted,
    each_round,
    named,
    reports,
)
from ..errors import RunError
from . import store

# of all runs, of which no setting may have the name
COLUMNS = (
    *("round", "accuracy", "loss", "train_loss", "cohort", *TOTALS, "clipped", "cut"),
    *("delta_norm", "class_accuracy", "seconds", "trial", "diverged_round"),
    *("stopped_round", "client"),
)


class Measured(NamedTuple):
    """What is measured on the test set after a group of rounds."""

    server: Metrics  # of the server's model
    classes: Array  # [classes], its accuracy on the examples of each label
    also: dict[str, Metrics]  # of "sel", "all" and "result", where there are such


class Diverged(RunError):
    """The server's model is no longer finite; the message names the round."""


class Tally:
    """What a run has counted since its start, row after row."""

    def __init__(
        self,
        last: Mapping[str, Any],
        accuracy: str = store.ACCURACY,
        broadcast: int = 0,
    ):
        """Goes on from a row.

        Args:
          last: the last row of `metrics` that is written; empty if there is none.
          accuracy: what accuracies are called in the rows.
          broadcast: bytes that clients have received before the first round.
        """
        begin = {"bytes_down": broadcast}
        self.accuracy, self.broadcast = accuracy, broadcast
        self.totals = {name: last.get(name) or begin.get(name, 0) for name in TOTALS}
        self.cut = self.asked = 0  # local steps of policies, by this process
        self.broken = 0  # the last round in which a client's loss was not finite
        self.idle = 0  # the first round in which no client trained
        self.seconds = last.get("seconds", 0.0)

    def row(
        self, done: int, infos: Info, measured: Measured, spent: float
    ) -> dict[str, Any]:
        """The next row of `metrics`, of a group that took `spent` seconds.

        Args:
          done: rounds done before the group.
          infos: of the group, NumPy arrays [rounds, cohort, ...].
          measured: after the group.
          spent: seconds.
        """
        if not self.idle and not infos.num_active.all():
            self.idle = done + 1 + int(np.argmin(infos.num_active))
        done += len(infos.delta_norm)
        row = metrics_row(infos, measured, done, self.totals)
        self.cut += row["cut"]
        if row["cohort"] and not np.isfinite(row["train_loss"]):
            self.broken = done
        self.asked += row["local_steps"] - self.totals["local_steps"] + row["cut"]
        self.totals = {name: row[name] for name in TOTALS}
        self.seconds += spent
        row = {**row, "seconds": self.seconds}
        return {self._named(name): value for name, value in row.items()}

    def _named(self, column: str) -> str:
        """A column, by what the accuracy on the test set is to be called."""
        own, _, _ = column.partition("_")
        tested = own == store.ACCURACY or column == f"class_{store.ACCURACY}"
        return column.replace(store.ACCURACY, self.accuracy) if tested else column


class Log:
    """The rows since the last checkpoint, waiting to be written with the next."""

    def __init__(
        self,
        folder: Path | None,
        num_clients: int,
        accuracy: str = store.ACCURACY,
        broadcast: int = 0,
        callback: Callback | None = None,
    ):
        """Goes on from the rows that the run in `folder` already has.

        Args:
          folder: of the run; None: another process writes it.
          num_clients: of the federation.
          accuracy: what accuracies are called in the rows.
          broadcast: bytes that clients have received before the first round.
          callback: of the run; the process that writes calls it.
        """
        self.callback = None if folder is None else callback
        self.figures: list[
            dict[str, Any]
        ] = []  # of the rounds it was not yet called for
        self.folder, self.num_clients = folder, num_clients
        last = {} if folder is None else store.last_row(folder, "metrics")
        self.tally = Tally(last, accuracy, broadcast)
        self.metrics, self.clients = [], []

    def add(
        self, done: int, parts: list[tuple[Info, Measured]], spent: float
    ) -> tuple[int, tuple[float, float]]:
        """Takes the results of groups that ran for `spent` seconds after `done` rounds.

        Returns:
          The rounds done now, and the accuracy and loss of the last evaluation.

        Raises:
          Diverged: a number is not finite; the rows before it have been written.
        """
        for infos, measured in parts:
            measured = jax.tree.map(lambda leaf: leaf[0], measured)
            diverged = first_diverged(infos, measured.server, done + 1)
            if diverged is not None:
                self.write(done)
                kept = f" (earlier rows are in {self.folder})"
                kept = kept if done and self.folder is not None else ""
                raise Diverged(
                    f"training diverged in round {diverged}: the model is not "
                    f"finite; lower lr or clip_norm and give another folder{kept}."
                )
            self.clients.append(client_rows(infos, done + 1, self.num_clients))
            before = self.tally.totals
            row = self.tally.row(done, infos, measured, spent / len(parts))
            self.metrics.append(row)
            if self.callback is not None:
                self.figures += of_rounds(done, infos, before, row)
            done += len(infos.delta_norm)
        return done, (row[self.tally.accuracy], row["loss"])

    def ends(self) -> bool:
        """Calls the callback for what was added, until it returns True."""
        figures, self.figures = self.figures, []
        callback = self.callback
        return callback is not None and any(asks_to_stop(callback, f) for f in figures)

    def write(self, done: int) -> None:
        """Appends the rows to the tables of the run."""
        if self.metrics and self.folder is not None:
            store.append(self.folder, "metrics", concatenate(self.metrics), done)
            store.append(self.folder, "clients", concatenate(self.clients), done)
        self.metrics, self.clients = [], []


def of_rounds(
    done: int, infos: Info, before: Mapping[str, float], row: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """What a callback is given of the rounds of a group, see `run`.

    Args:
      done: rounds done before the group.
      infos: of the group, NumPy arrays [rounds, cohort, ...].
      before: the `TOTALS` before the group.
      row: of the group, in `metrics`.
    """
    found = list(each_round(infos._replace(clients=()), done, before))
    measured = {n: v for n, v in row.items() if not n.startswith("class_")}
    found[-1] = measured | found[-1]
    return found


def metrics_row(
    infos: Info, measured: Measured, last_round: int, before: Mapping[str, float]
) -> dict[str, Any]:
    """One row of the table `metrics`, without its seconds; see `store.Record`.

    Args:
      infos: of the group, NumPy arrays [rounds, cohort, ...].
      measured: after the group.
      last_round: rounds done after the group.
      before: the `TOTALS` before the group.
    """
    return {
        "round": last_round,
        "accuracy": float(measured.server.accuracy),
        "loss": float(measured.server.loss),
        **{
            f"{field}_{name}": float(value)
            for name, metrics in measured.also.items()
            for field, value in metrics._asdict().items()
        },
        **counted(infos, before),
        "class_accuracy": [np.asarray(measured.classes)],  # a list per row
    }


def client_rows(infos: Info, first_round: int, num_clients: int) -> dict[str, Any]:
    """The group's rows of the table `clients`, as columns; see `store.Record`.

    Args:
      infos: of the group, NumPy arrays [rounds, cohort, ...].
      first_round: the number of the group's first round; a run's first round is 1.
      num_clients: the id an empty slot holds; it gives no row.
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


def concatenate(parts: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Columns of several groups below one another; a number counts as one row."""
    return {
        name: [item for part in parts for item in np.atleast_1d(part[name])]
        if isinstance(parts[0][name], list)
        else np.concatenate([np.atleast_1d(part[name]) for part in parts])
        for name in parts[0]
    }
