"""Rewards that are plain Python functions, of a picture and its prompt, of several at once, or of a clip."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from gpu_runtime.rewards.options import FunctionOptions
from gpu_runtime.rewards.protocol import BatchScorer, Score, Scorer
from storage.errors import ConfigurationError, RewardError
from storage.pictures import frames_of
from storage.prompts.files import PromptRecord


class FunctionScorer(Scorer):
    """A scorer by `function(image, prompt)`: a PIL image in RGB and a text in, a number out.

    Args:
        function: reward function; it may raise anything.
    """

    def __init__(self, name: str, function: Callable[..., Any], options: FunctionOptions) -> None:
        self.name = name
        self._function = function
        self._options = options

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3); it is never exact."""
        return self._scored(self._function(Image.fromarray(image_HWC), prompt.text))

    def _scored(self, answer: Any) -> Score:
        try:
            value = float(answer)
        except (TypeError, ValueError) as error:
            raise RewardError(f"{self.name} returned {answer!r:.60}; a reward returns a number") from error
        scaled = _scaled(value, self._options)
        if math.isfinite(value) and not 0 <= scaled <= 1:
            raise RewardError(
                f"{self.name} returned {value:g}, and scores lie in [0, 1]; set reward.options.scale to "
                "[lowest, highest] of its numbers, or to sigmoid"
            )
        return Score(scaled, exact=False, detail=f"{value:g}")


class BatchFunctionScorer(BatchScorer, FunctionScorer):
    """A scorer by `function(images, prompts)`: lists in, as many numbers out.

    No number may depend on the other images.
    """

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Judge uint8 RGB images of shape (H, W, 3), each against its own prompt."""
        pictures, texts = [Image.fromarray(image) for image in images], [prompt.text for prompt in prompts]
        return [self._scored(answer) for answer in self._function(pictures, texts)]


class ClipFunctionScorer(FunctionScorer):
    """A scorer by `function(frames, prompt)`: a clip's frames as a list of PIL images, and a text."""

    takes_clips = True

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB clip of shape (F, H, W, 3); an image is a clip of one frame."""
        frames = [Image.fromarray(frame) for frame in frames_of(image_HWC)]
        return self._scored(self._function(frames, prompt.text))


def function_scorer(name: str, function: Callable[..., Any], options: FunctionOptions) -> FunctionScorer:
    """Return the scorer of a function of two arguments.

    It is given lists if they are called `images` and `prompts`, and whole clips if the first one is `frames`.

    Args:
        name: name of the reward, as the settings have it.

    Raises:
        ConfigurationError: if it takes another number of arguments.
    """
    signature = inspect.signature(function)
    try:
        signature.bind("image", "prompt")
    except TypeError as error:
        raise ConfigurationError(
            f"it takes {signature}; a reward is a function of (image, prompt), or of (images, prompts)"
        ) from error
    names = [*signature.parameters][:2]
    if names[0] == "frames":
        return ClipFunctionScorer(name, function, options)
    is_batch = names == ["images", "prompts"]
    return (BatchFunctionScorer if is_batch else FunctionScorer)(name, function, options)


def _scaled(value: float, options: FunctionOptions) -> float:
    if options.scale == "identity":
        return value
    if options.scale == "sigmoid":
        return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
    lowest, highest = options.scale
    return min(1.0, max(0.0, (value - lowest) / (highest - lowest)))
