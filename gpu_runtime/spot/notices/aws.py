"""Amazon EC2: a notice two minutes before a spot instance is taken.

Rebalance recommendations, which may come earlier, are ignored: they are only advice, and a device that
stopped for one would be paid while idle.
"""

from __future__ import annotations

from gpu_runtime.spot.notices.notice import Notice
from gpu_runtime.spot.notices.watch import (
    Answer,
    MetadataWatcher,
    json_object,
    unexpected,
    unix_seconds,
)
from storage.errors import NoticeError

TOKEN_PATH = "/latest/api/token"
ACTION_PATH = "/latest/meta-data/spot/instance-action"
_TOKEN_LIFE_S = 21_600  # the longest that the service grants


class AwsNotices(MetadataWatcher):
    """Watches the spot action of this instance; a poll makes up to four requests."""

    provider = "aws"
    url = "http://169.254.169.254"
    _token: str | None = None

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher`."""
        answer = self._ask_action()
        if answer.status == 401:  # the token is refused
            self._token = None
            answer = self._ask_action()
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise unexpected(answer, "AWS's spot action")
        said = json_object(answer.text, "AWS's spot action")
        # Amazon's mock of the service says `instance-action` for `action`.
        action = said.get("action", said.get("instance-action"))
        if not isinstance(action, str) or not action:
            raise unexpected(answer, "AWS's spot action names no action")
        # `stop` and `hibernate` take the GPU away just as `terminate` does, and an unreadable time is no
        # reason to withhold the warning.
        return self.notice(unix_seconds(said.get("time")), now, f"{action} at {said.get('time')}")

    def _ask_action(self) -> Answer:
        if self._token is None:
            life_s = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)}
            answer = self.ask(TOKEN_PATH, life_s, "PUT")
            if answer.status != 200 or not answer.text:
                raise unexpected(answer, "AWS's metadata service gave no token")
            if not (answer.text.isascii() and answer.text.isprintable()):
                raise NoticeError(
                    "AWS's metadata service gave a token that is not a header; asking again later"
                )
            self._token = answer.text
        return self.ask(ACTION_PATH, {"X-aws-ec2-metadata-token": self._token})
