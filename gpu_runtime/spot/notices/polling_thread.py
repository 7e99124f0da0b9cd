"""A thread that polls a watcher and reports changes."""

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
    """Calls back once for each new notice, and once for each notice withdrawn.

    Callbacks run in the background thread, one at a time. A failed poll withdraws nothing: it is counted,
    logged (the first in a row as a warning) and retried, after twice the wait each time. Exceptions of
    callbacks do not reach the worker either: they are logged and counted.

    The caller owns the watcher, and closes it after `stop`.

    Args:
        watcher: watcher to poll, from the background thread only.
        on_notice: called with a new notice.
        on_withdrawn: called with a withdrawn notice, as it was announced.
        poll_interval_s: wait between polls.
        max_backoff_s: longest wait after failed polls. Keep it well below the provider's grace
            period: a notice is seen only when the service is asked.
        clock: returns unix seconds, for the watcher.

    Attributes:
        polls: number of polls.
        errors: number of failed polls and of callbacks that raised.
        last_error: message of the latest error; None without one.

    Raises:
        ConfigurationError: the interval is not a number above 0, or the back-off is below the interval.
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
        """Start polling; may be called once."""
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 10.0) -> bool:
        """Stop polling and start no further callback; may also be called from a callback.

        Args:
            timeout_s: longest wait for a request or a callback under way.

        Returns:
            True if the thread has ended; False if called from the thread itself.
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
        except Exception as error:  # noqa: BLE001 - an ended thread would warn of nothing
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
        except Exception as error:  # noqa: BLE001 - a listener may raise anything
            self.errors += 1
            self.last_error = str(error)
            _log.exception("the listener to %s's notices failed", self._watcher.provider)
