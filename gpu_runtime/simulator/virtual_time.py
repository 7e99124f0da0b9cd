"""A virtual clock and the events on it. Pure and exact: time is counted in whole nanoseconds.

Integers add up without rounding, so a device's states sum exactly to its paid time, and a phase is the same,
only shifted, at any time of a run.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty
from typing import Any

from storage.errors import SchedulingError

TICKS_PER_S = 1_000_000_000
"""Ticks of the clock in a second."""


def ticks(seconds: float) -> int:
    """Return seconds as ticks, rounded to the nearest."""
    return round(seconds * TICKS_PER_S)


class Event:
    """A scheduled event.

    Attributes:
        at: its time in ticks.
        act: function called then; None once it is cancelled.
    """

    __slots__ = ("act", "at")

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        self.at = at
        self.act: Callable[[], None] | None = act

    def cancel(self) -> None:
        """Cancel the event; its entry stays in the queue without effect."""
        self.act = None


class EventLoop:
    """Events in order of time; those at one tick run in the order they were scheduled.

    Attributes:
        now: ticks since the beginning.
        done: number of events that have happened.
    """

    def __init__(self) -> None:
        self.now = 0
        self.done = 0
        self._events: list[tuple[int, int, Event]] = []  # (when, serial, event): a heap
        self._serial = 0

    def at(self, at: int, act: Callable[[], None]) -> Event:
        """Schedule a function at a time and return its event.

        Raises:
            ValueError: the time is past.
        """
        if at < self.now:
            raise ValueError(f"an event at tick {at}, but the clock is already at {self.now}")
        self._serial += 1
        event = Event(at, act)
        heapq.heappush(self._events, (at, self._serial, event))
        return event

    @property
    def next_at(self) -> int | None:
        """Tick of the next event; None without any."""
        while self._events and self._events[0][2].act is None:
            heapq.heappop(self._events)
        return self._events[0][0] if self._events else None

    def run_until(self, over: Callable[[], bool], deadline: int | None = None) -> bool:
        """Run events until `over`, which is checked before each; return False if no event is left.

        Events due exactly at the deadline (ticks) still happen; then it returns False.
        """
        while not over():
            next_at = self.next_at
            if next_at is None or (deadline is not None and next_at > deadline):
                if deadline is not None:
                    self.now = deadline
                return False
            event = heapq.heappop(self._events)[2]
            self.now, act = event.at, event.act
            self.done += 1
            assert act is not None, "next_at drops cancelled events"
            act()
        return True


class VirtualCalls:
    """Ended calls, in place of the dispatcher's queue; waiting for the next one lets time pass.

    Attributes:
        closed: True once the deadline has passed.
    """

    def __init__(self, loop: EventLoop, deadline: int | None) -> None:
        self.closed = False
        self._loop = loop
        self._deadline = deadline
        self._ended: deque[Future[Any] | None] = deque()

    def put(self, ended: Future[Any] | None) -> None:
        """See `queue.SimpleQueue`."""
        self._ended.append(ended)

    def get(self, timeout: float | None = None) -> Future[Any] | None:
        """Return the next call that has ended, or None to wake the dispatcher.

        Args:
            timeout: ignored, as no virtual worker hangs.

        Raises:
            Empty: the deadline has passed.
            SchedulingError: no further call will end.
        """
        if self._loop.run_until(lambda: bool(self._ended), self._deadline):
            return self._ended.popleft()
        if self._deadline is None:
            raise SchedulingError("batches are left, but no device; let one stay")
        self.closed = True
        raise Empty

    def get_nowait(self) -> Future[Any] | None:
        """Return a further call that ends at this tick, or raise Empty."""
        if self._loop.run_until(lambda: bool(self._ended), self._loop.now):
            return self._ended.popleft()
        raise Empty
