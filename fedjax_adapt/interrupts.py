"""Signals of a process that trains: Ctrl-C waits for the rounds under way."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def handling(number: int, handler: Callable) -> Iterator[bool]:
    """Whether a signal is handled in a block: in the main thread alone it can be."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = signal.signal(number, handler)
    try:
        yield True
    finally:
        signal.signal(number, before)


@contextmanager
def finishing() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the rounds under way; a second one does not.

    Yields a function to call between rounds, which raises KeyboardInterrupt when it was
    asked for. Until it has been called once there is nothing to wait for. One that is
    raised at once may be lost, as Python loses what is raised in a finalizer or while
    memory is tidied up: then it is raised again between rounds.
    """
    begun, asked = threading.Event(), threading.Event()

    def stop_if_asked():
        begun.set()
        if asked.is_set():
            raise KeyboardInterrupt

    def on_signal(*_):
        at_once = asked.is_set() or not begun.is_set()
        asked.set()
        if at_once:
            raise KeyboardInterrupt

    def on_lost(raised: "sys.UnraisableHookArgs") -> None:
        if not isinstance(raised.exc_value, KeyboardInterrupt):
            tell(raised)

    tell = sys.unraisablehook
    with handling(signal.SIGINT, on_signal) as handled:
        if handled:
            sys.unraisablehook = on_lost
        try:
            yield stop_if_asked
        finally:
            if sys.unraisablehook is on_lost:  # else somebody has built on it
                sys.unraisablehook = tell
