"""Which devices share a sequence, and the numbers of their groups: cases worked by hand."""

from __future__ import annotations

import re

import pytest

from gpu_runtime.scheduling.group_layout import Group, GroupRegistry, Layout, large_first, plan_layout
from storage.errors import SchedulingError

STEP_S = {1: 1.0, 2: 0.55, 4: 0.3}


def devices(**counts: int) -> dict[str, str]:
    """Instance a with 3 devices: a0, a1, a2."""
    return {f"{name}{number}": name for name, count in counts.items() for number in range(count)}


def members(layout: Layout) -> list[str]:
    return ["".join(group.members) for group in layout]


@pytest.mark.parametrize(
    ("live", "step_s", "before", "at_once", "groups"),
    [
        (devices(a=4), STEP_S, (), 1, "a0a1a2a3"),  # one sequence is shared by the whole instance
        (devices(a=4), STEP_S, (), None, "a0 a1 a2 a3"),  # many get a device each
        (devices(a=2, b=4), STEP_S, (), 1, "a0 a1 b0b1b2b3"),  # the faster instance gets the only one
        # Survivors of a loss form the largest useful group, and the odd one works alone,
        ({name: "a" for name in ("a0", "a2", "a3")}, STEP_S, ["a0a1a2a3"], 1, "a0a2 a3"),
        (devices(a=3), {2: 0.5}, (), 1, "a0a1"),  # or is in no group, where none of one is measured.
        (devices(a=4), STEP_S, ["a2a1", "a3"], 1, "a2a1a3a0"),  # a group grows and keeps its leader
        (devices(a=4, b=2), {2: 0.5}, ["a3a1", "b0b1"], None, "a0a2 a3a1 b0b1"),  # as good ones stay
        (devices(a=2), {1: 1.0, 2: 0.5004}, ["a0a1"], None, "a0a1"),  # noise moves no device
        (devices(a=2, b=3), {2: 0.5, 3: 0.5}, (), 1, "b0b1b2"),  # as fast, with fewer devices idle
        (devices(a=2), {1: 1.0, 2: 0.5}, (), 2, "a0 a1"),  # as fast, in more groups
        (devices(a=2), {1: 1.0, 2: 0.5}, ["a1a0"], 2, "a1a0"),  # as fast, and already there
        (devices(a=2, b=2), STEP_S, (), 3, "a0a1 b0 b1"),
        ({}, STEP_S, (), None, ""),
    ],
)
def test_who_shares_with_whom(live, step_s, before, at_once, groups: str):
    standing = [Group(of[0], tuple(re.findall("..", of))) for of in before]
    assert " ".join(members(plan_layout(live, step_s, standing, at_once=at_once))) == groups


def test_with_a_fixed_degree_its_groups_come_first_and_smaller_ones_use_what_is_left():
    assert large_first((1, 2, 4, 8), 4) == {1: 1.0, 2: 0.25, 4: 0.0625}
    seven = plan_layout({name: "i" for name in "abcdefg"}, large_first((1, 2, 4, 8), 4))
    assert [len(group.members) for group in seven] == [4, 2, 1]


def groups_of(*groups: str) -> Layout:
    return tuple(Group("i", tuple(members)) for members in groups)


def test_every_change_is_an_epoch_with_its_own_keys():
    registry = GroupRegistry()
    first, second = registry.follow(groups_of("abcd")), registry.follow(groups_of("ab", "cd"))
    assert first is not None and second is not None
    assert registry.epoch == 2
    assert [group.prefix for group in second.formed] == ["epoch-2/group-0/", "epoch-2/group-1/"]
    assert second.dissolved == first.formed


def test_a_group_that_stays_keeps_its_number_and_no_change_is_no_epoch():
    registry = GroupRegistry()
    registry.follow(groups_of("ab", "cd"))
    change = registry.follow(groups_of("ab", "c"))
    assert change is not None
    assert [group.members for group in change.formed] == [("c",)]
    assert change.idle == ("d",)
    assert [group.epoch for group in registry.groups] == [1, 2]
    assert registry.follow(groups_of("ab", "c")) is None
    assert registry.epoch == 2


def test_a_broken_group_is_formed_again_with_the_same_members():
    registry = GroupRegistry()
    registry.follow(groups_of("ab", "c"))
    change = registry.follow(groups_of("ab", "c"), broken=registry.groups[:1])
    assert change is not None
    assert [group.members for group in change.formed] == [("a", "b")]
    assert change.formed[0].epoch == 2


def test_a_stranger_has_no_rank_and_no_worker_is_in_two_groups():
    registry = GroupRegistry()
    registry.follow(groups_of("ab"))
    assert registry.groups[0].rank("b") == 1
    with pytest.raises(SchedulingError, match="'c' is not in group"):
        registry.groups[0].rank("c")
    with pytest.raises(SchedulingError, match="b would be in two groups"):
        GroupRegistry().follow(groups_of("ab", "bc"))
