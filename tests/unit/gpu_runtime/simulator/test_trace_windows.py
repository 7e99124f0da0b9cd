"""Windows of traces that are as long as a run."""

from __future__ import annotations

import random

import pytest

from gpu_runtime.simulator.trace_windows import SpotMarket, repeated
from gpu_runtime.spot.traces.generator import TraceShape
from gpu_runtime.spot.traces.trace import Trace, TraceEvent
from storage.errors import TraceError
from tests.spot_traces import alive_at

TRACE = Trace(
    (
        TraceEvent(0.0, "add", "a"),
        TraceEvent(10.0, "add", "b"),
        TraceEvent(30.0, "remove", "a"),
        TraceEvent(50.0, "add", "c"),
    ),
    100.0,
)
"""One instance, two, one, and two again: b and c are left."""


def counts(trace: Trace, times: list[float]) -> list[int]:
    return [len(alive_at(trace, at)) for at in times]


def test_a_window_has_the_instances_of_its_moments_and_begins_anew_at_the_end():
    whole = repeated(TRACE, 0.0, 250.0)
    assert counts(whole, [0, 10, 30, 50, 99]) == [1, 2, 1, 2, 2]
    # From 100 on the same again: of the two that are there, one goes on as `a`.
    assert counts(whole, [100, 110, 130, 150]) == [1, 2, 1, 2]
    assert whole.length_s == 250.0
    later = repeated(TRACE, 40.0, 250.0)
    assert counts(later, [0, 10, 59, 60, 70, 90, 110]) == [1, 2, 2, 1, 2, 1, 2]


def test_a_trace_far_shorter_than_the_run_is_refused():
    with pytest.raises(TraceError, match=r"100 s long and the run may take 200,000 s; give one of at least"):
        repeated(TRACE, 0.0, 200_000.0)


def test_a_recorded_trace_is_thinned_to_the_places_and_a_drawn_one_has_as_many():
    shape = TraceShape(capacity=1, length_s=1.0)
    recorded = SpotMarket(TRACE, shape).window(1, 300.0, random.Random(1))
    assert max(counts(recorded, list(range(300)))) == 1
    drawn = SpotMarket(None, shape).window(5, 3600.0, random.Random(1))
    assert len(alive_at(drawn, 0)) == 5 and drawn.length_s == 3600.0
    calm = SpotMarket(None, shape, losses=False).window(3, 3600.0, random.Random(1))
    assert [event.kind for event in calm.events] == ["add"] * 3
    with pytest.raises(TraceError, match="no instance arrives"):
        SpotMarket(Trace((), 10.0), shape).window(1, 300.0, random.Random(1))
