"""Images and clips: the frames to judge, and files (PNG of an image, animated WebP of a clip).

A clip is a uint8 array of shape (F, H, W, 3); an image lacks the first axis and is a single frame.
Pillow is imported inside functions: most importers of this module make no pictures.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from storage.config.run_config import ALL_FRAMES, THREE_FRAMES

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

CLIP_BYTES = 200_000
"""Largest clip in a record."""

FRAME_MS = 42
"""Time that a frame is shown, in milliseconds: 24 frames a second, as in Wan 2.2's clips."""

_MOST_REPEATS = 1024
"""Most frames that one picture in a file represents."""

_SIDES_AND_QUALITIES = ((256, 75), (256, 50), (192, 50), (128, 50), (96, 30), (64, 30))
"""Sizes of a clip's longer side in pixels and WebP's qualities, tried in order."""

_RAW_A_BYTE = 4
"""Bytes of pixels per byte of a lossless file; a smaller ratio hardly ever makes a file small enough."""


_ANIMATED = ("WEBP", "GIF", "PNG")
"""Formats whose further pictures are frames; those of other formats are pages or thumbnails."""


def is_clip(image: np.ndarray) -> bool:
    """Return True for a clip (F, H, W, 3), False for an image (H, W, 3)."""
    return image.ndim == 4


def frames_of(image: np.ndarray) -> np.ndarray:
    """Return the frames of a clip, or an image as its only frame: (F, H, W, 3)."""
    return image if is_clip(image) else image[None]


def chosen_frames(image: np.ndarray, frames: int | str) -> np.ndarray:
    """Return a clip's frames to judge (`reward.frames`); an image is returned unchanged."""
    if not is_clip(image) or frames == ALL_FRAMES:
        return image
    return image[frame_places(len(image), 3 if frames == THREE_FRAMES else int(frames))]


def frame_places(count: int, wanted: int) -> list[int]:
    """Return the indices of at most `wanted` evenly spaced frames, ends included; for one, the middle."""
    if wanted == 1:
        return [count // 2]
    return sorted({round(place * (count - 1) / (wanted - 1)) for place in range(wanted)})


def picture_file(image: np.ndarray, side: int | None = None) -> bytes:
    """Return an image as a PNG file, or a clip as an animated WebP file of at most `CLIP_BYTES`.

    A clip that is too large loses size and quality, then every second frame.

    Args:
        image: uint8 RGB, shape (H, W, 3); for a clip (F, H, W, 3).
        side: most pixels on an image's longer side; None for no limit. A clip has at most 256.
    """
    from PIL import Image

    if not is_clip(image):
        picture = Image.fromarray(image)
        if side is not None:
            picture.thumbnail((side, side))
        file = io.BytesIO()
        picture.save(file, format="PNG")
        return file.getvalue()
    content = b""
    for frames, frame_ms, quality in _attempts([Image.fromarray(frame) for frame in image]):
        content = animated(frames, frame_ms, quality)
        if len(content) <= CLIP_BYTES:
            break
    return content


def _attempts(frames: list[Image]) -> Iterator[tuple[list[Image], int, int | None]]:
    """Yield frames of a clip, the time of each, and a quality (None: without loss), the best first."""
    width, height = frames[0].size
    largest, _ = _SIDES_AND_QUALITIES[0]
    if max(width, height) <= largest and 3 * width * height * len(frames) <= _RAW_A_BYTE * CLIP_BYTES:
        yield frames, FRAME_MS, None
    for side, quality in _SIDES_AND_QUALITIES:
        yield _scaled(frames, side), FRAME_MS, quality
    side, quality = _SIDES_AND_QUALITIES[-1]
    frame_ms = FRAME_MS
    while len(frames) > 1:
        frames, frame_ms = frames[::2], 2 * frame_ms
        yield _scaled(frames, side), frame_ms, quality


def animated(frames: Sequence[Image], frame_ms: int, quality: int | None = None) -> bytes:
    """Return frames of one size, each shown that long, as a WebP file that repeats for ever.

    Args:
        quality: WebP's, from 0 to 100; None for a lossless file.
    """
    file = io.BytesIO()
    how = {"lossless": True} if quality is None else {"quality": quality}
    frames[0].save(
        file, format="WEBP", save_all=True, append_images=frames[1:], duration=frame_ms, loop=0, **how
    )
    content = file.getvalue()
    return content if len(frames) == 1 or b"ANMF" in content else _held(content, frames, frame_ms)


def _held(content: bytes, frames: Sequence[Image], frame_ms: int) -> bytes:
    """Turn one picture into an animation: libwebp writes a single picture if all frames are equal.

    Container format: https://developers.google.com/speed/webp/docs/riff_container
    """

    def chunk(name: bytes, data: bytes) -> bytes:
        return name + len(data).to_bytes(4, "little") + data + bytes(len(data) % 2)

    size = b"".join((pixels - 1).to_bytes(3, "little") for pixels in frames[0].size)
    shown = (len(frames) * frame_ms).to_bytes(3, "little")
    animation = b"\x02\0\0\0"  # the flag of an animation
    body = (
        b"WEBP"
        + chunk(b"VP8X", animation + size)
        + chunk(b"ANIM", bytes(6))  # background, and repeats for ever
        + chunk(b"ANMF", bytes(6) + size + shown + b"\0" + content[12:])
    )
    return chunk(b"RIFF", body)


def read_frames(content: bytes) -> np.ndarray:
    """Return a picture file's pixels: uint8 RGB, shape (H, W, 3), or (F, H, W, 3) if it is animated.

    A frame that is shown for longer than `FRAME_MS` is repeated: libwebp merges equal frames.

    Raises:
        OSError: Pillow cannot read it.
    """
    import numpy as np
    from PIL import Image, ImageSequence

    with Image.open(io.BytesIO(content)) as opened:
        if opened.format not in _ANIMATED:
            return np.asarray(opened.convert("RGB"))
        frames, repeats = [], []
        for frame in ImageSequence.Iterator(opened):
            frames.append(np.asarray(frame.convert("RGB")))  # this loads it, and its duration
            shown = round(frame.info.get("duration", 0) / FRAME_MS)
            repeats.append(min(max(1, shown), _MOST_REPEATS))
    return np.repeat(np.stack(frames), repeats, axis=0) if sum(repeats) > 1 else frames[0]


def picture_base64(image: np.ndarray) -> str:
    """Return a file of `picture_file` as base64 text."""
    return base64.b64encode(picture_file(image)).decode()


def data_uri(content: bytes) -> str:
    """Return a file of `picture_file` as a data URI, for a page."""
    kind = "webp" if content[:4] == b"RIFF" else "png"
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _scaled(frames: Sequence[Image], side: int) -> list[Image]:
    scale = min(1.0, side / max(frames[0].size))
    width, height = (max(1, round(scale * pixels)) for pixels in frames[0].size)
    return [frame.resize((width, height)) for frame in frames]
