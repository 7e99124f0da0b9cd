"""Figures of images that no reward sees: light, edges, colours, grain, distance to the truth, diversity.

By itself no figure says if an image is good. Compared with the untrained model's image of the same prompt and
seed, they show what training has changed (`storage/evaluations/quality.py` defines what is worse).

Shape suffixes: H, W pixels, C the three channels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from gpu_runtime.embedded_tasks.protocol import RenderedPicture

_LUMA_C = np.array([0.299, 0.587, 0.114], dtype=np.float32) / 255  # weights of ITU-R BT.601

_DARK = 0.1
"""Brightness below which a pixel is dark."""

_EDGE = 0.05
"""Change of brightness per pixel above which a pixel is on an edge."""

_JPEG_QUALITY = 90

_WINDOW = 7
"""Side of the windows that SSIM compares, in pixels."""

_SSIM_C1, _SSIM_C2 = 0.01**2, 0.03**2
"""Constants of Wang et al. (2004), for values in [0, 1]."""

_SCALES = 3
"""Number of scales: full size, half, and a quarter."""


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


def truth_figures(image_HWC: np.ndarray, truth: RenderedPicture) -> dict[str, float]:
    """Return the distances of a uint8 RGB image to its correct picture, 0 for an equal image.

    Args:
        image_HWC: image of shape (H, W, 3), each side at least 8 pixels.
        truth: the correct picture, of the same shape.

    Returns:
        `truth_distance` (1 - SSIM of the brightness), `truth_gradients` (of the edges, at three scales),
        `truth_background` and `truth_drawn` (root mean squared difference of values in [0, 1], on the
        background and where something is drawn).
    """
    image_HW, truth_HW = brightness(image_HWC), brightness(truth.image_HWC)
    squared_HW = ((image_HWC.astype(np.float32) - truth.image_HWC) ** 2).mean(axis=-1) / 255**2
    return {
        "truth_distance": 1 - ssim(image_HW, truth_HW),
        "truth_gradients": gradient_distance(image_HW, truth_HW),
        "truth_background": float(np.sqrt(squared_HW[~truth.drawn_HW].mean(dtype=np.float64))),
        "truth_drawn": float(np.sqrt(squared_HW[truth.drawn_HW].mean(dtype=np.float64))),
    }


def ssim(first_HW: np.ndarray, second_HW: np.ndarray) -> float:
    """Return the structural similarity (Wang et al., 2004) of two images in [0, 1]: 1 for equal images.

    All windows of 7 x 7 pixels have equal weight, and those that cross the border are left out.

    Args:
        first_HW, second_HW: brightness of the images, of one shape, each side at least 7.
    """
    first, second = first_HW.astype(np.float64), second_HW.astype(np.float64)
    # The means of every window, by running sums.
    values_KHW = np.stack([first, second, first**2 + second**2, first * second])
    sums = np.pad(values_KHW.cumsum(axis=1).cumsum(axis=2), ((0, 0), (1, 0), (1, 0)))
    rows = sums[:, _WINDOW:] - sums[:, :-_WINDOW]
    mean, other_mean, squares, products = (rows[:, :, _WINDOW:] - rows[:, :, :-_WINDOW]) / _WINDOW**2
    of_means, product = mean**2 + other_mean**2, mean * other_mean
    similar = (2 * product + _SSIM_C1) * (2 * (products - product) + _SSIM_C2)
    return float((similar / ((of_means + _SSIM_C1) * (squares - of_means + _SSIM_C2))).mean())


def gradient_distance(first_HW: np.ndarray, second_HW: np.ndarray) -> float:
    """Return the mean absolute difference of two images' gradients, over three scales and both directions.

    Args:
        first_HW, second_HW: brightness of the images, of one shape, each side at least 8.
    """
    difference = first_HW.astype(np.float64) - second_HW  # the gradient is linear
    total = 0.0
    for _ in range(_SCALES):
        total += (np.abs(np.diff(difference, axis=0)).mean() + np.abs(np.diff(difference, axis=1)).mean()) / 2
        height, width = (side // 2 * 2 for side in difference.shape)
        blocks = difference[:height, :width].reshape(height // 2, 2, width // 2, 2)
        difference = blocks.mean(axis=(1, 3))
    return float(total) / _SCALES


def diversity_figures(latents: Sequence[np.ndarray], prompt_ids: Sequence[int]) -> list[dict[str, float]]:
    """Return the root mean squared distance per value of each image's latents to those of other images.

    A policy that has found one rewarding image returns it for every seed, or for every prompt.

    Args:
        latents: latents of each image, all of one shape.

    Returns:
        For each image `diversity_within` (to other images of its prompt) and `diversity_across` (to those of
        other prompts); a figure without other images is left out.
    """
    sums: dict[int, np.ndarray] = {}
    squares: dict[int, float] = {}
    counts: dict[int, int] = {}
    for values, prompt in zip(latents, prompt_ids, strict=True):
        flat = values.ravel().astype(np.float64)
        sums[prompt] = sums[prompt] + flat if prompt in sums else flat
        squares[prompt] = squares.get(prompt, 0.0) + float(flat @ flat)
        counts[prompt] = counts.get(prompt, 0) + 1
    if not sums:
        return []
    total, total_square = sum(sums.values(), np.zeros(())), sum(squares.values())
    found = []
    for values, prompt in zip(latents, prompt_ids, strict=True):
        flat = values.ravel().astype(np.float64)
        own, others = counts[prompt] - 1, len(latents) - counts[prompt]
        figures = {}
        if own:  # its distance to itself is 0 and adds nothing
            figures["diversity_within"] = _distance(flat, sums[prompt], squares[prompt], own + 1, own)
        if others:
            rest, rest_square = total - sums[prompt], total_square - squares[prompt]
            figures["diversity_across"] = _distance(flat, rest, rest_square, others, others)
        found.append(figures)
    return found


def _distance(flat: np.ndarray, summed: np.ndarray, squares: float, terms: int, count: int) -> float:
    """Return the root mean squared distance per value to vectors with a known sum and sum of squares.

    Args:
        flat: vector from which distances are measured.
        summed: sum of the vectors.
        squares: sum of their squared lengths.
        terms: number of vectors in the sums.
        count: number of vectors in the mean.
    """
    square = terms * float(flat @ flat) + squares - 2 * float(flat @ summed)
    return math.sqrt(max(square, 0.0) / (count * flat.size))
