"""Google Compute Engine: a flag that turns TRUE at most half a minute before the machine is taken."""

from __future__ import annotations

from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.watch import MetadataWatcher, unexpected

PREEMPTED_PATH = "/computeMetadata/v1/instance/preempted"
_GRACE_S = 30.0  # from the flag to the loss: the most that Google gives, which is sometimes less


class GcpNotices(MetadataWatcher):
    """Watches the `preempted` flag of this instance.

    The service can hold a request until the flag changes (`wait_for_change`). This is not used, because a
    request that hangs forever looks like a dead service.
    """

    provider = "gcp"
    url = "http://metadata.google.internal"
    _first_seen: float | None = None

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
        return self.notice(self._first_seen + _GRACE_S, now, "preempted is TRUE")
