"""The interface of scorers: one image and its prompt in, one score out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from gpu_runtime.scheduling.scores import Score as Score  # a scorer imports both from here
from storage.errors import RewardError
from storage.prompts.files import PromptRecord

CALL_LIMIT_S = 1800.0
"""Seconds that a scorer may take for one call before it counts as hung, and is killed."""

MOST_IMAGES_A_CALL = 16
"""Most images that a scorer is given at once."""


class Scorer(Protocol):
    """A judge of one image at a time, so that a score never depends on the image's neighbours.

    A subclass inherits what it does not define; a class with the same methods needs no base class.

    A scorer whose attribute `takes_clips` is true gets a clip's chosen frames at once, uint8 of shape
    (F, H, W, 3), instead of an image. Any other gets them one by one, and the mean counts.

    A scorer with a method `move(device)` works on that device, named as in torch, once it is called.
    """

    name: str

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that only the loaded scorer can recognise as impossible to judge by.

        Keep it cheap, as every prompt of a run is checked; the plug-in's `check_prompt` comes before it. Most
        scorers accept every prompt here.

        Raises:
            PromptFileError, ConfigurationError: if so; with the value, its limits and what to do.
        """

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; may raise anything."""
        ...


@runtime_checkable
class BatchScorer(Scorer, Protocol):
    """A scorer that is faster with several images at once, such as one that waits for a server.

    Even so, no score may depend on the other images.
    """

    def score_batch(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """Return one score per image, in order; one that failed has an `error`. May raise anything."""
        ...

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge one image, as a batch of one.

        Raises:
            RewardError: if its score has an error.
        """
        (score,) = self.score_batch([image_HWC], [prompt])
        if score.error is not None:
            raise RewardError(score.error.removeprefix("RewardError: "))
        return score
