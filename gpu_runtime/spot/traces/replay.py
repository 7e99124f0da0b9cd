"""A trace replayed in accelerated time: which instances are to be added, warned and removed by now. Pure."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from gpu_runtime.spot.traces.summary import summarise
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.errors import TraceError

StepKind = Literal["add", "notice", "remove"]


@dataclass(frozen=True)
class ReplayStep:
    """What is to be done with an instance.

    Attributes:
        at_s: seconds from the beginning of the replay.
        kind: `notice`: tell it that it will be removed.
        instance: its name in the trace.
    """

    at_s: float
    kind: StepKind
    instance: str


def thinned(trace: Trace, most: int) -> Trace:
    """A part of a trace that fits a small cluster: every n-th instance, in the order in which they come.

    n is the smallest number that leaves at most `most` instances at once. Instances keep their times, so
    those that were lost together still are, but with fewer neighbours.

    Args:
        trace: of which instances; one that comes again counts again.
        most: instances at once, at least 1.

    Raises:
        TraceError: if `most` is below 1.
    """
    if most < 1:
        raise TraceError(f"at most {most} instances at once; give at least 1")
    for every in range(1, len(trace.events) + 1):
        kept = _every(trace, every)
        if summarise(kept).peak <= most:
            return kept
    return trace  # without events


class Replay:
    """What is to be done next, as time passes. Pure: time is an argument.

    An instance whose end is due before it was begun is never begun: it is `skipped`. So a machine that is
    too slow for the trace falls behind in instances, not in time.

    Args:
        trace: as it is to be replayed; scale it before.
        notice_s: seconds before its removal at which an instance is warned, but not before it comes; 0 for
            removal without a word.

    Raises:
        TraceError: if `notice_s` is negative or not a number.
    """

    def __init__(self, trace: Trace, notice_s: float = 0.0) -> None:
        if not (math.isfinite(notice_s) and notice_s >= 0):
            raise TraceError(f"a notice of {notice_s} s; give 0 or more")
        self._steps = _steps(trace, notice_s)
        self._next = 0
        self.skipped = 0
        """Instances that were never begun."""

    @property
    def next_s(self) -> float | None:
        """When there is something to do; None when all is done."""
        return self._steps[self._next].at_s if self._next < len(self._steps) else None

    def due(self, now_s: float) -> list[ReplayStep]:
        """What is to be done by now and was not handed out before, in order."""
        first = self._next
        while self._next < len(self._steps) and self._steps[self._next].at_s <= now_s:
            self._next += 1
        steps = self._steps[first : self._next]
        ends = Counter(step.instance for step in steps if step.kind == "remove")
        kept: list[ReplayStep] = []
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
    """Every n-th life of an instance."""
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


def _steps(trace: Trace, notice_s: float) -> list[ReplayStep]:
    """The trace's events with the notices before removals, in the order of time."""
    steps: list[ReplayStep] = []
    came: dict[str, float] = {}
    for event in trace.events:
        if event.kind == "add":
            came[event.instance] = event.at_s
        elif notice_s:
            warned_s = max(came[event.instance], event.at_s - notice_s)
            steps.append(ReplayStep(warned_s, "notice", event.instance))
        steps.append(ReplayStep(event.at_s, event.kind, event.instance))
    # Stable, so that what happens at one moment keeps the trace's order; a notice never comes before its
    # instance, because that one's coming stands further ahead.
    return sorted(steps, key=lambda step: step.at_s)
