"""The distance of an embedded task's image to the picture that its renderer would have drawn.

Shape suffixes: H, W pixels, C the three channels.
"""

from __future__ import annotations

import numpy as np

from gpu_runtime.embedded_tasks.protocol import RenderedPicture
from gpu_runtime.quality.image_figures import brightness

_WINDOW = 7
"""Side of the windows that SSIM compares, in pixels."""

_SSIM_C1, _SSIM_C2 = 0.01**2, 0.03**2
"""Constants of Wang et al. (2004), for values in [0, 1]."""

_SCALES = 3
"""Number of scales: full size, half, and a quarter."""


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
    mean, other_mean, squares, products = _window_means(
        np.stack([first, second, first**2 + second**2, first * second])
    )
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


def _window_means(values_KHW: np.ndarray) -> np.ndarray:
    """Return the mean of every window of K images, by running sums: (K, H - 6, W - 6)."""
    count, height, width = values_KHW.shape
    sums = np.zeros((count, height + 1, width + 1))
    np.cumsum(values_KHW.cumsum(axis=1), axis=2, out=sums[:, 1:, 1:])
    rows = sums[:, _WINDOW:] - sums[:, :-_WINDOW]
    return (rows[:, :, _WINDOW:] - rows[:, :, :-_WINDOW]) / _WINDOW**2
