"""Traces of spot instances: arrivals, removals and figures; pure, since `files.py` reads them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from storage.errors import TraceError

EventKind = Literal["add", "notice", "remove"]


@dataclass(frozen=True)
class TraceEvent:
    """An instance's arrival or removal; in a replay also the notice of its removal.

    Attributes:
        at_s: seconds from the beginning of the trace, or of its replay.
        instance: name of the instance; a name may return after its removal.
    """

    at_s: float
    kind: EventKind
    instance: str


class Roster:
    """The current instances while events are read one by one; checks each new event."""

    def __init__(self) -> None:
        self.alive: dict[str, float] = {}
        self._at_s = 0.0

    def problem(self, event: TraceEvent) -> str | None:
        """Apply the event, or return what is wrong with it."""
        if event.kind not in ("add", "remove"):
            return f"unknown event {event.kind!r}; write add or remove"
        if not math.isfinite(event.at_s) or event.at_s < 0:
            return f"time {event.at_s} s; write a time from 0 on"
        if event.at_s < self._at_s:
            return f"time goes back from {self._at_s} s to {event.at_s} s; sort the events by time"
        if not event.instance:
            return "an instance has no name; name it"
        if event.kind == "add":
            if event.instance in self.alive:
                return f"instance {event.instance!r} is added but already exists; remove it first"
            self.alive[event.instance] = event.at_s
        elif self.alive.pop(event.instance, None) is None:
            return f"instance {event.instance!r} is removed but does not exist; add it first"
        self._at_s = event.at_s
        return None


@dataclass(frozen=True)
class Trace:
    """Events in order of time, with a length that may extend beyond the last event.

    Attributes:
        events: events; those of one moment are applied in this order.
        length_s: length in seconds; the remaining instances stay to its end.

    Raises:
        TraceError: times go back, a missing instance is removed, one is added twice, or the length is below
            the last event's time.
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

    def scaled(self, speed: float) -> Trace:
        """Return the same events `speed` times as fast: at 60, an hour takes a minute.

        Raises:
            TraceError: the speed is not a number above 0.
        """
        if not (math.isfinite(speed) and speed > 0):
            raise TraceError(f"speed {speed}; give a number above 0, such as 60 for an hour in a minute")
        events = tuple(TraceEvent(event.at_s / speed, event.kind, event.instance) for event in self.events)
        return Trace(events, self.length_s / speed)

    def clipped(self, first_s: float, last_s: float) -> Trace:
        """Return the part from `first_s` to `last_s`, shifted to begin at 0.

        Instances that exist at `first_s` are added at 0, in order of arrival.

        Raises:
            TraceError: `0 <= first_s < last_s <= length_s` does not hold.
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


@dataclass(frozen=True)
class TraceSummary:
    """Figures of a trace.

    Attributes:
        peak: most instances at once.
        multi_loss_share: share of the losses that happened at the same time as others; None without losses.
        losses_per_instance_hour: losses over the lifetime of all instances in hours, including those left at
            the end. None without instances.
    """

    length_s: float
    instances: int
    peak: int
    losses: int
    multi_loss_share: float | None
    losses_per_instance_hour: float | None


def summarise(trace: Trace) -> TraceSummary:
    """Return the figures of a trace."""
    came: dict[str, float] = {}
    together: Counter[float] = Counter()  # losses by their time
    lifetimes: list[float] = []
    instances = peak = 0
    for event in trace.events:
        if event.kind == "add":
            came[event.instance] = event.at_s
            instances += 1
            peak = max(peak, len(came))
        else:
            lifetimes.append(event.at_s - came.pop(event.instance))
            together[event.at_s] += 1
    alive_s = sum(lifetimes) + sum(trace.length_s - since for since in came.values())
    losses = len(lifetimes)
    return TraceSummary(
        length_s=trace.length_s,
        instances=instances,
        peak=peak,
        losses=losses,
        multi_loss_share=sum(size for size in together.values() if size > 1) / losses if losses else None,
        losses_per_instance_hour=losses / (alive_s / 3600) if alive_s else None,
    )
