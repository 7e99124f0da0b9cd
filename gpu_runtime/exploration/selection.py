"""Which G of N scored candidates carry the most gradient: exactly, in O(n log n).

Two criteria:

`variance`: the group with the largest variance. PODS (arXiv 2504.13818) shows that it is a prefix and a
suffix of the sorted scores, so G + 1 splits have to be compared; running sums make each of them O(1).

`deviation`: the group farthest from the mean of *all* candidates, for advantages that are measured from
that mean. If a sample's expected gradient is proportional to its reward's distance from the prompt's
mean reward, and its noise the same for all, then a group's squared signal over its noise is the sum of
the squared distances. Of rare successes this takes all there are, where `variance` takes half a group
and as many of the failures, which are common and tell next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

_TIE = 1e-12
"""Variances closer than this are the same number, rounded differently."""


Criterion = Literal["variance", "deviation"]


@dataclass(frozen=True)
class Selection:
    """A subset of candidates.

    Attributes:
        indices: places in the list that was given, ascending.
        spread: mean squared distance of their scores from their own mean (`variance`), or from the mean
            of all candidates (`deviation`).
    """

    indices: tuple[int, ...]
    spread: float


def select(scores: Sequence[float] | np.ndarray, size: int, criterion: Criterion) -> Selection:
    """The `size` best candidates by a criterion; errors as in `max_variance_subset`.

    Args:
        scores: of the candidates.
        size: how many are chosen.
        criterion: what makes a group good.
    """
    if criterion == "variance":
        return max_variance_subset(scores, size)
    return max_deviation_subset(scores, size)


def max_spread(scores_RN: np.ndarray, size: int, criterion: Criterion) -> np.ndarray:
    """The largest spread of `size` scores of each row; shape (R,).

    Args:
        scores_RN: R rows of N scores, shape (R, N).
        size: how many of a row are chosen.
        criterion: what makes a group good.
    """
    if criterion == "variance":
        return max_variance(np.sort(scores_RN, axis=1), size)
    squared = (scores_RN - scores_RN.mean(axis=1, keepdims=True)) ** 2
    return np.partition(squared, squared.shape[1] - size, axis=1)[:, -size:].mean(axis=1)


def random_spread(scores: Sequence[float] | np.ndarray, size: int, criterion: Criterion) -> float:
    """The spread to expect of `size` of these scores picked at random; errors as in `select`.

    Args:
        scores: of the candidates.
        size: how many are picked.
        criterion: what is measured.
    """
    values = _checked(scores, size)
    if criterion == "deviation":
        return float(values.var())
    # The mean of a small group lies among its own scores.
    return float(values.var(ddof=1)) * (size - 1) / size if size > 1 else 0.0


def group_spread(group: Sequence[float], pool_mean: float | None, criterion: Criterion) -> float:
    """The spread of a group that was not chosen here.

    Args:
        group: its scores.
        pool_mean: of all candidates' scores; None where there were none: then of the group's own.
        criterion: what is measured.
    """
    values = np.asarray(group, dtype=np.float64)
    centre = values.mean() if criterion == "variance" or pool_mean is None else pool_mean
    return float(((values - centre) ** 2).mean())


def max_deviation_subset(scores: Sequence[float] | np.ndarray, size: int) -> Selection:
    """The `size` candidates farthest from the mean of all; of equally far ones the first.

    Args:
        scores: N finite scores.
        size: G, from 1 to N.

    Raises:
        ValueError: if a score is not finite or there are fewer candidates than `size`.
    """
    values = _checked(scores, size)
    # Rounding keeps candidates of equal distance on both sides of the mean equal.
    squared = ((values - values.mean()) ** 2).round(12)
    chosen = np.argsort(-squared, kind="stable")[:size]
    return Selection(tuple(sorted(int(index) for index in chosen)), float(squared[chosen].mean()))


def max_variance_subset(scores: Sequence[float] | np.ndarray, size: int) -> Selection:
    """The `size` candidates whose scores have the largest population variance.

    Of equal scores the first candidates are taken, and of equally good splits the one with the most
    high scores: what is rare is worth more than what is common. So the answer depends on nothing but
    the order of `scores`.

    Args:
        scores: N finite scores.
        size: G, from 1 to N.

    Raises:
        ValueError: if a score is not finite or there are fewer candidates than `size`.
    """
    values = _checked(scores, size)
    low = np.argsort(values, kind="stable")
    # The suffix takes the first of equal scores too.
    high = np.argsort(-values, kind="stable")
    # Shifting the origin keeps the sums' rounding small; the variance does not change.
    variances = split_variances(np.sort(values - values.mean())[None, :], size)[0]
    prefix = int(np.flatnonzero(variances >= variances.max() - _TIE)[0])
    chosen = [int(index) for index in high[: size - prefix]]
    taken = set(chosen)
    chosen += [int(index) for index in low if index not in taken][:prefix]
    return Selection(tuple(sorted(chosen)), float(max(variances[prefix], 0.0)))


def split_variances(sorted_RN: np.ndarray, size: int) -> np.ndarray:
    """Variance of every prefix-and-suffix subset of each row.

    Args:
        sorted_RN: rows of ascending scores.
        size: G of N.

    Returns:
        (R, G + 1): entry k takes the k lowest and the G - k highest scores.
    """
    rows, count = sorted_RN.shape
    sums = np.zeros((2, rows, count + 1))
    np.cumsum(sorted_RN, axis=1, out=sums[0, :, 1:])
    np.cumsum(sorted_RN**2, axis=1, out=sums[1, :, 1:])
    prefix = np.arange(size + 1)
    total = sums[:, :, prefix] + sums[:, :, -1:] - sums[:, :, count - size + prefix]
    mean, mean_square = total / size
    return mean_square - mean**2


def max_variance(sorted_RN: np.ndarray, size: int) -> np.ndarray:
    """The largest variance of `size` scores of each ascending row; shape (R,)."""
    return np.maximum(split_variances(sorted_RN, size).max(axis=1), 0.0)


def _checked(scores: Sequence[float] | np.ndarray, size: int) -> np.ndarray:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not 1 <= size <= len(values):
        raise ValueError(f"{size} of {values.size} candidates are asked for; draft at least {size} seeds")
    if not np.isfinite(values).all():
        raise ValueError("a candidate's score is not finite; leave out candidates without a judgement")
    return values
