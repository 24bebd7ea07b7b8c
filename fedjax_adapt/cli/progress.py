"""What is shown while rounds run, and said where they were interrupted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from . import process
from .messages import fail


@contextmanager
def reporting(console, warning: str | None = None) -> Iterator[Callable]:
    """A function that shows progress and its warnings, and where Ctrl-C takes effect.

    From the first round on freed memory is kept: what loading and compiling took has been
    given back by then. A `warning` is printed then. Before it Ctrl-C waits for nothing.
    """
    from ..engine.xla import keep_memory
    from ..report.live import live

    with live(console) as show, process.finishing() as stop_if_asked:
        before = [] if warning is None else [warning]  # the first round

        def tell(said):
            console.print(said, highlight=False, soft_wrap=True, markup=False)

        def report(progress):
            if progress.note is not None:
                tell(progress.note)
            if progress.doing is not None:
                show(progress)
                return
            keep_memory()
            now = [] if progress.warning is None else [progress.warning]
            for text in (*before, *now):
                tell(f"warning: {text}")
            before.clear()
            show(progress)
            stop_if_asked()

        yield report


def nothing_to_resume(folder: Path, resume: bool, begins: str) -> str | None:
    """What to say where --resume finds nothing saved in a folder; None: nothing."""
    from ..experiment.checkpoint import rounds
    from ..experiment.store import SWEEP

    if not resume or (folder / SWEEP).exists() or rounds(folder / "checkpoints"):
        return None
    return f"nothing to resume in {folder}: {begins}."


def interrupted(folder: Path, again: str) -> int:
    """Says how far a run has come, and the command `again` that goes on."""
    from ..experiment.checkpoint import rounds

    if not folder.exists():
        said = f"interrupted before the first round; nothing is written to {folder}."
        return fail(said, 130)
    saved = rounds(folder / "checkpoints")
    upto = f"saved up to round {saved[-1]}" if saved else "no round is saved yet"
    goal = "to go on" if saved else "to begin again"
    return fail(f"interrupted, {upto}; write fedjax-adapt run {again} {goal}.", 130)
