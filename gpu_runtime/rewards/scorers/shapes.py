"""The rewards for the tasks `shapes`, `edits` and `moving-shapes`: shapes found by contours and templates."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np

from gpu_runtime.embedded_tasks.shapes import BACKGROUND, CLASSES, COLOURS, coverage
from gpu_runtime.rewards.edit_rules import judge_edit
from gpu_runtime.rewards.geneval_rules import Detection, judge
from gpu_runtime.rewards.motion_rules import judge_motion
from gpu_runtime.rewards.protocol import Score, Scorer
from storage.prompts.files import PromptRecord

_ZOOM = 4
"""Factor by which the picture is enlarged so that an edge can lie between two pixels."""

_FOREGROUND = 60.0
"""Least distance from the background's colour (of at most 442) at which a pixel is part of an object."""

_LEAST_SIDE = 5.0
"""Least side of a blob, in pixels; smaller ones are specks. An object's side is 10."""

_LEAST_OVERLAP = 0.72
"""Intersection over union with the best template below which a blob is not an object."""

_TEMPLATE_SIDE = 40


def detect(image_HWC: np.ndarray) -> list[Detection]:
    """Find the shapes of a uint8 RGB image of shape (H, W, 3), the most certain first.

    A blob is an area that stands out from the background; it takes the class whose template covers it
    best and the colour nearest to its median.
    """
    height, width = image_HWC.shape[:2]
    size = (width * _ZOOM, height * _ZOOM)
    large_HWC = cv2.resize(image_HWC.astype(np.float32), size, interpolation=cv2.INTER_LINEAR)
    distance_HW = np.linalg.norm(large_HWC - np.array(BACKGROUND, dtype=np.float32), axis=-1)
    foreground = (distance_HW > _FOREGROUND).astype(np.uint8)
    contours, _ = cv2.findContours(foreground, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    found = [_classify(large_HWC, distance_HW, contour) for contour in contours]
    return sorted((item for item in found if item), key=lambda item: (-item.confidence, item.box))


def _classify(large_HWC: np.ndarray, distance_HW: np.ndarray, contour: np.ndarray) -> Detection | None:
    inside = np.zeros(distance_HW.shape, dtype=np.uint8)
    cv2.drawContours(inside, [contour], -1, 1, thickness=cv2.FILLED)
    # The blob's edge lies at half its own contrast, however bright its colour.
    contrast = float(np.quantile(distance_HW[inside > 0], 0.9))
    blob = (inside > 0) & (distance_HW > contrast / 2)
    left, top, wide, high = cv2.boundingRect(blob.astype(np.uint8))
    if min(wide, high) < _LEAST_SIDE * _ZOOM:
        return None
    crop = blob[top : top + high, left : left + wide].astype(np.float32)
    side = (_TEMPLATE_SIDE, _TEMPLATE_SIDE)
    shape = cv2.resize(crop, side, interpolation=cv2.INTER_LINEAR) > 0.5
    overlaps = {
        name: float((shape & template).sum() / (shape | template).sum())
        for name, template in _templates().items()
    }
    best = max(overlaps, key=lambda name: overlaps[name])
    if overlaps[best] < _LEAST_OVERLAP:
        return None
    # Only the inner pixels: those at the edge are mixed with the background.
    mean_3 = np.median(large_HWC[blob & (distance_HW > 0.8 * contrast)], axis=0)
    colour = min(COLOURS, key=lambda name: float(np.linalg.norm(mean_3 - np.array(COLOURS[name]))))
    box = (left / _ZOOM, top / _ZOOM, (left + wide) / _ZOOM, (top + high) / _ZOOM)
    return Detection(best, colour, box, overlaps[best])


@lru_cache(maxsize=1)
def _templates() -> dict[str, np.ndarray]:
    """Return each class's outline, scaled to fill its bounding box, bool of shape (side, side)."""
    side = (_TEMPLATE_SIDE, _TEMPLATE_SIDE)
    return {name: cv2.resize(coverage(name), side, interpolation=cv2.INTER_LINEAR) > 0.5 for name in CLASSES}


class ShapesScorer(Scorer):
    """A scorer of shapes by GenEval's rules."""

    name = "shapes"

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score one image against its GenEval row.

        Raises:
            PromptFileError: if the prompt has no GenEval row.
        """
        return judge(detect(image_HWC), prompt)


class EditsScorer(Scorer):
    """A scorer of edits, which compares the rest of an image with its source pixel by pixel."""

    name = "edits"

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score one image against its prompt's edit and source.

        Raises:
            PromptFileError: if the prompt has no edit, or its source cannot be read.
            RewardError: if the image's size differs from the source's.
        """
        return judge_edit(image_HWC, prompt, detect)


class MovingShapesScorer(Scorer):
    """A scorer of whole clips by the path that a shape takes."""

    name = "moving-shapes"
    takes_clips = True

    def score(self, image_HWC: np.ndarray, prompt: PromptRecord) -> Score:
        """Score a clip of shape (8, 24, 24, 3) against its prompt.

        Raises:
            PromptFileError: if the prompt belongs to another task.
            RewardError: if the clip has another size, or frames are missing.
        """
        return judge_motion(image_HWC, prompt, detect)
