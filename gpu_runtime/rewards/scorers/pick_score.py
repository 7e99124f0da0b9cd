"""The reward for pictures that people prefer: PickScore (arXiv 2305.01569), a CLIP trained on choices."""

from __future__ import annotations

from typing import Self

import numpy as np

from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.protocol import Score
from storage.prompts.files import PromptRecord

BEST = 26.0
"""Divisor of the score, as in Flow-GRPO; good pictures score 21 to 24, and none above 26 is known."""


class PickScorer:
    """A scorer by the scaled cosine of picture and prompt over `BEST`, within [0, 1]."""

    name = "pick-score"

    def __init__(self, clip: Clip) -> None:
        self._clip = clip

    @classmethod
    def load(cls, name: str, processor: str) -> Self:
        """Load models from folders, or by their names in the hub's cache.

        Args:
            name: name of the model.
            processor: name of the CLIP that it was trained from, with the tokenizer and the picture size.

        Raises:
            ModelError: if files are missing, or are not those of a CLIP.
        """
        return cls(Clip.load("reward.options.model", name, processor, "reward.options.processor"))

    def move(self, device: str) -> None:
        """Judge on a device from now on."""
        self._clip.move(device)

    def check(self, prompt: PromptRecord) -> None:
        """Accept every prompt; one too long for CLIP is cut off."""

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; it is never exact."""
        cosine = float(self._clip.of_pictures([image_HWC])[0] @ self._clip.of_texts([prompt.text])[0])
        score = self._clip.logit_scale * cosine
        return Score(min(1.0, max(0.0, score / BEST)), False, f"score {score:.3f}")
