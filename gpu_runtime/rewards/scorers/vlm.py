"""A vision language model as the judge, behind any server with OpenAI's chat completions.

A request is about one image, or one clip, whose frames follow each other: an answer about several would
depend on all of them. Servers that batch, such as vLLM, batch the `queue` concurrent requests.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import numpy as np

from gpu_runtime.rewards.answer_rules import message_of, number_at, number_in, scaled, yes_share
from gpu_runtime.rewards.judge_models.judge_server import AttemptError, JudgeServer, checked_url
from gpu_runtime.rewards.options import VlmOptions
from gpu_runtime.rewards.protocol import BatchScorer, Score
from storage.errors import ConfigurationError, RewardError, quoted, shortened
from storage.pictures import frames_of, picture_base64
from storage.prompts.files import PromptRecord
from storage.prompts.sources import read_source
from storage.text import one_line

_COMPLETIONS = "/chat/completions"
_ALTERNATIVES = 20
"""Alternative tokens to request log-probabilities of: the most that OpenAI's interface and vLLM allow."""


class VlmScorer(BatchScorer):
    """A scorer that asks a vision language model.

    An image whose answers cannot be read, or have a number outside the scale, has an error and no score.

    Raises:
        ConfigurationError: if the address is not valid, or the key is missing.
    """

    name = "vlm"
    takes_clips = True

    def __init__(
        self,
        settings: VlmOptions,
        wait: Callable[[float], None] = time.sleep,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._settings = settings
        url = _base_url(settings)
        self._server = JudgeServer(settings, _below(url, _COMPLETIONS), _key(settings, environ), wait)

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Ask about images (H, W, 3) or clips (F, H, W, 3), several requests at once."""
        return self._server.in_queue(
            partial(self._asked, image, prompt) for image, prompt in zip(images, prompts, strict=True)
        )

    def _asked(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        paid = 0

        def read(answer: bytes) -> Score:
            nonlocal paid
            paid += 1
            return self._score(answer)

        try:
            score = self._server.ask(self._body(image_HWC, prompt), read)
        except RewardError as error:
            score = Score(0.0, False, "", error=f"RewardError: {error}")
        return replace(score, usd=paid * self._settings.usd_per_image)

    def _body(self, image_HWC: np.ndarray, prompt: PromptRecord) -> dict[str, Any]:
        # An edit's sources come first.
        sources = frames_of(read_source(prompt.source)) if prompt.source else ()
        content: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture_base64(picture)}"}}
            for picture in (*sources, *frames_of(image_HWC))
        ]
        text = self._settings.template.replace("{prompt}", prompt.text)
        content.append({"type": "text", "text": text})
        chances = {"logprobs": True, "top_logprobs": _ALTERNATIVES}
        return {
            "model": self._settings.model,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": self._settings.tokens,
            "temperature": 0,
            **(chances if self._settings.parser == "yes-no" else {}),
            **self._settings.request,
        }

    def _score(self, answer: bytes) -> Score:
        """Return the score in an answer.

        Raises:
            AttemptError: if it has none.
        """
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise AttemptError(
                f"an answer that is not JSON: {answer[:80].decode(errors='replace')!r}"
            ) from error
        settings, exact_at = self._settings, 1.0
        try:
            detail, tokens = message_of(said, may_be_cut=settings.parser == "yes-no")
            if settings.parser == "yes-no":
                exact_at = 0.5
                value, source = yes_share(detail, tokens)
                detail += f" ({value:.3f} by {source})" if tokens else f" ({source})"
            else:
                if settings.parser == "json":
                    number = number_at(detail, settings.field)
                else:
                    number = number_in(detail, settings.highest, settings.pattern)
                value = scaled(number, settings.lowest, settings.highest)
        except ValueError as error:
            raise AttemptError(str(error)) from error
        if settings.exact_at is not None:
            exact_at = settings.exact_at
        return Score(value, value >= exact_at, shortened(one_line(detail)))


def refuse_silent_vlm(settings: VlmOptions, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse an address where no server answers, and a key that is missing or rejected.

    Raises:
        ConfigurationError: if so; with the problem.
    """
    url = _below(_base_url(settings), "/models")
    server = JudgeServer(settings, url, _key(settings, environ))
    server.refuse_silence(url, f"reward.options.url = {quoted(settings.url)}")


def _base_url(settings: VlmOptions) -> httpx.URL:
    url = checked_url(settings.url, "http://judge:8000/v1")
    if url.userinfo:
        raise ConfigurationError(
            "reward.options.url holds a password, and settings are stored with the run; put the key into an "
            "environment variable and name that in reward.options.key_variable"
        )
    return url


def _below(base: httpx.URL, path: str) -> httpx.URL:
    """Return an address below the base, which may also be the complete address of completions."""
    return base.copy_with(path=base.path.rstrip("/").removesuffix(_COMPLETIONS) + path)


def _key(settings: VlmOptions, environ: Mapping[str, str]) -> str:
    if not settings.key_variable:
        return ""
    key = environ.get(settings.key_variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            f"reward.options.key_variable = {quoted(settings.key_variable)}, but the environment has no key "
            "of that name; export it where the run is started, and on every machine that judges "
            "(docs/reference/rewards.md)"
        )
    return key
