"""Runs next to each other, those that do not compare apart.

Runs that differ in the seed alone are one line, a mean over seeds. Lines rank by test
accuracy among those that were tested on the same examples with the same labels, and by
validation accuracy in a table of their own (evaluate_on=validation). Each
has its difference to one of them, the base, over the seeds that both have: the same seed
gives the same cohorts and first weights. The settings in which runs differ stand below the
table. A run that trained on its test set has no test accuracy: it stands below all others,
in a table of its own, without a rank and without a difference. A table in which a method
trains on a public set names the controls that are missing from it: what public data are
worth without the method's own idea.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import Any, NamedTuple

from ..errors import SettingError
from ..experiment.config import differing
from ..experiment.files import damaged
from ..experiment.records import (
    parts_below,
    read_run,
    read_swept,
    runs_in,
    sweep_of,
    sweep_of_group,
    trial_folder,
    trials_in,
    trials_of_group,
)
from ..experiment.store import (
    NOTHING,
    RESULTS,
    SUMMARY,
    TRIALS,
    read_summary,
    shown_accuracy,
)
from .bases import Bases, bases_of, on_bases, with_several_lines
from .controls import lacking
from .groups import Group, best_groups, groups
from .plots import method_of
from .seeds import (
    Line,
    Run,
    Sample,
    at_target,
    difference_text,
    figures,
    over_seeds,
    sample,
    short,
    speed_ups,
)
from .tables import (
    Sheet,
    client_examples_of,
    percent,
    shortened,
    shown_setting,
    some_of,
    together,
)

# what a target took, as in `TAKEN`, by seed
Reached = dict[int, dict[str, float | None]]
SOME = ("kappa", "rho")  # which not all runs have
SHARES = ("accuracy", "best_accuracy")  # of a summary
BY_CLIENT = "by client"  # where clients use models of their own
# to a target; "seconds" are simulated
TAKEN = ("rounds", "steps", "MiB", "seconds", "measured_seconds")


def _reached(line: Line, target: float) -> Reached:
    """When each run first tested at least so accurate, and what it had cost by then."""
    found = {}
    for seed, (_, summary) in line.items():
        record = read_run(summary["folder"])
        if not len(record.metrics):
            raise SettingError(
                f"{record.folder} has no evaluation in its metrics, so rounds to a target "
                "are not known; leave out --target or this run."
            )
        at = at_target(record, target)
        moved = [at["bytes_up"], at["bytes_down"]]
        found[seed] = {
            "rounds": at["round"],
            "steps": at["local_steps"],
            "MiB": None if None in moved else sum(filter(None, moved)) / 2**20,
            "seconds": at["simulated_seconds"] or None,  # 0: there is no clock
            # trials run side by side: no one of them took what was measured
            "measured_seconds": None if sweep_of(record.folder) else at["seconds"],
        }
    return found


def _paired(
    lines: Sequence[Line], row: int, base: int | None
) -> tuple[str, dict[str, Any]]:
    """The difference to the base in points, over the seeds of both: a cell, and numbers."""
    if base is None:
        return "-", {"is_base": False}
    ours, theirs = (figures(lines[place], "accuracy") for place in (row, base))
    seeds = [seed for seed in ours if seed in theirs]
    found = sample([100 * (ours[seed] - theirs[seed]) for seed in seeds])
    numbers = {
        "is_base": row == base,
        "difference_points": found.mean,
        "half_interval_95": found.interval,
        "seeds_of_both": seeds,
    }
    if row == base:
        return "base", numbers
    if found.mean is None:
        return "no seed in common with the base", numbers
    text = difference_text(found.mean, found.interval, "{:.2f}".format)
    if len(seeds) == 1 or len(seeds) < len(ours):
        text += f" (n = {len(seeds)})"
    return text, numbers


def _to_target(ours: Reached, target: float) -> tuple[dict[str, str], dict[str, Any]]:
    """What an accuracy took: cells, and numbers."""
    cells, numbers = {}, {}
    for name in TAKEN:
        over = sample(at[name] for at in ours.values())
        lost = "not reached" if name == "rounds" else "-"
        cells[_column(name, target)] = over.text() if over.values else lost
        numbers |= {
            f"{name}_to.{target:g}": over.mean,
            f"{name}_to.{target:g}.std": over.std,
            f"{name}_to.{target:g}.reached": len(over.values),
        }
    return cells, numbers


def _speed_up(
    ours: Reached, theirs: Reached | None, target: float
) -> tuple[str, dict[str, Any]]:
    """How many times fewer rounds than the base an accuracy took: a cell, and numbers."""
    rounds = lambda reached: {seed: at["rounds"] for seed, at in reached.items()}
    base = {} if theirs is None else rounds(theirs)
    both = {seed: at for seed, at in rounds(ours).items() if seed in base}
    gain = sample(speed_ups(both, base))
    numbers = {f"speed_up.{target:g}": gain.mean, f"speed_up.{target:g}.std": gain.std}
    if theirs is ours:
        return "base", numbers
    return gain.text("{:.2f}".format) if gain.values else "-", numbers


def sheets(
    folders: Sequence[str | Path],
    base: str | None = None,
    targets: Sequence[float] = (),
    best: bool = False,
    settings_in_columns: bool = False,
) -> list[Sheet]:
    """A table for each of the `groups`, with what each run was given; raises like them.

    Args:
      folders: as in `groups`.
      base: what the others differ from, a method or the folder of a run; of a method with
        several lines that with the same settings, the method's own apart. None: the best,
        unless that would be chosen by test accuracy among settings of a method.
      targets: accuracies to say the rounds to.
      best: of each method with several settings only those with the best mean validation
        accuracy, see groups.py; by test accuracy nothing is chosen.
      settings_in_columns: in place of costs, and of a line below the table for each of its
        lines. A setting that differs within a line, as a seed does, has none.
    """
    for target in targets:
        if not 0 < target < 1:
            raise SettingError(
                f"target={target:g} is not an accuracy to reach; write a number "
                "between 0 and "
                "1, as in --target 0.9."
            )
    notes = [  # before the trials of a sweep that goes on are looked for
        note
        for folder in folders
        for note in (*_without_trials(folder), *_without_parts(folder))
    ]
    given = groups(folders)
    found = best_groups(given) if best else given
    made = [
        _sheet(_table_of(group, of, base, targets, settings_in_columns))
        for group, of in zip(found, bases_of(found, base, given), strict=True)
    ]
    made[-1].notes.extend(notes)
    return made


class _Table(NamedTuple):
    """What the rows and the notes of a table are made from. Lists: one of each line."""

    group: Group
    bases: Bases
    named: str | None  # the base that a user named
    reached: dict[float, list[Reached]]  # by target
    names: list[str]  # by rank, or letters
    methods: list[str]
    short_methods: list[str]
    settings: list[dict[str, list[Any]]]  # in which lines of the table differ
    shown: list[dict[str, list[str]]]  # these settings as text
    columns: dict[str, str] | None  # of settings, by their full names; None: of costs
    own_models: list[str]  # the names of lines whose clients use models of their own

    @property
    def differs(self) -> bool:
        """Whether there are differences to a base."""
        has_base = any(place is not None for place in self.bases)
        return has_base and (len(self.group.lines) > 1 or self.named is not None)


def _table_of(
    group: Group,
    bases: Bases,
    named: str | None,
    targets: Sequence[float],
    settings_in_columns: bool,
) -> _Table:
    lines = group.lines
    others = iter(differing([config for config, _ in group.runs]))
    settings = [_of_line([next(others) for _ in line]) for line in lines]
    values = _shortened_values(settings)
    texts = lambda name, of: [values[name][shown_setting(value)] for value in of]
    each = [dict.fromkeys(method_of(*run) for run in x.values()) for x in lines]
    methods, places = list(map(", ".join, each)), range(len(lines))
    shorter = shortened(methods)
    names = [str(i + 1) if group.ranked else ascii_lowercase[i % 26] for i in places]
    return _Table(
        group,
        bases,
        named,
        reached={x: [_reached(line, x) for line in lines] for x in targets},
        names=names,
        methods=methods,
        short_methods=[shorter[method] for method in methods],
        settings=settings,
        shown=[{name: texts(name, of) for name, of in x.items()} for x in settings],
        columns=_columns(settings) if settings_in_columns else None,
        own_models=[x for x, line in zip(names, lines, strict=True) if _is_own(line)],
    )


def _sheet(table: _Table) -> Sheet:
    group, lines = table.group, range(len(table.group.lines))
    rows, numbers = zip(*[_row(table, row) for row in lines], strict=True)
    costs = [name for x in table.reached for name in (_column(n, x) for n in TAKEN)]
    has_any = lambda name: any(row[name] != "-" for row in rows)
    head = [x for x in rows[0] if x not in (*SOME, *costs) or has_any(x)]
    shown = [[row[name] for name in head] for row in rows]
    notes = _notes(table)
    return Sheet(group.title, group.ranked, head, shown, list(numbers), notes)


def _row(table: _Table, row: int) -> tuple[dict[str, str], dict[str, Any]]:
    """A line of a table: cells by the names of columns, and numbers."""
    group, place = table.group, table.bases[row]
    line, name, shown = group.lines[row], table.names[row], table.shown[row]
    shares, costs = {n: over_seeds(line, n) for n in SHARES}, _costs(line)
    accuracy = shown_accuracy(group.accuracy) if group.ranked else "training accuracy"
    cells = {
        "rank" if group.ranked else "": name,
        "method": table.short_methods[row],
        **{x: shown.get(n, "-")[0] for n, x in (table.columns or {}).items()},
        accuracy: share_text(shares["accuracy"]),
        "n": str(len(line)),
    }
    numbers = {
        "method": table.methods[row],
        "rank": row + 1 if group.ranked else None,
        "seeds": list(line),
        "folders": [summary["folder"] for _, summary in line.values()],
    }
    for figure, over in shares.items():
        column = figure.replace("accuracy", group.accuracy)
        numbers |= {column: over.mean, f"{column}.std": over.std}
    if table.differs:
        cells["to base"], more = _paired(group.lines, row, place)
        numbers |= {"base": None if place is None else place + 1} | more
    for target, of in table.reached.items():
        texts, more = _to_target(of[row], target)
        cells, numbers = cells | texts, numbers | more
        if table.differs:
            theirs = None if place is None else of[place]
            gain = f"speed-up to {target:g}"
            cells[gain], more = _speed_up(of[row], theirs, target)
            numbers |= more
    best = "best" if group.ranked else "best training accuracy"
    cells[best] = share_text(shares["best_accuracy"])
    if table.own_models:
        each = sample(map(_of_clients, line.values()))
        cells[BY_CLIENT] = share_text(each)
        numbers |= {"by_client": each.mean, "by_client.std": each.std}
    if table.columns is None:
        rounds = costs["rounds"]
        cells["rounds"] = "-" if rounds is None else short(rounds)
        cells |= {name: _number(costs[name]) for name in ("MiB", *SOME)}
    settings = {n: v if len(v) > 1 else v[0] for n, v in table.settings[row].items()}
    return cells, numbers | {
        **costs,
        "also_given": _given(line),
        "settings": settings,
    }


def _notes(table: _Table) -> list[str]:
    """What stands below a table."""
    group, lines = table.group, table.group.lines
    if table.columns is None:
        each = zip(table.names, lines, table.shown, strict=True)
        notes = [f"{name}: {_whose(line, shown)}" for name, line, shown in each]
    else:
        notes = _all_given(lines, table.names)
    notes += [f"{place + 1}: {why}" for place, why in group.why.items()]
    if any(len(line) > 1 for line in lines):
        notes.append("mean over n seeds, ± their standard deviation")
    if table.differs:
        notes += on_bases(lines, table.short_methods, table.bases, table.named)
    elif group.ranked and table.named is not None:
        notes.append(f"no difference: {table.named} was not tested on these examples")
    several = with_several_lines(group)
    methods_there = {method_of(config, None) for config, _ in group.runs}
    if table.named is None and several and len(methods_there) > 1:
        notes.append(
            f"no difference: {', '.join(several)} {'have' if len(several) > 1 else 'has'} "
            "several lines, and the best by test accuracy is not a base; name "
            "one with compare --base"
        )
    if table.own_models:
        which = sorted({client_examples_of(summary) for _, summary in group.runs})
        whose = ", ".join(table.own_models)
        others = ", else of the server's" if len(table.own_models) < len(lines) else ""
        ranked = "the rank is" if group.ranked else "other figures are"
        notes.append(
            f"{BY_CLIENT}: the mean over clients, on their own {' or '.join(which)}, "
            f"of the client's own model in {whose}{others}; {ranked} of the server's "
            "model, which those clients do not use"
        )
    notes += lacking(group.runs)
    if stopped := [of["folder"] for _, of in group.runs if of.get("stopped_round")]:
        which = together(sorted(stopped))
        notes.append(f"stopped before the last round by a callback: {which}")
    if table.reached:
        notes += _on_seconds(group, table.names)
    return notes


def _of_clients(run: Run) -> float | None:
    """The mean accuracy, over clients, of the model that each of them uses."""
    summary = run[1]
    found = summary.get("personal_accuracy") or summary.get("client_accuracy") or {}
    return found.get("mean")


def _is_own(line: Line) -> bool:
    """Whether clients use models of their own."""
    return any(summary.get("personal_accuracy") for _, summary in line.values())


def _column(taken: str, target: float) -> str:
    """What the column of one of `TAKEN` is called."""
    return f"{taken.replace('_', ' ')} to {target:g}"


def _on_seconds(group: Group, names: Sequence[str]) -> list[str]:
    """What measured seconds are, and which lines have none."""
    is_trial = lambda run: sweep_of(run[1]["folder"]) is not None
    trials = [
        name
        for name, line in zip(names, group.lines, strict=True)
        if any(map(is_trial, line.values()))
    ]
    said = []
    if len(trials) < len(names):
        said.append(
            "measured seconds: of training, on the machine of each run, compilation apart"
        )
    if trials:
        said.append(
            f"no measured seconds of {', '.join(trials)}: trials of a sweep run side by "
            "side, and what one of them took is not known"
        )
    return said


def _of_line(settings: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values that each setting has in the runs of a line, once."""
    found: dict[str, list[Any]] = {}
    for of_run in settings:
        for name, value in of_run.items():
            values = found.setdefault(name, [])
            if shown_setting(value) not in map(shown_setting, values):
                values.append(value)
    return found


