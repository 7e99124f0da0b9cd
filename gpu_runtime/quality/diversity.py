"""Diversity of the images of an evaluation, within a prompt and across prompts.

A policy that has found one rewarding image returns it for every seed, or for every prompt.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def diversity_figures(latents: Sequence[np.ndarray], prompt_ids: Sequence[int]) -> list[dict[str, float]]:
    """Return the root mean squared distance per value of each image's latents to those of other images.

    Args:
        latents: latents of each image, all of one shape.
        prompt_ids: prompt of each image.

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
