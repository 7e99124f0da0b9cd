"""A scorer on another machine, over HTTP: for judges that need a GPU or separate packages.

A request is JSON: `images` (PNG in base64; for a clip a list, one per frame), `prompts` and `metadata`
(GenEval rows), one per image. The answer is JSON: `scores`, null for an image without one, and optionally
`exact` (booleans) and `details` (texts), one per image; also the `scale` of the scores, [0, 1] by default,
and which end of it is `better`, "higher" by default or "lower": that end becomes 1.
"""

from __future__ import annotations

import itertools
import json
import reprlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import httpx
import numpy as np

from gpu_runtime.rewards.judge_models.judge_command import judge_command
from gpu_runtime.rewards.judge_models.judge_server import AttemptError, JudgeServer, checked_url
from gpu_runtime.rewards.options import RemoteOptions
from gpu_runtime.rewards.protocol import BatchScorer, Score
from storage.errors import RewardError, quoted
from storage.pictures import is_clip, picture_base64
from storage.prompts.files import PromptRecord
from storage.prompts.sources import read_source

_FARTHEST = 1e300
"""Largest end of a scale: the difference of two of them is finite."""


class RemoteScorer(BatchScorer):
    """A scorer that asks a server; only the server could refuse a prompt.

    Waiting requests are not even encoded. An image that fails for good has an error and does not affect the
    others.

    Raises:
        ConfigurationError: if the address is not valid.
    """

    name = "remote"
    takes_clips = True

    def __init__(self, settings: RemoteOptions, wait: Callable[[float], None] = time.sleep) -> None:
        self._settings = settings
        self._server = JudgeServer(settings, _url(settings), wait=wait)

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Ask for scores of images (H, W, 3) or clips (F, H, W, 3), with several per request and at once."""
        size = self._settings.images_a_request
        answers = self._server.in_queue(
            partial(self._asked, images[start : start + size], prompts[start : start + size])
            for start in range(0, len(images), size)
        )
        return list(itertools.chain.from_iterable(answers))

    def _asked(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        body: dict[str, Any] = {
            "images": [_encoded(image) for image in images],
            "prompts": [prompt.text for prompt in prompts],
            "metadata": [prompt.metadata for prompt in prompts],
        }
        if any(prompt.source for prompt in prompts):
            body["sources"] = [
                _encoded(read_source(prompt.source)) if prompt.source else None for prompt in prompts
            ]
        try:
            return self._server.ask(body, lambda answer: _scores(answer, len(images)))
        except RewardError as error:
            return [Score(0.0, False, "", error=f"RewardError: {error}")] * len(images)


def refuse_silent_scorer(settings: RemoteOptions) -> None:
    """Refuse an address where no server answers, or a judge that cannot be started there.

    Raises:
        ConfigurationError: if so; with the problem.
    """
    url = _url(settings)
    if settings.judge:
        judge_command(settings.judge, settings.url)
        return
    JudgeServer(settings, url).refuse_silence(url, f"reward.options.url = {quoted(settings.url)}")


def _encoded(image: np.ndarray) -> str | list[str]:
    return list(map(picture_base64, image)) if is_clip(image) else picture_base64(image)


def _url(settings: RemoteOptions) -> httpx.URL:
    return checked_url(settings.url, "http://judge:8000/score")


def _scores(answer: bytes, count: int) -> list[Score]:
    """Return the scores in an answer.

    Raises:
        AttemptError: if it is malformed, or lacks a score or a null per image.
    """
    start = answer[:80].decode(errors="replace")
    try:
        said: Any = json.loads(answer)
    except (ValueError, RecursionError) as error:
        raise AttemptError(f"an answer that is not JSON: {start!r}") from error
    if not isinstance(said, dict):
        raise AttemptError(f"an answer that is not a JSON object: {start!r}")
    values = _column(said, "scores", (int, float, type(None)), count, None)
    scale = _Scale.read(said)
    exact = _column(said, "exact", (bool,), count, False)
    details = _column(said, "details", (str,), count, "")
    return [scale.score(*row) for row in zip(values, exact, details, strict=True)]


class _Scale(NamedTuple):
    """The scale that a judge declares for its scores, and which end of it is better."""

    lowest: float = 0.0
    highest: float = 1.0
    better: str = "higher"

    @classmethod
    def read(cls, said: dict[str, Any]) -> _Scale:
        ends, better = said.get("scale", [0.0, 1.0]), said.get("better", "higher")
        are_numbers = isinstance(ends, list) and all(
            isinstance(end, int | float) and not isinstance(end, bool) and abs(end) <= _FARTHEST
            for end in ends
        )
        if not (are_numbers and len(ends) == 2 and ends[0] < ends[1]):
            raise AttemptError(f"scale {reprlib.repr(ends)} in the answer; it is [lowest, highest]")
        if better not in ("higher", "lower"):
            raise AttemptError(
                f"{reprlib.repr(better)} as the better end in the answer; it is higher or lower"
            )
        return cls(ends[0], ends[1], better)

    def score(self, value: float | None, exact: bool, detail: str) -> Score:
        """Return the score in [0, 1], with an error if the value is missing or not on the scale."""
        if value is None:
            return Score(
                0.0, False, detail, error=f"the judge gave no score ({detail or 'without a reason'})"
            )
        scale = f"[{self.lowest:g}, {self.highest:g}]"
        if not self.lowest <= value <= self.highest:  # false for a NaN
            said = reprlib.repr(value)
            return Score(0.0, False, detail, error=f"the judge's score {said} is not on its scale {scale}")
        share = (value - self.lowest) / (self.highest - self.lowest)
        if self == _Scale():
            return Score(share, exact, detail)
        detail = f"{detail or f'{value:.4g}'} on {scale}, {self.better} is better"
        return Score(share if self.better == "higher" else 1 - share, exact, detail)


def _column(said: dict[str, Any], key: str, kinds: tuple[type, ...], count: int, default: Any) -> list[Any]:
    if key not in said and default is not None:
        return [default] * count
    values = said.get(key)
    if not isinstance(values, list) or len(values) != count:
        length = len(values) if isinstance(values, list) else "no"
        raise AttemptError(f"{length} `{key}` in the answer for {count} images")
    for value in values:
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise AttemptError(f"{reprlib.repr(value)} among the `{key}` of the answer")
    return values
