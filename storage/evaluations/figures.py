"""Figures of judged images, by tag and overall: means with 95 % intervals; the unit is the prompt.

Images of one prompt are not independent (a hard prompt is hard for every seed), and neither are rows of a
file that repeat a prompt. Variances are within tags, since the number of prompts per tag is part of the
benchmark, not random; a tag with few prompts borrows from the variance of all.

A sample says little about values that it happens to lack: if all prompts agreed, the interval would be empty.
So it is computed with two more prompts, one at the smallest and one at the largest possible value (as Agresti
and Coull, 1998, do for shares). It narrows steadily as prompts agree.

Shape suffix: N prompts.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import stdtrit

from storage.evaluations.quality import mean_figures
from storage.record.records import JudgedImage

LEVEL = 0.95
METHOD = f"{LEVEL:.0%} t interval over prompts within each tag, with an extra prompt at either bound"

ImageValues = Mapping[tuple[str, str], Sequence[tuple[float, float]]]
"""Score and exactness of each image, by its prompt's tag and text."""


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
        over_tags: mean in which each tag weighs the same, as in GenEval's overall score.
        by_tag, prompts: mean, and number of prompts, of each tag, in the order of their names.
    """

    overall: Estimate
    over_tags: Estimate
    by_tag: dict[str, Estimate]
    prompts: dict[str, int]


def figures_of(images: Sequence[JudgedImage]) -> dict[str, Any]:
    """Return the figures of an evaluation's judged images, as JSON values.

    `prompts`, `score`, `exact` with their intervals, `scorer_errors`, `interval` (the method); if prompts
    have tags, `by_tag` with the same for each, and `over_tags`, in which each tag weighs the same; `quality`,
    if it was measured: the means of all images.
    """
    by_prompt: defaultdict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for image in images:
        if image.error is None:
            by_prompt[image.unit].append((image.score, image.exact))
    errors = sum(image.error is not None for image in images)
    quality = mean_figures(image.figures for image in images)
    found = tagged_figures(by_prompt, lowest=0.0) | {"scorer_errors": errors}
    return found | ({"quality": quality} if quality else {})


def graded(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures without those of exact images, for a reward that gives no verdict."""
    kept = {name: value for name, value in figures.items() if name not in ("exact", "exact_interval")}
    if "over_tags" in kept:
        kept["over_tags"] = graded(kept["over_tags"])
        kept["by_tag"] = {tag: graded(values) for tag, values in kept["by_tag"].items()}
    return kept


def by_tag_and_overall(figures: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the rows of a table of figures by their headings: those of each tag, then the overall ones."""
    rows: dict[str, Mapping[str, Any]] = dict(figures.get("by_tag", {}))
    if "over_tags" in figures:
        rows["mean of the tags"] = figures["over_tags"] | {"prompts": figures["prompts"]}
    return rows | {"all prompts": figures}


def tagged_figures(values: ImageValues, lowest: float) -> dict[str, Any]:
    """Return `figures_of`, without `scorer_errors`, for values between `lowest` and 1."""
    tags = [tag for tag, _ in values]
    score, exact = (
        tagged_estimates([statistics.fmean(v[place] for v in each) for each in values.values()], tags, lowest)
        for place in (0, 1)
    )
    found: dict[str, Any] = {"prompts": len(values), "interval": METHOD} | _both(score.overall, exact.overall)
    if any(tags):
        found["over_tags"] = _both(score.over_tags, exact.over_tags)
        found["by_tag"] = {
            tag: {"prompts": count} | _both(score.by_tag[tag], exact.by_tag[tag])
            for tag, count in score.prompts.items()
        }
    return found


def _both(score: Estimate, exact: Estimate) -> dict[str, Any]:
    return {
        "score": score.mean,
        "score_interval": [score.low, score.high],
        "exact": exact.mean,
        "exact_interval": [exact.low, exact.high],
    }


def tagged_estimates(
    values_N: Sequence[float], tags_N: Sequence[str], lowest: float = 0.0
) -> TaggedEstimates:
    """Return means and intervals of values between `lowest` and 1, one per prompt.

    Args:
        values_N: mean over each prompt's images.
        tags_N: tag of each prompt; may be empty.
        lowest: smallest possible value: 0 for scores, -1 for differences of scores.

    Raises:
        ValueError: there are no values, or their number differs from that of the tags.
    """
    if not values_N or len(values_N) != len(tags_N):
        raise ValueError(f"{len(values_N)} values and {len(tags_N)} tags; give one of each per prompt")
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
    """Return the weighted mean of the tags; each prompt's variance is that within its tag."""
    tags = [(values_N, len(values_N), weights[tag]) for tag, values_N in of_tag.items()]
    # The equivalent number of prompts of equal weight (Kish).
    size = 1 / sum(weight**2 / count for _, count, weight in tags)
    mean = sum(weight * float(values_N.mean()) for values_N, _, weight in tags)
    together = sum(weight * float(np.square(values_N - mean).mean()) for values_N, _, weight in tags)
    together *= size / (size - 1) if size > 1 else 0.0
    # As if a tag had one more prompt, with the variance of all: a single prompt shows no variance.
    within = [float(np.square(values_N - values_N.mean()).sum()) + together for values_N, _, _ in tags]
    variance = sum(
        weight**2 * squares / count**2 for (_, count, weight), squares in zip(tags, within, strict=True)
    )
    return _interval(mean, variance * size, size, lowest)


def _interval(mean: float, variance: float, size: float, lowest: float) -> Estimate:
    """Return the interval of a mean of `size` values, with one more value at either bound."""
    total = size + 2
    centre = (size * mean + lowest + 1) / total
    squares = size * (variance + (mean - centre) ** 2) + (lowest - centre) ** 2 + (1 - centre) ** 2
    half = float(stdtrit(total - 1, (1 + LEVEL) / 2)) * math.sqrt(squares) / total
    return Estimate(mean, max(lowest, min(mean, centre - half)), min(1.0, max(mean, centre + half)))


def over_seeds(values: Sequence[float], lowest: float = 0.0) -> Estimate:
    """Return the mean of a figure of at least two independent runs, and Student's interval in [lowest, 1]."""
    mean, count = statistics.fmean(values), len(values)
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2)) * statistics.stdev(values) / math.sqrt(count)
    return Estimate(mean, max(lowest, mean - half), min(1.0, mean + half))
