"""Amazon EC2: a notice two minutes before a spot instance is taken, and sometimes earlier advice."""

from __future__ import annotations

from gpu_runtime.spot.notices.metadata_service import (
    Answer,
    MetadataService,
    json_object,
    unexpected,
    unix_seconds,
)
from gpu_runtime.spot.notices.notice import Notice, not_before
from storage.errors import NoticeError

TOKEN_PATH = "/latest/api/token"
ACTION_PATH = "/latest/meta-data/spot/instance-action"
REBALANCE_PATH = "/latest/meta-data/events/recommendations/rebalance"
_TOKEN_LIFE_S = 21_600  # the longest that the service grants


class AwsNotices:
    """Watches the spot action and the rebalance recommendation of this instance.

    Args:
        base_url: address of the metadata service.
        timeout_s: longest time of a request in seconds; a poll makes up to seven requests.
    """

    provider = "aws"

    def __init__(self, base_url: str = "http://169.254.169.254", timeout_s: float = 2.0) -> None:
        self._service = MetadataService(base_url, timeout_s)
        self._token: str | None = None

    def poll(self, now: float) -> Notice | None:
        """See `NoticeWatcher.poll`; an action outranks a recommendation."""
        return self._action(now) or self._recommendation(now)

    def close(self) -> None:
        """See `NoticeWatcher.close`."""
        self._service.close()

    def _action(self, now: float) -> Notice | None:
        answer = self._ask(ACTION_PATH)
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
        deadline = not_before(unix_seconds(said.get("time")), now)
        return Notice(self.provider, "terminate", deadline, now, f"{action} at {said.get('time')}")

    def _recommendation(self, now: float) -> Notice | None:
        answer = self._ask(REBALANCE_PATH)
        if answer.status == 404:
            return None
        if answer.status != 200:
            raise unexpected(answer, "AWS's rebalance recommendation")
        said = json_object(answer.text, "AWS's rebalance recommendation")
        if "noticeTime" not in said:
            raise unexpected(answer, "AWS's rebalance recommendation names no noticeTime")
        return Notice(self.provider, "rebalance", None, now, f"rebalance advised at {said['noticeTime']}")

    def _ask(self, path: str) -> Answer:
        """GET with the token, and with a new token if the old one is refused."""
        answer = self._get(path)
        if answer.status == 401:
            self._token = None
            answer = self._get(path)
        return answer

    def _get(self, path: str) -> Answer:
        token = self._token or self._new_token()
        return self._service.get(path, {"X-aws-ec2-metadata-token": token})

    def _new_token(self) -> str:
        answer = self._service.put(TOKEN_PATH, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_LIFE_S)})
        if answer.status != 200 or not answer.text:
            raise unexpected(answer, "AWS's metadata service gave no token")
        if not (answer.text.isascii() and answer.text.isprintable()):
            raise NoticeError("AWS's metadata service gave a token that is no header; asking again later")
        self._token = answer.text
        return answer.text
