"""The providers of preemption notices by name, and the watch of this machine's notices.

A failed poll withdraws nothing, and no error ends the thread that polls: without it, no notice would be seen.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.spot.notices.alibaba import AlibabaNotices
from gpu_runtime.spot.notices.aws import AwsNotices
from gpu_runtime.spot.notices.azure import AzureNotices
from gpu_runtime.spot.notices.gcp import GcpNotices
from gpu_runtime.spot.notices.kubernetes import KubernetesNotices
from gpu_runtime.spot.notices.notice import Notice, NoticeWatcher
from storage.config.plugins import Registry
from storage.errors import ConfigurationError, NoticeError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NoticePlugin:
    """A provider's notices, as named by `runtime.notices`.

    Attributes:
        watcher: creates its watcher, from `base_url` if that is set.
        poll_interval_s: seconds between polls. They shorten the grace period, so they are few if it is short.
        max_backoff_s: longest wait after failed polls: about a quarter of the grace period, so that a
            service that recovers still warns in time.
        asks_url: True if its watcher asks a metadata service at an address.

    Raises:
        ConfigurationError: the interval is not a number above 0, or the back-off is below the interval.
    """

    watcher: Callable[..., NoticeWatcher]
    poll_interval_s: float
    max_backoff_s: float
    asks_url: bool = False

    def __post_init__(self) -> None:
        interval_s, backoff_s = self.poll_interval_s, self.max_backoff_s
        if not (math.isfinite(interval_s) and interval_s > 0):
            raise ConfigurationError(f"the poll interval is {interval_s} s; give a number above 0")
        if not (math.isfinite(backoff_s) and backoff_s >= interval_s):
            raise ConfigurationError(
                f"the longest back-off is {backoff_s} s; give at least the poll interval, {interval_s} s"
            )


NOTICES = Registry(
    "runtime.notices",
    NoticePlugin,
    "spotlight.notices",
    {
        "aws": NoticePlugin(AwsNotices, 5.0, 30.0, asks_url=True),
        "gcp": NoticePlugin(GcpNotices, 1.0, 8.0, asks_url=True),
        "azure": NoticePlugin(AzureNotices, 1.0, 8.0, asks_url=True),
        "alibaba": NoticePlugin(AlibabaNotices, 5.0, 60.0, asks_url=True),
        "kubernetes": NoticePlugin(KubernetesNotices, 0.2, 1.0),
    },
)


class NoticeWatch:
    """Watches from its creation on, and knows at any moment if this machine will be taken.

    A background thread polls the provider. Failed polls are logged (the first in a row as a warning), and
    retried after twice the wait each time.

    Args:
        provider: name of the provider; `kubernetes` must be watched from the main thread.
        base_url: address of the metadata service; empty for the provider's default.

    Attributes:
        notice: current notice, as it was first read; None without one.

    Raises:
        ConfigurationError: the provider is unknown, or the base URL is invalid.
    """

    def __init__(self, provider: str, base_url: str = "") -> None:
        self._plugin = NOTICES.find(provider)
        self._watcher = self._plugin.watcher(**({"base_url": base_url} if base_url else {}))
        self._stopping = threading.Event()
        self._failed_in_a_row = 0
        self.notice: Notice | None = None
        name = f"notices-{self._watcher.provider}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop watching, and wait at most so many seconds for a request under way."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._watcher.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._poll()
            # The exponent is bounded: 2.0 ** 2000 overflows.
            wait_s = self._plugin.poll_interval_s * 2.0 ** min(self._failed_in_a_row, 60)
            self._stopping.wait(min(wait_s, self._plugin.max_backoff_s))

    def _poll(self) -> None:
        try:
            seen = self._watcher.poll(time.time())
        except NoticeError as error:
            self._on_failure(error)
            return
        except Exception as error:  # noqa: BLE001 - an ended thread would warn of nothing
            _log.exception("the watcher of %s's notices failed", self._watcher.provider)
            self._on_failure(error)
            return
        if self._failed_in_a_row:
            _log.info("notices of %s can be read again", self._watcher.provider)
            self._failed_in_a_row = 0
        if seen != self.notice:
            self.notice = seen

    def _on_failure(self, error: Exception) -> None:
        self._failed_in_a_row += 1
        level = logging.WARNING if self._failed_in_a_row == 1 else logging.DEBUG
        _log.log(level, "notices of %s cannot be read: %s", self._watcher.provider, error)
