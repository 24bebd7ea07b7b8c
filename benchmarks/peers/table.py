"""The table of a sitting, in Markdown, from the lines of it that nobody disturbed."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from settings import OURS, Setting

Line = Mapping[str, Any]
HEAD = """\
| simulator | setting | median s | min to max s | rounds | times ours | MB |
|---|---|---|---|---|---|---|"""


class Row(NamedTuple):
    """One setting of a workload over all passes.

    Attributes:
      setting: which.
      seconds: of a round: the median of the passes' medians.
      fastest: round of all passes.
      slowest: likewise.
      rounds: timed, of every pass.
      ratios: the setting's median by ours of the same pass, where both are there.
      memory: the largest peak, in MB.
    """

    setting: Setting
    seconds: float
    fastest: float
    slowest: float
    rounds: list[int]
    ratios: list[float]
    memory: float

    def text(self) -> str:
        """The row in Markdown."""
        ratio = "-"
        if self.setting == OURS:
            ratio = "1"
        elif self.ratios:
            low, high = min(self.ratios), max(self.ratios)
            ratio = f"{median(self.ratios):.2f} ({low:.2f} to {high:.2f})"
        passes, n = len(self.rounds), self.rounds[0]
        cells = [
            self.setting.title,
            self.setting.label,
            f"{self.seconds:.3g}",
            f"{self.fastest:.3g} to {self.slowest:.3g}",
            f"{passes} x {n}",
            ratio,
            f"{self.memory:.0f}",
        ]
        return f"| {' | '.join(cells)} |"


def rows(settings: Sequence[Setting], lines: Sequence[Line]) -> list[Row]:
    """The rows of one workload, the fastest first; a setting without lines has none.

    Args:
      settings: to be shown.
      lines: of this workload, one per setting and pass at most, all undisturbed.
    """
    by_pass = {
        setting.name: {
            line["pass"]: line for line in lines if line["setting"] == setting.name
        }
        for setting in settings
    }
    ours = by_pass.get(OURS.name, {})
    found = []
    for setting in settings:
        mine = by_pass[setting.name]
        if not mine:
            continue
        seconds = {turn: line["seconds_per_round"] for turn, line in mine.items()}
        ratios = [
            seconds[turn] / ours[turn]["seconds_per_round"]
            for turn in seconds
            if turn in ours
        ]
        found.append(
            Row(
                setting,
                median(seconds.values()),
                min(line["min"] for line in mine.values()),
                max(line["max"] for line in mine.values()),
                [line["n"] for line in mine.values()],
                ratios,
                max(line["peak_memory_mb"] or 0 for line in mine.values()),
            )
        )
    return sorted(found, key=lambda row: row.seconds)


def table(settings: Mapping[str, Sequence[Setting]], lines: Sequence[Line]) -> str:
    """The tables of all workloads, with hardware, commit and versions below.

    Args:
      settings: of every workload.
      lines: of the sitting; those that others disturbed are left out.
    """
    quiet = [line for line in lines if not line["disturbed"]]
    texts = []
    for workload, some in settings.items():
        mine = [line for line in quiet if line["workload"] == workload]
        shown = rows(some, mine)
        body = "\n".join([HEAD, *(row.text() for row in shown)])
        texts += [workload.upper(), body]
        there = {row.setting for row in shown}
        missing = [setting.name for setting in some if setting not in there]
        if missing:
            texts.append(f"Without an undisturbed line: {'; '.join(missing)}.")
    if quiet:
        texts.append(evidence(quiet))
    return "\n\n".join(texts) + "\n"


def evidence(lines: Sequence[Line]) -> str:
    """What the lines were measured on, and with which versions."""
    machines = {
        f"{line['hardware']['cpu']}, {line['hardware']['cores']} cores"
        for line in lines
    }
    commits = {str(line["commit"]) for line in lines}
    versions: dict[str, set[str]] = {}
    for line in lines:
        title = line["setting"].partition(":")[0]
        told = [f"{name} {value}" for name, value in line["versions"].items()]
        versions.setdefault(title, set()).add(" ".join(told))
    told = "; ".join(
        f"{title}: {' or '.join(sorted(some))}" for title, some in versions.items()
    )
    return (
        f"{'; '.join(sorted(machines))}. Commit {', '.join(sorted(commits))}. {told}."
    )
