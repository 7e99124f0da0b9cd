"""Replay of a trace in accelerated time: the instances to add, warn and remove by now; pure."""

from __future__ import annotations

import math
from collections import Counter

from gpu_runtime.spot.traces.trace import Trace, TraceEvent, summarise
from storage.errors import TraceError


def thinned(trace: Trace, most: int) -> Trace:
    """Return a part of a trace that fits a small cluster: every n-th instance, in order of arrival.

    n is the smallest number that leaves at most `most` instances at once. Instances keep their times, so
    joint losses stay joint, but in smaller groups.

    Args:
        trace: the whole trace; an instance that returns counts again.
        most: most instances at once, at least 1.

    Raises:
        TraceError: `most` is below 1.
    """
    if most < 1:
        raise TraceError(f"at most {most} instances at once; give at least 1")
    for every in range(1, len(trace.events) + 1):
        kept = _every(trace, every)
        if summarise(kept).peak <= most:
            return kept
    return trace  # without events


class Replay:
    """The next steps of a trace as time passes; pure, since time is an argument.

    An instance whose end is due before its start is never started but `skipped`. So a machine that is too
    slow for the trace falls behind in instances, not in time.

    Args:
        trace: the trace to replay, already scaled.
        notice_s: seconds of notice before a removal, but not before the instance comes; 0 for no notice.

    Raises:
        TraceError: `notice_s` is negative or not finite.
    """

    def __init__(self, trace: Trace, notice_s: float = 0.0) -> None:
        if not (math.isfinite(notice_s) and notice_s >= 0):
            raise TraceError(f"a notice of {notice_s} s; give 0 or more")
        self._steps = _steps(trace, notice_s)
        self._next = 0
        self.skipped = 0
        """Number of instances that were never started."""

    @property
    def next_s(self) -> float | None:
        """Time of the next step in seconds; None when all is done."""
        return self._steps[self._next].at_s if self._next < len(self._steps) else None

    def due(self, now_s: float) -> list[TraceEvent]:
        """Return the steps due by now and not yet returned, in order."""
        first = self._next
        while self._next < len(self._steps) and self._steps[self._next].at_s <= now_s:
            self._next += 1
        steps = self._steps[first : self._next]
        ends = Counter(step.instance for step in steps if step.kind == "remove")
        kept: list[TraceEvent] = []
        left_out: set[str] = set()
        for step in steps:
            if step.kind == "add" and ends[step.instance] > 0:
                left_out.add(step.instance)
                self.skipped += 1
            elif step.instance not in left_out:
                kept.append(step)
            if step.kind == "remove":
                ends[step.instance] -= 1
                left_out.discard(step.instance)
        return kept


def _every(trace: Trace, every: int) -> Trace:
    """Return a trace of every n-th life of an instance."""
    kept: list[TraceEvent] = []
    alive: set[str] = set()
    came = 0
    for event in trace.events:
        if event.kind == "add":
            if came % every == 0:
                alive.add(event.instance)
                kept.append(event)
            came += 1
        elif event.instance in alive:
            alive.remove(event.instance)
            kept.append(event)
    return Trace(tuple(kept), trace.length_s)


def _steps(trace: Trace, notice_s: float) -> list[TraceEvent]:
    """Return the trace's events with the notices before removals, in order of time."""
    steps: list[TraceEvent] = []
    came: dict[str, float] = {}
    for event in trace.events:
        if event.kind == "add":
            came[event.instance] = event.at_s
        elif notice_s:
            warned_s = max(came[event.instance], event.at_s - notice_s)
            steps.append(TraceEvent(warned_s, "notice", event.instance))
        steps.append(event)
    # The sort is stable, so simultaneous events keep the trace's order, and a notice never precedes the
    # addition of its instance, which is earlier in the list.
    return sorted(steps, key=lambda step: step.at_s)
