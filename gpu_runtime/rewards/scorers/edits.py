"""The reward for the task `edits`: shapes found by contours, the rest compared with the source by pixel."""

from __future__ import annotations

import numpy as np

from gpu_runtime.embedded_tasks.edits import edit_of
from gpu_runtime.rewards.edit_rules import judge_edit
from gpu_runtime.rewards.protocol import Score
from gpu_runtime.rewards.scorers.shapes import detect
from storage.prompts.files import PromptRecord


class EditsScorer:
    """A `gpu_runtime.rewards.protocol.Scorer` of edits."""

    name = "edits"

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt without an edit that the task's renderer draws.

        Raises:
            PromptFileError: see `edit_of`.
        """
        edit_of(prompt)

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score one image against its prompt's edit and source.

        Raises:
            PromptFileError: if the prompt has no edit, or its source cannot be read.
            RewardError: if the image's size differs from the source's.
        """
        return judge_edit(image_HWC, prompt, detect)
