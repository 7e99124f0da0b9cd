"""CLIP rewards: the cosine of picture and prompt, scaled and kept within [0, 1].

`clip-score` rewards pictures that fit their prompt: CLIPScore (Hessel et al., 2021), without its prefix
"A photo depicts". `pick-score` rewards those that people prefer: PickScore (arXiv 2305.01569) is a CLIP
trained on choices.
"""

from __future__ import annotations

import numpy as np

from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.options import ClipScoreOptions, PickScoreOptions
from gpu_runtime.rewards.protocol import Score, Scorer
from storage.prompts.files import PromptRecord

WEIGHT = 2.5
"""Factor that maps usual cosines, 0 to 0.4, to a range of 0 to 1."""

BEST = 26.0
"""Divisor of PickScore, as in Flow-GRPO; good pictures score 21 to 24, and none above 26 is known."""


class ClipScorer(Scorer):
    """Scores 2.5 times the cosine; a prompt too long for CLIP is truncated."""

    name = "clip-score"

    def __init__(self, options: ClipScoreOptions) -> None:
        self._clip = Clip.load("reward.options.clip", options.clip)

    def move(self, device: str) -> None:
        """Judge on a device from now on."""
        self._clip.move(device)

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; it is never exact."""
        cosine = float(self._clip.of_pictures([image_HWC])[0] @ self._clip.of_texts([prompt.text])[0])
        value, detail = self._value(cosine)
        return Score(min(1.0, max(0.0, value)), False, detail)

    def _value(self, cosine: float) -> tuple[float, str]:
        return WEIGHT * cosine, f"cosine {cosine:.4f}"


class PickScorer(ClipScorer):
    """Scores the cosine, times the CLIP's scale, over `BEST`."""

    name = "pick-score"

    def __init__(self, options: PickScoreOptions) -> None:
        beside = options.processor, "reward.options.processor"
        self._clip = Clip.load("reward.options.model", options.model, *beside)

    def _value(self, cosine: float) -> tuple[float, str]:
        score = self._clip.logit_scale * cosine
        return score / BEST, f"score {score:.3f}"
