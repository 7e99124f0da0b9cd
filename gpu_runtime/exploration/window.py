"""A forecast of how many drafts fit the next training window. Times are arguments."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

_MEMORY = 5
"""Iterations that an estimate covers."""

HEADROOM = 1.5
"""Ratio of the drafts planned for a window to those that it is predicted to hold."""


class WindowForecast:
    """Medians, over the last iterations, of a training window's length and of a draft's cost."""

    def __init__(self) -> None:
        self._train_s: list[float] = []
        self._draft_s: list[float] = []

    def add_window(self, train_s: float) -> None:
        """Record a training window's length in seconds."""
        self._train_s = [*self._train_s, train_s][-_MEMORY:]

    def add_drafts(self, lease_s: float, full_drafts: float) -> None:
        """Record `lease_s` device seconds, taken by batches with room for `full_drafts` full drafts."""
        if full_drafts > 0 and lease_s > 0:
            self._draft_s = [*self._draft_s, lease_s / full_drafts][-_MEMORY:]

    def budget(self, devices: int) -> float | None:
        """Return the number of full drafts that fit the next window; None until measured."""
        if devices == 0:
            return 0.0
        if not self._train_s or not self._draft_s:
            return None
        return statistics.median(self._train_s) * devices / statistics.median(self._draft_s)

    def fits(self, elapsed_s: float, full_drafts: float) -> bool:
        """Return True if drafts started now, in sequence on one device, end within a window like the last.

        True until measured. The longest window counts: an unused draft costs only energy, an idle
        device costs drafts.

        Args:
            elapsed_s: time since the window opened.
        """
        if not self._train_s or not self._draft_s:
            return True
        return elapsed_s + full_drafts * statistics.median(self._draft_s) <= max(self._train_s)

    def state(self) -> dict[str, list[float]]:
        """Return JSON values, for a checkpoint."""
        return {"train_s": self._train_s, "draft_s": self._draft_s}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore from what `state` returned."""
        self._train_s, self._draft_s = list(state["train_s"]), list(state["draft_s"])


class DraftGate:
    """A gate for batches of drafts: a device may begin one that can end in the window.

    A device's first batch is always tried: its duration corrects a wrong forecast.

    Args:
        fits: returns whether drafts may begin, given elapsed seconds and full drafts (`WindowForecast.fits`).
    """

    def __init__(self, fits: Callable[[float, float], bool]) -> None:
        self._fits = fits
        self._tried: set[str] = set()

    def may_begin(self, device: str, elapsed_s: float, full_drafts: float) -> bool:
        """Return True if a device may begin a batch.

        Args:
            elapsed_s: time since the window opened.
        """
        if device in self._tried and not self._fits(elapsed_s, full_drafts):
            return False
        self._tried.add(device)
        return True
