"""The notices that have been announced. Pure: turns the results of polls into changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_runtime.spot.notices.notice import Notice, NoticeKind


@dataclass(frozen=True)
class NoticeChange:
    """A notice that came, or one that was withdrawn."""

    change: Literal["came", "withdrawn"]
    notice: Notice


class NoticeLedger:
    """Keeps the current notices, at most one of each kind."""

    def __init__(self) -> None:
        self._standing: dict[NoticeKind, Notice] = {}

    def observe(self, seen: Notice | None) -> list[NoticeChange]:
        """Return the changes after a poll that succeeded.

        A termination hides earlier advice, so advice is withdrawn only by a poll that sees no notice at
        all, or by other advice. A notice that disappears and returns counts as new.

        Args:
            seen: result of the poll.

        Returns:
            Withdrawals first, each with the notice as it was announced.
        """
        gone: list[NoticeKind] = []
        for kind, announced in self._standing.items():
            hidden = kind == "rebalance" and seen is not None and seen.kind == "terminate"
            if announced != seen and not hidden:
                gone.append(kind)
        changes = [NoticeChange("withdrawn", self._standing.pop(kind)) for kind in gone]
        if seen is not None and seen.kind not in self._standing:
            self._standing[seen.kind] = seen
            changes.append(NoticeChange("came", seen))
        return changes
