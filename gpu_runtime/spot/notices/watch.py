"""The watch for this machine's notices, and the base of watchers that poll a provider's metadata service.

A failed poll withdraws nothing, and no error ends the polling thread, without which no notice would be seen.
Requests have small bodies, short timeouts and one kind of error.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from gpu_runtime.spot.notices.notice import Notice, NoticeWatcher
from storage.errors import ConfigurationError, NoticeError

_log = logging.getLogger(__name__)

LARGEST_BODY_BYTES = 262_144
TIMEOUT_S = 2.0
"""Longest total time of a request."""
_SHOWN_CHARACTERS = 120


@dataclass(frozen=True)
class NoticePlugin:
    """A provider's notices, as named by `runtime.notices`.

    Attributes:
        watcher: creates its watcher, from `base_url` if that is set.
        poll_interval_s: seconds between polls, which shorten the grace period; few if it is short.
        max_backoff_s: longest wait after failed polls: about a quarter of the grace period, so a
            recovered service still warns in time.
        asks_url: True if its watcher polls a metadata service at an address.

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


class NoticeWatch:
    """Watches from its creation on, and always knows whether this machine will be taken.

    A background thread polls the provider. Failed polls are logged (the first in a row as a warning) and
    retried, each time after twice the wait.

    Args:
        plugin: provider's notices; those of `kubernetes` must be watched from the main thread.
        base_url: address of the metadata service; empty for the provider's default.

    Attributes:
        notice: current notice, as it was first read; None without one.
        failure: why the last poll failed; empty if it did not.

    Raises:
        ConfigurationError: the base URL is invalid.
    """

    def __init__(self, plugin: NoticePlugin, base_url: str = "") -> None:
        self._plugin = plugin
        self._watcher = self._plugin.watcher(**({"base_url": base_url} if base_url else {}))
        self._stopping = threading.Event()
        self.notice: Notice | None = None
        self.failure = ""
        name = f"notices-{self._watcher.provider}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 10.0) -> None:
        """Stop watching, and wait at most this many seconds for a request under way."""
        self._stopping.set()
        self._thread.join(timeout_s)
        self._watcher.close()

    def _run(self) -> None:
        provider, failed_in_a_row = self._watcher.provider, 0
        while not self._stopping.is_set():
            try:
                seen = self._watcher.poll(time.time())
            except Exception as error:  # noqa: BLE001 - an ended thread would warn of nothing
                if not isinstance(error, NoticeError):
                    _log.exception("the watcher of %s's notices failed", provider)
                failed_in_a_row += 1
                self.failure = str(error) or type(error).__name__
                level = logging.WARNING if failed_in_a_row == 1 else logging.DEBUG
                _log.log(level, "notices of %s cannot be read: %s", provider, error)
            else:
                if failed_in_a_row:
                    _log.info("notices of %s can be read again", provider)
                failed_in_a_row, self.failure = 0, ""
                if seen != self.notice:
                    self.notice = seen
            # The exponent is bounded: 2.0 ** 2000 overflows.
            wait_s = self._plugin.poll_interval_s * 2.0 ** min(failed_in_a_row, 60)
            self._stopping.wait(min(wait_s, self._plugin.max_backoff_s))


@dataclass(frozen=True)
class Answer:
    """A status code and a body as text."""

    status: int
    text: str


class MetadataWatcher:
    """Base class of the watchers that ask a metadata service.

    Args:
        base_url: `http://HOST[:PORT]`, without the paths of the provider; None for the provider's own.

    Raises:
        ConfigurationError: the URL is invalid.
    """

    provider: str
    url: str
    """The provider's own base URL."""

    def __init__(self, base_url: str | None = None) -> None:
        self._base_url = checked_url(self.url if base_url is None else base_url)
        # Ignore the environment's proxies: link-local addresses mean this machine, not the proxy's.
        self._client = httpx.Client(timeout=TIMEOUT_S, trust_env=False)

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
        last_moment = time.monotonic() + TIMEOUT_S
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
                        raise NoticeError(f"{url} took more than {TIMEOUT_S} s to answer")
        except httpx.TimeoutException as error:
            raise NoticeError(f"{url} did not answer within {TIMEOUT_S} s") from error
        except httpx.HTTPError as error:
            raise NoticeError(f"{url} cannot be reached: {error}") from error
        return Answer(response.status_code, body.decode("utf-8", errors="replace").strip())

    def notice(self, deadline: float | None, now: float, detail: str) -> Notice:
        """Return a notice of this provider.

        Args:
            deadline: seconds since the epoch at which the device ends; one that has passed becomes `now`.
            now: seconds since the epoch.
            detail: the provider's message.
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
            f"base URL {base_url!r} is not a URL ({error}); write http://HOST:PORT"
        ) from error
    port_is_one = url.port is None or 0 < url.port < 65_536
    if url.scheme not in ("http", "https") or not url.host or not port_is_one or url.query or url.fragment:
        raise ConfigurationError(
            f"base URL {base_url!r} is not of the form http://HOST:PORT; omit it for the provider's own"
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
