"""The table of a sitting, in Markdown, from lines that no other program disturbed."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import common
from settings import Setting

Line = Mapping[str, Any]
COLUMNS = (
    *("simulator", "setting", "median s", "min to max s", "rounds", "times ours", "MB"),
)
SHARE = "share of peak"


class Row(NamedTuple):
    """One setting of a workload over all passes.

    Attributes:
      setting: which.
      seconds: of a round: the median of the passes' medians.
      fastest: round of all passes.
      slowest: likewise.
      rounds: timed, of every pass.
      ratios: the setting's median by ours of the same pass and precision, where both are
        there.
      memory: the largest peak, in MB.
      share: of the device's peak, where that is known.
    """

    setting: Setting
    seconds: float
    fastest: float
    slowest: float
    rounds: list[int]
    ratios: list[float]
    memory: float
    share: float | None = None

    def text(self) -> str:
        """The row in Markdown."""
        ratio = "-"
        if self.setting.simulator == "ours":
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
        if self.share is not None:
            cells.append(f"{100 * self.share:.1f} %")
        return f"| {' | '.join(cells)} |"


def quiet(lines: Sequence[Line]) -> list[Line]:
    """Those that others did not disturb."""
    return [line for line in lines if not line["disturbed"]]


def rows(
    settings: Sequence[Setting],
    lines: Sequence[Line],
    peaks: Mapping[str, float] | None = None,
) -> list[Row]:
    """The rows of one workload, the fastest first; a setting without lines has none.

    Args:
      settings: to be shown.
      lines: of this workload, one per setting and pass at most, all undisturbed.
      peaks: of the device at each precision, in TFLOP/s; None: not shown.
    """
    by_pass = {
        setting.name: {
            line["pass"]: line for line in lines if line["setting"] == setting.name
        }
        for setting in settings
    }
    ours = {s.precision: by_pass[s.name] for s in settings if s.simulator == "ours"}
    found = []
    for setting in settings:
        mine = by_pass[setting.name]
        if not mine:
            continue
        seconds = {turn: line["seconds_per_round"] for turn, line in mine.items()}
        alike = ours.get(setting.precision, {})
        ratios = [
            seconds[turn] / alike[turn]["seconds_per_round"]
            for turn in seconds
            if turn in alike
        ]
        middle, share = median(seconds.values()), None
        if peaks is not None:
            flops = common.work.WORKLOADS[lines[0]["workload"]].flops
            share = flops / middle / (1e12 * peaks[setting.precision])
        found.append(
            Row(
                setting,
                middle,
                min(line["min"] for line in mine.values()),
                max(line["max"] for line in mine.values()),
                [line["n"] for line in mine.values()],
                ratios,
                max(line["peak_memory_mb"] or 0 for line in mine.values()),
                share,
            )
        )
    return sorted(found, key=lambda row: row.seconds)


def table(
    settings: Mapping[str, Sequence[Setting]],
    lines: Sequence[Line],
    peaks: Mapping[str, float] | None = None,
) -> str:
    """The tables of all workloads, with hardware, commit and versions below.

    Args:
      settings: of every workload.
      lines: of the sitting; those that others disturbed are left out.
      peaks: as in `rows`.
    """
    undisturbed = quiet(lines)
    columns = [*COLUMNS, *([] if peaks is None else [SHARE])]
    head = f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"
    texts = []
    for workload, some in settings.items():
        mine = [line for line in undisturbed if line["workload"] == workload]
        shown = rows(some, mine, peaks)
        body = "\n".join([head, *(row.text() for row in shown)])
        texts += [workload.upper(), body]
        there = {row.setting for row in shown}
        missing = [setting.name for setting in some if setting not in there]
        if missing:
            texts.append(f"Without an undisturbed line: {'; '.join(missing)}.")
    if undisturbed:
        texts.append(evidence(undisturbed))
    return "\n\n".join(texts) + "\n"


def machine(hardware: Mapping[str, Any]) -> str:
    """The accelerator, if there is one, and the processor."""
    gpu = "" if hardware["platform"] == "cpu" else f"{hardware['device']}, "
    return f"{gpu}{hardware['cpu']}, {hardware['cores']} cores"


def evidence(lines: Sequence[Line], versions: bool = True) -> str:
    """What the lines were measured on, and with which versions if they are asked for."""
    machines = {machine(line["hardware"]) for line in lines}
    commits = {str(line["commit"]) for line in lines}
    where = f"{'; '.join(sorted(machines))}. Commit {', '.join(sorted(commits))}."
    return f"{where} {_versions(lines)}." if versions else where


def _versions(lines: Sequence[Line]) -> str:
    """Of every simulator."""
    versions: dict[str, set[str]] = {}
    for line in lines:
        title = line["setting"].partition(":")[0]
        told = [f"{name} {value}" for name, value in line["versions"].items()]
        versions.setdefault(title, set()).add(" ".join(told))
    return "; ".join(
        f"{title}: {' or '.join(sorted(some))}" for title, some in versions.items()
    )
