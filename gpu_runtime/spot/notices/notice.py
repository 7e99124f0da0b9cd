"""What a preemption notice is, and the protocol of its watchers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

NoticeKind = Literal["terminate", "rebalance"]


def not_before(at: float | None, now: float) -> float | None:
    """A deadline of the provider's; now, where it has passed already."""
    return None if at is None else max(at, now)


@dataclass(frozen=True)
class Notice:
    """A provider's warning that it takes this machine.

    Attributes:
        provider: its name.
        kind: `terminate`: the machine will be gone; `rebalance`: it is likelier than usual to be
            taken, which is advice and not binding.
        deadline: when the machine may be gone, in unix seconds, never before `received_at`; None
            where the provider names no time, or none that can be read. Not part of equality: where
            the time has passed, it moves with the clock.
        received_at: when it was read, in unix seconds; not part of equality either.
        detail: what the provider said, the same words at every poll as long as it stands.
    """

    provider: str
    kind: NoticeKind
    deadline: float | None = field(compare=False)
    received_at: float = field(compare=False)
    detail: str

    @property
    def in_words(self) -> str:
        """Its provider, in how many seconds it takes effect, and its own text."""
        if self.deadline is None:
            return f"{self.provider}, without a time: {self.detail}"
        return f"{self.provider}, in {self.deadline - self.received_at:.0f} s: {self.detail}"


class NoticeWatcher(Protocol):
    """One provider's way to warn."""

    provider: str

    def poll(self, now: float) -> Notice | None:
        """The most urgent notice that stands, or None.

        Args:
            now: unix seconds.

        Raises:
            NoticeError: nothing is known: no answer, or none that can be understood.
        """
        ...

    def close(self) -> None:
        """Give back what the watcher holds; closing twice does nothing."""
        ...
