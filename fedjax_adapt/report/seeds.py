"""A figure over seeds: its mean, deviation and interval, and how they are written."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import SettingError
from ..experiment.config import identity, learned_from, read_config
from ..experiment.records import Record
from ..experiment.store import CONFIG, COSTS, figures_of, first_reaching

CONFIDENCE = 0.95
Run = tuple[dict[str, Any], dict[str, Any]]  # (config, summary)
Line = dict[int, Run]  # runs that differ in the seed alone, by it
FOLLOWS = "partition_seed"  # the seed, where runs have one each
PUBLIC = ("protocol", "examples")  # of a summary, which says how many there were


def by_seed(runs: Sequence[Run]) -> list[Line]:
    """The runs, those that differ in the seed alone together, by seed.

    Where each has a partition of its own seed, that is no difference. A run that was made
    twice, as on other hardware, has lines of its own.
    """
    fixed = Counter(_besides_seed(run) for run in runs)
    found: dict[tuple[str, int], Line] = {}
    for run in runs:
        seeds, same, time = run[1]["seeds"], _besides_seed(run), 0
        if fixed[same] == 1 and seeds.get("partition_seed") == seeds["seed"]:
            same = _besides_seed(run, "partition_seed")
        while seeds["seed"] in found.get((same, time), {}):
            time += 1
        found.setdefault((same, time), {})[seeds["seed"]] = run
    return [dict(sorted(line.items())) for line in found.values()]


def _besides_seed(run: Run, *others: str) -> str:
    """What tells a run from others, but for its seed and other settings."""
    config, summary = run
    public = summary.get("public", {})
    settings = settings_but(config, *others)
    settings["match"] = _matched(settings.get("match"), *others)
    made_of = [summary.get("own"), *(public.get(what) for what in PUBLIC)]
    return json.dumps([settings, made_of], default=str)


def _matched(folder: str | None, *others: str) -> Any:
    """What decides the numbers of a matched run, but for its seed and other settings.

    It is the folder where no run can be read.
    """
    if folder is None:
        return None
    try:
        settings = identity(read_config(Path(folder).expanduser() / CONFIG))
    except (OSError, RuntimeError, SettingError):
        return folder
    settings["match"] = _matched(settings.get("match"), *others)
    return {n: v for n, v in settings.items() if n not in ("seed", *others)}


def settings_but(config: dict[str, Any], *others: str) -> dict[str, Any]:
    """All that decides what a run learns, but for its seed and other settings."""
    apart = {"seed", *others}
    return {n: v for n, v in learned_from(config).items() if n not in apart}


def shared_settings(of_runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The settings that all runs of a line have alike; of one run all that are given.

    `of_runs` has for each run the settings that distinguish lines.
    """
    first, *others = of_runs
    return {n: v for n, v in first.items() if all(of.get(n) == v for of in others)}


def first_of(line: Line) -> Run:
    """The first run of a line."""
    return next(iter(line.values()))


def figures(line: Line, name: str) -> dict[int, Any]:
    """A figure of a summary, by seed."""
    return {seed: figures_of(run[1]).get(name) for seed, run in line.items()}


def over_seeds(line: Line, name: str) -> "Sample":
    """A figure of a summary, of all seeds of a line."""
    return sample(figures(line, name).values())


def same_partitions(one: Line, other: Line) -> bool:
    """Whether the same seed has the same partition in both lines."""
    seeds = [
        {seed: run[1]["seeds"].get("partition_seed") for seed, run in line.items()}
        for line in (one, other)
    ]
    if all(seed == partition for of in seeds for seed, partition in of.items()):
        return True
    of_all = {partition for of in seeds for partition in of.values()}
    return len(of_all) == 1


@dataclass(frozen=True)
class Sample:
    """A figure of some seeds, and what follows from it."""

    values: Sequence[float]  # of the seeds that have one
    lacking: int  # seeds that diverged, have no number or did not reach the target

    @property
    def seeds(self) -> int:
        """How many runs there are."""
        return len(self.values) + self.lacking

    @property
    def mean(self) -> float | None:
        """Over the seeds; None where not all of them have a value."""
        return float(np.mean(self.values)) if self.values and not self.lacking else None

    @property
    def std(self) -> float | None:
        """The deviation of the seeds, an estimate from them; None of one alone."""
        if self.mean is None or len(self.values) < 2:
            return None
        return float(np.std(self.values, ddof=1))

    @property
    def interval(self) -> float | None:
        """Half the 95 % interval of the mean by Student's t; None of one seed."""
        from scipy import stats

        if self.std is None:
            return None
        n = len(self.values)
        return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * self.std / np.sqrt(n))

    def digits(self, value: float) -> str:
        """The mean, its deviation or interval, rounded alike."""
        return short(value, of=self.mean)

    def text(self, digits: Callable[[float], str] | None = None) -> str:
        """Mean ± deviation; or how many of the seeds have a value, where not all do."""
        digits = self.digits if digits is None else digits
        if self.mean is None:
            some = f"{len(self.values)} of {self.seeds} seeds"
            return some if self.values else "no seed"
        mean = digits(self.mean)
        return mean if self.std is None else f"{mean} ± {digits(self.std)}"


def sample(values: Iterable[float | None]) -> Sample:
    """The figure of these seeds; None or NaN: one has none."""
    values = list(values)
    known = [value for value in values if value is not None and not np.isnan(value)]
    return Sample(known, len(values) - len(known))


def speed_ups(
    ours: Mapping[int, float | None], bases: Mapping[int, float | None]
) -> list[float | None]:
    """The rounds of the base by one's own, for each seed; None: one of them has none."""
    ratio = lambda a, b: None if a is None or b is None else a / b
    return [ratio(bases.get(seed), rounds) for seed, rounds in ours.items()]


def at_target(record: Record, target: float) -> dict[str, float | None]:
    """The round of the first test that reached an accuracy, and what it had cost by then.

    Args:
      record: of a run with an evaluation.
      target: test accuracy, in (0, 1].

    Returns:
      round and each of `COSTS`; None: the target was never reached, or an older run does
      not say.
    """
    metrics = record.metrics
    first = first_reaching(
        metrics["round"].to_numpy(), metrics[record.accuracy].to_numpy(), target
    )
    found: dict[str, float | None] = dict.fromkeys(("round", *COSTS, "seconds"))
    if first is not None:
        at = metrics["round"].to_numpy().tolist().index(first)
        known = [name for name in found if name in metrics.column_names]
        found |= {name: float(metrics[name][at].as_py()) for name in known}
    return found


def difference_text(
    difference: float, interval: float | None, digits: Callable[[float], str]
) -> str:
    """A difference with its sign and interval, called none where that covers 0."""
    shown = digits(abs(difference))
    negative = difference < 0 and shown != digits(0)
    text = ("-" if negative else "+") + shown
    if interval is None:
        return text
    text += f" ± {digits(interval)}"
    return f"none ({text})" if abs(difference) <= interval else text


def short(value: float, of: float | None = None) -> str:
    """A number with two digits after the point, four below 1, without zeros at the end.

    A deviation has as many as the mean that it is `of`, but four below 0.1.
    """
    large = abs(value) >= 1 if of is None else abs(of) >= 1 and abs(value) >= 0.1
    digits = 2 if large else 4
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")
