"""The task `glyphs`: a coloured sign with three characters, read by a real OCR engine."""

from __future__ import annotations

import re
import string
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from gpu_runtime.embedded_tasks.protocol import RenderedPicture, is_held_out
from storage.errors import ConfigurationError
from storage.prompts.files import PromptRecord

CHARACTERS = string.ascii_uppercase + string.digits
LENGTH = 3
COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (150, 30, 30),
    "green": (20, 110, 40),
    "blue": (30, 50, 150),
    "purple": (110, 30, 130),
    "brown": (110, 70, 20),
    "teal": (15, 100, 110),
}
"""Background colours, dark enough that the text's offset is not clipped."""

_PATTERN = re.compile(rf'a (\w+) sign that says "([A-Z0-9]{{{LENGTH}}})"')
_HELD_OUT_ONE_IN = 16
_FONT_SIZE = 20
_JITTER = (1, 1)
"""Largest displacement in pixels, across and down."""

_TEXT_OFFSET = 100
"""Offset that text adds to every channel of the background. Since it is the same for all colours, a patch is
a colour plus a grey pattern, and few components represent all patches."""


class GlyphsTask:
    """Implements `gpu_runtime.embedded_tasks.protocol.EmbeddedTask`."""

    name = "glyphs"
    height = 32
    width = 48
    frames = 0
    text_length = 8

    def draw_prompt(self, rng: np.random.Generator, held_out: bool = False) -> PromptRecord:
        """Draw a colour and a text; a sixteenth of all texts is held out, in every colour."""
        colour = list(COLOURS)[rng.integers(len(COLOURS))]
        while True:
            text = "".join(CHARACTERS[index] for index in rng.integers(len(CHARACTERS), size=LENGTH))
            if is_held_out(text, _HELD_OUT_ONE_IN) == held_out:
                return PromptRecord(0, f'a {colour} sign that says "{text}"')

    def render(self, prompt: PromptRecord, rng: np.random.Generator) -> np.ndarray:
        """Draw the sign, displaced by up to a pixel; uint8 RGB, shape (32, 48, 3)."""
        colour, text = _colour_and_text(prompt)
        right, down = (int(rng.integers(-limit, limit + 1)) for limit in _JITTER)
        return _drawn(colour, text, down, right).image_HWC

    def nearest_picture(self, prompt: PromptRecord, image_HWC: np.ndarray) -> RenderedPicture:
        """Return the sign with the displacement nearest to an image; see `EmbeddedTask`."""
        colour, text = _colour_and_text(prompt)
        pictures = _every_displacement(colour, text)
        errors = [(image_HWC.astype(np.int32) - picture.image_HWC).ravel() for picture in pictures]
        return pictures[int(np.argmin([error @ error for error in errors]))]


def _colour_and_text(prompt: PromptRecord) -> tuple[str, str]:
    match = _PATTERN.fullmatch(prompt.text)
    if match is None or match.group(1) not in COLOURS:
        raise ConfigurationError(
            f"{prompt.text!r} is not a prompt of the glyphs task; write it as in: a red sign that says "
            f'"K7A", with one of {", ".join(COLOURS)}'
        )
    return match.group(1), match.group(2)


@lru_cache(maxsize=256)
def _every_displacement(colour: str, text: str) -> list[RenderedPicture]:
    across, along = (range(-limit, limit + 1) for limit in _JITTER)
    return [_drawn(colour, text, down, right) for down in along for right in across]


def _drawn(colour: str, text: str, down: int, right: int) -> RenderedPicture:
    coverage_HW = np.roll(coverage(text), (down, right), axis=(0, 1))
    image_HWC = np.array(COLOURS[colour], dtype=np.float32) + _TEXT_OFFSET * coverage_HW[..., None]
    return RenderedPicture(image_HWC.round().clip(0, 255).astype(np.uint8), coverage_HW > 0)


@lru_cache(maxsize=65536)
def coverage(text: str) -> np.ndarray:
    """Return how much of each pixel the text covers: float32 in [0, 1], shape (H, W).

    Every character is centred in a separate cell, so its position depends only on its index, not on the
    width of its neighbours, which a small model takes long to learn.
    """
    canvas = Image.new("L", (GlyphsTask.width, GlyphsTask.height), 0)
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(_FONT_SIZE)
    cell = GlyphsTask.width / LENGTH
    for place, character in enumerate(text):
        centre = (cell * (place + 0.5), GlyphsTask.height / 2)
        draw.text(centre, character, font=font, fill=255, anchor="mm")
    return np.asarray(canvas, dtype=np.float32) / 255
