"""Reward for pictures that people find beautiful: LAION's aesthetic predictor, a head on CLIP's vectors."""

from __future__ import annotations

from typing import Self

import numpy as np
import torch

from gpu_runtime.rewards.judge_models.clip import Clip
from gpu_runtime.rewards.judge_models.weight_files import linear_head, read_weights
from gpu_runtime.rewards.protocol import Score
from storage.prompts.files import PromptRecord

BEST = 10.0
"""What the score is divided by: people's votes, from which it was learned, go from 1 to 10."""

_HEAD = "reward.options.head"


class AestheticScorer:
    """The predicted vote over `BEST`, within [0, 1]; the prompt makes no difference.

    Args:
        clip: whose vectors the head was trained on.
        head: five linear layers.
    """

    name = "aesthetic"

    def __init__(self, clip: Clip, head: torch.nn.Sequential) -> None:
        self._clip = clip
        self._head = head

    @classmethod
    def load(cls, clip: str, head: str) -> Self:
        """Load a CLIP by its folder or name in the hub's cache, and the head's file.

        Raises:
            ModelError: files are missing, or they are of other models.
        """
        weights = read_weights(_HEAD, head)
        judge = Clip.load("reward.options.clip", clip)
        return cls(judge, linear_head(weights, _HEAD, judge.width))

    def move(self, device: str) -> None:
        """Judge on that device from now on; the head is small, and stays."""
        self._clip.move(device)

    def check(self, prompt: PromptRecord) -> None:
        """Every prompt will do."""

    @torch.inference_mode()
    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3); none is ever exact."""
        vote = float(self._head(self._clip.of_pictures([image_HWC]))[0, 0])
        return Score(min(1.0, max(0.0, vote / BEST)), False, f"vote {vote:.3f}")
