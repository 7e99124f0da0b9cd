"""When a phase would end with planned groups: cases worked by hand."""

from __future__ import annotations

import pytest

from gpu_runtime.groups.layout import Group
from gpu_runtime.groups.makespan import batch_ends_s
from gpu_runtime.scheduling.requests import UnderWay, WorkLeft

STEP_S = {1: 1.0, 2: 0.6}
ALONE = [Group("a", ("a0",)), Group("a", ("a1",))]
PAIR = [Group("a", ("a0", "a1"))]


def phase_end_s(groups, standing, left: WorkLeft, step_s: dict[int, float], regroup_s: float) -> float:
    ends_s = batch_ends_s(groups, standing, left, step_s, regroup_s)
    assert len(ends_s) == min(left.batches, 8 * len(groups))
    return max(ends_s)


def waiting(*steps: int) -> WorkLeft:
    return WorkLeft(steps, {})


def test_batches_are_pulled_by_the_free_group():
    assert phase_end_s(ALONE, ALONE, waiting(10, 10, 10), STEP_S, 0.5) == 20


def test_a_group_that_is_to_be_formed_takes_its_time_and_one_device_takes_none():
    assert phase_end_s(PAIR, ALONE, waiting(10), STEP_S, 0.5) == pytest.approx(6.5)
    assert phase_end_s(PAIR, PAIR, waiting(10), STEP_S, 0.5) == pytest.approx(6)
    assert phase_end_s(ALONE, PAIR, waiting(10), STEP_S, 0.5) == 10


def test_what_is_begun_is_done_by_the_old_group_and_the_rest_goes_on_in_the_new_one():
    left = WorkLeft((), {"a1": UnderWay(10, 2)})
    # Two steps alone, half a second of forming, eight steps together.
    assert phase_end_s(PAIR, ALONE, left, STEP_S, 0.5) == pytest.approx(2 + 0.5 + 8 * 0.6)
    assert phase_end_s(ALONE, ALONE, left, STEP_S, 0.5) == 10


def test_a_batch_that_is_nearly_done_is_waited_for():
    left = WorkLeft((), {"a1": UnderWay(2, 2)})
    assert phase_end_s(PAIR, ALONE, left, STEP_S, 0.5) == 2


def test_what_comes_back_is_taken_before_what_waits():
    left = WorkLeft((10,), {"a0": UnderWay(4, 1), "a1": UnderWay(4, 4)})
    # Together from 4.5 on: 3 steps of what a0 had, then 10.
    assert phase_end_s(PAIR, ALONE, left, STEP_S, 0.5) == pytest.approx(4.5 + 13 * 0.6)


def test_of_many_batches_the_first_count_by_their_steps_alone():
    played = phase_end_s(ALONE, ALONE, waiting(*[10] * 16), STEP_S, 0.5)
    assert played == 80
    assert phase_end_s(ALONE, ALONE, waiting(*[10] * 1016), STEP_S, 0.5) == pytest.approx(5080)


def test_a_degree_that_is_not_measured_counts_as_the_slowest():
    assert phase_end_s(PAIR, PAIR, waiting(10), {1: 1.0}, 0.5) == 10
