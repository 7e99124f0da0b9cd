"""A group of workers that share a sequence, as its members know it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import SchedulingError


@dataclass(frozen=True)
class WorkerGroup:
    """A group as its members get it.

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
