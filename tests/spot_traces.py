"""Traces of spot instances for tests, and the instances of one at a moment."""

from __future__ import annotations

from collections.abc import Iterable

from gpu_runtime.spot.traces.trace import Trace, TraceEvent


def trace_of(events: Iterable[TraceEvent], length_s: float | None = None) -> Trace:
    """Return a trace of these events that ends with the last one unless `length_s` is given."""
    events = tuple(events)
    return Trace(events, max((event.at_s for event in events), default=0.0) if length_s is None else length_s)


def alive_at(trace: Trace, at_s: float) -> set[str]:
    """Return the instances that exist after all events up to and at `at_s`."""
    last = {event.instance: event.kind for event in trace.events if event.at_s <= at_s}
    return {name for name, kind in last.items() if kind == "add"}
