"""An HTTP client for a judge server: one limit for a whole request, retries, a queue."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import httpx

from gpu_runtime.rewards.options import LONGEST_WAIT_S, ServerOptions
from storage.errors import ConfigurationError, RewardError
from storage.text import one_line

Answer = TypeVar("Answer")

_ANSWER_LIMIT_S = 10.0
"""Limit of the request that checks, before a run, whether a server answers."""

_MOST_BYTES = 16 * 2**20
"""Largest answer. 256 scores take 5 KB; the rest is for details."""

_REFUSAL_BYTES = 2000
"""Bytes read of a refusing server's answer: enough for a message."""

_RESTART_LOOK_S = 1.0
"""Pause before the next look for a restarting server."""

_WORTH_ANOTHER = frozenset({408, 425, 429})
"""Status codes of temporary refusals; any other 4xx means that the request itself is wrong."""


class AttemptError(Exception):
    """An attempt failed; the next one may succeed."""


class NoConnectionError(AttemptError):
    """Nothing listens at the address."""


class JudgeServer:
    """A client that posts JSON to an address, and retries what fails, each time after twice the wait.

    Requests wait in a queue: at most `settings.queue` of them are under way at once.

    Args:
        key: key that is sent as a bearer token, and redacted in every answer; empty for none.
        wait: function that sleeps, in seconds.
    """

    def __init__(
        self,
        settings: ServerOptions,
        url: httpx.URL,
        key: str = "",
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._url = url
        self._key = key
        self._wait = wait
        self._patience_s = settings.restart_s  # 0 after a request that waited that long

    def in_queue(self, calls: Iterable[Callable[[], Answer]]) -> list[Answer]:
        """Make calls, as many at once as the queue allows; return their results in order.

        Each call has its own thread: asyncio cannot run an exchange if the caller's thread has a loop.
        """
        with ThreadPoolExecutor(self._settings.queue, thread_name_prefix="judge-server") as queue:
            return list(queue.map(lambda call: call(), calls))

    def ask(self, body: Mapping[str, Any], read: Callable[[bytes], Answer]) -> Answer:
        """Return the answer to a request, as `read` returns it; call it through `in_queue`.

        Args:
            read: reads the body of an answer with status 2xx; raises `AttemptError` if it cannot.

        Raises:
            RewardError: if the server refuses the request, or the last attempt failed.
        """
        settings, content, trouble = self._settings, json.dumps(body).encode(), ""
        attempts, restarting_s = 0, 0.0
        while attempts < settings.attempts:
            try:
                answer = read(self._posted(content))
                self._patience_s = settings.restart_s
                return answer
            except AttemptError as error:
                trouble = str(error)
                if isinstance(error, NoConnectionError) and restarting_s < self._patience_s:
                    restarting_s += _RESTART_LOOK_S
                    self._wait(_RESTART_LOOK_S)
                    continue
            if restarting_s >= settings.restart_s:
                self._patience_s = 0.0
            attempts += 1
            if attempts < settings.attempts:
                self._wait(min(settings.backoff_s * 2 ** (attempts - 1), LONGEST_WAIT_S))
        raise RewardError(
            f"the scorer at {self._url} failed {self._settings.attempts} times, the last with {trouble}; "
            "check the server, or raise reward.options.attempts"
        )

    def refuse_silence(self, url: httpx.URL, setting: str) -> None:
        """Refuse a server that does not answer, or that refuses the key; any other answer will do.

        Args:
            setting: setting that names the server, with its value, for messages.

        Raises:
            ConfigurationError: if so; in one line, the problem and what to do.
        """
        exchange = self._exchange("GET", url, b"")
        try:
            ((status, said),) = self.in_queue(
                [lambda: asyncio.run(asyncio.wait_for(exchange, _ANSWER_LIMIT_S))]
            )
        except AttemptError:
            return  # an answer all the same, although not like a judgement's
        except (httpx.HTTPError, TimeoutError) as error:
            reason = one_line(str(error)) or f"no answer in {_ANSWER_LIMIT_S:g} s"
            raise ConfigurationError(
                f"no server answers at {setting}: {reason}; start it, or correct the address"
            ) from error
        if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise ConfigurationError(
                f"the server at {setting} refuses with status {status}: {_start(said)}; check its key "
                "(docs/reference/rewards.md)"
            )

    def _posted(self, content: bytes) -> bytes:
        """Post a request; return the body of an answer with status 2xx.

        The limit holds for the whole exchange, from connecting to the last byte: a server that sends a byte
        each second never exceeds a limit on single reads. asyncio can cancel an exchange at any point.

        Raises:
            AttemptError: if there is none, but the next attempt may succeed.
            RewardError: if the server refuses the request.
        """
        try:
            status, said = asyncio.run(
                asyncio.wait_for(self._exchange("POST", self._url, content), self._settings.timeout_s)
            )
        except TimeoutError as error:
            limit = f"reward.options.timeout_s = {self._settings.timeout_s:g}"
            raise AttemptError(f"no whole answer within {limit}") from error
        except httpx.HTTPError as error:
            kind = NoConnectionError if isinstance(error, httpx.ConnectError) else AttemptError
            raise kind(f"{type(error).__name__}: {error}") from error
        if 200 <= status < 300:
            return said
        trouble = f"status {status}: {_start(said)}"
        if status >= 500 or status in _WORTH_ANOTHER:
            raise AttemptError(trouble)
        raise RewardError(
            f"the scorer at {self._url} refuses the request with {trouble}; check reward.options.url and "
            "what the server takes"
        )

    async def _exchange(self, method: str, url: httpx.URL, content: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of its answer, cut off if it is a refusal.

        Raises:
            AttemptError: if the answer is compressed, or longer than the limit.
            httpx.HTTPError: if the connection failed.
        """
        # A compressed answer of few bytes can fill the memory. Scores need no compression.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        async with (
            httpx.AsyncClient(timeout=None, verify=_certificates()) as client,
            client.stream(method, url, content=content, headers=headers) as answer,
        ):
            coding = answer.headers.get("content-encoding", "identity")
            if coding != "identity":
                raise AttemptError(
                    f"an answer in content-encoding {coding[:20]!r}, though `identity` was asked for"
                )
            received = bytearray()
            async for chunk in answer.aiter_raw():
                received += chunk
                if not answer.is_success and len(received) >= _REFUSAL_BYTES:
                    break
                if len(received) > _MOST_BYTES:
                    raise AttemptError(f"an answer of more than {_MOST_BYTES // 2**20} MiB")
            content = bytes(received)
            if self._key:  # servers quote it when they refuse it, and messages are stored
                content = content.replace(self._key.encode(), b"[key]")
            return answer.status_code, content


def checked_url(text: str, example: str) -> httpx.URL:
    """Return the address in `reward.options.url`.

    Args:
        example: complete address, for the message.

    Raises:
        ConfigurationError: if it is not the address of a server.
    """
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"reward.options.url = {text!r} is not an address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            f"reward.options.url = {text!r} is not the address of a server; write it whole, as in {example}"
        )
    return url


@cache
def _certificates() -> ssl.SSLContext:
    """Load certificates once, not for each request: it takes tens of milliseconds."""
    return httpx.create_ssl_context()


def _start(content: bytes) -> str:
    return repr(content[:200].decode(errors="replace"))
