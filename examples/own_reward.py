"""Your own reward: how colourful an image is.

A `Scorer` has `name` and `score`, and a `ScorerPlugin` builds it from settings. Run it:

    PYTHONPATH=examples spotlight train --preset glyphs --set reward.scorer=own_reward:COLOURFUL \
        --set reward.options.full_at=60 --set iterations=2

An installed package gives it a short name instead, in its pyproject.toml:

    [project.entry-points."spotlight.scorers"]
    colourful = "own_reward:COLOURFUL"
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from gpu_runtime.rewards.protocol import Score, Scorer
from gpu_runtime.rewards.registry import ScorerPlugin
from storage.config.section import Section
from storage.prompts.files import PromptRecord


class Options(Section):
    """Options in `[reward.options]`; a wrong value is refused before anything starts."""

    full_at: float = Field(default=80.0, gt=0, le=255)
    """Colourfulness that scores 1."""


class Colourfulness(Scorer):
    """Standard deviation of the differences between colour channels, after Hasler and Suesstrunk (2003)."""

    name = "colourful"

    def __init__(self, options: Options) -> None:
        self._full_at = options.full_at

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3); the prompt makes no difference."""
        red_HW, green_HW, blue_HW = np.moveaxis(image_HWC.astype(np.float64), -1, 0)
        red_green = red_HW - green_HW
        yellow_blue = (red_HW + green_HW) / 2 - blue_HW
        colourfulness = float(np.hypot(red_green.std(), yellow_blue.std()))
        return Score(min(1.0, colourfulness / self._full_at), exact=False, detail=f"{colourfulness:.1f}")


COLOURFUL = ScorerPlugin(Colourfulness, Options, gives_verdict=False)
