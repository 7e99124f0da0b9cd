"""Alibaba Cloud: the release time of a preemptible instance, known five minutes ahead."""

from __future__ import annotations

from gpu_runtime.spot.notices.metadata_service import MetadataService, unexpected, unix_seconds
from gpu_runtime.spot.notices.notice import Notice, not_before

TERMINATION_PATH = "/latest/meta-data/instance/spot/termination-time"


class AlibabaNotices:
    """Watches the termination time of this instance.

    Args:
        base_url: address of the metadata service.
        timeout_s: longest time of a request in seconds.
    """

    provider = "alibaba"

    def __init__(self, base_url: str = "http://100.100.100.200", timeout_s: float = 2.0) -> None:
        self._service = MetadataService(base_url, timeout_s)

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher.poll`."""
        answer = self._service.get(TERMINATION_PATH)
        if answer.status == 404 or (answer.status == 200 and not answer.text):
            return None
        at = unix_seconds(answer.text)
        if answer.status != 200 or at is None:
            raise unexpected(answer, "Alibaba's termination time")
        return Notice(self.provider, "terminate", not_before(at, now), now, f"release at {answer.text}")

    def close(self) -> None:
        """See `NoticeWatcher.close`."""
        self._service.close()
