"""What is left of a phase, in batches: by it groups are planned, and trainers leave a rollout. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class UnderWay:
    """A batch that a group works on.

    Attributes:
        steps: denoising steps left.
        bound: how many of them are begun: the group does those, whatever is planned.
    """

    steps: int
    bound: int


@dataclass(frozen=True)
class WorkLeft:
    """What is left of a phase.

    Attributes:
        waiting: denoising steps left of each batch that no group works on, in the order they are taken in.
        under_way: what the groups work on, by their names.
    """

    waiting: tuple[int, ...]
    under_way: Mapping[str, UnderWay]

    @property
    def batches(self) -> int:
        """Batches that are not finished."""
        return len(self.waiting) + len(self.under_way)

    @property
    def steps(self) -> int:
        """Denoising steps of all batches together that are left."""
        return sum(self.waiting) + sum(one.steps for one in self.under_way.values())
