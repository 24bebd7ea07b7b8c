"""What `--dry-run` prints: what a run, a sweep or a search would do."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console

from ..engine.footprint import readable
from ..experiment.preview import (
    Preview,
    Rounds,
    SearchPreview,
    SweepPreview,
    as_dict,
)
from .flags import Request
from .output import print_json
from .process import say


def print_preview(
    request: Request, found: Preview | SweepPreview | SearchPreview
) -> None:
    """Prints what a run, a sweep or a search would do."""
    if request.json:
        print_json({"status": "dry run", **as_dict(found)})
    elif isinstance(found, Preview):
        _print_run(request.console(), found)
    elif isinstance(found, SweepPreview):
        _print_sweep(request.console(), found)
    else:
        _print_search(request.console(), found)


def _print_run(console: Console, found: Preview) -> None:
    each = "" if found.devices == 1 else f" on each of {found.devices} devices"
    goes_on = f", which goes on after round {found.begins}" if found.begins else ""
    needed, rounds = str(found.memory), map(str, found.programs)
    if found.memory.peak != found.memory.total:
        needed += f"; {readable(found.memory.peak)} about, with Python and the compiler"
    lines = {
        "run": f"{found.method} on {found.data}, {found.rounds.rounds} rounds",
        **_of_rounds(found.rounds),
        "memory": f"{needed}; {_free(found.free)}",
        "lanes": f"{found.lanes}{each}",
        "programs": f"{len(found.programs)} to compile, of {' and of '.join(rounds)} "
        f"round{'s' * (found.programs != [1])} with an evaluation",
        "time": _time(found.compile_seconds, found.train_seconds),
        "folder": f"{found.folder}{goes_on}",
    }
    _print(console, lines, found.notes)


def _print_sweep(console: Console, found: SweepPreview) -> None:
    """One after the other what trials of a program would do."""
    _print_groups(console, found)
    left = [group for group in found.groups if not group.finished]
    trials = sum(len(group.trials) for group in left)
    programs = sum(len(group.programs) for group in left)
    lines = {
        "sweep": f"{_trials(trials)} to run, {programs} programs to compile; what stands "
        "above is of the first trial of each program",
        "memory": _free(found.free),
        "folder": found.folder,
    }
    _print(console, lines, [] if found.note is None else [found.note])


def _print_search(console: Console, found: SearchPreview) -> None:
    """Its first trials, and how many there are."""
    _print_groups(console, found.first)
    begun = f", {found.proposed} of them proposed already" if found.proposed else ""
    reach = [f"{n} up to round {rounds}" for rounds, n in found.rungs.items()]
    lines = {
        "search": f"{_trials(found.trials)}{begun}, {found.at_once} at once: "
        f"{', of which '.join(reach)}; what stands above is of the first ones",
        "memory": _free(found.first.free),
        "folder": found.folder,
    }
    _print(console, lines)


def _print_groups(console: Console, found: SweepPreview) -> None:
    for group in found.groups:
        trials = f"{group.name}, {_trials(len(group.trials))}"
        if group.finished:
            _print(console, {"program": f"{trials}, finished"})
            continue
        lines = {
            "program": f"{trials}, {group.at_once} at once, {group.rounds.rounds} rounds",
            **_of_rounds(group.rounds),
            "memory": f"{readable(group.memory)} besides the data, a guess",
            "time": _time(None, group.train_seconds),
        }
        _print(console, lines, group.notes)


def _print(
    console: Console, lines: Mapping[str, str], notes: Sequence[str] = ()
) -> None:
    for name, text in lines.items():
        say(console, f"{name:<12} {text}")
    for note in notes:
        say(console, f"note: {note}")


def _of_rounds(rounds: Rounds) -> dict[str, str]:
    """What the rounds of a run come to, line by line."""
    lines = {
        "clients": f"{rounds.clients}, {_few(rounds.cohort)} expected in a round",
        "local steps": _steps(rounds),
    }
    if rounds.gradients is not None:
        lines["gradients"] = (
            f"{rounds.gradients:,.0f} on batches in the first round, "
            f"{rounds.gradients * rounds.rounds:,.0f} in all if each is as the first"
        )
    down, up = (readable(round(size)) for size in (rounds.bytes_down, rounds.bytes_up))
    lines["traffic"] = f"{down} down and {up} up in a round"
    if rounds.bytes_refined:
        refined = rounds.bytes_refined
        lines["traffic"] += f", and {refined} bytes for each client that refines"
    if rounds.broadcast_bytes:
        lines["traffic"] += (
            f"; {readable(rounds.broadcast_bytes)} down before the first"
        )
    return lines


def _few(number: float) -> str:
    """A number with one digit after the point, of a whole one with none."""
    return f"{number:,.1f}".removesuffix(".0")


def _trials(number: int) -> str:
    return f"{number} trial{'s' * (number != 1)}"


def _time(compiling: float | None, training: float | None) -> str:
    """About how long it takes, as far as that is known."""
    shown = "not known" if training is None else f"{_duration(training)}, a rough guess"
    if compiling is not None:
        shown += f", and {_duration(compiling)} to compile what has not been compiled"
    return shown


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(math.ceil(seconds), 1)} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"


def _free(size: int | None) -> str:
    return "what is free is not known" if size is None else f"{readable(size)} free"


def _steps(rounds: Rounds) -> str:
    if rounds.mean_steps is None:
        cap = "" if rounds.steps_cap is None else f", {rounds.steps_cap} at most"
        return f"chosen by the method as it goes on{cap}"
    return (
        f"{_few(rounds.mean_steps)} of a client in the first round, a mean, and "
        f"{rounds.most_steps:,} of the one that takes most"
    )
