"""A scorer on another machine, asked over HTTP: for judges that need a GPU or packages of their own.

A request is JSON: `images` (PNG, base64 text), `prompts` and `metadata` (GenEval rows), as many of each. The
answer is JSON: `scores` in [0, 1], and if the server likes `exact` (booleans) and `details` (texts), as many.
"""

from __future__ import annotations

import base64
import io
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
from PIL import Image

from gpu_runtime.rewards.protocol import Score
from storage.errors import ConfigurationError, RewardError
from storage.prompts import PromptRecord
from storage.reward_config import RemoteConfig

_LONGEST_WAIT_S = 60.0
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

    def __init__(self, settings: RemoteConfig, wait: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._wait = wait
        self._url = _checked_url(settings.url)
        self._client = httpx.Client(timeout=settings.timeout_s)

    def check(self, prompt: PromptRecord) -> None:
        """Every prompt will do: only the server knows better."""

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Ask for one image.

        Raises:
            RewardError: after the last attempt.
        """
        return self._asked([image_HWC], [prompt])[0]

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
            "check the server, or raise reward.remote.attempts"
        )

    def _posted(self, body: dict[str, Any]) -> httpx.Response:
        """An answer of status 2xx.

        Raises:
            _Passing: there is none, but there may be at the next attempt.
            RewardError: the server refuses the request.
        """
        try:
            answer = self._client.post(self._url, json=body)
        except httpx.TimeoutException as error:
            limit = f"reward.remote.timeout_s = {self._settings.timeout_s:g}"
            raise _Passing(f"no answer within {limit}") from error
        except httpx.TransportError as error:
            raise _Passing(f"{type(error).__name__}: {error}") from error
        if answer.is_success:
            return answer
        trouble = f"status {answer.status_code}: {answer.text[:200]!r}"
        if answer.status_code >= 500 or answer.status_code in _WORTH_ANOTHER:
            raise _Passing(trouble)
        raise RewardError(
            f"the scorer at {self._url} refuses the request with {trouble}; check reward.remote.url and "
            "what the server takes"
        )


class _Passing(Exception):
    """An attempt came to nothing; the next one may not."""


def _scores(answer: httpx.Response, count: int) -> list[Score]:
    """The scores of an answer.

    Raises:
        _Passing: it is malformed, or has not one score an image.
    """
    try:
        said: Any = answer.json()
    except ValueError as error:
        raise _Passing(f"an answer that is no JSON: {answer.text[:80]!r}") from error
    if not isinstance(said, dict):
        raise _Passing(f"an answer that is no JSON object: {answer.text[:80]!r}")
    values = _column(said, "scores", (int, float), count, None)
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
            raise _Passing(f"{value!r} among the `{key}` of the answer")
    return values


def _png_base64(image_HWC: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(image_HWC).save(file, format="PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigurationError(f"reward.remote.url = {text!r} is no address: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(
            f"reward.remote.url = {text!r} is no address of a server; write it whole, as in "
            "http://judge:8000/score"
        )
    return url
