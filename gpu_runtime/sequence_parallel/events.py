"""What a controller tells of its groups, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Event:
    """Something that happened, and when on the monotonic clock.

    Attributes:
        kind: `ready`, `step`, `finished`, `lost` or `called`.
        at_s: seconds.
        member: whom it is about, or who leads the group.
        batch: for steps and finished batches.
        degree: of the group, for steps.
        epoch: of the group, for steps.
        value: the committed states of a batch, why a member was lost, or what a call returned.
    """

    kind: str
    at_s: float
    member: str
    batch: int | None = None
    degree: int | None = None
    epoch: int | None = None
    value: Any = None
