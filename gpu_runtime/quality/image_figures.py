"""Figures of one image that no reward sees: light, edges, colours, grain, file size.

By itself no figure says if an image is good. Compared with the untrained model's image of the same prompt and
seed, they show what training has changed (`storage/evaluations/quality.py` defines what is worse).

Shape suffixes: H, W pixels, C the three channels.
"""

from __future__ import annotations

import io
import math

import numpy as np
from PIL import Image

_LUMA_C = np.array([0.299, 0.587, 0.114], dtype=np.float32) / 255  # weights of ITU-R BT.601

_DARK = 0.1
"""Brightness below which a pixel is dark."""

_EDGE = 0.05
"""Change of brightness per pixel above which a pixel is on an edge."""

_JPEG_QUALITY = 90


def image_figures(image_HWC: np.ndarray) -> dict[str, float]:
    """Return the figures of a uint8 RGB image of shape (H, W, 3), each side at least 3 pixels.

    Returns:
        `brightness` (mean, 0 to 1), `dark` (share of dark pixels), `contrast` (deviation of the brightness),
        `edges` (share of the pixels on an edge), `colours` (entropy of the colours, in bits: 0 to 9),
        `grain` (deviation of the noise, in brightness), `file_bits` (bits per pixel of a JPEG file).
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
    """Return the brightness of each pixel in [0, 1]: float32, shape (H, W)."""
    return image_HWC.astype(np.float32) @ _LUMA_C


def slopes(luma_HW: np.ndarray) -> np.ndarray:
    """Return the change of brightness per pixel, by central differences of inner pixels: (H - 2, W - 2)."""
    down = luma_HW[2:, 1:-1] - luma_HW[:-2, 1:-1]
    right = luma_HW[1:-1, 2:] - luma_HW[1:-1, :-2]
    return np.hypot(down, right) / 2


def colour_entropy(image_HWC: np.ndarray) -> float:
    """Return the entropy of an image's colours in bits, at 8 levels per channel: 0 (one colour) to 9."""
    levels_HWC = (image_HWC >> 5).astype(np.intp)
    colours = (levels_HWC[..., 0] << 6) | (levels_HWC[..., 1] << 3) | levels_HWC[..., 2]
    counts = np.bincount(colours.ravel(), minlength=512)
    shares = counts[counts > 0] / colours.size
    return float(-(shares * np.log2(shares)).sum()) + 0.0  # no -0.0


def grain(luma_HW: np.ndarray, slope_HW: np.ndarray) -> float:
    """Return the deviation of an image's noise, estimated from the flatter half of its pixels.

    Immerkaer's estimate (Fast noise variance estimation, 1996) takes the mean magnitude of a second
    difference in both directions, whose deviation is 6 times that of independent noise. Edges add to it,
    so the steeper half of the pixels is left out, much as Tai and Yang do (2008). The slope of independent
    normal noise is independent of its second difference, so this selection adds no bias.

    Args:
        luma_HW: brightness of each pixel.
        slope_HW: result of `slopes`.
    """
    across = luma_HW[:, :-2] - 2 * luma_HW[:, 1:-1] + luma_HW[:, 2:]
    second_HW = np.abs(across[:-2] - 2 * across[1:-1] + across[2:])
    flat = slope_HW <= np.median(slope_HW)
    return float(second_HW[flat].mean(dtype=np.float64)) * math.sqrt(math.pi / 2) / 6


def file_bits(image_HWC: np.ndarray) -> float:
    """Return the bits per pixel of the image as a JPEG file: a measure of its detail, grain included."""
    file = io.BytesIO()
    Image.fromarray(image_HWC).save(file, format="JPEG", quality=_JPEG_QUALITY)
    return 8 * file.tell() / (image_HWC.shape[0] * image_HWC.shape[1])
