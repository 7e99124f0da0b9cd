"""Ctrl-C and SIGTERM: the first one ends the work in order, the next ones do not disturb that.

A terminal sends Ctrl-C as often as it is pressed, and a scheduler may send SIGTERM twice. An exception in the
middle of the end would leave a run without a state. Imports nothing heavy, so that a command that is still
starting ends in the same way.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flows.progress import reporter

_PATIENCE_S = 10.0
"""So long the end may take before another signal ends the process at once; the run's guard then marks it."""

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """A person or the system wants this process to end; Prefect and the tasks see an interrupt.

    Attributes:
        number: of the signal.
        said: whether the person was told what became of the run.
    """

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number
        self.said = False


class _Handler:
    """Of both signals while something runs that can be stopped."""

    def __init__(self) -> None:
        self._first_s: float | None = None
        self.why = ""

    def __call__(self, number: int, _: FrameType | None) -> None:
        if self._first_s is None:
            self._first_s = time.monotonic()
            named = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
            raise Stopped(number, self.why or f"stopped by {named}")
        if time.monotonic() - self._first_s > _PATIENCE_S:
            os._exit(128 + number)


@contextmanager
def stops_in_order(words: str) -> Iterator[None]:
    """While the context lasts, the first signal raises `Stopped` in the main thread, and later ones wait.

    In another thread, and within such a context, it changes nothing.

    Args:
        words: for a person, where it was stopped before anything else was said of that.

    Raises:
        KeyboardInterrupt: it ended by Ctrl-C.
        SystemExit: it ended by SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread() or _own_handler() is not None:
        yield
        return
    handler = _Handler()
    before = {number: signal.signal(number, handler) for number in _NUMBERS}
    try:
        yield
    except Stopped as stopped:
        if not stopped.said:
            reporter().note(words)
        if stopped.number == signal.SIGINT:
            raise
        raise SystemExit(128 + stopped.number) from stopped
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def stop_this_process(why: str) -> None:
    """Stop the main thread as SIGTERM does, from another thread; `why` is noted with the run."""
    handler = _own_handler()
    if handler is not None:
        handler.why = why
    os.kill(os.getpid(), signal.SIGTERM)


def _own_handler() -> _Handler | None:
    handler = signal.getsignal(signal.SIGTERM)
    return handler if isinstance(handler, _Handler) else None
