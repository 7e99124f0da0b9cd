"""Groups with numbers: which devices are in which group now, and whose answers still count. Pure.

Every change of groups is an epoch. A group keeps the number of the epoch that formed it as long as it exists,
and its number is part of the keys at which its members meet and of all their reports. So a member that comes
back late from an old group meets no other member, and its answers are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_runtime.groups.layout import Group, Layout
from gpu_runtime.sequence_parallel.worker_group import WorkerGroup
from storage.errors import SchedulingError


@dataclass(frozen=True)
class Change:
    """The changes of an epoch.

    Attributes:
        epoch: number of the epoch.
        dissolved: groups that end.
        formed: groups that begin.
        idle: members of dissolved groups that are now in no group.
    """

    epoch: int
    dissolved: tuple[WorkerGroup, ...]
    formed: tuple[WorkerGroup, ...]
    idle: tuple[str, ...]


class GroupRegistry:
    """The current groups, by number."""

    def __init__(self) -> None:
        self._epoch = 0
        self._standing: list[WorkerGroup] = []
        self._group_of: dict[str, WorkerGroup] = {}

    @property
    def epoch(self) -> int:
        """Number of the last change; 0 before the first."""
        return self._epoch

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """Current groups."""
        return tuple(self._standing)

    def group_of(self, member: str) -> WorkerGroup | None:
        """Return the group that a member is in now; None if it is in none."""
        return self._group_of.get(member)

    def follow(self, layout: Layout, broken: Sequence[WorkerGroup] = ()) -> Change | None:
        """Change to another layout; groups that are already in it stay, with their numbers.

        Args:
            layout: groups to have.
            broken: groups that must be formed again even if their members stay.

        Returns:
            The changes; None if nothing changes, and then no epoch begins.

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

    def _numbered(self, group: Group, place: int) -> WorkerGroup:
        return WorkerGroup(self._epoch, place, group.members)
