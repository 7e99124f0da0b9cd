"""Images of a prompt file, to edit or to learn preferences from: files, or data URIs.

Pillow is imported only when an image is read: most runs read none.
"""

from __future__ import annotations

import base64
import binascii
import io
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import PromptFileError, quoted
from storage.pictures import data_uri, picture_file
from storage.text import NOT_TEXT, is_text

if TYPE_CHECKING:
    import numpy as np

_DATA_PREFIX = "data:"
_PNG_PREFIX = "data:image/png;base64,"
_BASE64 = ";base64,"

LONGEST_DATA_URI = 65_536
"""The most characters of a data URI; it travels with every request for a sample."""

_KEPT = 1024
"""The number of images that a process keeps after reading them."""


def is_file(source: str) -> bool:
    """Return True for a source image in a file, False for a data URI."""
    return not source.startswith(_DATA_PREFIX)


def resolve_source(value: Any, folder: Path, where: str, key: str = "image") -> str:
    """Return a row's image: a data URI unchanged, a path made absolute; a list as one per line.

    Args:
        value: value of the row's key.
        folder: folder of the prompt file, which a relative path starts from.
        where: file and line, for messages.

    Raises:
        PromptFileError: the value is not text, the data URI is too long or not base64, or there is no such
            file.
    """
    if isinstance(value, list) and value and key == "image":
        return "\n".join(resolve_source(each, folder, where) for each in value)
    if not isinstance(value, str) or not value.strip() or not is_text(value) or "\n" in value:
        raise PromptFileError(
            f"{where}: `{key}` must be the path of an image or a data URI and {NOT_TEXT}, got {quoted(value)}"
        )
    if not is_file(value):
        if _BASE64 not in value[:64]:
            raise PromptFileError(
                f"{where}: `{key}` is a data URI without base64, {quoted(value)}; write it as in "
                f"{_PNG_PREFIX}..."
            )
        if len(value) > LONGEST_DATA_URI:
            raise PromptFileError(
                f"{where}: `{key}` is a data URI of {len(value):,} characters, above {LONGEST_DATA_URI:,}; "
                "write the image to a file and name its path"
            )
        return value
    path = os.path.abspath(folder / os.path.expanduser(value))
    if not os.path.isfile(path):
        raise PromptFileError(
            f"{where}: no image {quoted(path)}; correct `{key}`: a path starts at the prompt file's folder"
        )
    return path


def check_source(source: str, size: tuple[int, ...] | None) -> None:
    """Refuse a prompt whose source image the model cannot use; this reads the whole image.

    Args:
        source: source of the prompt; empty if it has none.
        size: height and width of the images that the model edits, preceded by their number if there are
            several; None if it edits none.

    Raises:
        PromptFileError: the image is missing or superfluous, cannot be read, or has another size.
    """
    if size is None:
        if source:
            raise PromptFileError(
                "the prompt has an `image`, but the model takes only text; drop the key, or choose a model "
                "that edits images (docs/reference/models.md)"
            )
        return
    *several, height, width = size
    wanted = f"{width} x {height} pixels"
    if not source:
        raise PromptFileError(
            f"the prompt has no `image`, and the model edits one; name one of {wanted} in a .jsonl file"
        )
    sources, expected = source.split("\n"), several[0] if several else 1
    if len(sources) != expected:
        raise PromptFileError(
            f"the prompt has {len(sources)} images, and the model takes {expected}; list that many in "
            "`image`, or set model.options.images if the family has it"
        )
    for each in sources:
        _refuse_other_size(each, read_source(each), (height, width), "edits")


def check_pair(pair: Sequence[str], size: tuple[int, int]) -> None:
    """Refuse a preferred and a rejected picture that a model cannot learn from; this reads both.

    Raises:
        PromptFileError: one cannot be read or is not of the height and width `size`, or both are the same.
    """
    preferred_HWC, rejected_HWC = (read_picture(one) for one in pair)
    for source, picture_HWC in zip(pair, (preferred_HWC, rejected_HWC), strict=True):
        _refuse_other_size(source, picture_HWC, size, "makes")
    if (preferred_HWC == rejected_HWC).all():
        raise PromptFileError(
            f"{named(pair[0])} is `preferred`, and `rejected` is the same picture: nothing can be learned "
            "from them; drop the row"
        )


def _refuse_other_size(source: str, image_HWC: np.ndarray, size: tuple[int, int], does: str) -> None:
    height, width = image_HWC.shape[:2]
    if (height, width) != size:
        raise PromptFileError(
            f"{named(source)} has {width} x {height} pixels, and the model {does} images of {size[1]} x "
            f"{size[0]} pixels; scale it, or set model.height and model.width where the family allows other "
            "sizes"
        )


@lru_cache(maxsize=_KEPT)
def read_source(source: str) -> np.ndarray:
    """Read a source with `read_picture` and cache it; several have shape (N, H, W, 3).

    Raises:
        PromptFileError: the file is missing, truncated, or not an image, or several differ in size.
    """
    if "\n" not in source:
        return read_picture(source)
    import numpy as np

    images = [read_source(each) for each in source.split("\n")]
    if len({image.shape for image in images}) > 1:
        raise PromptFileError("the images of a prompt differ in size; scale them to one")
    return np.stack(images)


def read_picture(source: str) -> np.ndarray:
    """Read an image: uint8 RGB, shape (H, W, 3), not writable; a PromptFileError if it is not one."""
    import numpy as np
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        if is_file(source):
            content = Path(source).read_bytes()
        else:
            content = base64.b64decode(source.partition(_BASE64)[2], validate=True)
        with Image.open(io.BytesIO(content)) as opened:
            image_HWC = np.array(ImageOps.exif_transpose(opened).convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        why = f"not base64: {error}" if isinstance(error, binascii.Error) else str(error)
        if isinstance(error, UnidentifiedImageError):  # its message names an object in memory
            why = "no known format"
        raise PromptFileError(
            f"{named(source)} cannot be read as an image ({why}); save it again as PNG or JPEG"
        ) from error
    image_HWC.setflags(write=False)
    return image_HWC


def as_data_uri(image_HWC: np.ndarray) -> str:
    """Return a uint8 RGB image of shape (H, W, 3) as the data URI of a PNG file."""
    return data_uri(picture_file(image_HWC))


def thumbnail(source: str, side: int) -> str:
    """Return a source image as a data URI, with at most `side` pixels a side; several go side by side."""
    import numpy as np
    from PIL import Image

    found = read_source(source)
    image = Image.fromarray(np.concatenate(found, axis=1) if found.ndim == 4 else found)
    image.thumbnail((side, side))
    return as_data_uri(np.asarray(image))


def named(source: str) -> str:
    """Return the name of a source image for a message."""
    return f"image {quoted(source)}" if is_file(source) else "the image of the data URI"
