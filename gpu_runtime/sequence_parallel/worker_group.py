"""The description of a group of workers that share a sequence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import SchedulingError


@dataclass(frozen=True)
class WorkerGroup:
    """A group as described to its members.

    Attributes:
        epoch: epoch that formed it.
        place: index among that epoch's groups.
        members: device names, the leader first; a member's index is its rank.
    """

    epoch: int
    place: int
    members: tuple[str, ...]

    @property
    def prefix(self) -> str:
        """The prefix of its keys in the driver's store."""
        return f"epoch-{self.epoch}/group-{self.place}/"

    @property
    def leader(self) -> str:
        """The member that reports for all."""
        return self.members[0]

    def rank(self, member: str) -> int:
        """Return a member's rank.

        Raises:
            SchedulingError: if it is not in the group.
        """
        if member not in self.members:
            raise SchedulingError(f"{member!r} is not in group {self.prefix} of {', '.join(self.members)}")
        return self.members.index(member)
