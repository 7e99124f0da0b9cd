"""The reward for pictures that fit their prompt: CLIPScore (Hessel et al., 2021), by transformers' CLIP."""

from __future__ import annotations

from typing import Self

import numpy as np

from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.protocol import Score
from storage.prompts.files import PromptRecord

WEIGHT = 2.5
"""Factor that maps the cosines that occur, 0 to 0.4, to a range of 0 to 1."""


class ClipScorer:
    """A scorer by 2.5 times the cosine of picture and prompt, within [0, 1]."""

    name = "clip-score"

    def __init__(self, clip: Clip) -> None:
        self._clip = clip

    @classmethod
    def load(cls, name: str) -> Self:
        """Load a model from a folder, or by its name in the hub's cache.

        Raises:
            ModelError: if files are missing, or are not those of a CLIP.
        """
        return cls(Clip.load("reward.options.clip", name))

    def move(self, device: str) -> None:
        """Judge on a device from now on."""
        self._clip.move(device)

    def check(self, prompt: PromptRecord) -> None:
        """Accept every prompt; one too long for CLIP is cut off."""

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; it is never exact."""
        cosine = float(self._clip.of_pictures([image_HWC])[0] @ self._clip.of_texts([prompt.text])[0])
        return Score(min(1.0, max(0.0, WEIGHT * cosine)), False, f"cosine {cosine:.4f}")
