"""Runs next to each other, those that do not compare apart.

Runs rank by test accuracy among those that were tested on the same examples with the same
labels; the settings in which they differ stand below the table. A run that trained on its
test set has no test accuracy: it stands below all others, in a table of its own, without a
rank. A table in which a method trains on a public set names the controls that are missing
from it: what public data are worth without the method's own idea.
"""

from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import SettingError
from ..experiment.store import (
    SWEEP,
    TRAINED,
    differing,
    figures_of,
    read_run,
    read_swept,
    runs_in,
    setting_of,
    unlearned,
)
from .plots import method_of
from .tables import Name, percent

if TYPE_CHECKING:
    from rich.table import Table

Run = tuple[dict[str, Any], dict[str, Any]]  # (config, summary)

WEIGHTLESS = "fnr(weight=0)"  # for FNR-FL alone: others have no such part to switch off
CONTROLS = (WEIGHTLESS, "fedavg_pubft", "public_only")
WORK = (
    "algorithm.fraction",
    "algorithm.epochs",
)  # of a control: as much as its method's
PENALTY = ("weight", "variant", "delta_set", "upload")  # of fnr, which no control has
# of whose public training folders of earlier versions did not say all
BEFORE = {"algorithm.batch_size": "none", "algorithm.batch_loss": "mean"}
PUBLIC = ("protocol", "examples")  # of a summary, which says how many there were


def lacking(runs: Sequence[Run]) -> list[str]:
    """A sentence for each set of controls that methods among the runs stand without.

    A control has all settings of the run it is for, but for the seed and the method's own,
    and the public set. Of one that has others a further sentence names them.
    """
    users = [run for run in runs if run[1].get("public", {}).get("used")]
    controls = [run for run in users if _control(run)]
    # names are kept in order, once
    without: dict[tuple[str, ...], dict[str, None]] = {}
    others: dict[tuple[str, str], dict[str, None]] = {}
    for run in users:
        if _control(run) is not None:
            continue
        lacks = []
        for name in CONTROLS if run[0]["algorithm"] == "fnr" else CONTROLS[1:]:
            named = [other for other in controls if _control(other) == name]
            apart = [_apart(other, run) for other in named]
            if "" not in apart:
                lacks.append(name)
                for other, differs in zip(named, apart, strict=True):
                    which = f"{other[1]['folder']}, {name},", differs
                    others.setdefault(which, {})[run[1]["folder"]] = None
        without.setdefault(tuple(lacks), {})[method_of(*run)] = None
    return [
        f"{', '.join(methods)} {'stands' if len(methods) == 1 else 'stand'} here without "
        f"{'its' if len(methods) == 1 else 'their'} controls {', '.join(lacks)}: what "
        "public data alone are worth is not known."
        for lacks, methods in without.items()
        if lacks
    ] + [
        f"{which} is no control of {', '.join(folders)}: it has {differs}."
        for (which, differs), folders in others.items()
    ]


def _control(run: Run) -> str | None:
    """Which control a run is, if it is one."""
    config = run[0]
    if config["algorithm"] == "fnr":
        return WEIGHTLESS if config.get("algorithm.weight") == 0 else None
    return config["algorithm"] if config["algorithm"] in CONTROLS else None


def _apart(control: Run, method: Run) -> str:
    """The settings that a control does not have of this method, in words; "" if none."""
    (theirs, of_theirs), (ours, of_ours) = control, method
    pairs = {
        f"public {what}": (of_theirs["public"][what], of_ours["public"][what])
        for what in PUBLIC
    }
    pairs |= {
        name: (setting_of(BEFORE | theirs, name), setting_of(BEFORE | ours, name))
        for name in dict.fromkeys([*theirs, *ours, *BEFORE])
        if _is_shared(name, theirs["algorithm"], ours)
    }
    return ", ".join(
        f"{name}={_shown(one)}, not {_shown(other)}"
        for name, (one, other) in pairs.items()
        if one != other
    )


def _is_shared(name: str, control: str, method: dict[str, Any]) -> bool:
    """Whether a control has this setting as its method has it."""
    kind, _, own = name.partition(".")
    if name == "algorithm.base":
        return control != "public_only"  # whose clients do not train on any base
    if own and kind == "algorithm":
        if method["algorithm"] == "fnr":
            return own not in PENALTY
        return name in WORK and name in method
    return name not in ("algorithm", "seed", "public", "public_examples", *unlearned())


class Tested(NamedTuple):
    """What an accuracy was measured on; runs in which it is the same compare."""

    trained: bool  # on the very examples
    name: str  # of the data set
    examples: int
    labels: str
    taken: tuple[int, int] | None  # split_test: public examples, and the seed that drew

    def title(self) -> str:
        """Of the table of these runs."""
        kind = TRAINED.replace("_", " ") + " of" if self.trained else "test accuracy on"
        title = f"{self.name}, {kind} {self.examples} examples"
        if self.labels != "own":
            title += f", labels={self.labels}"
        if self.trained:
            title += (
                "\n(public=published: no test accuracy, compares with no table above)"
            )
        if self.taken is not None:
            public, seed = self.taken
            title += (
                f"\n(public=split_test: left of the test set by {public} public examples "
                f"drawn with partition_seed={seed})"
            )
        return title


