"""Figures of one image that no reward sees: light, edges, colours, grain, size of its file.

None of them says by itself whether an image is good. Compared with the untouched model's image of the same
prompt and seed they show what training has done to it (`storage/evaluations/quality.py` says what is worse).

Shape suffixes: H, W pixels, C the three channels.
"""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

_LUMA_C = np.array([0.299, 0.587, 0.114], dtype=np.float32) / 255  # of ITU-R BT.601

_DARK = 0.1
"""Brightness below which a pixel is dark."""

_EDGE = 0.05
"""Change of brightness over a pixel from which there is an edge."""

_JPEG_QUALITY = 90


def image_figures(image_HWC: np.ndarray) -> dict[str, float]:
    """Figures of a uint8 RGB image of shape (H, W, 3), each side at least 3 pixels.

    Returns:
        `brightness` (mean, 0 to 1), `dark` (share of dark pixels), `contrast` (deviation of the brightness),
        `edges` (share of the pixels on an edge), `colours` (entropy of the colours, in bits: 0 to 9),
        `grain` (deviation of the noise, in brightness), `file_bits` (of a JPEG file, for each pixel).
    """
    luma_HW = brightness(image_HWC)
    slope_HW = slopes(luma_HW)
    return {
        "brightness": float(luma_HW.mean(dtype=np.float64)),
        "dark": float((luma_HW < _DARK).mean()),
        "contrast": float(luma_HW.std(dtype=np.float64)),
        "edges": float((slope_HW > _EDGE).mean()),
        "colours": colour_entropy(image_HWC),
        "grain": grain(luma_HW, slope_HW),
        "file_bits": file_bits(image_HWC),
    }


def brightness(image_HWC: np.ndarray) -> np.ndarray:
    """Brightness of each pixel in [0, 1]: float32, shape (H, W)."""
    return image_HWC.astype(np.float32) @ _LUMA_C


def slopes(luma_HW: np.ndarray) -> np.ndarray:
    """Change of the brightness over a pixel, by central differences; of the inner pixels: (H - 2, W - 2)."""
    down = luma_HW[2:, 1:-1] - luma_HW[:-2, 1:-1]
    right = luma_HW[1:-1, 2:] - luma_HW[1:-1, :-2]
    return np.hypot(down, right) / 2


def colour_entropy(image_HWC: np.ndarray) -> float:
    """Entropy of an image's colours in bits, each channel in 8 levels: 0 of one colour, 9 at most."""
    levels_HWC = (image_HWC >> 5).astype(np.intp)
    colours = (levels_HWC[..., 0] << 6) | (levels_HWC[..., 1] << 3) | levels_HWC[..., 2]
    counts = np.bincount(colours.ravel(), minlength=512)
    shares = counts[counts > 0] / colours.size
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # no -0.0


def grain(luma_HW: np.ndarray, slope_HW: np.ndarray) -> float:
    """Deviation of an image's noise, estimated from the flatter half of its pixels.

    Immerkaer's estimate (Fast noise variance estimation, 1996) takes the mean magnitude of a second
    difference in both directions, whose deviation is 6 times that of independent noise. Edges have one
    too, so the steep half of the pixels is left out, much as Tai and Yang do (2008). The slope of
    independent normal noise does not depend on its second difference, so the choice adds no bias.

    Args:
        luma_HW: brightness.
        slope_HW: as `slopes` gives it.
    """
    across = luma_HW[:, :-2] - 2 * luma_HW[:, 1:-1] + luma_HW[:, 2:]
    second_HW = np.abs(across[:-2] - 2 * across[1:-1] + across[2:])
    flat = slope_HW <= np.median(slope_HW)
    return float(second_HW[flat].mean(dtype=np.float64)) * math.sqrt(math.pi / 2) / 6


def file_bits(image_HWC: np.ndarray) -> float:
    """Bits for each pixel of the image as a JPEG file: how much there is in it, grain included."""
    file = io.BytesIO()
    Image.fromarray(image_HWC).save(file, format="JPEG", quality=_JPEG_QUALITY)
    return 8 * file.tell() / (image_HWC.shape[0] * image_HWC.shape[1])
