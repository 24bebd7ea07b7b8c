"""What a sweep or a search would do: nothing is trained and no folder is made."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...engine.memory import free_memory
from ...engine.round import checked
from .. import store
from ..build import build
from ..preview import Rounds, rounds_of, seconds_of
from ..program import group_sizes, trace_program
from .compiled_group import guessed_memory, layout_of
from .grid import Sweep, seed_hint
from .groups import Group
from .space import Search, rungs, sweep_of
from .sweep import check_begun, group_folder, groups_in
from .tune import check_folder as check_search
from .tune import distinct, num_proposed, proposals


@dataclass(frozen=True)
class GroupPreview:
    """What the trials of a sweep would do that share a program."""

    name: str  # of the group
    trials: list[int]  # their numbers
    finished: bool  # over already, so that nothing would be done
    at_once: int  # how many run side by side, on all devices
    rounds: Rounds  # of the first trial; other partitions have other steps
    memory: int  # bytes besides the data, a guess where trials run side by side
    programs: list[int]  # the rounds of each that would be compiled
    train_seconds: float | None  # of all, about; None: their steps are not known


@dataclass(frozen=True)
class SweepPreview:
    """What a sweep would do."""

    folder: str  # where it would lie
    groups: list[GroupPreview]  # one after the other
    free: int | None  # bytes that are free now; None: that is not known
    note: str | None  # what the sweep would say besides

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class SearchPreview:
    """What a search would do."""

    folder: str  # where it would lie
    trials: int  # in all
    proposed: int  # of which so many have been already
    at_once: int  # how many are proposed at once
    # how many of these, without repeats, are trained up to each number of rounds
    rungs: dict[int, int]
    first: SweepPreview  # what the first of them come to, by all rounds

    def to_dict(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return asdict(self)


def preview_search(search: Search, folder: Path, resume: bool = False) -> SearchPreview:
    """What `tune` would do with this. Data are loaded and programs traced.

    Raises:
      ValueError: as `tune`.
    """
    check_search(folder, search, resume)
    points = list(distinct(proposals(search, [])).values())
    left, counts = len(points), {}
    for rounds in rungs(search.rounds, left, search.halve):
        counts[rounds] = left
        left //= search.halve or 1
    first = sweep_of(search, points, search.rounds)
    return SearchPreview(
        folder=str(folder),
        trials=search.trials,
        proposed=num_proposed(folder),
        at_once=search.at_once,
        rungs=counts,
        first=preview_sweep(first, folder / "trials"),
    )


def preview_sweep(
    asked: Sweep,
    folder: Path,
    resume: bool = False,
    devices: int | Literal["auto"] | None = None,
    side_by_side: int | Literal["auto"] = "auto",
) -> SweepPreview:
    """What `sweep` would do with this. Data are loaded and programs traced.

    Raises:
      ValueError: as `sweep`.
    """
    groups = groups_in(folder, asked, resume, devices, side_by_side)
    for group in groups:
        check_begun(folder, group)
    found = [_preview(folder, group, side_by_side) for group in groups]
    return SweepPreview(str(folder), found, free_memory(), seed_hint(asked))


def _preview(
    folder: Path, group: Group, side_by_side: int | Literal["auto"]
) -> GroupPreview:
    config, count = group.trials[0].config, len(group.trials)
    federation = build(config)
    if count == 1:  # compiled as a run is
        held, at_once = trace_program(config, federation).footprint, 1
        needed = held.total - held.data
    else:
        layout = layout_of(config, federation, count, side_by_side)
        at_once, needed = layout.width, guessed_memory(config, federation, layout)
    rounds = rounds_of(config, federation, checked(*federation[:4]))
    seconds = seconds_of(
        config, federation, rounds, at_once=federation.data.num_clients
    )
    return GroupPreview(
        name=group.name,
        trials=[trial.number for trial in group.trials],
        finished=store.read_summary(group_folder(folder, group)) is not None,
        at_once=at_once,
        rounds=rounds,
        memory=needed,
        programs=group_sizes(config),
        train_seconds=None if seconds is None else count * seconds,
    )
