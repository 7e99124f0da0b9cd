"""The protocol of an embedded task: unlimited prompts, each with a correct picture."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from storage.prompts.files import PromptRecord


@dataclass(frozen=True)
class RenderedPicture:
    """A picture that a task's renderer could have drawn.

    Attributes:
        image_HWC: uint8 RGB, shape (H, W, 3); for a clip (F, H, W, 3).
        drawn_HW: bool, shape (H, W), for a clip (F, H, W): True where something is drawn.
    """

    image_HWC: np.ndarray
    drawn_HW: np.ndarray


class EmbeddedTask(Protocol):
    """A small world that the project can draw itself: training data for the embedded model.

    The methods that draw take all randomness from the generator passed in. Those that take a prompt raise a
    `ConfigurationError` or a `PromptFileError` if it is not one of this task.
    """

    name: str

    height: int
    """Canvas height in pixels, a multiple of 8."""

    width: int
    """Canvas width in pixels, a multiple of 8."""

    frames: int
    """Frames F of a clip; 0 if the task draws images."""

    text_length: int
    """Most tokens of a prompt, a multiple of 4."""

    def draw_prompt(self, rng: np.random.Generator, held_out: bool = False) -> PromptRecord:
        """Draw a prompt (its prompt_id is 0) from those for training, or from those held out."""
        ...

    def render(self, prompt: PromptRecord, rng: np.random.Generator) -> np.ndarray:
        """Draw a picture that matches a prompt of this task: uint8 RGB, (H, W, 3) or (F, H, W, 3)."""
        ...

    def nearest_picture(self, prompt: PromptRecord, image_HWC: np.ndarray) -> RenderedPicture:
        """Return the picture nearest to an image, by squared error, that `render` may draw for a prompt.

        Args:
            image_HWC: uint8 RGB, shape (H, W, 3) or (F, H, W, 3).
        """
        ...


def is_held_out(content: str, one_in: int) -> bool:
    """Return True if `content` is held out for evaluation: one in `one_in` is, by a hash of its spelling.

    A rule needs no list, and training and evaluation cannot overlap.
    """
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % one_in == 0
