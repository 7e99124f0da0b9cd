"""The process that judges images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_runtime.rewards.guard import score_each
from gpu_runtime.rewards.protocol import Score, SupportsTo
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.worker.history_log import HistoryLog, HistoryPlace
from gpu_runtime.worker.protocol import ImageScorer
from storage.config.run_config import RewardConfig
from storage.errors import ModelError
from storage.prompts.files import PromptRecord


class ScoringWorker:
    """Holds the scorer, and the judge of held-out images where there is one.

    Args:
        reward: says which scorer, and what it needs.
        name: how the runtime calls it.
        history: where its history goes; None keeps none.
        on_gpu: whether it was given one, to judge on.
        judge: the second judge, as a reward would name it; None for none.

    Raises:
        ModelError: weights are missing, or the GPU cannot be seen.
    """

    def __init__(
        self,
        reward: RewardConfig,
        name: str = "scorer",
        history: HistoryPlace | None = None,
        on_gpu: bool = False,
        judge: RewardConfig | None = None,
    ) -> None:
        self._history = HistoryLog.beside(history, name)
        self._scorer = build_scorer(reward)
        self._judge = None if judge is None else build_scorer(judge)
        for scorer in (self._scorer, self._judge):
            if on_gpu and isinstance(scorer, SupportsTo):
                _refuse_hidden_gpu()
                scorer.move("cuda")

    def ready(self) -> str:
        """The scorer's name, once it is loaded."""
        return self._scorer.name

    def score(
        self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord], held_out: bool = False
    ) -> list[Score]:
        """One score an image; a failure is a score of 0 with its error.

        Args:
            images: uint8 RGB images of shape (H, W, 3).
            prompts: as many prompts, in the same order.
            held_out: let the second judge look at them, too.
        """
        scores = score_each(self._scorer, images, prompts)
        if not held_out or self._judge is None:
            return scores
        judged = score_each(self._judge, images, prompts)
        return [
            replace(score, judge=second, usd=score.usd + second.usd)
            for score, second in zip(scores, judged, strict=True)
        ]


_: type[ImageScorer] = ScoringWorker  # the type checker holds it to what the driver may ask


def _refuse_hidden_gpu() -> None:
    import torch  # here alone: scorers without a model start quicker for it

    if not torch.cuda.is_available():
        raise ModelError(
            "runtime.scorer_gpu is above 0, but torch sees no GPU in the scorer's process; check the driver "
            "and torch's build there, or set it to 0"
        )
