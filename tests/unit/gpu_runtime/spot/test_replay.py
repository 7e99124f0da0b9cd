"""Which instances are to come and to go when a trace is replayed; values worked by hand."""

from __future__ import annotations

import pytest

from gpu_runtime.spot.traces.generator import TraceShape, generate_trace
from gpu_runtime.spot.traces.replay import Replay, thinned
from gpu_runtime.spot.traces.trace import EventKind, Trace, TraceEvent, summarise
from storage.errors import TraceError
from tests.spot_traces import trace_of


def trace(*events: tuple[float, EventKind, str], length_s: float | None = None) -> Trace:
    return trace_of((TraceEvent(*event) for event in events), length_s)


def done(replay: Replay, now_s: float) -> list[tuple[str, str]]:
    return [(step.kind, step.instance) for step in replay.due(now_s)]


FOUR = trace(
    (0, "add", "a"), (0, "add", "b"), (1, "add", "c"), (2, "add", "d"),
    (5, "remove", "a"), (5, "remove", "c"), (6, "remove", "b"), (8, "add", "a"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("most", "names"),
    [
        (4, ["a", "b", "c", "d", "a", "c", "b", "a"]),
        (3, ["a", "c", "a", "c", "a"]),  # every 2nd: a, c, and a when it comes again (the 5th)
        (2, ["a", "c", "a", "c", "a"]),
        (1, ["a", "a", "a"]),  # every 3rd are a and d, there together; every 4th: a, then a once more
    ],
)
def test_a_thinned_trace_has_every_n_th_instance_and_no_more_at_once_than_asked(most: int, names: list[str]):
    kept = thinned(FOUR, most)
    assert [event.instance for event in kept.events] == names
    assert summarise(kept).peak <= most
    assert kept.length_s == FOUR.length_s
    if most == 2:
        together = [event for event in kept.events if event.kind == "remove"]
        assert together == [TraceEvent(5, "remove", "a"), TraceEvent(5, "remove", "c")]
    assert thinned(trace(), most) == trace()


@pytest.mark.parametrize("seed", range(5))
def test_any_generated_trace_can_be_thinned(seed: int):
    whole = generate_trace(TraceShape(capacity=24, length_s=40_000), seed)
    kept = thinned(whole, 3)
    assert 1 <= summarise(kept).peak <= 3
    assert set(kept.events) <= set(whole.events)


def test_steps_are_handed_out_once_when_they_are_due():
    replay = Replay(FOUR)
    assert replay.next_s == 0
    assert done(replay, 0.0) == [("add", "a"), ("add", "b")]
    assert done(replay, 0.5) == []
    assert replay.next_s == 1
    assert done(replay, 2.0) == [("add", "c"), ("add", "d")]
    assert done(replay, 5.5) == [("remove", "a"), ("remove", "c")]
    assert done(replay, 100.0) == [("remove", "b"), ("add", "a")]
    assert (replay.next_s, replay.skipped, done(replay, 200.0)) == (None, 0, [])


def test_an_instance_that_is_over_before_it_was_begun_is_skipped():
    replay = Replay(FOUR)
    assert done(replay, 7.0) == [("add", "d")]
    assert replay.skipped == 3
    assert done(replay, 8.0) == [("add", "a")]


def test_an_instance_that_goes_and_comes_again_at_once_is_done_anew():
    lives = trace((0, "add", "a"), (2, "remove", "a"), (3, "add", "a"), (4, "remove", "a"))
    replay = Replay(lives)
    assert done(replay, 1.0) == [("add", "a")]
    assert done(replay, 3.5) == [("remove", "a"), ("add", "a")]
    assert done(replay, 4.0) == [("remove", "a")]
    late = Replay(lives)
    assert (done(late, 9.0), late.skipped) == ([], 2), "both lives were missed"


def test_a_notice_comes_before_the_removal_but_not_before_the_instance():
    steps = [(0, "add", "a"), (0, "add", "b"), (0.5, "notice", "a"), (1, "add", "c"), (1, "notice", "c"),
             (1.5, "notice", "b"), (2, "add", "d")]  # fmt: skip
    assert Replay(FOUR, notice_s=4.5).due(4.0) == [TraceEvent(*step) for step in steps]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: thinned(FOUR, 0), "at most 0 instances"),
        (lambda: Replay(FOUR, -1.0), "a notice of -1.0 s"),
        (lambda: Replay(FOUR, float("nan")), "a notice of nan s"),
    ],
)
def test_wrong_wishes_are_refused(wrong, words: str):
    with pytest.raises(TraceError, match=words):
        wrong()
