"""Of each method with several settings those with the best mean validation accuracy.

Test accuracy chooses nothing. Where runs with the chosen settings were tested, these are
shown in place of the validated ones. What is to be learned is never chosen: of each data
set, partition, model and number of rounds a method has settings of its own.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import SettingError
from ..experiment.records import differing, is_chosen, learned_from
from ..experiment.store import ACCURACY, VALIDATED
from .plots import FOLLOWS
from .seeds import Line, figures, same_partitions, sample
from .tables import percent, together


class Measured(NamedTuple):
    """A line, and what its accuracy is called."""

    accuracy: str
    line: Line

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides what it learns, but for seeds and what it is measured on."""
        config, _ = next(iter(self.line.values()))
        apart = {"seed", FOLLOWS, "evaluate_on"}
        return {n: v for n, v in learned_from(config).items() if n not in apart}

    @property
    def mean(self) -> float:
        """Its accuracy, over the seeds."""
        return sample(figures(self.line, "accuracy").values()).mean or 0.0


class Shown(NamedTuple):
    """A line that is shown, and what its settings were chosen by."""

    line: Line
    why: str  # and what was left out; "": it has no others to choose from


def best_lines(lines: Sequence[Measured]) -> list[Shown]:
    """The lines to show, see above.

    Raises:
      ValueError: a method has several settings, and validation accuracy of none.
    """
    shown = []
    for own in _by_method(lines):
        settings: dict[str, list[Measured]] = {}
        for one in own:
            settings.setdefault(json.dumps(one.settings), []).append(one)
        validated = [one for one in own if one.accuracy == VALIDATED]
        config, summary = next(iter(own[0].line.values()))
        if len(settings) > 1 and not validated:
            raise SettingError(
                f"best=true cannot choose among {len(settings)} settings of "
                f"{config['algorithm']}, of {summary['folder']} and others: they have no "
                "validation accuracy, and none is chosen by test; train them with "
                "--evaluate-on validation as well, or leave out --best."
            )
        why = ""
        if len(settings) > 1:
            best = max(validated, key=lambda one: one.mean)  # of equals the first
            why = _why(best, settings)
            own, validated = settings[json.dumps(best.settings)], [best]
        tested = [one for one in own if one.accuracy == ACCURACY]
        shown += [Shown(one.line, why) for one in tested or validated or own]
    return shown


def _why(best: Measured, settings: Mapping[str, Sequence[Measured]]) -> str:
    """What settings were chosen by, and the runs that have no validation accuracy."""
    lacks = lambda own: all(one.accuracy != VALIDATED for one in own)
    without = [own for own in settings.values() if lacks(own)]
    tried, said = len(settings) - len(without), []
    if tried > 1:
        said.append(
            f"of {tried} settings that with the best mean validation accuracy, "
            f"{percent(best.mean)}{_chosen(best, settings.values())}"
        )
    if without:
        runs = [[run for one in own for run in one.line.values()] for own in without]
        folders = [together([summary["folder"] for _, summary in x]) for x in runs]
        said.append(f"left out for want of validation accuracy: {', '.join(folders)}")
    return "; ".join(said)


def _chosen(best: Measured, settings: Iterable[Sequence[Measured]]) -> str:
    """Its settings that others do not have, but for the method's, which are in its name."""
    config = lambda one: next(iter(one.line.values()))[0]
    others = [config(some[0]) for some in settings]
    own = differing([config(best), *others], "evaluate_on")[0]
    own.pop("evaluate_on", None)
    return "".join(f", {name}={value}" for name, value in own.items())


def _by_method(lines: Sequence[Measured]) -> list[list[Measured]]:
    """The lines of each method that learn the same, by settings of their own."""
    found: list[list[Measured]] = []
    task = lambda one: {n: v for n, v in one.settings.items() if not is_chosen(n)}
    for one in lines:
        for other in found:
            alike = task(one) == task(other[0])
            if alike and same_partitions(one.line, other[0].line):
                other.append(one)
                break
        else:
            found.append([one])
    return found
