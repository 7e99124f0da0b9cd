"""Groups with numbers: who is in which group now, and whose words still count. Pure.

Every change of groups is an epoch. A group keeps the number of the epoch that formed it for as long
as it stands, and its number is part of the keys that its members meet at and of all they report. So
a member that comes back late from an old group meets nobody, and what it says is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_runtime.sequence_parallel.layout import Group, Layout
from storage.errors import SchedulingError


@dataclass(frozen=True)
class NumberedGroup:
    """A group as its members are told of it.

    Attributes:
        epoch: the epoch that formed it.
        place: which of that epoch's groups it is.
        members: device names, the leader first; a member's place is its rank.
    """

    epoch: int
    place: int
    members: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """Of its keys in the driver's store."""
        return f"epoch-{self.epoch}/group-{self.place}/"

    @property
    def leader(self) -> str:
        """The member that reports for all."""
        return self.members[0]

    def rank(self, member: str) -> int:
        """A member's place.

        Raises:
            SchedulingError: if it is not in the group.
        """
        if member not in self.members:
            raise SchedulingError(f"{member!r} is not in group {self.prefix} of {', '.join(self.members)}")
        return self.members.index(member)


@dataclass(frozen=True)
class Change:
    """What an epoch changes.

    Attributes:
        epoch: its number.
        dissolved: groups that end.
        formed: groups that begin.
        idle: members of dissolved groups that are in no group now.
    """

    epoch: int
    dissolved: tuple[NumberedGroup, ...]
    formed: tuple[NumberedGroup, ...]
    idle: tuple[str, ...]


class EpochBook:
    """The groups of now, by number."""

    def __init__(self) -> None:
        self._epoch = 0
        self._standing: list[NumberedGroup] = []
        self._group_of: dict[str, NumberedGroup] = {}

    @property
    def epoch(self) -> int:
        """The number of the last change; 0 before the first."""
        return self._epoch

    @property
    def groups(self) -> tuple[NumberedGroup, ...]:
        """The groups of now."""
        return tuple(self._standing)

    def group_of(self, member: str) -> NumberedGroup | None:
        """The group that a member is in now."""
        return self._group_of.get(member)

    def follow(self, layout: Layout, broken: Sequence[NumberedGroup] = ()) -> Change | None:
        """Go over to another layout; groups that are in it already stay, with their numbers.

        Args:
            layout: the groups that shall be.
            broken: groups that must be formed anew even if their members stay.

        Returns:
            What changes; None if nothing does, and then no epoch begins.

        Raises:
            SchedulingError: if a member is in two groups.
        """
        members = [member for group in layout.groups for member in group.members]
        if len(members) != len(set(members)):
            twice = sorted({member for member in members if members.count(member) > 1})
            raise SchedulingError(f"{', '.join(twice)} would be in two groups at a time")
        wanted = {group.members for group in layout.groups}
        kept = [g for g in self._standing if g.members in wanted and g not in broken]
        held = {group.members for group in kept}
        dissolved = tuple(group for group in self._standing if group not in kept)
        coming = [group for group in layout.groups if group.members not in held]
        if not dissolved and not coming:
            return None
        self._epoch += 1
        formed = tuple(self._numbered(group, place) for place, group in enumerate(coming))
        self._standing = [*kept, *formed]
        self._group_of = {member: group for group in self._standing for member in group.members}
        left = {member for group in dissolved for member in group.members} - set(self._group_of)
        return Change(self._epoch, dissolved, formed, tuple(sorted(left)))

    def _numbered(self, group: Group, place: int) -> NumberedGroup:
        return NumberedGroup(self._epoch, place, group.members)
