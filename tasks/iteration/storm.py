"""Preemption storms: many spot devices announced or lost within minutes."""

from __future__ import annotations

from collections.abc import Iterable

from storage.record.records import DeviceEvent

STORM_DEVICES, STORM_S = 5, 600.0
"""Devices whose notice or loss within this many seconds is a storm."""


class StormWatch:
    """The preemptions of a run that belong to no reported storm yet."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._at: list[float] = []

    def after(self, events: Iterable[DeviceEvent]) -> str:
        """Take further events; return a message if they complete a storm, else an empty text.

        A device counts once, at its notice or else at its loss.
        """
        for event in sorted(events, key=lambda event: event.at):
            is_preemption = event.market == "spot" and event.kind in ("notice", "lost")
            if is_preemption and event.worker not in self._known:
                self._known.add(event.worker)
                self._at.append(event.at)
        most = max((sum(0 <= at - first <= STORM_S for at in self._at) for first in self._at), default=0)
        self._at = [at for at in self._at if most < STORM_DEVICES and self._at[-1] - at <= STORM_S]
        if most < STORM_DEVICES:
            return ""
        return f"{most} spot devices were preempted within {STORM_S / 60:g} minutes"
