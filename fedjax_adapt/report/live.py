"""How far a run is: a bar in a terminal, now and then a line elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

QUIET = 5.0  # seconds between plain lines, at least
PARTS = 10  # ... unless this fraction of the rounds has passed

Show = Callable[[Any], None]


@contextmanager
def live(console: "Console") -> Iterator[Show]:
    """A function that shows `Progress`: round, accuracy, loss, rounds/s, time to go."""
    if console.is_terminal:
        with _bar(console) as show:
            yield show
    else:
        yield _Lines(console).show


@contextmanager
def _bar(console: "Console") -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("round {task.completed}/{task.total}"),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task("", total=None, text="loading data and compiling")

        def show(now) -> None:
            bar.update(task, completed=now.round, total=now.rounds, text=_text(now))

        yield show


class _Lines:
    """Prints a line every few seconds or every tenth of the rounds."""

    def __init__(self, console: "Console"):
        self.console, self.last_round, self.last_time = console, 0, time.monotonic()
        self.told: str | None = None

    def show(self, now) -> None:
        """Prints, or keeps still; of what is done before the first round the kind alone."""
        if now.doing is not None:
            if self.told is None or not now.doing.startswith(self.told):
                self.told = now.doing
                self.console.print(now.doing, highlight=False)
            return
        waited = time.monotonic() - self.last_time >= QUIET
        passed = (now.round - self.last_round) * PARTS >= now.rounds
        if now.accuracy is None or not (waited or passed or now.round == now.rounds):
            return
        self.last_round, self.last_time = now.round, time.monotonic()
        self.console.print(
            f"round {now.round}/{now.rounds}  {_text(now)}", highlight=False
        )


def _text(now) -> str:
    if now.accuracy is None:
        return now.doing or "first round"
    remaining = int((now.rounds - now.round) / max(now.rounds_per_second, 1e-9))
    minutes, seconds = divmod(remaining, 60)
    hours, minutes = divmod(minutes, 60)
    left = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return (
        f"{now.accuracy_name} {100 * now.accuracy:5.2f} %  loss {now.loss:.4f}  "
        f"{now.rounds_per_second:.3g} rounds/s  {left}:{seconds:02d} left"
    )
