"""Traces of spot instances: which came and went when. Pure: reading files is elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from storage.errors import TraceError

EventKind = Literal["add", "remove"]


@dataclass(frozen=True)
class TraceEvent:
    """An instance comes or goes.

    Attributes:
        at_s: seconds from the beginning of the trace.
        kind: `add` or `remove`.
        instance: its name; a name may come again once it is gone.
    """

    at_s: float
    kind: EventKind
    instance: str


class Roster:
    """The instances that exist while events are read one by one; checks each next event."""

    def __init__(self) -> None:
        self.alive: dict[str, float] = {}
        self._at_s = 0.0

    def problem(self, event: TraceEvent) -> str | None:
        """Take the event in, or return what is wrong with it."""
        if event.kind not in get_args(EventKind):
            return f"unknown event {event.kind!r}; write add or remove"
        if not math.isfinite(event.at_s) or event.at_s < 0:
            return f"time {event.at_s} s; write a time from 0 on"
        if event.at_s < self._at_s:
            return f"time goes back from {self._at_s} s to {event.at_s} s; sort the events by time"
        if not event.instance:
            return "an instance without a name; name it"
        if event.kind == "add":
            if event.instance in self.alive:
                return f"instance {event.instance!r} is added but already there; remove it first"
            self.alive[event.instance] = event.at_s
        elif self.alive.pop(event.instance, None) is None:
            return f"instance {event.instance!r} is removed but not there; add it first"
        self._at_s = event.at_s
        return None


@dataclass(frozen=True)
class Trace:
    """Events in the order of time, over a length of time that may go on after the last.

    Attributes:
        events: at one moment, in the order in which they are to be taken.
        length_s: seconds; the instances that are left stay to its end.

    Raises:
        TraceError: times going back, an instance removed that is not there or added twice, or a
            length below the last event's time.
    """

    events: tuple[TraceEvent, ...]
    length_s: float

    def __post_init__(self) -> None:
        roster = Roster()
        for number, event in enumerate(self.events, start=1):
            problem = roster.problem(event)
            if problem:
                raise TraceError(f"event {number} of {len(self.events)}: {problem}")
        last_s = self.events[-1].at_s if self.events else 0.0
        if not (math.isfinite(self.length_s) and self.length_s >= last_s):
            raise TraceError(f"the trace is {self.length_s} s long; give at least its last event, {last_s} s")

    @staticmethod
    def of(events: Iterable[TraceEvent], length_s: float | None = None) -> Trace:
        """A trace of these events, which ends with the last of them unless `length_s` is given."""
        events = tuple(events)
        if length_s is None:
            length_s = events[-1].at_s if events else 0.0
        return Trace(events, length_s)

    def alive_at(self, at_s: float) -> frozenset[str]:
        """The instances there are once all events up to and at `at_s` have happened."""
        alive: set[str] = set()
        for event in self.events:
            if event.at_s > at_s:
                break
            if event.kind == "add":
                alive.add(event.instance)
            else:
                alive.discard(event.instance)
        return frozenset(alive)

    def scaled(self, speed: float) -> Trace:
        """The same events `speed` times as fast: at 60, an hour takes a minute.

        Raises:
            TraceError: a speed that is not a number above 0.
        """
        if not (math.isfinite(speed) and speed > 0):
            raise TraceError(f"speed {speed}; give a number above 0, such as 60 for an hour in a minute")
        events = tuple(TraceEvent(event.at_s / speed, event.kind, event.instance) for event in self.events)
        return Trace(events, self.length_s / speed)

    def clipped(self, first_s: float, last_s: float) -> Trace:
        """The part from `first_s` to `last_s`, with its beginning at 0.

        Instances that are there at `first_s` are added at 0, in the order in which they had come.

        Raises:
            TraceError: not `0 <= first_s < last_s <= length_s`.
        """
        if not 0 <= first_s < last_s <= self.length_s:
            raise TraceError(
                f"cannot clip from {first_s} s to {last_s} s; give 0 <= first < last <= {self.length_s} s, "
                "the trace's length"
            )
        there: dict[str, None] = {}  # an ordered set
        after: list[TraceEvent] = []
        for event in self.events:
            if event.at_s > last_s:
                break
            if event.at_s > first_s:
                after.append(TraceEvent(event.at_s - first_s, event.kind, event.instance))
            elif event.kind == "add":
                there[event.instance] = None
            else:
                there.pop(event.instance, None)
        return Trace((*(TraceEvent(0.0, "add", name) for name in there), *after), last_s - first_s)
