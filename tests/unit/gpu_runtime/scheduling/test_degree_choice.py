"""How many devices share samples: measured times, the end of a phase by them, and the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from gpu_runtime.scheduling.degree_choice import (
    KEPT,
    REGROUP_GUESS_S,
    StepTimeTable,
    batch_ends_s,
    choose_layout,
    degree_to_try,
    request_class,
)
from gpu_runtime.scheduling.group_layout import Group
from gpu_runtime.scheduling.requests import UnderWay, WorkLeft

FOUR = {name: "a" for name in ("a0", "a1", "a2", "a3")}
ALONE = [Group("a", (name,)) for name in FOUR]
PAIRS = [Group("a", ("a0", "a1")), Group("a", ("a2", "a3"))]
ALL = [Group("a", ("a0", "a1", "a2", "a3"))]
DEGREES = (1, 2, 4)
MANY = WorkLeft((10,) * 40, {})

COSTLY = {1: 1.0, 2: 0.8, 4: 0.7}
"""Sharing shortens an image, but costs throughput."""

EVEN = {1: 1.0, 2: 0.6, 4: 0.5}

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
    return [len(group.members) for group in layout]


ONE_WAITS = WorkLeft((10,), {})
ONE_LEFT = WorkLeft((), {"a0": UnderWay(10, 1)})
TWO_LEFT = WorkLeft((), {"a0": UnderWay(10, 1), "a1": UnderWay(10, 1)})
LAST_STEP = WorkLeft((), {"a0": UnderWay(10, 9)})
THREE_LEFT = WorkLeft((10, 10, 10), {})
SURVIVORS = {name: "a" for name in ("a0", "a2", "a3")}


@pytest.mark.parametrize(
    ("why", "step_s", "left", "before", "chosen"),
    [
        ("the first chunks are done alone", {}, MANY, (), [1, 1, 1, 1]),
        ("the next degree is tried with all devices", {1: 1.0}, MANY, ALONE, [2, 2]),
        ("if there is time for it", {1: 1.0}, WorkLeft((1, 1, 1, 1), {}), ALONE, [1, 1, 1, 1]),
        ("and just enough time is enough", {1: 1.0}, WorkLeft((2, 2, 2, 2), {}), ALONE, [2, 2]),
        ("of which the last batch decides", {1: 1.0},
         WorkLeft((), {"a0": UnderWay(40, 1), "a1": UnderWay(1, 1)}), ALONE, [2, 2]),
        ("a trial goes on in a phase that becomes short", {1: 1.0},
         WorkLeft((), {"a0+a1": UnderWay(2, 1)}), PAIRS, [2]),
        ("devices too many leave the only batch to the trial", {1: 1.0}, ONE_WAITS, (), [2]),
        ("even the one that has it", {1: 1.0}, ONE_LEFT, ALONE, [2]),
        ("many batches, and sharing costs more than it saves", COSTLY, MANY, (), [1, 1, 1, 1]),
        ("the same of pairs", COSTLY, MANY, PAIRS, [1, 1, 1, 1]),
        ("sharing is superlinear", SUPERLINEAR, MANY, (), [4]),
        ("the same of each alone", SUPERLINEAR, MANY, ALONE, [4]),
        ("idle devices join the last batch", COSTLY, ONE_LEFT, ALONE, [4]),
        ("idle devices join one batch each", COSTLY, TWO_LEFT, ALONE, [2, 2]),
        ("one joins though the last ends no sooner", EVEN, THREE_LEFT, ALONE, [2, 1, 1]),
        ("none joins where that hardly helps", {1: 1.0, 2: 0.95}, THREE_LEFT, ALONE, [1, 1, 1, 1]),
        ("joining takes longer than it saves", COSTLY, LAST_STEP, ALONE, [1, 1, 1, 1]),
        ("one ends where it is, and the others share the last", EVEN,
         WorkLeft((), {"a0": UnderWay(2, 2), "a3": UnderWay(20, 0)}), ALONE, [2, 2]),
        ("all share the only one, however short", EVEN, WorkLeft((), {"a0": UnderWay(2, 1)}), ALONE, [4]),
        ("a tenth is too little", COSTLY, WorkLeft((), {"a2+a3": UnderWay(10, 1)}), PAIRS, [2, 2]),
        ("no pair is idle, and the last would end no sooner", SUPERLINEAR,
         WorkLeft((), {"a0+a1": UnderWay(10, 1), "a2+a3": UnderWay(10, 4)}), PAIRS, [2, 2]),
        ("noise moves no device", {1: 1.0, 2: 0.49, 4: 0.247}, MANY, ALONE, [1, 1, 1, 1]),
        ("noise moves no device", {1: 1.0, 2: 0.51, 4: 0.26}, MANY, ALONE, [1, 1, 1, 1]),
        ("noise moves no pair", {1: 1.0, 2: 0.49, 4: 0.247}, MANY, PAIRS, [2, 2]),
        ("noise moves no pair", {1: 1.0, 2: 0.51, 4: 0.26}, MANY, PAIRS, [2, 2]),
        ("a device that comes joins where that pays", SUPERLINEAR, MANY,
         [Group("a", ("a0", "a1")), Group("a", ("a2",))], [4]),
        ("and works alone where it does not", COSTLY, MANY, ALONE[:3], [1, 1, 1, 1]),
        ("nothing left changes nothing", SUPERLINEAR, WorkLeft((), {}), PAIRS, [2, 2]),
    ],
)  # fmt: skip
def test_how_many_share(why: str, step_s: dict[int, float], left: WorkLeft, before, chosen: list[int]):
    assert degrees(step_s, left, before=before) == chosen, why


def test_survivors_of_a_loss_share_on_where_that_pays_and_none_lay_out_nothing():
    assert degrees(SUPERLINEAR, before=ALL, devices=SURVIVORS) == [2, 1]
    assert degrees(COSTLY, before=ALL, devices=SURVIVORS) == [1, 1, 1]
    assert degrees(COSTLY, ONE_LEFT, before=ALONE, regroup_s=3.0) == [1, 1, 1, 1]
    assert choose_layout({}, ALONE, MANY, step_times(COSTLY), DEGREES) == ()


def test_a_larger_degree_is_tried_only_if_the_last_made_steps_faster():
    assert degree_to_try(FOUR, step_times({1: 1.0, 2: 0.8}), DEGREES) == 4
    assert degree_to_try(FOUR, step_times({1: 1.0, 2: 0.95}), DEGREES) is None
    assert degree_to_try(FOUR, step_times({1: 1.0, 2: 0.9}), DEGREES) == 4, "by just enough"
    assert degree_to_try({"a0": "a", "b0": "b"}, step_times({1: 1.0}), DEGREES) is None
    assert degree_to_try({"a0": "a", "b0": "b", "b1": "b"}, step_times({1: 1.0}), DEGREES) == 2


STEP_S = {1: 1.0, 2: 0.6}
PAIR = PAIRS[:1]
TWO = ALONE[:2]


def phase_end_s(groups, standing, left: WorkLeft, step_s: dict[int, float], regroup_s: float) -> float:
    ends_s = batch_ends_s(groups, standing, left, step_s, regroup_s)
    assert len(ends_s) == min(left.batches, 8 * len(groups))
    return max(ends_s)


def waiting(*steps: int) -> WorkLeft:
    return WorkLeft(steps, {})


@pytest.mark.parametrize(
    ("groups", "standing", "left", "end_s"),
    [
        (TWO, TWO, waiting(10, 10, 10), 20),  # batches are pulled by the free group
        (PAIR, TWO, waiting(10), 6.5),  # a group that is to be formed takes its time
        (PAIR, PAIR, waiting(10), 6),
        (TWO, PAIR, waiting(10), 10),  # one device takes none
        # Two steps alone, half a second of forming, eight steps together.
        (PAIR, TWO, WorkLeft((), {"a1": UnderWay(10, 2)}), 2 + 0.5 + 8 * 0.6),
        (TWO, TWO, WorkLeft((), {"a1": UnderWay(10, 2)}), 10),
        (PAIR, TWO, WorkLeft((), {"a1": UnderWay(2, 2)}), 2),  # nearly done, it is waited for
        # What comes back is taken before what waits. Together from 4.5 on: 3 steps of what a0 had, then 10.
        (PAIR, TWO, WorkLeft((10,), {"a0": UnderWay(4, 1), "a1": UnderWay(4, 4)}), 4.5 + 13 * 0.6),
        (TWO, TWO, waiting(*[10] * 16), 80),
        (TWO, TWO, waiting(*[10] * 1016), 5080),  # of many batches the first count by their steps alone
    ],
)
def test_when_a_phase_ends(groups: list[Group], standing: list[Group], left: WorkLeft, end_s: float):
    assert phase_end_s(groups, standing, left, STEP_S, 0.5) == pytest.approx(end_s)


def test_a_degree_that_is_not_measured_counts_as_the_slowest():
    assert phase_end_s(PAIR, PAIR, waiting(10), {1: 1.0, 4: 0.5}, 0.5) == 10


def noted(times: list[float], degree: int = 2, first: bool = False) -> StepTimeTable:
    step_times = StepTimeTable()
    for step_s in times:
        step_times.note(degree, step_s, first)
    return step_times


@pytest.mark.parametrize(
    ("times", "known"),
    [
        ([1.0], {}), ([1.0, 3.0], {2: 2.0}), ([1.0, 50.0, 3.0], {2: 3.0}),
        ([9.0] * KEPT + [1.0] * KEPT, {2: 1.0}), ([0.0] * 5, {}), ([-1.0] * 5, {}), ([math.nan] * 5, {}),
    ],
)  # fmt: skip
def test_a_degree_is_known_by_the_median_of_its_newest_times(times: list[float], known: dict[int, float]):
    assert noted(times).known == known


def test_first_chunks_count_only_while_there_are_no_others():
    step_times = noted([8.0, 8.0], first=True)
    assert step_times.known == {}
    step_times.note(2, 8.0, first=True)
    assert step_times.known == {2: 8.0}
    step_times.note(2, 1.0, first=False)
    step_times.note(2, 1.0, first=False)
    assert step_times.known == {2: 1.0}


def test_forming_a_group_is_guessed_until_it_is_measured_and_a_device_s_first_one_says_nothing():
    step_times = StepTimeTable()
    step_times.note_regroup(5.0, ("a", "b"))
    step_times.note_regroup(5.0, ("a", "c"))
    assert step_times.regroup_s == REGROUP_GUESS_S
    for seconds in (0.1, 0.2, 0.9):
        step_times.note_regroup(seconds, ("b", "c"))
    assert step_times.regroup_s == 0.2


def test_what_has_changed_is_told_once_it_is_known():
    step_times = noted([1.0])
    assert step_times.take_changed() == {}
    step_times.note(2, 1.0, first=False)
    assert step_times.take_changed() == {2: 2}
    assert step_times.take_changed() == {}


def test_a_class_of_requests_has_a_name():
    assert request_class(1280, 720, 4) == "1280x720, 4 at a time"
    assert request_class(0, 0, 16) == request_class(0, 720, 16) == "own size, 16 at a time"


def test_the_steps_left_are_those_of_all_batches():
    assert WorkLeft((10, 5), {"a0": UnderWay(4, 1)}).steps == 19
