"""Polls a watcher in the background and tells what is news."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from gpu_runtime.spot.notices.ledger import NoticeLedger
from gpu_runtime.spot.notices.notice import Notice, NoticeWatcher
from storage.errors import ConfigurationError, NoticeError

_log = logging.getLogger(__name__)


class NoticeThread:
    """Calls back once for each notice that comes, and once where one is withdrawn.

    The calls come from the background thread, one at a time. A poll that fails withdraws nothing:
    it is counted, logged (the first of a row as a warning) and tried again, each time after twice
    the wait. Nothing raised by a call back reaches the worker either: it is logged and counted.

    The watcher stays the caller's: it closes it after `stop`.

    Args:
        watcher: polled from the background thread only.
        on_notice: called with a notice that came.
        on_withdrawn: called with a notice that no longer stands, as it was announced.
        poll_interval_s: wait between polls.
        max_backoff_s: longest wait after failed polls. Keep it well below the provider's grace
            period: a notice is seen only when the service is asked.
        clock: unix seconds, given to the watcher.

    Attributes:
        polls: polls made.
        errors: polls that failed, and calls back that raised.
        last_error: what the newest of them said; None where none did.

    Raises:
        ConfigurationError: an interval that is not a number above 0, or a back-off below the interval.
    """

    def __init__(
        self,
        watcher: NoticeWatcher,
        on_notice: Callable[[Notice], None],
        on_withdrawn: Callable[[Notice], None] | None = None,
        *,
        poll_interval_s: float = 1.0,
        max_backoff_s: float = 8.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not (math.isfinite(poll_interval_s) and poll_interval_s > 0):
            raise ConfigurationError(f"the poll interval is {poll_interval_s} s; give a number above 0")
        if not (math.isfinite(max_backoff_s) and max_backoff_s >= poll_interval_s):
            raise ConfigurationError(
                f"the longest back-off is {max_backoff_s} s; give at least the poll interval, "
                f"{poll_interval_s} s"
            )
        self._watcher = watcher
        self._on = {"came": on_notice, "withdrawn": on_withdrawn}
        self._poll_interval_s = poll_interval_s
        self._max_backoff_s = max_backoff_s
        self._clock = clock
        self._ledger = NoticeLedger()
        self._stopping = threading.Event()
        self._failed_in_a_row = 0
        self._thread = threading.Thread(target=self._run, name=f"notices-{watcher.provider}", daemon=True)
        self.polls = 0
        self.errors = 0
        self.last_error: str | None = None

    def start(self) -> NoticeThread:
        """Poll from now on; may be called once."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Poll no more and begin no further call back; may be called from a call back too.

        Args:
            timeout_s: longest wait for a request or a call back that is under way.

        Returns:
            Whether the thread has ended; False where it is called from the thread itself.
        """
        self._stopping.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def __enter__(self) -> NoticeThread:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._poll()
            # The exponent is bounded: 2.0 ** 2000 overflows.
            wait_s = self._poll_interval_s * 2.0 ** min(self._failed_in_a_row, 60)
            self._stopping.wait(min(wait_s, self._max_backoff_s))

    def _poll(self) -> None:
        self.polls += 1
        try:
            seen = self._watcher.poll(self._clock())
        except NoticeError as error:
            self._failed(error)
            return
        except Exception as error:  # noqa: BLE001 - the thread's end would be the end of all warning
            _log.exception("the watcher of %s's notices failed", self._watcher.provider)
            self._failed(error)
            return
        if self._failed_in_a_row:
            _log.info("notices of %s can be read again", self._watcher.provider)
            self._failed_in_a_row = 0
        for change in self._ledger.observe(seen):
            self._tell(self._on[change.change], change.notice)

    def _failed(self, error: Exception) -> None:
        self._failed_in_a_row += 1
        self.errors += 1
        self.last_error = str(error)
        level = logging.WARNING if self._failed_in_a_row == 1 else logging.DEBUG
        _log.log(level, "notices of %s cannot be read: %s", self._watcher.provider, error)

    def _tell(self, listener: Callable[[Notice], None] | None, notice: Notice) -> None:
        if listener is None or self._stopping.is_set():
            return
        try:
            listener(notice)
        except Exception as error:  # noqa: BLE001 - what a listener raises is not ours to know
            self.errors += 1
            self.last_error = str(error)
            _log.exception("the listener to %s's notices failed", self._watcher.provider)
