"""Goodput and its prediction, on courses that were worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchmarks.device_time import lives_of, overlap
from benchmarks.goodput import Course, Sums, measure, predicted
from gpu_runtime.chaos.fault_injector import Done
from gpu_runtime.chaos.fault_schedule import Fault
from gpu_runtime.scheduling.history_check import HistoryLine

REFERENCE = Sums(windows=2, paid_s=100, useful_s=80, leased_s=80, sample_steps=16, waiting_s=20)
"""Five seconds a step; ten seconds of waiting in each window."""


def line(by: str, at: float, event: str, life: int = 1, **facts) -> HistoryLine:
    return HistoryLine(life, by, at, event, facts)


def step(by: str, at: float, lease: int, number: int) -> HistoryLine:
    return line(by, at, "step", lease=lease, **{"from": number}, to=number + 1)


def generate(at: float, names: Sequence[str] = ("a", "b"), life: int = 1) -> list[HistoryLine]:
    return [
        line("driver", at, "phase", life, phase="rollout", iteration=1),
        line("driver", at + 1, "generate", life, requests=list(names), steps=4),
    ]


def lease(
    at: float, number: int, worker: str, begin: int = 0, names: Sequence[str] = ("a", "b"), life: int = 1
) -> HistoryLine:
    return line("driver", at, "lease", life, lease=number, worker=worker, step=begin, requests=list(names))


@pytest.fixture
def lines() -> list[HistoryLine]:
    """Samples a and b, four steps of 10 s each, in the window from 0 to 100.

    `spot-0` does two of a and b and is killed at 24, which is noticed at 26; the first of them was saved.
    `spot-0.1` loads from 26 to 40 and is done at 75: it hangs from 45 to 50, in its first step.
    """
    return [
        line("spot-0.1", 27, "process", name="spot-0.1", pid=2, created=26.0),
        line("driver", -30, "starting", worker="spot-0"),
        *generate(0),
        lease(1, 0, "spot-0"),
        line("driver", 12, "commit", lease=0, step=1),
        line("driver", 26, "back", lease=0, why="lost"),
        line("driver", 26, "lost", worker="spot-0"),
        line("driver", 25.5, "starting", worker="spot-0.1"),
        lease(40, 1, "spot-0.1", begin=1),
        line("driver", 75, "deliver", lease=1, accepted=["a", "b"], dropped=[]),
        line("driver", 100, "generated"),
        line("driver", 120, "closed"),
        step("spot-0", 11, 0, 0),
        step("spot-0", 21, 0, 1),
        *(step("spot-0.1", 55 + 10 * n, 1, 1 + n) for n in range(3)),
    ]


DONE = (
    Done(Fault("kill", at_s=24.0), 24.0, ("spot-0",)),
    Done(Fault("hung_worker", at_s=45.0, duration_s=5.0), 45.0, ("spot-0.1",)),
)


def test_overlap_is_what_all_spans_share():
    assert overlap((0, 10), (5, 20), (0, 7)) == 2
    assert overlap((0, 1), (2, 3)) == 0


def test_goodput_is_the_useful_share_of_the_paid_time(lines):
    sums = measure(Course(lines, 1, DONE))
    assert sums.paid_s == 26 + 74 and sums.windows == 1
    assert (sums.leased_s, sums.sample_steps) == (30, 6)  # what the stop took is left out
    assert sums.step_s == 5 and sums.useful_s == 8 * 5
    assert sums.share == pytest.approx(0.4)


def test_each_second_that_is_no_use_has_one_cause(lines):
    sums = measure(Course(lines, 1, DONE))
    assert (sums.replacements, sums.replacement_s) == (1, 14)
    assert (sums.losses, sums.redone_s, sums.detection_s) == (1, 13, 2)
    assert (sums.stalls, sums.stall_s) == (1, 5)
    assert sums.notices == sums.grace_idle_s == sums.restarts == 0
    assert sums.waiting_s == 1 + 25  # before the first lease, and after the last
    # The rest is what the two leases were good for: 10 of the first, 30 of the second.
    assert sums.paid_s - (14 + 13 + 2 + 5 + 26) == 40


def test_the_prediction_takes_off_what_faults_cost_and_leaves_the_usual_waiting(lines):
    sums = measure(Course(lines, 1, DONE))
    assert predicted(sums, REFERENCE) == pytest.approx(1 - (14 + 13 + 2 + 5 + 26 - 10) / 100)
    # With the waiting of the undisturbed run in it, both say the same: (40 + 10) / 100 * 80 / 100.
    assert predicted(sums, REFERENCE) * REFERENCE.share == pytest.approx(sums.share)


def test_a_slow_worker_is_stopped_for_a_share_of_the_time(lines):
    slow = Done(Fault("slow_worker", at_s=60.0, duration_s=10.0, slowdown=4.0), 60.0, ("spot-0.1",))
    assert measure(Course(lines, 1, [slow])).stall_s == 7.5


def test_stops_that_overlap_count_once(lines):
    driver = Done(Fault("stopped_driver", at_s=48.0, duration_s=4.0), 48.0, ("driver",))
    sums = measure(Course(lines, 1, [*DONE, driver]))
    assert (sums.stalls, sums.stall_s) == (2, 7)


def test_an_expired_lease_is_a_stall_from_the_stop_on(lines):
    """It stopped at 15, after a step that was saved at 11, and was killed at 26."""
    hung = Done(Fault("hung_worker", at_s=15.0, duration_s=60.0), 15.0, ("spot-0",))
    changed = [
        HistoryLine(1, "driver", 26, "back", {"lease": 0, "why": "expired"}) if one.event == "back" else one
        for one in lines
    ]
    sums = measure(Course(changed, 1, [hung]))
    assert (sums.redone_s, sums.detection_s, sums.stall_s) == (4, 0, 11)


def test_idling_under_notice_is_its_grace(lines):
    changed = [one for one in lines if one.event != "back"] + [
        line("driver", 20, "notice", worker="spot-0"),
        line("driver", 22, "back", lease=0, why="notice"),
    ]
    sums = measure(Course(sorted(changed, key=lambda one: one.at), 1))
    assert (sums.notices, sums.grace_idle_s) == (1, 4)
    assert sums.redone_s == sums.detection_s == 0


def test_a_death_of_the_driver_costs_the_phase_that_is_done_again_and_the_break():
    """The first life rolls a out by 20 and ends at 30, in the training after it; the next one begins anew."""
    first = [
        line("driver", -30, "starting", worker="reserved-0"),
        *generate(0, ["a"]),
        lease(1, 0, "reserved-0", names=["a"]),
        line("driver", 20, "deliver", lease=0, accepted=["a"], dropped=[]),
        line("driver", 20, "generated"),
        line("driver", 30, "phase", phase="train", iteration=1),
    ]
    second = [
        line("driver", 40, "starting", 2, worker="reserved-0"),
        line("driver", 70, "phase", 2, phase="explore", iteration=1),
        *generate(70, ["a"], 2),
        lease(72, 0, "reserved-0", names=["a"], life=2),
        line("driver", 92, "deliver", 2, lease=0, accepted=["a"], dropped=[]),
        line("driver", 92, "generated", 2),
        line("driver", 95, "closed", 2),
    ]
    assert [window.counts for life in lives_of([*first, *second]) for window in life.windows] == [False, True]
    sums = measure(Course([*first, *second], 3))
    assert (sums.restarts, sums.again_s, sums.break_s) == (1, 20, 3 * 40)
    assert (sums.windows, sums.leased_s, sums.useful_s) == (1, 20, 20)
    assert sums.paid_s == 20 + 120 + 22
    assert sums.in_windows.paid_s == 22
    assert predicted(sums, REFERENCE) == pytest.approx(1 - (140 + 2 - 10) / 162)


def test_sums_of_runs_add_up(lines):
    sums = measure(Course(lines, 1, DONE))
    assert (sums + sums).share == sums.share and (sums + sums).losses == 2
    assert predicted(sums + sums, REFERENCE) == pytest.approx(predicted(sums, REFERENCE))
