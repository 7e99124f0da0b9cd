"""Judges a clip of the task `moving-shapes`: are the shape and its path as requested?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np

from gpu_runtime.embedded_tasks.moving_shapes import FRAMES, SIDE, motion_of
from gpu_runtime.rewards.geneval_rules import Detection
from gpu_runtime.scheduling.scores import Score
from storage.errors import RewardError
from storage.prompts.files import PromptRecord

TOLERANCE = 1.0
"""Most pixels, across and down, by which a frame's shape may be off the path. At the other speed it is off by
up to 3.5 pixels."""

_FAR = 4.0
"""Pixels off the path at which a frame's place scores 0."""


def judge_motion(
    clip_FHWC: np.ndarray, prompt: PromptRecord, find: Callable[[np.ndarray], Sequence[Detection]]
) -> Score:
    """Score a clip against its prompt.

    The path is a straight line at the requested speed, through the mean of the shapes' centres. Half of the
    value is 1 if the clip is exact: each frame has only the requested shape, within `TOLERANCE` of the path.
    The other half is the mean over frames of four components of the most certain shape: it is the only one,
    its class, its colour, and its place, 1 less a quarter for each pixel off the path. A frame without a
    shape scores 0.

    Args:
        clip_FHWC: uint8 RGB clip with all frames, shape (8, 24, 24, 3).
        find: function that finds the shapes of a uint8 RGB image (H, W, 3), the most certain first.

    Raises:
        PromptFileError: the prompt is not one of the task.
        RewardError: the clip has another size, or frames are missing.
    """
    motion = motion_of(prompt)
    if clip_FHWC.shape != (FRAMES, SIDE, SIDE, 3):
        raise RewardError(
            f"a picture of shape {clip_FHWC.shape}; the path of a shape is judged on all {FRAMES} frames of "
            f"{SIDE} x {SIDE} pixels, with reward.frames=all"
        )
    found = [find(frame_HWC) for frame_HWC in clip_FHWC]
    steps_F2 = np.arange(FRAMES)[:, None] * np.array([motion.right, motion.down])
    starts = {frame: _centre(shapes[0]) - steps_F2[frame] for frame, shapes in enumerate(found) if shapes}
    start_2 = np.mean(list(starts.values()), axis=0) if starts else np.zeros(2)
    values, exact = [0.0] * FRAMES, len(starts) == FRAMES
    for frame, its_start_2 in starts.items():
        best, off = found[frame][0], float(np.abs(its_start_2 - start_2).max())
        looks = (
            len(found[frame]) == 1, best.class_name == motion.class_name, best.colour == motion.colour
        )  # fmt: skip
        values[frame] = (sum(looks) + max(0.0, 1 - off / _FAR)) / 4
        exact = exact and all(looks) and off <= TOLERANCE
    detail = "nothing"
    if starts:  # the kinds of shape seen, and the first and last place of the most certain one
        kinds = dict.fromkeys(f"{one.colour} {one.class_name}" for shapes in found for one in shapes)
        ends = (_centre(found[frame][0]) for frame in (min(starts), max(starts)))
        detail = f"{', '.join(kinds)}; {' to '.join(f'({x:.0f}, {y:.0f})' for x, y in ends)}"
    return Score((fmean(values) + exact) / 2, exact, detail)


def _centre(found: Detection) -> np.ndarray:
    left, top, right, bottom = found.box
    return np.array([(left + right) / 2, (top + bottom) / 2])
