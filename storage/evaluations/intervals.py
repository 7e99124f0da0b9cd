"""Means of scores with 95 % intervals; the unit is the prompt.

Images of one prompt are not independent (a hard prompt is hard for every seed), and neither are rows of a
file that repeat a prompt. Variances are those within each tag, as the number of prompts of a tag is part of
the benchmark and no accident; a tag of few prompts borrows from the variance of all.

A sample says little of values that it happens to lack: prompts that all agree would leave no interval. So
the interval is that of the sample with two prompts more, one at the least and one at the largest value that
could be (as Agresti and Coull, 1998, do for shares). It narrows steadily as prompts agree.

Shape suffix: N prompts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95
METHOD = f"{LEVEL:.0%} t interval over prompts within each tag, with one prompt more at either bound"


@dataclass(frozen=True)
class Estimate:
    """A mean and the bounds of its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class TaggedEstimates:
    """Means of a set of prompts.

    Attributes:
        overall: each prompt weighs the same.
        over_tags: each tag weighs the same, as in GenEval's own overall score.
        by_tag: of each tag, in the order of their names.
        prompts: how many each tag has.
    """

    overall: Estimate
    over_tags: Estimate
    by_tag: dict[str, Estimate]
    prompts: dict[str, int]


def tagged_estimates(
    values_N: Sequence[float], tags_N: Sequence[str], lowest: float = 0.0
) -> TaggedEstimates:
    """Means and intervals of values between `lowest` and 1, one a prompt.

    Args:
        values_N: the mean over a prompt's images, each.
        tags_N: the prompt's tag, each; may be empty text.
        lowest: least value that could be: 0 of scores, -1 of differences of scores.

    Raises:
        ValueError: if there are no values, or not as many tags.
    """
    if not values_N or len(values_N) != len(tags_N):
        raise ValueError(f"{len(values_N)} values and {len(tags_N)} tags; give one of each a prompt")
    of_tag = {
        tag: np.array([value for value, its in zip(values_N, tags_N, strict=True) if its == tag], dtype=float)
        for tag in sorted(set(tags_N))
    }
    counts = {tag: len(values) for tag, values in of_tag.items()}
    return TaggedEstimates(
        _weighted(of_tag, {tag: count / len(values_N) for tag, count in counts.items()}, lowest),
        _weighted(of_tag, {tag: 1 / len(counts) for tag in counts}, lowest),
        {tag: _weighted({tag: values}, {tag: 1.0}, lowest) for tag, values in of_tag.items()},
        counts,
    )


def _weighted(of_tag: Mapping[str, np.ndarray], weights: Mapping[str, float], lowest: float) -> Estimate:
    """The weighted mean of the tags; each prompt's variance is that within its tag."""
    tags = [(values_N, len(values_N), weights[tag]) for tag, values_N in of_tag.items()]
    # Prompts of equal weight that would be as many (Kish).
    size = 1 / sum(weight**2 / count for _, count, weight in tags)
    mean = sum(weight * float(values_N.mean()) for values_N, _, weight in tags)
    together = sum(weight * float(np.square(values_N - mean).mean()) for values_N, _, weight in tags)
    together *= size / (size - 1) if size > 1 else 0.0
    # As if a tag had one prompt more, with the variance of all: a single prompt has none to show.
    within = [float(np.square(values_N - values_N.mean()).sum()) + together for values_N, _, _ in tags]
    variance = sum(
        weight**2 * squares / count**2 for (_, count, weight), squares in zip(tags, within, strict=True)
    )
    return _interval(mean, variance * size, size, lowest)


def _interval(mean: float, variance: float, size: float, lowest: float) -> Estimate:
    """The interval of a mean of `size` values, with one value more at either bound."""
    total = size + 2
    centre = (size * mean + lowest + 1) / total
    squares = size * (variance + (mean - centre) ** 2) + (lowest - centre) ** 2 + (1 - centre) ** 2
    half = float(stdtrit(total - 1, (1 + LEVEL) / 2)) * math.sqrt(squares) / total
    return Estimate(mean, max(lowest, min(mean, centre - half)), min(1.0, max(mean, centre + half)))
