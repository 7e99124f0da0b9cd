"""Rewards that are plain Python functions, of a picture and its prompt, of several at once, or of a clip."""

from __future__ import annotations

import copy
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
    """A scorer that calls `function(image, prompt)`: a PIL image in RGB and a text in, a number out.

    Args:
        function: reward function; it may raise anything.
        takes_row: True if it also has a parameter `row`, for the prompt's whole row, a dictionary.
    """

    row = "row"

    def __init__(
        self, name: str, function: Callable[..., Any], options: FunctionOptions, takes_row: bool
    ) -> None:
        self.name = name
        self._function = function
        self._options = options
        self._takes_row = takes_row

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3); it is never exact."""
        return self._scored(self._called(Image.fromarray(image_HWC), prompt.text, self._row_of(prompt)))

    def _called(self, image: Any, prompt: Any, row: Any) -> Any:
        return self._function(image, prompt, **({self.row: row} if self._takes_row else {}))

    def _row_of(self, prompt: PromptRecord) -> dict[str, Any]:
        """Return a copy, as images of a prompt share its row, and a function may change it."""
        return copy.deepcopy(prompt.metadata) if self._takes_row else {}

    def _scored(self, answer: Any) -> Score:
        try:
            value = float(answer)
        except (TypeError, ValueError) as error:
            raise RewardError(f"{self.name} returned {answer!r:.60}; a reward returns a number") from error
        scaled, scale = value, self._options.scale
        # An overflow must not become the best score; -inf, the log of a probability of 0, is the lowest.
        if math.isnan(value) or value == math.inf:
            pass
        elif scale == "sigmoid":
            scaled = 1 / (1 + math.exp(-value)) if value > -700 else 0.0
        elif scale != "identity":
            lowest, highest = scale
            scaled = min(1.0, max(0.0, (value - lowest) / (highest - lowest)))
        if math.isfinite(value) and not 0 <= scaled <= 1:
            raise RewardError(
                f"{self.name} returned {value:g}, and scores lie in [0, 1]; set reward.options.scale to "
                "[lowest, highest] of its numbers, or to sigmoid"
            )
        return Score(scaled, exact=False, detail=f"{value:g}")


class BatchFunctionScorer(BatchScorer, FunctionScorer):
    """A scorer that calls `function(images, prompts)`: lists in, perhaps with a list `rows`, numbers out.

    No number may depend on the other images.
    """

    row = "rows"

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Judge uint8 RGB images of shape (H, W, 3), each against its own prompt."""
        pictures, texts = [Image.fromarray(image) for image in images], [prompt.text for prompt in prompts]
        rows = [self._row_of(prompt) for prompt in prompts]
        return [self._scored(answer) for answer in self._called(pictures, texts, rows)]


class ClipFunctionScorer(FunctionScorer):
    """A scorer that calls `function(frames, prompt)`: a clip's frames as a list of PIL images, and a text."""

    takes_clips = True

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB clip of shape (F, H, W, 3); an image is a clip of one frame."""
        frames = [Image.fromarray(frame) for frame in frames_of(image_HWC)]
        return self._scored(self._called(frames, prompt.text, self._row_of(prompt)))


def function_scorer(name: str, function: Callable[..., Any], options: FunctionOptions) -> FunctionScorer:
    """Return the scorer for a function of two arguments, or of three if the last one is the prompt's row.

    It gets lists if they are called `images` and `prompts`, and whole clips if the first one is `frames`.

    Args:
        name: name of the reward, as the settings have it.

    Raises:
        ConfigurationError: if it takes another number of arguments, or their number is unknown.
    """
    try:
        signature = inspect.signature(function)
    except ValueError as error:  # some C functions have none
        raise ConfigurationError(f"{error}; write a function of (image, prompt) that calls it") from error
    names = [*signature.parameters]
    kind = BatchFunctionScorer if names[:2] == ["images", "prompts"] else FunctionScorer
    takes_row = kind.row in names[2:]
    try:
        signature.bind("image", "prompt", **({kind.row: {}} if takes_row else {}))
    except TypeError as error:
        raise ConfigurationError(
            f"it takes {signature}; a reward is a function of (image, prompt), or of (images, prompts), and "
            "perhaps of their row or rows"
        ) from error
    if names[0] == "frames":
        kind = ClipFunctionScorer
    return kind(name, function, options, takes_row)
