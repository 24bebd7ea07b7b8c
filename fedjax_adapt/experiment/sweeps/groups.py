"""Which trials of a sweep share a program.

Those that agree in all but seeds, who holds which examples, and numbers that JAX may
trace. Whether an algorithm's options may be is found out by tracing it.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ...errors import SettingError
from ..build import build
from ..config import identity
from ..user_functions import label
from .compiled_group import can_trace, check_values, layout_of
from .differences import (
    partition_of,
    partition_tables,
    settings_of,
    shape_of,
    traced_names,
    value_of,
)
from .grid import Trial, described

SEEDS = ("seed", "clock_seed")  # of keys, which are traced


class Group(NamedTuple):
    """Trials that share a program."""

    name: str
    trials: list[Trial]
    traced: list[str]  # settings


def groups_of(trials: Sequence[Trial], side_by_side: int | str = "auto") -> list[Group]:
    """The trials by the program they share, in the order of their first.

    Data are loaded and programs traced, so that what does not fit is found here, but for
    partitions of data that a seed generates or corrupts: those of the first seed alone.

    Raises:
      SettingError: as building a run; the sentence names the trial.
    """
    alike: dict[str, list[Trial]] = {}
    for trial in trials:
        alike.setdefault(_key(trial, traced_names(trial.config)), []).append(trial)
    known: dict[str, list[str]] = {}
    shapes: dict[int, Any] = {}
    groups: list[list[Trial]] = []
    traced: list[list[str]] = []
    for members in alike.values():
        names = _varying(members)
        # another seed of the data changes nothing of what may be traced
        kind = _key(members[0], traced_names(members[0].config), ["partition_seed"])
        kind += json.dumps(names)
        if kind not in known:
            known[kind], found = _examined(members, names, side_by_side)
            shapes |= found
        split: dict[str, list[Trial]] = {}
        for trial in members:
            key = _key(trial, known[kind]) + json.dumps(shapes.get(trial.number))
            split.setdefault(key, []).append(trial)
        groups += split.values()
        traced += [[n for n in known[kind] if n in _varying(s)] for s in split.values()]
    named = zip(groups, traced, strict=True)
    return [
        Group(f"{i:03d}-{label(group[0].config.algorithm)}", group, names)
        for i, (group, names) in enumerate(named)
    ]


def _key(trial: Trial, traced: Sequence[str], but: Sequence[str] = ()) -> str:
    """The settings that trials of one program share: not seeds, partitions, traced ones."""
    settings = identity(trial.config) | dict.fromkeys(traced, "a number")
    left_out = {*SEEDS, *settings_of(trial.config), *but}
    shared = {name: v for name, v in settings.items() if name not in left_out}
    return json.dumps(shared, sort_keys=True)


def _varying(trials: Sequence[Trial]) -> list[str]:
    values = lambda name: {value_of(trial.config, name) for trial in trials}
    return [n for n in traced_names(trials[0].config) if len(values(n)) > 1]


def _examined(
    trials: Sequence[Trial], names: list[str], side_by_side: int | str
) -> tuple[list[str], dict[int, tuple[int, int]]]:
    """Looks at all trials of a program.

    Returns:
      Those of the settings that it can trace, and the `shape_of` of each trial's
      partition.
    """
    config = trials[0].config
    with _about(trials[0]):
        federation = build(config)
        layout_of(config, federation, len(trials), side_by_side)
        traces = can_trace(config, federation, names)
    shapes, datasets = {}, {partition_of(config): federation.data}
    for trial in trials:
        with _about(trial):
            text = partition_of(trial.config)
            if text not in datasets:
                tables = partition_tables(trial.config, federation)
                datasets[text] = tables.put_into(federation.data)
            federation_of_trial = federation._replace(data=datasets[text])
            check_values(trial.config, federation_of_trial)
            shapes[trial.number] = shape_of(federation_of_trial)
    if traces:
        return names, shapes
    with _about(trials[0]):
        alone = [name for name in names if can_trace(config, federation, [name])]
        return alone if can_trace(config, federation, alone) else [], shapes


@contextmanager
def _about(trial: Trial) -> Iterator[None]:
    """Errors say which trial they are about."""
    try:
        yield
    except SettingError as error:
        about = f"trial {trial.shown} ({described(trial)})"
        raise SettingError(f"{about}: {error}") from None
