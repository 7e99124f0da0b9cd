"""The training window: from the end of a rollout to the end of the training steps that follow it.

It opens when the first device finds nothing more to roll out. Two threads use it: the one that trains closes
the window, the one that explores is called back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpu_runtime.exploration.plan import Candidate, SeedPlan
from gpu_runtime.scheduling.requests import WeightsVersion


class TrainingWindow:
    """One iteration's window.

    Args:
        plan: what is rolled out.
        version: of the weights that it is rolled out with, and that the devices hold until the window closes.

    Attributes:
        length_s: from its opening to its close; None until then.
        rescored: drafts of `plan` scored again with the rollout's weights.
        lease_s, full_drafts: time of the batches of drafts that were finished, and what they have
            room for, in full drafts.
    """

    def __init__(self, plan: SeedPlan, version: WeightsVersion) -> None:
        self.plan = plan
        self.version = version
        self.length_s: float | None = None
        self.rescored: tuple[Candidate, ...] = ()
        self.lease_s = 0.0
        self.full_drafts = 0.0
        self._opened_s: float | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._abandoned = threading.Event()
        self._listeners: list[Callable[[], object]] = []

    @property
    def closed(self) -> bool:
        """The training steps are done."""
        return self._closed.is_set()

    @property
    def abandoned(self) -> bool:
        """The run ends: whatever goes on in the window is of no use."""
        return self._abandoned.is_set()

    def open(self, now_s: float) -> float:
        """Devices may draft: since now, unless they already might; seconds since then.

        Args:
            now_s: on the clock that `close` has, too.
        """
        with self._lock:
            if self._opened_s is None:
                self._opened_s = now_s
            return now_s - self._opened_s

    def close(self, now_s: float) -> None:
        """The training steps are done; the listeners are called."""
        self.length_s = self.open(now_s)
        self._tell(self._closed)

    def abandon(self) -> None:
        """The results of this window are not needed any more; the listeners are called."""
        self._tell(self._abandoned)

    def on_end(self, listener: Callable[[], object]) -> None:
        """Call `listener` when the window closes and when it is abandoned; now, if either has happened."""
        with self._lock:
            self._listeners.append(listener)
            over = self.closed or self.abandoned
        if over:
            listener()

    def _tell(self, event: threading.Event) -> None:
        with self._lock:
            event.set()
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
