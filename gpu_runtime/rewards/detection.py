"""What GenEval's judgement needs of a detector and of a colour classifier, whoever they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Detection:
    """One object of a picture.

    Attributes:
        class_name: what it is.
        colour: its colour; empty where nobody has looked.
        box: left, top, right, bottom in pixels.
        confidence: of the detector, in [0, 1].
        mask_HW: which of the picture's pixels it covers, bool; None where only the box is known.
    """

    class_name: str
    colour: str
    box: tuple[float, float, float, float]
    confidence: float
    mask_HW: np.ndarray | None = field(default=None, compare=False, repr=False)


class ObjectDetector(Protocol):
    """Finds objects."""

    class_names: frozenset[str]
    """What it can find."""

    def detect(self, image_HWC: np.ndarray, least_confidence: float) -> list[Detection]:
        """All objects of a uint8 RGB picture of shape (H, W, 3) above a confidence, without colours."""
        ...


class ColourClassifier(Protocol):
    """Tells the colours of objects apart."""

    def colours_of(self, image_HWC: np.ndarray, found: Sequence[Detection]) -> list[str]:
        """One of `COLOURS` for each object found in a uint8 RGB picture of shape (H, W, 3)."""
        ...
