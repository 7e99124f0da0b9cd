"""Colours as people with a colour vision deficiency see them, and how far apart two of them are.

The simulation is that of Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of
Color Vision Deficiency" (IEEE Transactions on Visualization and Computer Graphics 15(6), 2009), with its
matrices of severity 1.0 applied to linear RGB. Distances are CIE 1976 (Euclidean in CIE Lab, white D65);
contrast is that of WCAG 2, (L1 + 0.05) / (L2 + 0.05).
"""

from __future__ import annotations

import numpy as np

VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
_XYZ_OF_RGB = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_LAB_LINEAR_BELOW = (6 / 29) ** 3


def distance(one: str, other: str, vision: str = "normal") -> float:
    """The CIE Lab distance of two colours.

    Args:
        one: `#rrggbb`.
        other: `#rrggbb`.
        vision: a key of `VISIONS`.
    """
    return float(np.linalg.norm(_lab(one, vision) - _lab(other, vision)))


def least_distance(one: str, other: str) -> float:
    """The smallest distance of two colours over all visions."""
    return min(distance(one, other, vision) for vision in VISIONS)


def contrast(one: str, other: str) -> float:
    """The luminance contrast of two colours; 1 where they are equally bright, 21 between black and white."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    """The relative luminance of `#rrggbb`, 0 to 1."""
    return float(_linear(colour) @ _XYZ_OF_RGB[1])


def _linear(colour: str) -> np.ndarray:
    """Linear RGB of `#rrggbb`, shape (3,)."""
    stored = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(stored <= 0.04045, stored / 12.92, ((stored + 0.055) / 1.055) ** 2.4)


def _lab(colour: str, vision: str) -> np.ndarray:
    """CIE Lab of a colour as it is seen, shape (3,)."""
    seen = np.clip(VISIONS[vision] @ _linear(colour), 0.0, 1.0)
    white = _XYZ_OF_RGB.sum(axis=1)
    part = (_XYZ_OF_RGB @ seen) / white
    x, y, z = np.where(part > _LAB_LINEAR_BELOW, np.cbrt(part), part / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])
