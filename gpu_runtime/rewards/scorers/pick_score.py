"""Reward for pictures that people prefer: PickScore (arXiv 2305.01569), a CLIP trained on their choices."""

from __future__ import annotations

from typing import Self

import numpy as np

from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.protocol import Score
from storage.prompts.files import PromptRecord

BEST = 26.0
"""What the score is divided by, as Flow-GRPO does; good pictures are at 21 to 24, none is known above."""


class PickScorer:
    """The scaled cosine of picture and prompt over `BEST`, within [0, 1]."""

    name = "pick-score"

    def __init__(self, clip: Clip) -> None:
        self._clip = clip

    @classmethod
    def load(cls, name: str, processor: str) -> Self:
        """Load folders, or names of the hub's cache.

        Args:
            name: of the model.
            processor: of the CLIP that it was trained from, which has the tokenizer and the picture's size.

        Raises:
            ModelError: files are missing, or they are of no CLIP.
        """
        return cls(Clip.load("reward.options.model", name, processor, "reward.options.processor"))

    def move(self, device: str) -> None:
        """Judge on that device from now on."""
        self._clip.move(device)

    def check(self, prompt: PromptRecord) -> None:
        """Every prompt will do; what is too long for CLIP is cut off."""

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; none is ever exact."""
        cosine = float(self._clip.of_pictures([image_HWC])[0] @ self._clip.of_texts([prompt.text])[0])
        score = self._clip.logit_scale * cosine
        return Score(min(1.0, max(0.0, score / BEST)), False, f"score {score:.3f}")
