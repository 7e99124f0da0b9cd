"""Ctrl-C, SIGTERM and SIGHUP: the first signal ends the work in order, later ones do not disturb that.

An exception during the shutdown or inside Prefect would leave a run without a state: there the signal waits.
Imports nothing heavy, so that a command that is still starting ends in the same way.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from flows.progress import reporter
from storage.errors import RunCancelledError
from storage.processes import ENDING_SIGNALS

_PATIENCE_S = 10.0
"""Seconds for the shutdown, after which another signal ends the process at once; the run's guard marks it."""

_DEFERRED_S = 3.0
"""Seconds a signal waits for Prefect to finish its current work, such as a request to its server."""

_LOOK_S = 0.02
_OURS = ("flows.", "tasks.", "gpu_runtime.", "storage.")
_NUMBERS = (*ENDING_SIGNALS, signal.SIGALRM)
"""The signals handled; the last one is our own, while a signal waits."""


class Stopped(KeyboardInterrupt):
    """A request by a person or the system to end this process; Prefect and the tasks see an interrupt.

    Attributes:
        number: number of the signal.
    """

    def __init__(self, number: int, why: str) -> None:
        super().__init__(why)
        self.number = number


class _Handler:
    def __init__(self) -> None:
        self.why = ""
        self._first: int | None = None
        self._first_s = 0.0
        self._raised = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first, self._first_s = number, time.monotonic()
        passed_s = time.monotonic() - self._first_s
        if self._raised:
            if passed_s > _PATIENCE_S:
                os._exit(128 + number)
        elif passed_s < _DEFERRED_S and _is_within_prefect(frame):
            signal.setitimer(signal.ITIMER_REAL, _LOOK_S)  # then it is checked again
        else:
            self.end_waiting()

    def end_waiting(self) -> None:
        """Raise `Stopped` for a signal that has arrived, unless it was raised already."""
        if self._first is None or self._raised:
            return
        self._raised = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        named = "Ctrl-C" if self._first == signal.SIGINT else signal.Signals(self._first).name
        raise Stopped(self._first, self.why or f"stopped by {named}")


def _is_within_prefect(frame: FrameType | None) -> bool:
    """Return True if Prefect does internal work, rather than only calling us or waiting for a task."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(_OURS) or module == "prefect.futures":
            return False
        if module.startswith("prefect."):
            return True
        frame = frame.f_back
    return False


@contextmanager
def stops_in_order(words: str | Callable[[], str]) -> Iterator[None]:
    """Let the first signal raise `Stopped` in the main thread and later ones wait, while the context lasts.

    In another thread, and within such a context, it changes nothing.

    Args:
        words: message to the person; a function if it depends on when the signal came.

    Raises:
        KeyboardInterrupt: the work was ended by Ctrl-C.
        SystemExit: the work was ended by SIGTERM or SIGHUP.
        RunCancelledError: the work was cancelled in the Prefect UI.
    """
    if threading.current_thread() is not threading.main_thread() or _own_handler() is not None:
        yield
        return
    handler = _Handler()
    # nohup ignores SIGHUP: that stays.
    handled = [
        number for number in _NUMBERS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    ]
    before = {number: signal.signal(number, handler) for number in handled}
    try:
        yield
        handler.end_waiting()
    except (Stopped, RunCancelledError) as stopped:
        reporter().note(words if isinstance(words, str) else words())
        if isinstance(stopped, RunCancelledError) or stopped.number == signal.SIGINT:
            raise
        raise SystemExit(128 + stopped.number) from stopped
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def stop_this_process(why: str) -> None:
    """Stop the main thread as SIGTERM does, from another thread; `why` is recorded with the run."""
    handler = _own_handler()
    if handler is not None:
        handler.why = why
    os.kill(os.getpid(), signal.SIGTERM)


def _own_handler() -> _Handler | None:
    handler = signal.getsignal(signal.SIGTERM)
    return handler if isinstance(handler, _Handler) else None
