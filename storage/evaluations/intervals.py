"""Means of scores with 95 % intervals; the unit is the prompt.

Images of one prompt are not independent (a hard prompt is hard for every seed), so prompts are
drawn anew and not images: a bootstrap within each tag, as the number of prompts of a tag is part of
the benchmark and no accident. The draws have a fixed seed: the same scores give the same interval.

Shape suffixes: N prompts, R resamples.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
METHOD = f"{LEVEL:.0%} bootstrap over prompts within each tag, {RESAMPLES} resamples, fixed seed"

_SEED = 20_606
_CELLS = 4_000_000
"""Most drawn indices at a time: 32 MB."""


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
    of_tag: dict[str, np.ndarray] = {}
    for tag in sorted(set(tags_N)):
        chosen = [value for value, its in zip(values_N, tags_N, strict=True) if its == tag]
        of_tag[tag] = np.array(chosen, dtype=float)
    means_R = {tag: _resampled(tag, values) for tag, values in of_tag.items()}
    by_tag = {tag: _estimate(values, means_R[tag], lowest) for tag, values in of_tag.items()}
    counts = {tag: len(values) for tag, values in of_tag.items()}
    by_prompts = {tag: count / len(values_N) for tag, count in counts.items()}
    by_tags = {tag: 1 / len(counts) for tag in counts}
    return TaggedEstimates(
        _combined(by_tag, means_R, by_prompts), _combined(by_tag, means_R, by_tags), by_tag, counts
    )


def _resampled(tag: str, values_N: np.ndarray) -> np.ndarray | None:
    """Means of N prompts drawn with replacement, R times; None where all prompts agree."""
    if np.ptp(values_N) == 0:
        return None
    count = len(values_N)
    # A stream for each tag: with one for all, tags of one size would be drawn in step.
    draw = np.random.default_rng([_SEED, zlib.crc32(tag.encode())])
    at_once = max(1, _CELLS // count)
    parts = [
        values_N[draw.integers(count, size=(min(at_once, RESAMPLES - done), count))].mean(axis=1)
        for done in range(0, RESAMPLES, at_once)
    ]
    return np.concatenate(parts)


def _estimate(values_N: np.ndarray, means_R: np.ndarray | None, lowest: float) -> Estimate:
    mean = float(values_N.mean())
    if means_R is not None:
        return _between(mean, means_R)
    # All prompts agree, so that no resample differs, which says nothing of the prompts not asked. Were the
    # share of prompts with this value below `share`, so many in a row would be seen less than once in 20.
    share = (1 - LEVEL) ** (1 / len(values_N))
    return Estimate(mean, share * mean + (1 - share) * lowest, share * mean + (1 - share))


def _combined(
    by_tag: Mapping[str, Estimate], means_R: Mapping[str, np.ndarray | None], weights: Mapping[str, float]
) -> Estimate:
    """The weighted mean of the tags; those whose prompts all agree add no spread, unless all do."""
    mean, low, high = (
        sum(weights[tag] * getattr(estimate, bound) for tag, estimate in by_tag.items())
        for bound in ("mean", "low", "high")
    )
    if all(means is None for means in means_R.values()):
        return Estimate(mean, low, high)
    drawn = np.zeros(RESAMPLES)
    for tag, means in means_R.items():
        drawn += weights[tag] * (by_tag[tag].mean if means is None else means)
    return _between(mean, drawn)


def _between(mean: float, means_R: np.ndarray) -> Estimate:
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(means_R, (outside, 1 - outside))
    return Estimate(mean, float(low), float(high))
