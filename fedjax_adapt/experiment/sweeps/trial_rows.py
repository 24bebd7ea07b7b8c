"""The rows of trials that run at once: those of a run, with the number of the trial."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...core import Info
from .. import store
from ..rows import TOTALS, Measured, Tally, concatenate, first_diverged


class TrialsLog:
    """The rows since the last checkpoint, waiting to be written with the next.

    A trial that diverges has one more row, which says so; the others go on.
    """

    def __init__(
        self,
        folder: Path,
        trials: Sequence[int],
        base: int,
        accuracy: str = store.ACCURACY,
        broadcast: int = 0,
    ):
        """Goes on from the rows that the group in `folder` already has.

        Args:
          folder: of the group.
          trials: that run at once, by number.
          base: what rounds are counted from in the names of files.
          accuracy: what accuracies are called in the rows.
          broadcast: bytes that clients have received before the first round.
        """
        written = store.read_table(folder, "metrics")
        names = [*TOTALS, "trial", "seconds", "diverged_round"]
        rows = written.select(names).to_pylist() if len(written) else []
        last = {row["trial"]: row for row in rows}
        self.folder, self.base, self.accuracy = folder, base, accuracy
        self.tallies = {t: Tally(last.get(t, {}), accuracy, broadcast) for t in trials}
        self.diverged = {t for t, row in last.items() if row["diverged_round"]}
        self.seconds = rows[-1]["seconds"] if rows else 0.0  # of the group
        self.rows: list[dict[str, Any]] = []
        self.ended: list[dict[str, Any]] = []

    def add(
        self, done: int, parts: list[tuple[Info, Measured]], spent: float
    ) -> tuple[int, tuple[float, float]]:
        """Takes the results of groups of rounds, which took `spent` seconds.

        Args:
          done: rounds done before.
          parts: infos [trials, rounds, ...] and what was measured, [trials, 1, ...]; of
            more trials than there are, the first count.
          spent: seconds of all.

        Returns:
          The rounds done now, and the mean accuracy and loss of the last evaluation.
        """
        for infos, measured in parts:
            self.seconds += spent / len(parts)
            latest = []
            for i, (trial, tally) in enumerate(self.tallies.items()):
                if trial in self.diverged:
                    continue
                info = jax.tree.map(lambda leaf, i=i: leaf[i], infos)
                found = jax.tree.map(lambda leaf, i=i: leaf[i, 0], measured)
                diverged = first_diverged(info, found.server, done + 1)
                row = tally.row(done, info, found, 0.0)
                row |= {"seconds": self.seconds, "diverged_round": diverged or 0}
                self.rows.append({"trial": trial} | row)
                if diverged is None:
                    latest.append((row[self.accuracy], row["loss"]))
                else:
                    self.diverged.add(trial)
            done += infos.delta_norm.shape[1]
        means = np.mean(latest, axis=0) if latest else (np.nan, np.nan)
        return done, (float(means[0]), float(means[1]))

    def end(self, clients: Sequence[Mapping[str, float]]) -> None:
        """Takes what the last models are worth to the clients of each trial."""
        pairs = zip(self.tallies, clients, strict=True)
        self.ended = [{"trial": trial, **figures} for trial, figures in pairs]

    def write(self, done: int) -> None:
        """Appends the rows to the tables of the group."""
        for table, rows in (("metrics", self.rows), ("trials", self.ended)):
            if rows:
                store.append(self.folder, table, concatenate(rows), self.base + done)
        self.rows, self.ended = [], []
