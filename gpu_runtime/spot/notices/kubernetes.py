"""Kubernetes: SIGTERM is the notice; SIGKILL follows after the pod's grace period."""

from __future__ import annotations

import math
import signal
import threading
import time
from types import FrameType

from gpu_runtime.spot.notices.notice import Notice
from storage.errors import ConfigurationError


class KubernetesNotices:
    """Turns SIGTERM into a notice, from its creation until it is closed.

    `close` restores the previous SIGTERM handler, which is not called until then: it would end the process
    instead of letting it use its grace period. A second SIGTERM changes nothing.

    Args:
        grace_s: the pod's `terminationGracePeriodSeconds`.

    Raises:
        ConfigurationError: it was not created in the main thread, the only one that may handle signals, or
            the grace period is negative or not finite.
    """

    provider = "kubernetes"

    def __init__(self, grace_s: float = 30.0) -> None:
        if not (math.isfinite(grace_s) and grace_s >= 0):
            raise ConfigurationError(f"the grace period is {grace_s} s; give the pod's, 0 or more")
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError(
                "SIGTERM can be watched only from the main thread; create the watcher there, then pass it on"
            )
        self._grace_s = grace_s
        self._received_at: float | None = None
        self._handler = self._on_signal  # one object, so that `close` can recognise it
        self._before = signal.signal(signal.SIGTERM, self._handler)
        self._closed = False

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher`; never raises."""
        received_at = self._received_at
        if received_at is None:
            return None
        return Notice(self.provider, received_at + self._grace_s, received_at, "SIGTERM")

    def close(self) -> None:
        """Restore the previous SIGTERM handler, unless other code has replaced ours since.

        Raises:
            ConfigurationError: it was not called in the main thread.
        """
        if self._closed:
            return
        if threading.current_thread() is not threading.main_thread():
            raise ConfigurationError("the SIGTERM watcher can be closed only from the main thread")
        self._closed = True
        if signal.getsignal(signal.SIGTERM) is self._handler:
            # None: the previous handler was not set from Python, and cannot be restored from here.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._received_at is None:
            self._received_at = time.time()
