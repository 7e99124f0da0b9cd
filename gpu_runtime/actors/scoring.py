"""The process that judges images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpu_runtime.history_log import HistoryLog
from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.rewards.registry import build_scorer
from storage.prompts import PromptRecord
from storage.reward_config import RewardConfig


class ScoringWorker:
    """Holds one scorer.

    Args:
        reward: says which one, and what it needs.
        name: how the runtime calls it.
        history: folder for its history; None keeps none.
    """

    def __init__(self, reward: RewardConfig, name: str = "scorer", history: str | None = None) -> None:
        self._history = HistoryLog(history, name)
        self._scorer = build_scorer(reward.scorer, reward)

    def ready(self) -> str:
        """The scorer's name, once it is loaded."""
        return self._scorer.name

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord]) -> list[Score]:
        """One score an image; a failure is a score of 0 with its error."""
        return score_each(self._scorer, images, prompts)
