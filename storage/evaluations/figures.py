"""What judged images come to, by tag and overall."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from storage.evaluations.intervals import METHOD, Estimate, TaggedEstimates, tagged_estimates
from storage.evaluations.quality import mean_figures
from storage.evaluations.separate import JudgedImage

PromptValues = list[tuple[str, float, float]]
"""Of each prompt: its tag, its mean score, its share of exact images."""


def figures_of(images: Sequence[JudgedImage]) -> dict[str, Any]:
    """The figures of an evaluation, as JSON values; over the images that were judged.

    Returns:
        `prompts`, `score`, `score_interval`, `exact`, `exact_interval`, `scorer_errors`, `interval` (the
        method); where prompts have tags, `by_tag` with the same of each, and `over_tags`, in which each
        tag weighs the same; `quality`, where it was measured: the means of all images.
    """
    by_prompt: defaultdict[tuple[str, str], list[JudgedImage]] = defaultdict(list)
    for image in images:
        if image.error is None:
            by_prompt[image.unit].append(image)
    values = [
        (
            tag,
            statistics.fmean(image.score for image in of_prompt),
            statistics.fmean(image.exact for image in of_prompt),
        )
        for (tag, _), of_prompt in by_prompt.items()
    ]
    errors = sum(image.error is not None for image in images)
    quality = mean_figures(image.figures for image in images)
    found = tagged_figures(values, lowest=0.0) | {"scorer_errors": errors}
    return found | ({"quality": quality} if quality else {})


def tagged_figures(values: PromptValues, lowest: float) -> dict[str, Any]:
    """Figures of values between `lowest` and 1, one a prompt: as `figures_of`, but for `scorer_errors`."""
    tags = [tag for tag, _, _ in values]
    score = tagged_estimates([value for _, value, _ in values], tags, lowest)
    exact = tagged_estimates([value for _, _, value in values], tags, lowest)
    found: dict[str, Any] = {"prompts": len(values), "interval": METHOD} | _both(score.overall, exact.overall)
    if any(tags):
        found["over_tags"] = _both(score.over_tags, exact.over_tags)
        found["by_tag"] = _by_tag(score, exact)
    return found


def _by_tag(score: TaggedEstimates, exact: TaggedEstimates) -> dict[str, dict[str, Any]]:
    return {
        tag: {"prompts": count} | _both(score.by_tag[tag], exact.by_tag[tag])
        for tag, count in score.prompts.items()
    }


def _both(score: Estimate, exact: Estimate) -> dict[str, Any]:
    return {
        "score": score.mean,
        "score_interval": [score.low, score.high],
        "exact": exact.mean,
        "exact_interval": [exact.low, exact.high],
    }