def _columns(settings: Sequence[dict[str, list]]) -> dict[str, str]:
    """The columns of the settings that no line has several values of, by full names."""
    found = dict.fromkeys(name for of_line in settings for name in of_line)
    found = [n for n in found if all(len(of.get(n, "-")) == 1 for of in settings)]
    short = [name.rpartition(".")[2] for name in found]
    pairs = zip(found, short, strict=True)
    taken = lambda name: (
        short.count(name) > 1 or name in ("rank", "method", "n", "best")
    )
    return {full: full if taken(name) else name for full, name in pairs}


def _all_given(lines: Sequence[Line], names: Sequence[str]) -> list[str]:
    """What the methods of a table were given, each with its lines, in words."""
    holders: dict[str, list[str]] = {}
    for name, line in zip(names, lines, strict=True):
        holders.setdefault(_given(line), []).append(name)
    holders.pop(NOTHING, None)
    return [f"{', '.join(of)}: also given: {given}" for given, of in holders.items()]


def _given(line: Line) -> str:
    """What the method of a line was given besides the clients' data, in words."""
    each = (run[1].get("auxiliary", ()) for run in line.values())
    return " or ".join(dict.fromkeys(", ".join(given) or NOTHING for given in each))


def _shortened_values(settings: Sequence[dict[str, list]]) -> dict[str, dict[str, str]]:
    """How each value of a setting is shown, by its name and by the value in full."""
    found: dict[str, list[str]] = {}
    for of_run in settings:
        for name, values in of_run.items():
            found.setdefault(name, []).extend(map(shown_setting, values))
    return {name: shortened(values) for name, values in found.items()}


