"""The reward for the task `moving-shapes`: shapes found by contours in each frame, and the path they take."""

from __future__ import annotations

import numpy as np

from gpu_runtime.embedded_tasks.moving_shapes import motion_of
from gpu_runtime.rewards.motion_rules import judge_motion
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.rewards.scorers.shapes import detect
from storage.prompts.files import PromptRecord


class MovingShapesScorer:
    """A `gpu_runtime.rewards.protocol.Scorer` of whole clips."""

    name = "moving-shapes"
    takes_clips = True

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt of another task.

        Raises:
            PromptFileError: see `motion_of`.
        """
        motion_of(prompt)

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score a clip of shape (8, 24, 24, 3) against its prompt.

        Raises:
            PromptFileError: if the prompt is one of another task.
            RewardError: if the clip has another size, or frames are missing.
        """
        return judge_motion(image_HWC, prompt, detect)
