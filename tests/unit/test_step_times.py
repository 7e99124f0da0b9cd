"""The running table of measured times."""

from __future__ import annotations

import math

import pytest

from gpu_runtime.groups.step_times import KEPT, REGROUP_GUESS_S, RequestClass, StepTimeTable


def noted(times: list[float], degree: int = 2, first: bool = False) -> StepTimeTable:
    step_times = StepTimeTable()
    for step_s in times:
        step_times.note(degree, step_s, first)
    return step_times


def test_a_degree_is_known_by_the_median_of_its_times():
    assert noted([1.0]).known == {}
    assert noted([1.0, 3.0]).known == {2: 2.0}
    assert noted([1.0, 50.0, 3.0]).known == {2: 3.0}


def test_only_the_newest_times_count():
    assert noted([9.0] * KEPT + [1.0] * KEPT).known == {2: 1.0}


def test_first_chunks_count_only_while_there_are_no_others():
    step_times = noted([8.0, 8.0], first=True)
    assert step_times.known == {}
    step_times.note(2, 8.0, first=True)
    assert step_times.known == {2: 8.0}
    step_times.note(2, 1.0, first=False)
    step_times.note(2, 1.0, first=False)
    assert step_times.known == {2: 1.0}


@pytest.mark.parametrize("step_s", [0.0, -1.0, math.nan])
def test_what_is_no_time_is_no_measurement(step_s: float):
    assert noted([step_s] * 5).known == {}


def test_forming_a_group_is_guessed_until_it_is_measured():
    step_times = StepTimeTable()
    assert step_times.regroup_s == REGROUP_GUESS_S
    for seconds in (0.1, 0.2, 0.9):
        step_times.note_regroup(seconds)
    assert step_times.regroup_s == 0.2


def test_a_device_s_first_group_says_nothing_of_the_next_ones():
    step_times = StepTimeTable()
    step_times.note_regroup(5.0, ("a", "b"))
    step_times.note_regroup(5.0, ("a", "c"))
    assert step_times.regroup_s == REGROUP_GUESS_S
    step_times.note_regroup(0.1, ("b", "c"))
    assert step_times.regroup_s == 0.1


def test_what_has_changed_is_told_once_it_is_known():
    step_times = noted([1.0])
    assert step_times.take_changed() == {}
    step_times.note(2, 1.0, first=False)
    assert step_times.take_changed() == {2: 2}
    assert step_times.take_changed() == {}


def test_a_class_of_requests_has_a_name():
    assert str(RequestClass(1280, 720, 4)) == "1280x720, 4 at a time"
    assert str(RequestClass(0, 0, 16)) == "own size, 16 at a time"
