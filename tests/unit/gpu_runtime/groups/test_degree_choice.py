"""How many devices share samples: measured times, the end of a phase by them, and the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from gpu_runtime.groups.degree_choice import (
    KEPT,
    REGROUP_GUESS_S,
    StepTimeTable,
    batch_ends_s,
    choose_layout,
    degree_to_try,
    request_class,
)
from gpu_runtime.groups.layout import Group
from gpu_runtime.scheduling.requests import UnderWay, WorkLeft

FOUR = {name: "a" for name in ("a0", "a1", "a2", "a3")}
ALONE = [Group("a", (name,)) for name in FOUR]
PAIRS = [Group("a", ("a0", "a1")), Group("a", ("a2", "a3"))]
ALL = [Group("a", ("a0", "a1", "a2", "a3"))]
DEGREES = (1, 2, 4)
MANY = WorkLeft((10,) * 40, {})

COSTLY = {1: 1.0, 2: 0.8, 4: 0.7}
"""Sharing shortens an image, but costs throughput."""

SUPERLINEAR = {1: 1.0, 2: 0.4, 4: 0.15}
"""One device is too small: sharing wins throughput too."""


def step_times(step_s: Mapping[int, float], regroup_s: float = 0.1) -> StepTimeTable:
    made = StepTimeTable()
    for degree, seconds in step_s.items():
        for _ in range(3):
            made.note(degree, seconds, first=False)
    made.note_regroup(regroup_s)
    return made


def degrees(step_s: Mapping[int, float], left: WorkLeft = MANY, before=(), devices=FOUR, **kw) -> list[int]:
    layout = choose_layout(devices, before, left, step_times(step_s, **kw), DEGREES)
    assert layout.idle == ()
    return [len(group.members) for group in layout.groups]


def test_the_first_chunks_are_done_alone():
    assert degrees({}) == [1, 1, 1, 1]


def test_the_next_degree_is_tried_with_all_devices_if_there_is_time_for_it():
    assert degrees({1: 1.0}, before=ALONE) == [2, 2]
    short = WorkLeft((1, 1, 1, 1), {})
    assert degrees({1: 1.0}, short, before=ALONE) == [1, 1, 1, 1]


def test_a_trial_that_has_begun_goes_on_though_the_phase_becomes_short():
    assert degrees({1: 1.0}, WorkLeft((), {"a0+a1": UnderWay(2, 1)}), before=PAIRS) == [2, 1, 1]


def test_a_larger_degree_is_tried_only_if_the_last_made_steps_faster():
    assert degree_to_try(FOUR, step_times({1: 1.0, 2: 0.8}), DEGREES) == 4
    assert degree_to_try(FOUR, step_times({1: 1.0, 2: 0.95}), DEGREES) is None
    assert degree_to_try({"a0": "a", "b0": "b"}, step_times({1: 1.0}), DEGREES) is None


def test_with_many_batches_each_device_works_alone_where_sharing_costs_more_than_it_saves():
    assert degrees(COSTLY) == [1, 1, 1, 1]
    assert degrees(COSTLY, before=PAIRS) == [1, 1, 1, 1]


def test_with_many_batches_all_share_where_sharing_is_superlinear():
    assert degrees(SUPERLINEAR) == [4]
    assert degrees(SUPERLINEAR, before=ALONE) == [4]


def test_with_few_batches_idle_devices_join():
    assert degrees(COSTLY, WorkLeft((), {"a0": UnderWay(10, 1)}), before=ALONE) == [4]
    two = WorkLeft((), {"a0": UnderWay(10, 1), "a1": UnderWay(10, 1)})
    assert degrees(COSTLY, two, before=ALONE) == [2, 2]


def test_an_idle_device_joins_one_of_several_though_the_last_ends_no_sooner():
    three = WorkLeft((10, 10, 10), {})
    assert degrees({1: 1.0, 2: 0.6, 4: 0.5}, three, before=ALONE) == [2, 1, 1]
    assert degrees({1: 1.0, 2: 0.95}, three, before=ALONE) == [1, 1, 1, 1]


def test_no_device_joins_where_that_takes_longer_than_it_saves():
    last = WorkLeft((), {"a0": UnderWay(10, 9)})
    assert degrees(COSTLY, last, before=ALONE) == [1, 1, 1, 1]
    slow = WorkLeft((), {"a0": UnderWay(10, 1)})
    assert degrees(COSTLY, slow, before=ALONE, regroup_s=3.0) == [1, 1, 1, 1]


@pytest.mark.parametrize(("before", "stay"), [(ALONE, [1, 1, 1, 1]), (PAIRS, [2, 2])])
def test_a_gain_within_the_noise_moves_no_device(before: list[Group], stay: list[int]):
    assert degrees({1: 1.0, 2: 0.49, 4: 0.247}, before=before) == stay
    assert degrees({1: 1.0, 2: 0.51, 4: 0.26}, before=before) == stay


def test_survivors_of_a_loss_share_on_where_that_pays():
    left = {name: "a" for name in ("a0", "a2", "a3")}
    assert degrees(SUPERLINEAR, before=ALL, devices=left) == [2, 1]
    assert degrees(COSTLY, before=ALL, devices=left) == [1, 1, 1]


def test_a_device_that_comes_works_alone_until_joining_pays():
    three = [Group("a", ("a0", "a1")), Group("a", ("a2",))]
    assert degrees(SUPERLINEAR, before=three) == [4]
    assert degrees(COSTLY, before=ALONE[:3]) == [1, 1, 1, 1]


def test_nothing_left_changes_nothing():
    assert degrees(SUPERLINEAR, WorkLeft((), {}), before=PAIRS) == [2, 2]
    assert choose_layout({}, ALONE, MANY, step_times(COSTLY), DEGREES).groups == ()


STEP_S = {1: 1.0, 2: 0.6}
PAIR = PAIRS[:1]
TWO = ALONE[:2]


def phase_end_s(groups, standing, left: WorkLeft, step_s: dict[int, float], regroup_s: float) -> float:
    ends_s = batch_ends_s(groups, standing, left, step_s, regroup_s)
    assert len(ends_s) == min(left.batches, 8 * len(groups))
    return max(ends_s)


def waiting(*steps: int) -> WorkLeft:
    return WorkLeft(steps, {})


def test_batches_are_pulled_by_the_free_group():
    assert phase_end_s(TWO, TWO, waiting(10, 10, 10), STEP_S, 0.5) == 20


def test_a_group_that_is_to_be_formed_takes_its_time_and_one_device_takes_none():
    assert phase_end_s(PAIR, TWO, waiting(10), STEP_S, 0.5) == pytest.approx(6.5)
    assert phase_end_s(PAIR, PAIR, waiting(10), STEP_S, 0.5) == pytest.approx(6)
    assert phase_end_s(TWO, PAIR, waiting(10), STEP_S, 0.5) == 10


def test_what_is_begun_is_done_by_the_old_group_and_the_rest_goes_on_in_the_new_one():
    left = WorkLeft((), {"a1": UnderWay(10, 2)})
    # Two steps alone, half a second of forming, eight steps together.
    assert phase_end_s(PAIR, TWO, left, STEP_S, 0.5) == pytest.approx(2 + 0.5 + 8 * 0.6)
    assert phase_end_s(TWO, TWO, left, STEP_S, 0.5) == 10


def test_a_batch_that_is_nearly_done_is_waited_for():
    left = WorkLeft((), {"a1": UnderWay(2, 2)})
    assert phase_end_s(PAIR, TWO, left, STEP_S, 0.5) == 2


def test_what_comes_back_is_taken_before_what_waits():
    left = WorkLeft((10,), {"a0": UnderWay(4, 1), "a1": UnderWay(4, 4)})
    # Together from 4.5 on: 3 steps of what a0 had, then 10.
    assert phase_end_s(PAIR, TWO, left, STEP_S, 0.5) == pytest.approx(4.5 + 13 * 0.6)


def test_of_many_batches_the_first_count_by_their_steps_alone():
    played = phase_end_s(TWO, TWO, waiting(*[10] * 16), STEP_S, 0.5)
    assert played == 80
    assert phase_end_s(TWO, TWO, waiting(*[10] * 1016), STEP_S, 0.5) == pytest.approx(5080)


def test_a_degree_that_is_not_measured_counts_as_the_slowest():
    assert phase_end_s(PAIR, PAIR, waiting(10), {1: 1.0}, 0.5) == 10


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
    assert request_class(1280, 720, 4) == "1280x720, 4 at a time"
    assert request_class(0, 0, 16) == "own size, 16 at a time"
