"""When a learning curve reaches a score. Without torch, so that tables of kept curves are quick to make."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

SMOOTH = 3
"""Evaluations in a running mean."""


def smooth_of(values: Sequence[float]) -> list[float]:
    """Running means of three evaluations (of all, where there are fewer)."""
    width = min(SMOOTH, len(values))
    return [statistics.fmean(values[end - width : end]) for end in range(width, len(values) + 1)]


def reached_at(iterations: list[int], values: list[float], target: float) -> float | None:
    """The iteration at which the running mean reaches the target, interpolated; None if it never does."""
    smooth = smooth_of(values)
    # A running mean stands for the middle of its evaluations.
    places = smooth_of(iterations)
    above = [index for index, value in enumerate(smooth) if value >= target]
    if not above:
        return None
    first = above[0]
    if first == 0:
        return places[0]
    share = (target - smooth[first - 1]) / (smooth[first] - smooth[first - 1])
    return places[first - 1] + share * (places[first] - places[first - 1])
