"""A preemption notice, and the protocol of its watchers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class Notice:
    """A provider's warning that it will take this machine.

    Attributes:
        deadline: earliest time of the loss in unix seconds, never before `received_at`; None if the provider
            gives no readable time. Not part of equality, since a deadline in the past moves with the clock.
        received_at: time at which it was read, in unix seconds; also not part of equality.
        detail: the provider's message, the same at every poll while the notice stands.
    """

    provider: str
    deadline: float | None = field(compare=False)
    received_at: float = field(compare=False)
    detail: str

    @property
    def in_words(self) -> str:
        """Its provider, the seconds until it takes effect, and the provider's message."""
        if self.deadline is None:
            return f"{self.provider}, without a time: {self.detail}"
        return f"{self.provider}, in {self.deadline - self.received_at:.0f} s: {self.detail}"


class NoticeWatcher(Protocol):
    """A watcher of one provider's notices."""

    provider: str

    def poll(self, now: float) -> Notice | None:
        """Return the most urgent current notice, or None.

        Args:
            now: unix seconds.

        Raises:
            NoticeError: the service did not answer, or its answer cannot be understood.
        """
        ...

    def close(self) -> None:
        """Release the watcher's resources; closing twice does nothing."""
