"""Judges an edit of shapes from detected objects: was the requested change made, and did the rest stay?

`exact` is True only if both hold: the shape has the requested look and place, and every pixel outside the
edited regions equals the source's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpu_runtime.embedded_tasks.edits import Edit, edit_of
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.scheduling.scores import Score
from storage.errors import RewardError
from storage.prompts.files import PromptRecord
from storage.prompts.sources import read_source

TOLERANCE = 2.0
"""Most pixels, across and down, by which the shape's centre may miss its place."""

_REACH = 2
"""Pixels around the edit's boxes that may change too: a shape may be that far off. A source's shapes are at
least four pixels apart."""

_MOST_CHANGED = 16
"""Changed pixels outside the edit at which their component reaches 0: few enough that each one counts."""

FindObjects = Callable[[np.ndarray], Sequence[Detection]]
"""Function that finds the shapes of a uint8 RGB image of shape (H, W, 3)."""


def judge_edit(image_HWC: np.ndarray, prompt: PromptRecord, find: FindObjects) -> Score:
    """Score an image against its prompt's edit and source.

    Half of the value is 1 if the edit is exact, so that gaining one component at the cost of another does
    not pay. The other half is the mean over components, each in [0, 1]: a shape of the class is where it
    should be; it has the requested colour; if the shape moves, its old place is empty; and the rest of the
    image, 1 less a sixteenth for each pixel that differs from the source's, at least 0.

    Args:
        image_HWC: uint8 RGB image of the source's size.

    Raises:
        PromptFileError: if the prompt has no edit, or its source cannot be read.
        RewardError: if the image's size differs from the source's.
    """
    edit, source_HWC = edit_of(prompt), read_source(prompt.source)
    if image_HWC.shape != source_HWC.shape:
        raise RewardError(
            f"the image has {image_HWC.shape[1]} x {image_HWC.shape[0]} pixels, but its source "
            f"{source_HWC.shape[1]} x {source_HWC.shape[0]}; an edit keeps the size"
        )
    found = find(image_HWC)
    there = [one for one in found if _stands_at(one, edit.after.box)]
    components = [
        any(one.class_name == edit.class_name for one in there),
        any((one.class_name, one.colour) == (edit.class_name, edit.after.colour) for one in there),
    ]
    if edit.moves:
        components.append(not any(_stands_at(one, edit.before.box) for one in found))
    outside_HW = ~edited_region(edit, image_HWC.shape[:2])
    changed = int(((image_HWC != source_HWC).any(axis=-1) & outside_HW).sum())
    graded = (sum(components) + max(0.0, 1 - changed / _MOST_CHANGED)) / (len(components) + 1)
    exact = all(components) and changed == 0
    detail = ", ".join(f"{one.colour} {one.class_name}" for one in found) or "nothing"
    return Score((graded + exact) / 2, exact, f"{detail}; {changed} other pixels changed")


def edited_region(edit: Edit, shape: tuple[int, int]) -> np.ndarray:
    """Return a mask of the pixels that an edit may change: bool, shape (H, W)."""
    region_HW = np.zeros(shape, dtype=bool)
    for left, top, right, bottom in (edit.before.box, edit.after.box):
        region_HW[max(0, top - _REACH) : bottom + _REACH, max(0, left - _REACH) : right + _REACH] = True
    return region_HW


def _stands_at(found: Detection, box: Sequence[float]) -> bool:
    offsets = (found.box[axis] + found.box[axis + 2] - box[axis] - box[axis + 2] for axis in (0, 1))
    return all(abs(offset) / 2 <= TOLERANCE for offset in offsets)