def _whose(line: Line, settings: Mapping[str, list[str]]) -> str:
    """The runs of a line, and the settings in which others of a table differ, in words."""
    summaries = [summary for _, summary in line.values()]
    folders = together([summary["folder"] for summary in summaries])
    said = [folders, f"seed{'s' * (len(line) > 1)} {some_of(line)}"]
    for name, values in settings.items():
        said.append(f"{name}={some_of(values)}")
    given = _given(line)
    also = "" if given == NOTHING else f"; also given: {given}"
    return f"{', '.join(said)}{also}{_not_waited_for(summaries)}"


def _not_waited_for(summaries: Sequence[dict[str, Any]]) -> str:
    """What no column counts: the work of clients that were too late, a mean over runs."""
    steps, moved = (
        sum(summary.get(f"wasted_{what}", 0) for summary in summaries) / len(summaries)
        for what in ("steps", "bytes")
    )
    if not steps:
        return ""
    return (
        f"; not counted: {_number(steps)} local steps, {moved / 2**20:.4g} MiB of late "
        "clients"
    )


def _without_trials(folder: str | Path) -> list[str]:
    """What to say of the trials of a sweep that diverged or are to come."""
    path, found = Path(os.path.expanduser(folder)), []
    trials = [run for run in runs_in(path) if run != path and run.parent.name == TRIALS]
    if (sweep := sweep_of_group(path)) is not None:
        done = trials_in(sweep)
        over = lambda number: done.get(sweep / trial_folder(number)) is False
        lost = list(filter(over, trials_of_group(path)))
        return [_without_figures(path, lost)] if lost else []
    for place in dict.fromkeys(run.parents[1] for run in trials):
        finished = read_summary(place) is not None
        # which is written after the first trials of a sweep
        if finished or (place / RESULTS).is_file():
            if lost := read_swept(place).diverged:
                found.append(_without_figures(place, lost))
        if damage := damaged(place, place / SUMMARY):
            found.append(f"{damage}; put it back as it was, or resume the sweep")
        elif not finished:
            found.append(f"{place}: not finished, and trials to come are not here")
    return found


