"""The training window, from the end of a rollout to the end of the training steps after it.

It opens at the end of the rollout, or with the first draft if a device with nothing left to roll out begins
one earlier. Two threads use it: the training thread closes the window, which calls the exploring thread
back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.scheduling.requests import WeightsVersion


class TrainingWindow:
    """The window of one iteration.

    Args:
        version: version of the rollout's weights, which the devices hold until the window closes.

    Attributes:
        length_s: seconds from its opening to its close; None until then.
        closed: True once the training steps are done.
        abandoned: True once work in the window is useless.
        rescored: drafts of `plan` re-scored with the rollout's weights.
        drafters: devices that began drafts in it; devices that share a draft count once.
        lease_s, full_drafts: seconds of the finished batches of drafts, and their size in full drafts.
    """

    def __init__(self, plan: SeedPlan, version: WeightsVersion) -> None:
        self.plan = plan
        self.version = version
        self.length_s: float | None = None
        self.closed = False
        self.abandoned = False
        self.rescored: tuple[Candidate, ...] = ()
        self.drafters = 0
        self.lease_s = 0.0
        self.full_drafts = 0.0
        self._opened_s: float | None = None
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], object]] = []

    def open(self, now_s: float) -> float:
        """Open the window unless it is open, and return the seconds since it opened."""
        with self._lock:
            if self._opened_s is None:
                self._opened_s = now_s
            return now_s - self._opened_s

    def close(self, now_s: float) -> None:
        """Close the window after the training steps, and call the listeners."""
        self.length_s = self.open(now_s)
        self._tell(closed=True)

    def abandon(self) -> None:
        """Abandon the window and its results, and call the listeners."""
        self._tell(abandoned=True)

    def on_end(self, listener: Callable[[], object]) -> None:
        """Call `listener` when the window closes or is abandoned; at once if either has happened."""
        with self._lock:
            self._listeners.append(listener)
            over = self.closed or self.abandoned
        if over:
            listener()

    def _tell(self, closed: bool = False, abandoned: bool = False) -> None:
        with self._lock:
            self.closed, self.abandoned = self.closed or closed, self.abandoned or abandoned
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
