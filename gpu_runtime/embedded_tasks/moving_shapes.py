"""The task `moving-shapes`: a clip of one coloured shape that moves in a straight line at one speed.

A prompt reads like `a red circle moves up left slowly`: a colour and a class of the task `shapes`, one of
eight directions and one of two speeds. The path goes through the middle of the picture, displaced by up to a
pixel if the shape then stays inside all the way.

Shape suffixes: F frames, H W pixels, Y X places of a shape's upper left corner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpu_runtime.embedded_tasks.protocol import RenderedPicture, is_held_out
from gpu_runtime.embedded_tasks.shapes import BACKGROUND, CLASSES, COLOURS, SIZE, coverage, patch
from storage.errors import PromptFileError
from storage.prompts.files import PromptRecord

FRAMES = 8
SIDE = 24
"""Side of a frame, in pixels."""

DIRECTIONS = {
    "left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0),
    "up left": (-1, -1), "up right": (-1, 1), "down left": (1, -1), "down right": (1, 1),
}  # fmt: skip
"""Pixels down and right for each pixel of speed."""

SPEEDS = {"slowly": 1, "quickly": 2}
"""Pixels per frame along each axis of the direction; the higher one takes a shape across the picture."""

_ROOM = SIDE - SIZE
"""Largest offset of a shape's corner."""

_JITTER = 1
"""Largest displacement of a path along an axis, in pixels."""

_HELD_OUT_ONE_IN = 4
_PATTERN = re.compile(
    "a ({}) ({}) moves ({}) ({})".format(*map("|".join, (COLOURS, CLASSES, DIRECTIONS, SPEEDS)))
)


@dataclass(frozen=True)
class Motion:
    """The colour, class and motion that a prompt asks for.

    Attributes:
        down, right: pixels that it moves per frame.
    """

    colour: str
    class_name: str
    down: int
    right: int


class MovingShapesTask:
    """Implements `gpu_runtime.embedded_tasks.protocol.EmbeddedTask`."""

    name = "moving-shapes"
    height = SIDE
    width = SIDE
    frames = FRAMES
    text_length = 8

    def draw_prompt(self, rng: np.random.Generator, held_out: bool = False) -> PromptRecord:
        """Draw a colour, a class, a direction and a speed; a fourth of all 448 prompts is held out."""
        while True:
            colour, name, direction, speed = (
                list(values)[rng.integers(len(values))] for values in (COLOURS, CLASSES, DIRECTIONS, SPEEDS)
            )
            text = f"a {colour} {name} moves {direction} {speed}"
            if is_held_out(text, _HELD_OUT_ONE_IN) == held_out:
                return PromptRecord(0, text)

    def render(self, prompt: PromptRecord, rng: np.random.Generator) -> np.ndarray:
        """Draw a clip from a random start: uint8 RGB, shape (8, 24, 24, 3)."""
        motion = motion_of(prompt)
        top, left = (int(rng.choice(_starts(step))) for step in (motion.down, motion.right))
        return _drawn(motion, top, left).image_HWC

    def nearest_picture(self, prompt: PromptRecord, image_HWC: np.ndarray) -> RenderedPicture:
        """Return the clip with the start nearest to a clip (8, 24, 24, 3); see `EmbeddedTask`."""
        motion = motion_of(prompt)
        shape = patch(motion.class_name, motion.colour).round()
        boxes_FYXHWC = np.lib.stride_tricks.sliding_window_view(
            image_HWC.astype(np.float64), (SIZE, SIZE), axis=(1, 2)
        ).transpose(0, 1, 2, 4, 5, 3)
        # |box - shape|^2 - |box - background|^2, up to a constant.
        cost_FYX = -2 * np.tensordot(boxes_FYXHWC, shape - np.array(BACKGROUND), axes=3)
        starts = [(top, left) for top in _starts(motion.down) for left in _starts(motion.right)]
        costs = [
            sum(cost_FYX[f, top + f * motion.down, left + f * motion.right] for f in range(FRAMES))
            for top, left in starts
        ]
        return _drawn(motion, *starts[int(np.argmin(costs))])


def asks_for_motion(prompt: PromptRecord) -> bool:
    """Return True for a prompt of this task."""
    return _PATTERN.fullmatch(prompt.text) is not None


def motion_of(prompt: PromptRecord) -> Motion:
    """Return the motion that a prompt asks for.

    Raises:
        PromptFileError: it is not one of this task.
    """
    match = _PATTERN.fullmatch(prompt.text)
    if match is None:
        raise PromptFileError(
            f"{prompt.text!r} is not a prompt of the task moving-shapes; write it as in: a red circle moves "
            f"up left slowly, with one of {', '.join(COLOURS)}; {', '.join(CLASSES)}; "
            f"{', '.join(DIRECTIONS)}; {', '.join(SPEEDS)}"
        )
    colour, name, direction, speed = match.groups()
    down, right = (SPEEDS[speed] * part for part in DIRECTIONS[direction])
    return Motion(colour, name, down, right)


def _starts(step: int) -> range:
    """Return the starting offsets along an axis for a shape that moves `step` pixels per frame."""
    distance = step * (FRAMES - 1)
    middle = (_ROOM - distance) // 2
    return range(max(middle - _JITTER, -distance, 0), min(middle + _JITTER, _ROOM - distance, _ROOM) + 1)


def _drawn(motion: Motion, top: int, left: int) -> RenderedPicture:
    """Return the clip of a motion whose shape starts with its corner at (top, left)."""
    clip_FHWC = np.full((FRAMES, SIDE, SIDE, 3), BACKGROUND, np.float32)
    drawn_FHW = np.zeros(clip_FHWC.shape[:3], dtype=bool)
    for frame in range(FRAMES):
        y, x = top + frame * motion.down, left + frame * motion.right
        box = np.s_[frame, y : y + SIZE, x : x + SIZE]
        clip_FHWC[box] = patch(motion.class_name, motion.colour)
        drawn_FHW[box] = coverage(motion.class_name) > 0
    return RenderedPicture(clip_FHWC.round().astype(np.uint8), drawn_FHW)
