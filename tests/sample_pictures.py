"""Small pictures of words for the sample run, with noise over them."""

from __future__ import annotations

import io
import random

from PIL import Image, ImageDraw, ImageFont


def png(text: str, place: int, noise: int) -> bytes:
    """A PNG of 48 by 24 pixels; `place` is its seed, `noise` of 255 pixels are speckles."""
    dice = random.Random(place)
    image = Image.new("RGB", (48, 24), "white")
    colour = dice.choice(["#b3261e", "#1b5e20", "#0d47a1", "#4a148c", "#bf360c"])
    ImageDraw.Draw(image).text((5, 3), text, fill=colour, font=ImageFont.load_default(14))
    for x in range(48):
        for y in range(24):
            if dice.random() < noise / 255:
                image.putpixel((x, y), tuple(dice.randint(120, 255) for _ in range(3)))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()
