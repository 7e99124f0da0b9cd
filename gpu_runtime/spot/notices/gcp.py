"""Google Compute Engine: a flag that turns TRUE at most half a minute before the machine is taken."""

from __future__ import annotations

from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.watch import MetadataWatcher, unexpected

PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"


class GcpNotices(MetadataWatcher):
    """Watches the `preempted` flag of this instance.

    The service can hold a request until the flag changes (`wait_for_change`). That is not used, since a
    request that hangs forever could not be distinguished from a dead service.

    Args:
        grace_s: seconds from the flag to the loss; Google gives at most 30, and sometimes less.
    """

    provider = "gcp"
    url = "http://metadata.google.internal"

    def __init__(self, base_url: str | None = None, timeout_s: float = 2.0, grace_s: float = 30.0) -> None:
        super().__init__(base_url, timeout_s)
        self._grace_s = grace_s
        self._first_seen: float | None = None

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher`."""
        answer = self.ask(PREEMPTED_PATH, {"Metadata-Flavor": "Google"})
        flag = answer.text.upper()
        if answer.status != 200 or flag not in ("TRUE", "FALSE"):
            raise unexpected(answer, "GCP's preempted flag")
        if flag == "FALSE":
            self._first_seen = None
            return None
        if self._first_seen is None:
            self._first_seen = now
        return self.notice(self._first_seen + self._grace_s, now, "preempted is TRUE")
