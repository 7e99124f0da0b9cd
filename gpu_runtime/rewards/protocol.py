"""What a scorer is: one image and its prompt in, one score out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from storage.prompts import PromptRecord


@dataclass(frozen=True)
class Score:
    """The judgement of one image.

    Attributes:
        value: the reward, in [0, 1].
        exact: whether the image does all that its prompt asks; the measure that is reported.
        detail: what was read or detected, for people.
        error: why there is no judgement; None when there is one.
    """

    value: float
    exact: bool
    detail: str
    error: str | None = None


class Scorer(Protocol):
    """Judges one image at a time, so that a score never depends on the image's neighbours."""

    name: str

    def check(self, prompt: PromptRecord) -> None:
        """Refuse a prompt that no image could be judged by; cheap, as it is asked of every prompt of a run.

        Raises:
            PromptFileError, ConfigurationError: the value, what it may be and what to do.
        """
        ...

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Judge a uint8 RGB image of shape (H, W, 3) against its prompt; may raise anything."""
        ...
