"""The G of N scored candidates that carry the most gradient: the group of largest variance, exactly.

PODS (arXiv 2504.13818) shows that it is a prefix and a suffix of the sorted scores, so only G + 1 splits
must be compared; running sums make each O(1), and the whole selection O(n log n).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_TIE = 1e-12
"""Difference below which two variances are equal except for rounding."""


@dataclass(frozen=True)
class Selection:
    """A subset of candidates.

    Attributes:
        indices: indices in the given list, ascending.
        spread: variance of their scores.
    """

    indices: tuple[int, ...]
    spread: float


def random_spread(scores: Sequence[float] | np.ndarray, size: int) -> float:
    """Return the expected variance of `size` random scores; errors as in `max_variance_subset`."""
    values = _checked(scores, size)
    # The mean of a small group lies among its own scores.
    return float(values.var(ddof=1)) * (size - 1) / size if size > 1 else 0.0


def max_variance_subset(scores: Sequence[float] | np.ndarray, size: int) -> Selection:
    """Return the `size` candidates whose scores have the largest population variance.

    Ties go to the first candidates, and among equally good splits to the one with the most high scores,
    because rare successes are worth more than common failures. So the result depends only on the order
    of `scores`.

    Args:
        scores: N finite scores.
        size: G, from 1 to N.

    Raises:
        ValueError: if a score is not finite or there are fewer candidates than `size`.
    """
    values = _checked(scores, size)
    low = np.argsort(values, kind="stable")
    # The suffix also takes the first of equal scores.
    high = np.argsort(-values, kind="stable")
    # Shifting the origin keeps the sums' rounding small; the variance does not change.
    sorted_N = np.sort(values - values.mean())
    sums = np.zeros((2, len(sorted_N) + 1))
    np.cumsum([sorted_N, sorted_N**2], axis=1, out=sums[:, 1:])
    # Every split: the k lowest and the G - k highest scores.
    lowest = np.arange(size + 1)
    mean, mean_square = (sums[:, lowest] + sums[:, -1:] - sums[:, len(sorted_N) - size + lowest]) / size
    variances = mean_square - mean**2
    prefix = int(np.flatnonzero(variances >= variances.max() - _TIE)[0])
    chosen = [int(index) for index in high[: size - prefix]]
    taken = set(chosen)
    chosen += [int(index) for index in low if index not in taken][:prefix]
    return Selection(tuple(sorted(chosen)), float(max(variances[prefix], 0.0)))


def _checked(scores: Sequence[float] | np.ndarray, size: int) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not 1 <= size <= len(values):
        raise ValueError(f"cannot choose {size} of {values.size} candidates; draft at least {size} seeds")
    if not np.isfinite(values).all():
        raise ValueError("a candidate's score is not finite; omit candidates without a score")
    return values
