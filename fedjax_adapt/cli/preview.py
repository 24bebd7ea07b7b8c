"""What `--dry-run` prints: what a run, a sweep or a search would do."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console

from ..engine.footprint import Footprint, readable
from ..experiment.preview import Preview, Rounds
from ..experiment.sweeps.preview import SearchPreview, SweepPreview
from .process import say


def print_preview(console: Console, found: Preview) -> None:
    """Prints what a run would do."""
    each = "" if found.devices == 1 else f" on each of {found.devices} devices"
    goes_on = f", which goes on after round {found.begins}" if found.begins else ""
    lines = {
        "run": f"{found.method} on {found.data}, {found.rounds.rounds} rounds",
        **_of_rounds(found.rounds),
        "memory": f"{_memory(found.memory)}; {_free(found.free)}",
        "lanes": f"{found.lanes}{each}",
        "programs": f"{len(found.programs)} to compile, of {_rounds(found.programs)}",
        "time": _time(found.compile_seconds, found.train_seconds),
        "folder": f"{found.folder}{goes_on}",
    }
    _print(console, lines, found.notes)


def print_sweep_preview(console: Console, found: SweepPreview) -> None:
    """Prints what a sweep would do, one after the other what trials of a program would."""
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


def print_search_preview(console: Console, found: SearchPreview) -> None:
    """Prints what a search would do: its first trials, and how many there are."""
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
            "time": f"{_time(None, group.train_seconds)}",
        }
        _print(console, lines)


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
    return lines | {"traffic": _traffic(rounds)}


def _few(number: float) -> str:
    """A number with one digit after the point, of a whole one with none."""
    return f"{number:,.1f}".removesuffix(".0")


def _trials(number: int) -> str:
    return f"{number} trial{'s' * (number != 1)}"


def _rounds(programs: Sequence[int]) -> str:
    """How many rounds each program has."""
    number = " and of ".join(map(str, programs))
    return f"{number} round{'s' * (programs != [1])} with an evaluation"


def _memory(needed: Footprint) -> str:
    if needed.peak == needed.total:
        return str(needed)
    return f"{needed}; {readable(needed.peak)} about, with Python and the compiler"


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


def _traffic(rounds: Rounds) -> str:
    down, up = (readable(round(size)) for size in (rounds.bytes_down, rounds.bytes_up))
    text = f"{down} down and {up} up in a round"
    if rounds.bytes_refined:
        text += f", and {rounds.bytes_refined} bytes for each client that refines"
    if rounds.broadcast_bytes:
        text += f"; {readable(rounds.broadcast_bytes)} down before the first"
    return text
