"""The process that judges images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpu_runtime.rewards.guard import judges_frames, score_each
from gpu_runtime.rewards.registry import build_scorer
from gpu_runtime.scheduling.scores import Score
from gpu_runtime.worker.history import HistoryLog, HistoryPlace
from storage.config.run_config import RewardConfig
from storage.errors import ModelError
from storage.prompts.files import PromptRecord


class ScoringWorker:
    """The holder of the scorer, and of the judge of held-out images if there is one.

    Args:
        on_gpu: True if it has a GPU to judge on.
        judge: settings of the second judge, in the form of a reward's; None for none.

    Raises:
        ModelError: if weights are missing, or the GPU is not visible.
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
            if on_gpu and (move := getattr(scorer, "move", None)):
                import torch  # only here: scorers without a model start faster

                if not torch.cuda.is_available():
                    raise ModelError(
                        "runtime.scorer_gpu is above 0, but torch sees no GPU in the scorer's process; check "
                        "the driver and torch's build there, or set it to 0"
                    )
                move("cuda")

    def ready(self) -> bool:
        """Return, once loaded, True if the frames of a clip are judged one by one (`judges_frames`)."""
        return any(judges_frames(scorer) for scorer in (self._scorer, self._judge) if scorer is not None)

    def score(
        self, images: Sequence[np.ndarray], prompts: Sequence[PromptRecord], held_out: bool = False
    ) -> list[Score]:
        """Return one score per image; a failure is a score of 0 with its error.

        Args:
            images: uint8 RGB images of shape (H, W, 3), or clips of shape (F, H, W, 3).
            held_out: True to let the second judge score them as well.
        """
        scores = score_each(self._scorer, images, prompts)
        if not held_out or self._judge is None:
            return scores
        judged = score_each(self._judge, images, prompts)
        return [
            replace(score, judge=second, usd=score.usd + second.usd)
            for score, second in zip(scores, judged, strict=True)
        ]
