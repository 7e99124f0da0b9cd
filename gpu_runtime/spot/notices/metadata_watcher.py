"""Requests to a provider's metadata service: small bodies, short timeouts, one kind of error."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gpu_runtime.spot.notices.notice import Notice
from storage.errors import ConfigurationError, NoticeError

LARGEST_BODY_BYTES = 262_144
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class Answer:
    """A status code and a body as text."""

    status: int
    text: str


class MetadataWatcher:
    """Base class of the watchers that ask a metadata service.

    Args:
        base_url: `http://HOST[:PORT]`, without the paths of the provider; None for the provider's own.
        timeout_s: longest total time of a request in seconds.

    Raises:
        ConfigurationError: the URL or the timeout is invalid.
    """

    provider: str
    url: str
    """The provider's own base URL."""

    def __init__(self, base_url: str | None = None, timeout_s: float = 2.0) -> None:
        if not (math.isfinite(timeout_s) and timeout_s > 0):
            raise ConfigurationError(f"the time-out is {timeout_s} s; give a number of seconds above 0")
        self._base_url = checked_url(self.url if base_url is None else base_url)
        self._timeout_s = timeout_s
        # Ignores proxies of the environment: link-local addresses mean this machine, not the proxy.
        self._client = httpx.Client(timeout=timeout_s, trust_env=False)

    def close(self) -> None:
        """See `NoticeWatcher`."""
        self._client.close()

    def ask(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Request a path, without a body; any status code is a valid answer.

        Args:
            path: path below the base URL.
            headers: headers of the request.
            method: HTTP method.

        Raises:
            NoticeError: the connection failed, the answer took too long, or its body is too large.
        """
        url = self._base_url + path
        # httpx limits the wait for each chunk only; a slow stream could block us forever.
        last_moment = time.monotonic() + self._timeout_s
        body = bytearray()
        try:
            with self._client.stream(method, url, headers=headers) as response:
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > LARGEST_BODY_BYTES:
                        raise NoticeError(
                            f"{url} sent more than {LARGEST_BODY_BYTES} bytes; check the base URL"
                        )
                    if time.monotonic() > last_moment:
                        raise NoticeError(f"{url} took more than {self._timeout_s} s to answer")
        except httpx.TimeoutException as error:
            raise NoticeError(f"{url} did not answer within {self._timeout_s} s") from error
        except httpx.HTTPError as error:
            raise NoticeError(f"{url} cannot be reached: {error}") from error
        return Answer(response.status_code, body.decode("utf-8", errors="replace").strip())

    def notice(self, deadline: float | None, now: float, detail: str) -> Notice:
        """Return a notice of this provider, in unix seconds; a deadline that has passed becomes `now`.

        Args:
            deadline: seconds since the epoch at which the device ends; one that has passed becomes `now`.
            now: seconds since the epoch.
            detail: what the provider said, in words.
        """
        return Notice(self.provider, None if deadline is None else max(deadline, now), now, detail)


def checked_url(base_url: str) -> str:
    """Return a base URL without its trailing slash.

    Raises:
        ConfigurationError: it is not `http(s)://HOST[:PORT][/PATH]`.
    """
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, TypeError) as error:
        raise ConfigurationError(
            f"base URL {base_url!r} is no URL ({error}); write http://HOST:PORT"
        ) from error
    port_is_one = url.port is None or 0 < url.port < 65_536
    if url.scheme not in ("http", "https") or not url.host or not port_is_one or url.query or url.fragment:
        raise ConfigurationError(
            f"base URL {base_url!r} is not of the form http://HOST:PORT; leave it out for the provider's own"
        )
    return str(url).rstrip("/")


def unexpected(answer: Answer, what: str) -> NoticeError:
    """Return the error for an answer that cannot be understood."""
    return NoticeError(f"{what}: status {answer.status}, body {_shown(answer.text)}; asking again later")


def json_object(text: str, what: str) -> dict[str, Any]:
    """Return the JSON object of a body.

    Raises:
        NoticeError: the body is not JSON, or not an object.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoticeError(f"{what}: {_shown(text)} is not JSON; asking again later") from error
    if not isinstance(value, dict):
        raise NoticeError(f"{what}: expected a JSON object, got {_shown(text)}; asking again later")
    return value


def unix_seconds(text: object) -> float | None:
    """Return an ISO 8601 or RFC 1123 time, UTC unless it names a zone, in unix seconds; else None."""
    if not isinstance(text, str):
        return None
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(text.strip())
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            continue
    return None


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