class Group(NamedTuple):
    """Runs that compare, the best first; or that do not, as they were given."""

    title: str
    ranked: bool
    runs: list[Run]


def groups(folders: Sequence[str | Path]) -> list[Group]:
    """The runs by what they were tested on; those that trained on it come last.

    Args:
      folders: of runs, or of sweeps, of which all trials are meant that did not diverge.

    Raises:
      ValueError: a folder holds no run and no sweep, or one that is not finished.
    """
    found: dict[Tested, list[Run]] = {}
    runs = [run for folder in folders for run in runs_in(folder)]
    paths = [run.resolve() for run in runs]
    for folder, path in zip(runs, paths, strict=True):
        if paths.count(path) > 1:
            raise SettingError(f"{folder} is given more than once; give each run once.")
        record = read_run(folder)
        if record.summary is None:
            raise SettingError(
                f"{folder} holds a run that is not finished; resume it first."
            )
        tested = _tested(record.config, record.summary)
        summary = record.summary | {"folder": str(folder)}  # it may have been moved
        found.setdefault(tested, []).append((record.config, summary))
    result = []
    for tested, runs in sorted(found.items(), key=lambda item: item[0].trained):
        if not tested.trained:
            runs = sorted(runs, key=lambda run: -figures_of(run[1])["accuracy"])
        result.append(Group(tested.title(), not tested.trained, runs))
    return result


def _tested(config: dict[str, Any], summary: dict[str, Any]) -> Tested:
    data, taken = summary["data"], None
    public = summary.get("public", {})  # a run of an earlier version had none
    if public.get("protocol") == "split_test":
        taken = (public["examples"], summary["seeds"]["partition_seed"])
    labels = config.get("labels", "own")
    return Tested(TRAINED in summary, data["name"], data["test"], labels, taken)


def comparison_tables(folders: Sequence[str | Path]) -> "list[Table]":
    """A table for each of the `groups`, with what each run was given; raises like them."""
    from rich.table import Table

    tables = []
    for group in groups(folders):
        accuracy = "test accuracy" if group.ranked else "training accuracy"
        best = "best" if group.ranked else "best training accuracy"
        title_style = "bold" if group.ranked else "red"
        table = Table(
            title=group.title, title_style=title_style, caption_justify="left"
        )
        table.add_column("rank" if group.ranked else "", justify="right")
        names = [Name(method_of(*run)) for run in group.runs]
        table.add_column("method", min_width=max(name.longest for name in names))
        for name in (accuracy, best, "rounds", "MiB", "kappa", "rho"):
            table.add_column(name, justify="right")
        notes, others = [], differing([config for config, _ in group.runs])
        for row, (_, summary) in enumerate(group.runs):
            name = str(row + 1) if group.ranked else ascii_lowercase[row % 26]
            table.add_row(name, names[row], *_cells(summary))
            given = ", ".join(summary.get("auxiliary", ())) or "nothing"
            seed = summary["seeds"]["seed"]
            settings = [f"{n}={_shown(v)}" for n, v in others[row].items()]
            notes.append(
                f"{name}: {', '.join([summary['folder'], f'seed {seed}', *settings])}; "
                f"also given: {given}{_not_waited_for(summary)}"
            )
        table.caption = "\n".join(notes + lacking(group.runs))
        tables.append(table)
    left_out = [note for folder in folders for note in _diverged(folder)]
    tables[-1].caption = "\n".join([str(tables[-1].caption), *left_out])
    return tables


def _not_waited_for(summary: dict[str, Any]) -> str:
    """What no column counts: the work of clients that were too late."""
    steps, moved = (summary.get(f"wasted_{what}", 0) for what in ("steps", "bytes"))
    if not steps:
        return ""
    return (
        f"; not counted: {steps} local steps, {moved / 2**20:.4g} MiB of late clients"
    )


def _diverged(folder: str | Path) -> list[str]:
    """What to say of the trials of a sweep that diverged, which are not ranked."""
    path = Path(folder).expanduser()
    found = read_swept(path).diverged if (path / SWEEP).is_file() else []
    trials = ", ".join(map(str, found))
    return [f"{folder}: trial {trials} diverged and has no figures"] if found else []


def _cells(summary: dict[str, Any]) -> list[str]:
    found = figures_of(summary)
    moved = sum(summary.get(f"bytes_{way}", 0) for way in ("down", "up"))
    return [
        percent(found["accuracy"]),
        percent(found["best_accuracy"]),
        str(summary["rounds"]),
        *map(_number, (moved / 2**20, found.get("kappa"), found.get("rho"))),
    ]


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
