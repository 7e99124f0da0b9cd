"""Alibaba Cloud: the release time of a preemptible instance, known five minutes ahead."""

from __future__ import annotations

from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.watch import MetadataWatcher, unexpected, unix_seconds

TERMINATION_PATH = "/latest/meta-data/instance/spot/termination-time"


class AlibabaNotices(MetadataWatcher):
    """Watches the termination time of this instance."""

    provider = "alibaba"
    url = "http://100.100.100.200"

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher`."""
        answer = self.ask(TERMINATION_PATH)
        if answer.status == 404 or (answer.status == 200 and not answer.text):
            return None
        at = unix_seconds(answer.text)
        if answer.status != 200 or at is None:
            raise unexpected(answer, "Alibaba's termination time")
        return self.notice(at, now, f"release at {answer.text}")
