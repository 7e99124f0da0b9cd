"""A scorer on another machine, asked over HTTP: for judges that need a GPU or packages of their own.

A request is JSON: `images` (PNG, base64 text), `prompts` and `metadata` (GenEval rows), as many of each. The
answer is JSON: `scores` in [0, 1], and if the server likes `exact` (booleans) and `details` (texts), as many.
"""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import json
import reprlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
from PIL import Image

from gpu_runtime.rewards.options import RemoteOptions
from gpu_runtime.rewards.protocol import Score
from storage.errors import ConfigurationError, RewardError
from storage.prompts.files import PromptRecord

_LONGEST_WAIT_S = 60.0
_MOST_BYTES = 16 * 2**20
"""Of an answer. 256 scores take 5 KB; the rest is for details."""

_REFUSAL_BYTES = 2000
"""Read of the answer of a server that refuses: enough for a message."""

_WORTH_ANOTHER = frozenset({408, 425, 429})
"""Refusals that pass; any other 4xx says that the request itself is wrong."""


class RemoteScorer:
    """Implements `Scorer` and `BatchScorer`.

    Requests wait in a queue: `settings.queue` of them are under way at once, the others are not even encoded
    yet. What fails is asked again, each time after twice the wait; what fails for good has an error and
    leaves the other images alone.

    Args:
        settings: where the server is, and how long it is waited for.
        wait: sleeps, in seconds.

    Raises:
        ConfigurationError: the address is none.
    """

    name = "remote"

    def __init__(self, settings: RemoteOptions, wait: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._wait = wait
        self._url = _checked_url(settings.url)
        # Loading the certificates takes tens of milliseconds: once, not for each request.
        self._certificates = httpx.create_ssl_context()

    def check(self, prompt: PromptRecord) -> None:
        """Every prompt will do: only the server knows better."""

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Ask for one image.

        Raises:
            RewardError: after the last attempt.
        """
        # In a thread of its own: asyncio cannot run an exchange where the caller's thread has a loop.
        with ThreadPoolExecutor(1, thread_name_prefix="remote-scorer") as queue:
            return queue.submit(self._asked, [image_HWC], [prompt]).result()[0]

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Ask for images of shape (H, W, 3) each, several a request and several requests at once."""
        size = self._settings.images_a_request
        starts = range(0, len(images), size)
        with ThreadPoolExecutor(self._settings.queue, thread_name_prefix="remote-scorer") as queue:
            answers = queue.map(
                lambda start: self._asked_or_failed(
                    images[start : start + size], prompts[start : start + size]
                ),
                starts,
            )
            return list(itertools.chain.from_iterable(answers))

    def _asked_or_failed(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        try:
            return self._asked(images, prompts)
        except RewardError as error:
            return [Score(0.0, False, "", error=f"RewardError: {error}")] * len(images)

    def _asked(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        body = {
            "images": [_png_base64(image) for image in images],
            "prompts": [prompt.text for prompt in prompts],
            "metadata": [prompt.metadata for prompt in prompts],
        }
        trouble = ""
        for attempt in range(self._settings.attempts):
            if attempt:
                self._wait(min(self._settings.backoff_s * 2 ** (attempt - 1), _LONGEST_WAIT_S))
            try:
                return _scores(self._posted(body), len(images))
            except _Passing as error:
                trouble = str(error)
        raise RewardError(
            f"the scorer at {self._url} failed {self._settings.attempts} times, the last with {trouble}; "
            "check the server, or raise reward.options.attempts"
        )

    def _posted(self, body: dict[str, Any]) -> bytes:
        """The body of an answer of status 2xx.

        The limit holds for the whole exchange, from connecting to the last byte: a server that sends a byte a
        second ends no wait of a single read. asyncio can cancel an exchange at any point of it.

        Raises:
            _Passing: there is none, but there may be at the next attempt.
            RewardError: the server refuses the request.
        """
        try:
            status, content = asyncio.run(
                asyncio.wait_for(self._exchange(json.dumps(body).encode()), self._settings.timeout_s)
            )
        except TimeoutError as error:
            limit = f"reward.options.timeout_s = {self._settings.timeout_s:g}"
            raise _Passing(f"no whole answer within {limit}") from error
        except httpx.HTTPError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from error
        if 200 <= status < 300:
            return content
        trouble = f"status {status}: {content[:200].decode(errors='replace')!r}"
        if status >= 500 or status in _WORTH_ANOTHER:
            raise _Passing(trouble)
        raise RewardError(
            f"the scorer at {self._url} refuses the request with {trouble}; check reward.options.url and "
            "what the server takes"
        )

    async def _exchange(self, content: bytes) -> tuple[int, bytes]:
        """Send a request; the status and the body of its answer, which is cut off where it is a refusal.

        Raises:
            _Passing: the answer is compressed, or longer than the limit.
            httpx.HTTPError: the connection failed.
        """
        # Compressed, a small answer can fill the memory with a few bytes on the wire. Scores need none of it.
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        async with (
            httpx.AsyncClient(timeout=None, verify=self._certificates) as client,
            client.stream("POST", self._url, content=content, headers=headers) as answer,
        ):
            coding = answer.headers.get("content-encoding", "identity")
            if coding != "identity":
                raise _Passing(
                    f"an answer in content-encoding {coding[:20]!r}, though `identity` was asked for"
                )
            received = bytearray()
            async for chunk in answer.aiter_raw():
                received += chunk
                if not answer.is_success and len(received) >= _REFUSAL_BYTES:
                    break
                if len(received) > _MOST_BYTES:
                    raise _Passing(f"an answer of more than {_MOST_BYTES // 2**20} MiB")
            return answer.status_code, bytes(received)


class _Passing(Exception):
    """An attempt came to nothing; the next one may not."""


def _scores(answer: bytes, count: int) -> list[Score]:
    """The scores of an answer.

    Raises:
        _Passing: it is malformed, has not one score an image, or one that is not in [0, 1].
    """
    start = answer[:80].decode(errors="replace")
    try:
        said: Any = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise _Passing(f"an answer that is no JSON: {start!r}") from error
    if not isinstance(said, dict):
        raise _Passing(f"an answer that is no JSON object: {start!r}")
    values = _column(said, "scores", (int, float), count, None)
    for value in values:
        if not 0 <= value <= 1:  # as a NaN is not
            raise _Passing(f"score {reprlib.repr(value)} in the answer, which is not in [0, 1]")
    exact = _column(said, "exact", (bool,), count, False)
    details = _column(said, "details", (str,), count, "")
    return [
        Score(float(value), verdict, detail)
        for value, verdict, detail in zip(values, exact, details, strict=True)
    ]


def _column(said: dict[str, Any], key: str, kinds: tuple[type, ...], count: int, default: Any) -> list[Any]:
    if key not in said and default is not None:
        return [default] * count
    values = said.get(key)
    if not isinstance(values, list) or len(values) != count:
        length = len(values) if isinstance(values, list) else "no"
        raise _Passing(f"{length} `{key}` in the answer for {count} images")
    for value in values:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _Passing(f"{reprlib.repr(value)} among the `{key}` of the answer")
    return values


def _png_base64(image_HWC: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(image_HWC).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"reward.options.url = {text!r} is no address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            f"reward.options.url = {text!r} is no address of a server; write it whole, as in "
            "http://judge:8000/score"
        )
    return url
