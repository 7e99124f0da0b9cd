"""Numbers of groups: who is in which, and whose words still count."""

from __future__ import annotations

import pytest

from gpu_runtime.groups.layout import Group, Layout
from gpu_runtime.groups.registry import GroupRegistry
from storage.errors import SchedulingError


def layout(*groups: str) -> Layout:
    return Layout(tuple(Group("i", tuple(members)) for members in groups), ())


def test_every_change_is_an_epoch_with_keys_of_its_own():
    book = GroupRegistry()
    first, second = book.follow(layout("abcd")), book.follow(layout("ab", "cd"))
    assert first is not None and second is not None
    assert (first.epoch, second.epoch) == (1, 2)
    assert [group.prefix for group in second.formed] == ["epoch-2/group-0/", "epoch-2/group-1/"]
    assert second.dissolved == first.formed


def test_a_group_that_stays_keeps_its_number():
    book = GroupRegistry()
    book.follow(layout("ab", "cd"))
    change = book.follow(layout("ab", "c"))
    assert change is not None
    assert [group.members for group in change.formed] == [("c",)]
    assert change.idle == ("d",)
    assert [group.epoch for group in book.groups] == [1, 2]


def test_no_change_is_no_epoch():
    book = GroupRegistry()
    book.follow(layout("ab"))
    assert book.follow(layout("ab")) is None
    assert book.epoch == 1


def test_a_broken_group_is_formed_anew_with_the_same_members():
    book = GroupRegistry()
    book.follow(layout("ab", "c"))
    change = book.follow(layout("ab", "c"), broken=book.groups[:1])
    assert change is not None
    assert [group.members for group in change.formed] == [("a", "b")]
    assert change.formed[0].epoch == 2


def test_no_worker_is_in_two_groups():
    with pytest.raises(SchedulingError, match="b would be in two groups"):
        GroupRegistry().follow(layout("ab", "bc"))


def test_a_stranger_has_no_rank():
    book = GroupRegistry()
    book.follow(layout("ab"))
    assert book.groups[0].rank("b") == 1
    with pytest.raises(SchedulingError, match="'c' is not in group"):
        book.groups[0].rank("c")
