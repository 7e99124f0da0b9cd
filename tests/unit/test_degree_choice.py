"""By how many devices samples are shared, from times that a test plays."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gpu_runtime.groups.degree_choice import choose_layout, degree_to_try
from gpu_runtime.groups.layout import Group
from gpu_runtime.groups.step_times import StepTimeTable
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


def test_groups_never_cross_instances():
    devices = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}
    assert degrees(SUPERLINEAR, devices=devices) == [2, 2]
