"""The provider's current notice for this process's machine, updated in the background."""

from __future__ import annotations

from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.polling_thread import NoticeThread
from gpu_runtime.spot.notices.registry import NOTICES, watcher_for


class NoticeWatch:
    """Watches from its creation on, and knows at any moment if this machine will be taken.

    Only a termination counts: advice that a machine is likelier to be taken than usual is not binding,
    and a device that stopped for it would be paid for idling.

    Args:
        provider: name of the provider; `kubernetes` must be watched from the main thread.
        base_url: address of the metadata service; empty for the provider's default.

    Raises:
        ConfigurationError: the provider is unknown, or the base URL is invalid.
    """

    def __init__(self, provider: str, base_url: str = "") -> None:
        known = NOTICES.find(provider)
        self._notice: Notice | None = None
        self._watcher = watcher_for(provider, **({"base_url": base_url} if base_url else {}))
        self._thread = NoticeThread(
            self._watcher,
            self._came,
            self._withdrawn,
            poll_interval_s=known.poll_interval_s,
            max_backoff_s=known.max_backoff_s,
        ).start()

    @property
    def notice(self) -> Notice | None:
        """The current termination notice, without asking the provider; None without one."""
        return self._notice

    def close(self) -> None:
        """Stop watching."""
        self._thread.stop()
        self._watcher.close()

    def _came(self, notice: Notice) -> None:
        if notice.kind == "terminate":
            self._notice = notice

    def _withdrawn(self, notice: Notice) -> None:
        if notice.kind == "terminate":
            self._notice = None
