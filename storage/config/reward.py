"""The settings of the reward: which scorer judges the images."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from storage.config.section import OptionValues, Section


class RewardConfig(Section):
    """What judges the images."""

    scorer: str = Field(default="ocr", min_length=1)
    """`ocr` and `deepseek-ocr` read the quoted text; `shapes` and `geneval` check GenEval rows, on the shapes
    task and on photographs; `edits` whether one shape changed as asked and the rest stayed; `templates`
    compares with what the embedded tasks' renderers draw; `clip-score` and `pick-score` say how well an image
    fits its prompt; `jpeg` how small its file is; `remote` asks a server, `vlm` a vision language model;
    `sum` weighs several; or a plug-in: its entry point's name, or `package.module:Name`
    (docs/reference/rewards.md)."""

    signal: Literal["graded", "exact"] = "graded"
    """What is learned from: the graded score, or 1 for an exact match and 0 otherwise."""

    options: OptionValues = Field(default={})
    """What the scorer itself declares (docs/reference/rewards.md)."""
