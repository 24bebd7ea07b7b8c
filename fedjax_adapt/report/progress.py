"""How far a run is: a bar in a terminal or a notebook, elsewhere now and then a line."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from .. import check

if TYPE_CHECKING:
    from rich.console import Console

CALLBACKS = 0.05  # seconds that the callbacks of a chunk's rounds take
QUIET = 5.0  # seconds between plain lines, at least
PARTS = 10  # ... unless this fraction of the rounds has passed

Show = Callable[[Any], None]


@contextmanager
def progress_bar(rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A callback for `fa.train` that shows how far it is: round, loss, time to go.

        with fa.progress_bar(len(keys)) as callback:
            state, infos = fa.train(round_fn, state, keys, 10, callback)

    In a terminal or a notebook it is a bar, elsewhere a line every few seconds. It moves
    after each chunk; until the first it shows the time that compiling has taken. The rate
    counts that time, too.

    Args:
      rounds: of the call of `train`.
    """
    from rich.console import Console

    check.at_least("rounds", rounds, 1)
    now = partial(SimpleNamespace, rounds=rounds, accuracy=None, doing=None, whose="")
    began, first, before = time.monotonic(), None, 0
    with live(Console()) as show:
        show(now(round=0, doing="compiling", rounds_per_second=None))

        def callback(figures: dict[str, Any]) -> None:
            nonlocal first, before
            at = time.monotonic()
            if first is None:
                first, before = at, figures["round"] - 1
            done = figures["round"] - before
            # all callbacks of the first chunk come at once, when it is over
            early = at - first < CALLBACKS and done < rounds
            rate = None if early else done / (at - began)
            show(now(round=done, loss=figures["train_loss"], rounds_per_second=rate))

        yield callback


@contextmanager
def live(console: "Console") -> Iterator[Show]:
    """A function that shows `Progress`: round, accuracy, loss, rounds/s, time to go."""
    if console.is_terminal and not console.quiet:
        with _bar(console) as show:
            yield show
    else:
        yield _lines(console)


@contextmanager
def _bar(console: "Console") -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("round {task.completed}/{task.total}{task.fields[whose]}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[text]}"),
        TimeElapsedColumn(),  # which goes on while a program is compiled
    )
    with Progress(*columns, console=console, expand=True) as bar:
        begin = "loading data and compiling"
        task = bar.add_task("", total=None, text=begin, whose="")

        def show(now) -> None:
            shown = {"text": _text(now), "whose": now.whose}
            bar.update(task, completed=now.round, total=now.rounds, **shown)

        yield show


def _lines(console: "Console") -> Show:
    """A function that prints a line every few seconds or every tenth of the rounds.

    Of what is done before the first round it prints the kind alone: after "trying lanes"
    no line says "trying lanes: 5 96 ms".
    """
    last_round, last_time, doing = 0, time.monotonic(), None

    def show(now) -> None:
        nonlocal last_round, last_time, doing
        if now.doing is not None:
            if now.doing != doing and not now.doing.startswith(f"{doing}:"):
                doing = now.doing
                console.print(doing, highlight=False)
            return
        waited = time.monotonic() - last_time >= QUIET
        passed = (now.round - last_round) * PARTS >= now.rounds
        if now.rounds_per_second is None or not (
            waited or passed or now.round == now.rounds
        ):
            return
        last_round, last_time = now.round, time.monotonic()
        # a line each, however long, for whoever reads the log by program
        line = f"round {now.round}/{now.rounds}{now.whose}  {_text(now)}"
        console.print(line, highlight=False, soft_wrap=True)

    return show


def _text(now) -> str:
    if now.rounds_per_second is None:
        return now.doing or "first round"
    remaining = int((now.rounds - now.round) / max(now.rounds_per_second, 1e-9))
    minutes, seconds = divmod(remaining, 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    accuracy = ""
    if now.accuracy is not None:
        accuracy = f"{now.accuracy_name} {100 * now.accuracy:5.2f} %  "
    return (
        f"{accuracy}loss {now.loss:.4f}  "
        f"{now.rounds_per_second:.3g} rounds/s  {left}:{seconds:02d} left"
    )