def _without_figures(folder: Path, lost: Sequence[int]) -> str:
    which = f"trial{'s' * (len(lost) > 1)} {', '.join(map(str, lost))}"
    return f"{folder}: {which} diverged and {'have' if len(lost) > 1 else 'has'} no figures"


def _without_parts(folder: str | Path) -> list[str]:
    """What to say of runs, shards and searches below a folder that are not ranked."""
    unfinished, shards, pruned = parts_below(folder)
    whose = lambda sweep: "its" if len(sweep.left) == 1 else "their"
    some = "its trials are not here, they have only some of the rounds of the search"
    return [
        *(f"{path}: not finished, or it diverged" for path in unfinished),
        *(
            f"{sweep.folder}: {sweep.lacking()}, and {whose(sweep)} trials are not here"
            for sweep in shards
            if sweep.left
        ),
        *(f"{path}: {some}" for path in pruned),
    ]


def share_text(over: Sample) -> str:
    """A mean share of 1, in per cent, with its deviation; "-" for none."""
    if over.mean is None:
        return "-"
    mean = percent(over.mean)
    return mean if over.std is None else f"{mean} ± {100 * over.std:.2f}"


def _costs(line: Line) -> dict[str, float | None]:
    """What the runs of a line took and were worth by it, means over seeds."""
    moved = [
        sum(summary.get(f"bytes_{way}", 0) for way in ("down", "up")) / 2**20
        for _, summary in line.values()
    ]
    return {
        "rounds": sample(summary["rounds"] for _, summary in line.values()).mean,
        "MiB": sample(moved).mean,
        **{n: over_seeds(line, n).mean for n in SOME},
    }


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
