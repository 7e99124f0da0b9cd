"""Goodput and its prediction, on a course of 100 s that was worked out by hand."""

from __future__ import annotations

import pytest

from benchmarks.goodput import Course, measure, overlap, stops, waste
from gpu_runtime.chaos.fault_injector import Done
from gpu_runtime.scheduling.history_check import HistoryLine, check_history
from gpu_runtime.spot.fault_schedule import Fault
from storage.records import StateInterval


def line(by: str, at: float, event: str, **facts) -> HistoryLine:
    return HistoryLine(1, by, at, event, facts)


def step(by: str, at: float, lease: int, number: int, seconds: float) -> HistoryLine:
    return line(by, at, "step", lease=lease, **{"from": number}, to=number + 1, s=seconds)


def part(worker: str, state, begin: float, end: float) -> StateInterval:
    return StateInterval(worker, "spot", state, begin, end, 1.0)


@pytest.fixture
def course() -> Course:
    """Samples a and b, four steps of 10 s each, in the window from 0 to 100.

    `spot-0` does two of a and b and is killed at 24, which is noticed at 26; nothing of it was committed.
    `spot-0.1` loads from 26 to 40, starts anew and is done at 80: it hangs from 45 to 50, in its first step.
    """
    lines = [
        line("driver", 0, "generate", requests=["a", "b"], steps=4),
        line("driver", 0, "lease", lease=0, worker="spot-0", step=0, requests=["a", "b"]),
        line("driver", 26, "back", lease=0, why="lost"),
        line("driver", 26, "lost", worker="spot-0"),
        line("driver", 40, "lease", lease=1, worker="spot-0.1", step=0, requests=["a", "b"]),
        line("driver", 85, "deliver", lease=1, accepted=["a", "b"], dropped=[]),
        line("driver", 100, "generated"),
        step("spot-0", 10, 0, 0, 10.0),
        step("spot-0", 20, 0, 1, 10.0),
        step("spot-0.1", 55, 1, 0, 15.0),
        step("spot-0.1", 65, 1, 1, 10.0),
        step("spot-0.1", 75, 1, 2, 10.0),
        step("spot-0.1", 85, 1, 3, 10.0),
    ]
    intervals = [
        part("spot-0", "rollout", -10, 26),
        part("spot-0.1", "load", 26, 40),
        part("spot-0.1", "rollout", 40, 85),
        part("spot-0.1", "idle", 85, 120),
    ]
    done = [
        Done(Fault("kill", at_s=24.0), 24.0, ("spot-0",)),
        Done(Fault("hung_worker", at_s=45.0, duration_s=5.0), 45.0, ("spot-0.1",)),
    ]
    return Course(lines, check_history(lines), intervals, done)


def test_overlap_is_what_all_spans_share():
    assert overlap((0, 10), (5, 20), (0, 7)) == 2
    assert overlap((0, 1), (2, 3)) == 0


def test_goodput_is_the_useful_share_of_the_paid_time(course):
    goodput = measure(course)
    assert goodput.batch_step_s == 10 and goodput.step_s == 5  # the step that a stop cut into is left out
    assert goodput.paid_s == 26 + 14 + 45 + 15
    assert goodput.useful_s == 8 * 5
    assert goodput.share == pytest.approx(0.4)


def test_the_prediction_takes_off_what_each_fault_costs(course):
    inputs = waste(course, measure(course))
    assert (inputs.replacements, inputs.replacement_s) == (1, 14)
    assert (inputs.losses, inputs.detection_s) == (1, 2)
    assert inputs.redone_s == 4 * 5 + 10 / 2
    assert (inputs.stalls, inputs.stall_s) == (1, 5)
    assert inputs.notices == 0
    assert inputs.predicted == pytest.approx(1 - (14 + 25 + 2 + 5) / 100)


def test_a_slow_worker_is_stopped_for_a_share_of_the_time(course):
    slow = Done(Fault("slow_worker", at_s=60.0, duration_s=10.0, slowdown=4.0), 60.0, ("spot-0.1",))
    changed = Course(course.lines, course.report, course.intervals, [slow])
    assert stops(changed) == [("spot-0.1", (60.0, 70.0), 0.75)]
    assert waste(changed, measure(changed)).stall_s == 7.5


def test_idling_under_notice_is_its_grace(course):
    lines = [*course.lines, line("driver", 20, "notice", worker="spot-0")]
    intervals = [part("spot-0", "idle", 22, 26), *course.intervals[1:]]
    changed = Course(lines, check_history(lines), intervals, [])
    inputs = waste(changed, measure(changed))
    assert (inputs.notices, inputs.grace_idle_s) == (1, 4)
